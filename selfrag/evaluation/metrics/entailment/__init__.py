"""Who decides whether a text follows from another: NLI models, prompted judges, intrinsics, critics."""
