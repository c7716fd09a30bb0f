"""Training LoRA adapters of intrinsics for any base model, with the codec that inference uses."""
