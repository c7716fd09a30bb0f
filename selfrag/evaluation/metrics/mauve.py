"""MAUVE of answers against human ones (arXiv 2102.01454), prepared as ALCE does. Clustering is mauve-text's.

MAUVE compares two sets of texts, so there is no value for one item and no bootstrap over items: the spread that is
reported is that of the clustering's seed. It means little below some hundreds of texts.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.common.errors import UserError, count_of, require
from selfrag.common.pretrained import load
from selfrag.common.provenance import model_files
from selfrag.evaluation.intervals import FloatArray
from selfrag.judges.entailment import batches, short_name
from selfrag.loading import load_training_tokenizer, resolve_model

ALCE_FEATURES = "openai-community/gpt2-large"
MAX_TOKENS = 512
"""Tokens of a text that ALCE reads."""
WORDS = 100
"""Words of question and answer that ALCE reads."""
LEAST = 20
"""Texts of each side: two clusters of the package's ten texts each."""
SEEDS = (25, 26, 27, 28, 29)
"""The package's default seed and the next ones; its authors ask for the mean over several."""


@dataclass(frozen=True)
class HiddenStates:
    """Features by a causal language model: its last hidden state at a text's last token.

    `model` is of transformers, without its head; `batch_tokens` is the most tokens of a batch.
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
            raise UserError(
                f"{source} cannot be loaded: {str(error).splitlines()[0]}"
            ) from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(
            model.eval().to(device),
            load_training_tokenizer(path),
            source,
            model_files(path),
        )

    @property
    def name(self) -> str:
        """Return the checkpoint's own name."""
        return short_name(self.source)

    def identity(self) -> Mapping[str, Any]:
        """Return checkpoint and limit."""
        return {
            "model": self.source,
            "files": dict(self.files),
            "max_tokens": MAX_TOKENS,
        }

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return a vector each [n, hidden].

        Raises:
            UserError: a text has no tokens.
        """
        torch = require("torch", extra="cpu")
        from torch.nn.utils.rnn import pad_sequence

        rows = [
            self.tokenizer(text, truncation=True, max_length=MAX_TOKENS)["input_ids"]
            for text in texts
        ]
        if not all(rows):
            raise UserError("an empty text has no features; leave it out")
        vectors: list[Any] = [None] * len(rows)
        for batch in batches(list(map(len, rows)), self.batch_tokens):
            # Padding stands behind the text, where a causal model cannot see it: its token does not matter.
            texts_of_batch = [torch.tensor(rows[at]) for at in batch]
            ids = pad_sequence(texts_of_batch, batch_first=True)
            mask = pad_sequence(
                list(map(torch.ones_like, texts_of_batch)), batch_first=True
            )
            device = self.model.device
            with torch.inference_mode():
                states = self.model(
                    input_ids=ids.to(device), attention_mask=mask.to(device)
                ).last_hidden_state
            for place, at in enumerate(batch):
                vectors[at] = states[place, len(rows[at]) - 1].float().cpu().numpy()
        return np.asarray(vectors, dtype=np.float64).reshape(len(rows), -1)


@dataclass(frozen=True, slots=True)
class Mauve:
    """MAUVE, 0 to 1; higher is more like the human texts.

    `value` is the mean over seeds, `low` and `high` the smallest and largest of any: no confidence interval. `texts`
    are those of each side, `features` who made the vectors.
    """

    value: float
    low: float
    high: float
    texts: int
    features: str


def as_alce(question: str, answer: str) -> str:
    """Return question and answer in one line, the first 100 words, without punctuation at the end."""
    return " ".join(f"{question} {answer.strip()}".split()[:WORDS]).rstrip(
        string.punctuation
    )


def mauve(
    human: Sequence[str],
    written: Sequence[str],
    features: HiddenStates,
    *,
    seeds: Sequence[int] = SEEDS,
) -> Mauve | None:
    """Return MAUVE of two sets of texts; None below `LEAST` pairs, where the figure is not defined in any useful sense.

    There are as many human texts as written ones, a pair with an empty text is left out, and each seed of the
    clustering gives one result.
    """
    package = require("mauve", extra="mauve")
    if len(human) != len(written):
        raise UserError(
            f"{count_of(len(human), 'human texts')} for {count_of(len(written), 'answers')}; give one for each"
        )
    pairs = [
        pair for pair in zip(human, written, strict=True) if all(map(str.strip, pair))
    ]
    if len(pairs) < LEAST:
        return None
    p, q = (features.embed(texts) for texts in zip(*pairs, strict=True))
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        return None
    values = []
    for seed in seeds:
        result = package.compute_mauve(
            p_features=p, q_features=q, seed=seed, verbose=False
        )
        values.append(float(result.mauve))
    return Mauve(
        sum(values) / len(values), min(values), max(values), len(pairs), features.name
    )
