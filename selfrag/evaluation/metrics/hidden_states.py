"""Features for MAUVE: the last hidden state of a causal language model at a text's last token. Edge: loads a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.pretrained import load
from selfrag.errors import UserError, require
from selfrag.evaluation.metrics.entailment.batches import batches
from selfrag.evaluation.ranking import Floats
from selfrag.evaluation.records import model_files
from selfrag.loading import load_tokenizer, resolve_model

ALCE_FEATURES = "openai-community/gpt2-large"
MAX_TOKENS = 512
"""Tokens of a text that ALCE reads."""


@dataclass(frozen=True)
class HiddenStates:
    """A loaded model.

    Attributes:
        model: of transformers, without its head.
        tokenizer: its own.
        source: checkpoint directory or hub name.
        files: checksums of the checkpoint.
        batch_tokens: most tokens of a batch.
    """

    model: Any
    tokenizer: Any
    source: str
    files: Mapping[str, str]
    batch_tokens: int = 8192

    @classmethod
    def load(cls, source: str = ALCE_FEATURES) -> HiddenStates:
        """Load a checkpoint, onto the GPU if there is one.

        Raises:
            UserError: no such checkpoint.
        """
        path = resolve_model(source)
        torch = require("torch", extra="cpu")
        try:
            model = load("AutoModel", path, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise UserError(f"{source} cannot be loaded: {str(error).splitlines()[0]}") from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.eval().to(device), load_tokenizer(path), source, model_files(path))

    @property
    def name(self) -> str:
        """The checkpoint's own name."""
        return self.source.rstrip("/").rpartition("/")[2]

    def identity(self) -> Mapping[str, Any]:
        """Checkpoint and limit."""
        return {"model": self.source, "files": dict(self.files), "max_tokens": MAX_TOKENS}

    def embed(self, texts: Sequence[str]) -> Floats:
        """A vector each [n, hidden].

        Raises:
            UserError: a text has no tokens.
        """
        torch = require("torch", extra="cpu")
        rows = [self.tokenizer(text, truncation=True, max_length=MAX_TOKENS)["input_ids"] for text in texts]
        if not all(rows):
            raise UserError("an empty text has no features; leave it out")
        found: list[Any] = [None] * len(rows)
        for batch in batches([len(row) for row in rows], self.batch_tokens):
            longest = len(rows[batch[0]])
            # Padding stands behind the text, where a causal model cannot see it: its token does not matter.
            ids = torch.tensor([rows[at] + [0] * (longest - len(rows[at])) for at in batch])
            mask = torch.tensor([[1] * len(rows[at]) + [0] * (longest - len(rows[at])) for at in batch])
            device = self.model.device
            with torch.inference_mode():
                states = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
            for place, at in enumerate(batch):
                found[at] = states[place, len(rows[at]) - 1].float().cpu().numpy()
        return np.asarray(found, dtype=np.float64).reshape(len(rows), -1)
