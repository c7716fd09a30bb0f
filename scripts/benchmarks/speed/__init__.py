"""Ways to answer and to train against the clock: ours, the published ones, and the plain ones."""
