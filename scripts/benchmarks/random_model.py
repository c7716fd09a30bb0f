"""Write a checkpoint with random weights and the demo's tokenizer: `random_model.py 7b FOLDER`.

A model of this kind costs what a trained one of its shape costs. What it writes means nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from scripts.command import command
from selfrag.common.atomic import new_directory
from selfrag.loading import load_training_tokenizer, resolve_model

SHAPES = {
    # Llama-2 7B
    "7b": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
    },
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
    },
}


@command
def main(shape: Literal["7b", "tiny"], folder: Path) -> None:
    """Write the checkpoint, made on a GPU where there is one.

    Args:
        shape: of Llama-2 7B, or of two small layers.
        folder: that gets it.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load_training_tokenizer(resolve_model("demo"))
    dtype = torch.bfloat16 if shape == "7b" else torch.float32
    config = LlamaConfig(
        **SHAPES[shape],
        vocab_size=len(tokenizer),
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype=str(dtype).removeprefix("torch."),
    )
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    with new_directory(folder) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


if __name__ == "__main__":
    main()
