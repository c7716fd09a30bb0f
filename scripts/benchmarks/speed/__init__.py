"""The decoding benchmark: our decoder against the official loop, its own ablations, the engine's floor, and growth."""
