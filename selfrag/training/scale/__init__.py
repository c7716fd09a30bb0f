"""The same training through transformers' Trainer and accelerate: one GPU, many processes, FSDP, DeepSpeed ZeRO-3."""
