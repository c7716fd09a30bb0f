"""How good a critic is: figures per group with intervals, baselines, and the paper's figures beside them."""
