"""Teachers: where labels come from before a critic exists. An endpoint, or gold annotations; one protocol."""
