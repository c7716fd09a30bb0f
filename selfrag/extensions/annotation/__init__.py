"""Human evaluation of finished runs: people judge answers in Label Studio, and their agreement is computed.

Registers `selfrag eval annotate`, in the group `selfrag.eval`. Page: `docs/guides/reports.md`.
"""
