"""Evaluation of the intrinsics on held-out rows: your own model beside baselines and the paper's figures."""
