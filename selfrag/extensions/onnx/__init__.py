"""An engine for CPUs without torch: Llama-like checkpoints under ONNX Runtime."""
