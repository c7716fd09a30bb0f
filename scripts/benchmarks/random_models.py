"""Models with random weights in the shape of real ones, and a tokenizer for them, made without a network.

A model of this kind costs what a trained one of its shape costs. What it writes means nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.benchmarks.speed.workload import Item
from selfrag.common.atomic import new_directory
from selfrag.common.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.training.expansion import add_tokens


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Llama."""

    name: str
    layers: int
    hidden: int
    inner: int  # width of the feed-forward layers
    heads: int
    key_heads: int
    vocabulary: int
    context: int = 4096
    tied: bool = False  # input and output rows are one matrix

    @property
    def parameters(self) -> int:
        """Weights of the model, without the vectors of its norms."""
        head = self.hidden // self.heads
        attention = (
            2 * self.hidden * self.hidden + 2 * self.hidden * head * self.key_heads
        )
        matrices = 1 if self.tied else 2
        layer = attention + 3 * self.hidden * self.inner
        return self.layers * layer + matrices * self.vocabulary * self.hidden


LLAMA_7B = ModelShape("Llama-2 7B", 32, 4096, 11008, 32, 32, 32016)
TINY_7B = ModelShape("Llama-2 7B, made tiny", 2, 128, 192, 4, 4, 4400)
TINY_DEMO = ModelShape("demo, made tiny", 2, 96, 128, 3, 1, 4300, tied=True)

TOKENIZER_SIZE = 4000
"""Most tokens of the tokenizer: it learns from few texts, and more would make its pieces longer than Llama 2's."""


def make_tokenizer(items: Sequence[Item]) -> Any:
    """Return a byte-level BPE tokenizer that is trained on the texts of the items, without reflection tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=list(special.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(items), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, clean_up_tokenization_spaces=False, **special
    )


def _texts(items: Iterable[Item]) -> Iterable[str]:
    for item in items:
        yield item.question
        for passage in item.passages:
            yield f"{passage.title}\n{passage.text}"


def prompting_for(tokenizer: Any) -> Prompting:
    """Return the layout of prompts for a tokenizer, which gets the reflection tokens."""
    add_tokens(tokenizer)
    return Prompting.from_tokenizer(tokenizer)


def make_model(
    shape: ModelShape, tokenizer: Any, device: str, dtype: torch.dtype
) -> Any:
    """Return a causal language model with random weights, made on its device.

    It never chooses a special token or an id that the tokenizer lacks: their output rows are zero, and among so many
    random logits the highest is above zero.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype=str(dtype).removeprefix("torch."),
    )
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(usual)
    if not shape.tied:
        with torch.no_grad():
            rows = model.get_output_embeddings().weight
            rows[len(tokenizer) :] = 0
            rows[_special_ids(tokenizer)] = 0
    return model.eval().requires_grad_(requires_grad=False)


def _special_ids(tokenizer: Any) -> list[int]:
    known = tokenizer.get_vocab()
    return [
        *tokenizer.all_special_ids,
        *(known[token] for token in TOKENS if token in known),
    ]


def save_model(
    shape: ModelShape,
    items: Sequence[Item],
    folder: Path,
    device: str,
    dtype: torch.dtype,
) -> Path:
    """Write a random checkpoint into `folder`, unless it is there; its tokenizer has the reflection tokens.

    Raises:
        UserError: there is no room for it.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed = shape.parameters * dtype.itemsize
    free = shutil.disk_usage(folder.parent).free
    if free < 1.2 * needed:
        raise UserError(
            f"{folder.parent} has {free >> 20} MiB free; {needed >> 20} MiB are needed"
        )
    tokenizer = make_tokenizer(items)
    add_tokens(tokenizer)
    model = make_model(shape, tokenizer, device, dtype)
    with new_directory(folder) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
    return folder
