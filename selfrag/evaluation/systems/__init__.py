"""Systems that are compared: prompts and sans-IO decoders of baselines, and ours as policies. Loads no engine."""
