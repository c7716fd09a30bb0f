"""Training the generator: rows to labelled ids, an expanded vocabulary, LoRA or full fine-tuning, and export."""
