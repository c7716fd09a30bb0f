"""Human evaluation of finished runs: `selfrag eval annotate`."""
