"""Any NLI cross-encoder: a sequence classifier over premise and hypothesis. Edge: loads a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retrieval import pretrained
from selfrag.errors import UserError, require
from selfrag.evaluation.metrics.entailment.batches import batches
from selfrag.evaluation.metrics.entailment.protocol import Pair, Verdicts
from selfrag.evaluation.records import model_files
from selfrag.loading import load_tokenizer, resolve_model

_ENTAILING = frozenset({"entailment", "entail", "entails", "entailed", "supported", "supports", "consistent"})
_UNLIMITED = 1_000_000
"""Tokenizers without a limit give a huge number as theirs."""


@dataclass(frozen=True)
class ClassifierEntailment:
    """A cross-encoder, loaded when it is first asked.

    Attributes:
        open: loads the model of transformers.
        tokenizer: its own.
        source: checkpoint directory or hub name.
        files: checksums of the checkpoint.
        label: position of the label for entailment; of a model with one output, that output's.
        label_name: what the model calls it.
        threshold: least probability of it; None asks for the most probable label (one output: 0.5).
        max_tokens: longer premises lose their end.
        batch_tokens: most tokens of a batch.
    """

    open: Callable[[], Any]
    tokenizer: Any
    source: str
    files: Mapping[str, str]
    label: int
    label_name: str
    threshold: float | None = None
    max_tokens: int = 512
    batch_tokens: int = 8192

    @classmethod
    def load(
        cls, source: str, *, label: str | None = None, threshold: float | None = None, **settings: Any
    ) -> ClassifierEntailment:
        """A checkpoint: its label and tokenizer now, its weights at the first verdict, onto the GPU if there is one.

        Args:
            source: checkpoint directory or hub name.
            label: name of the label for entailment; found by its name if not given.
            threshold: see the class.
            settings: further fields of the class.

        Raises:
            UserError: no such checkpoint, none of a classifier, or no label that says entailment.
        """
        if threshold is not None and not 0 < threshold < 1:
            raise UserError(f"threshold={threshold:g}; give a probability between 0 and 1")
        path = resolve_model(source)
        require("torch", extra="cpu")
        try:
            config = pretrained.load("AutoConfig", path)
        except (OSError, ValueError) as error:
            raise _no_classifier(source, error) from error
        tokenizer, names = load_tokenizer(path), dict(config.id2label)
        position = _label(names, label, source)
        limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or _UNLIMITED]
        most = int(min(limits)) if min(limits) < _UNLIMITED else 512
        limits_of = {"max_tokens": most, **settings}
        files, named = model_files(path), str(names[position])
        return cls(partial(_open, path, source), tokenizer, source, files, position, named, threshold, **limits_of)

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        return self.open()

    @property
    def name(self) -> str:
        """The checkpoint's own name."""
        return self.source.rstrip("/").rpartition("/")[2]

    def identity(self) -> Mapping[str, Any]:
        """Kind, checkpoint, label and limits."""
        return {
            "kind": "nli",
            "model": self.source,
            "files": dict(self.files),
            "label": self.label_name,
            "threshold": self.threshold,
            "max_tokens": self.max_tokens,
        }

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Whether the label for entailment is the most probable one, or reaches the threshold."""
        return [self._decided(row) for row in self.probabilities(pairs)]

    def probabilities(self, pairs: Sequence[Pair]) -> list[list[float]]:
        """Probability of each label a pair [n, labels]; of a model with one output, of that [n, 1]."""
        torch = require("torch", extra="cpu")
        encoded = [self._ids(pair) for pair in pairs]
        found: list[list[float]] = [[] for _ in pairs]
        for batch in batches([len(one["input_ids"]) for one in encoded], self.batch_tokens):
            padded = self.tokenizer.pad([encoded[at] for at in batch], return_tensors="pt").to(self.model.device)
            with torch.inference_mode():
                logits = self.model(**padded).logits.float()
            rows = logits.softmax(-1) if logits.shape[-1] > 1 else logits.sigmoid()
            for position, row in zip(batch, rows.tolist(), strict=True):
                found[position] = row
        return found

    def _ids(self, pair: Pair) -> dict[str, Any]:
        premise, hypothesis = pair
        # A hypothesis that alone fills the model leaves no premise to cut.
        cut = "only_first" if len(self.tokenizer(hypothesis)["input_ids"]) + 3 < self.max_tokens else "longest_first"
        return dict(self.tokenizer(premise, hypothesis, truncation=cut, max_length=self.max_tokens))

    def _decided(self, row: Sequence[float]) -> bool | None:
        if any(value != value for value in row):
            return None
        if self.threshold is not None or len(row) == 1:
            return row[self.label] >= (0.5 if self.threshold is None else self.threshold)
        return max(range(len(row)), key=row.__getitem__) == self.label


def _open(path: Path, source: str) -> Any:
    device = "cuda" if require("torch", extra="cpu").cuda.is_available() else "cpu"
    try:
        dtype = pretrained.number_format("auto", path, device).name
        model = pretrained.load("AutoModelForSequenceClassification", path, dtype=dtype)
    except (OSError, ValueError) as error:
        raise _no_classifier(source, error) from error
    return model.eval().to(device)


def _no_classifier(source: str, error: Exception) -> UserError:
    return UserError(f"{source} is no sequence classifier: {str(error).splitlines()[0]}")


def _label(names: Mapping[int, str], wanted: str | None, source: str) -> int:
    known = ", ".join(str(name) for name in names.values())
    if wanted is not None:
        found = [at for at, name in names.items() if str(name).casefold() == wanted.casefold()]
        if not found:
            raise UserError(f"{source} has no label {wanted!r}; it has {known}")
        return int(found[0])
    if len(names) == 1:
        return 0
    found = [at for at, name in names.items() if str(name).casefold() in _ENTAILING]
    if len(found) != 1:
        raise UserError(f"which label of {source} means entailment? It has {known}; give label=")
    return int(found[0])
