"""NLI models that decide whether a premise entails a hypothesis: TRUE's T5, and any cross-encoder of transformers.

`Entailment` is what every judge looks like; judges by prompt, intrinsic or name are in `entailment`. TRUE (arXiv
2204.04991) writes 1 or 0; its 11B checkpoint `google/t5_xxl_true_nli_mixture` is ALCE's judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from retrieval import pretrained
from selfrag.errors import UserError, require
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.provenance import model_files

Pair: TypeAlias = tuple[str, str]
"""Premise and hypothesis."""
Verdicts: TypeAlias = list[bool | None]

ALCE_JUDGE = "google/t5_xxl_true_nli_mixture"
_ENTAILING = frozenset({"entailment", "entail", "entails", "entailed", "supported", "supports", "consistent"})
_UNLIMITED = 1_000_000
"""Tokenizers without a limit give a huge number as theirs."""


class Entailment(Protocol):
    """A judge. What it is given is untrusted, and nothing that a model writes makes it raise."""

    @property
    def name(self) -> str:
        """What reports call it, such as `t5_xxl_true_nli_mixture`."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides its verdicts, as plain values; goes into manifests. Holds no secret."""

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """One verdict a pair, in order; None where there was none.

        Raises:
            EngineError: the model or server is gone.
        """


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Positions of sequences in batches of about one length, longest first, so that a lack of memory shows at once.

    A batch has at most `tokens` tokens, padding included; a longer sequence makes a batch of its own.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda at: (-lengths[at], at)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def short_name(source: str) -> str:
    """A checkpoint's own name, without its owner or folder."""
    return source.rstrip("/").rpartition("/")[2]


_SEQ2SEQ, _CLASSIFIER = "sequence-to-sequence model", "sequence classifier"


@contextmanager
def _loading(source: str, kind: str) -> Iterator[None]:
    """What cannot be loaded is said in one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"{source} is no {kind}: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint of transformers, whose weights are loaded when its `model` is first asked."""

    path: Path
    tokenizer: Any
    source: str
    files: Mapping[str, str]

    @property
    def name(self) -> str:
        """The checkpoint's own name."""
        return short_name(self.source)


@dataclass(frozen=True)
class TrueEntailment(_Checkpoint):
    """A TRUE model; any sequence-to-sequence checkpoint trained on this form will do."""

    dtype: str  # of the weights
    batch_tokens: int = 8192  # most tokens of a batch
    max_tokens: int | None = None  # longer inputs lose the end of the premise; None for no limit, as in ALCE

    @classmethod
    def load(cls, source: str = ALCE_JUDGE, **settings: Any) -> TrueEntailment:
        """A checkpoint, loaded at the first verdict: in bfloat16 over the GPUs there are, in float32 on a CPU.

        Several GPUs need `accelerate`.

        Raises:
            UserError: no such checkpoint, or none of a sequence-to-sequence model.
        """
        path = resolve_model(source)
        torch = require("torch", extra="cpu")
        with _loading(source, _SEQ2SEQ):
            config = pretrained.load("AutoConfig", path)
        if not getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{source} is no {_SEQ2SEQ}: it is a {config.model_type}")
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        return cls(path, load_tokenizer(path), source, model_files(path), str(dtype), **settings)

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        torch = require("torch", extra="cpu")
        placed: dict[str, Any] = {"device_map": "auto"} if torch.cuda.is_available() else {}
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        with _loading(self.source, _SEQ2SEQ):
            return pretrained.load("AutoModelForSeq2SeqLM", self.path, dtype=dtype, **placed).eval()

    def identity(self) -> Mapping[str, Any]:
        """Kind, checkpoint and limits."""
        limits = {"dtype": self.dtype, "max_tokens": self.max_tokens}
        return {"kind": "true", "model": self.source, "files": dict(self.files), **limits}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """1 is entailment and 0 is none; None where the model wrote something else."""
        encoded = [self._ids(premise, hypothesis) for premise, hypothesis in pairs]
        verdicts: Verdicts = [None] * len(pairs)
        for batch in batches([len(ids) for ids in encoded], self.batch_tokens):
            for position, said in zip(batch, self._written([encoded[at] for at in batch]), strict=True):
                verdicts[position] = {"1": True, "0": False}.get(said.strip())
        return verdicts

    def _ids(self, premise: str, hypothesis: str) -> list[int]:
        ids = list(self.tokenizer(f"premise: {premise} hypothesis: {hypothesis}")["input_ids"])
        if self.max_tokens is None or len(ids) <= self.max_tokens:
            return ids
        tail = list(self.tokenizer(f" hypothesis: {hypothesis}")["input_ids"])
        head = list(self.tokenizer(f"premise: {premise}", add_special_tokens=False)["input_ids"])
        return [*head[: max(0, self.max_tokens - len(tail))], *tail]

    def _written(self, rows: Sequence[Sequence[int]]) -> list[str]:
        torch = require("torch", extra="cpu")
        padded = self.tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt")
        inputs = {key: value.to(self.model.device) for key, value in padded.items()}
        with torch.inference_mode():
            out = self.model.generate(**inputs, max_new_tokens=10, do_sample=False, num_beams=1)
        return list(self.tokenizer.batch_decode(out, skip_special_tokens=True))


@dataclass(frozen=True)
class ClassifierEntailment(_Checkpoint):
    """A sequence classifier over premise and hypothesis."""

    label: int  # position of the label for entailment; of a model with one output, that output's
    label_name: str  # what the model calls it
    threshold: float | None = None  # least probability of it; None asks for the most probable label (one output: 0.5)
    max_tokens: int = 512  # longer premises lose their end
    batch_tokens: int = 8192  # most tokens of a batch

    @classmethod
    def load(
        cls, source: str, *, label: str | None = None, threshold: float | None = None, **settings: Any
    ) -> ClassifierEntailment:
        """A checkpoint, its weights loaded at the first verdict, onto the GPU if there is one.

        `label` is the name of the label for entailment, which is found if it is not given.

        Raises:
            UserError: no such checkpoint, none of a classifier, or no label that says entailment.
        """
        if threshold is not None and not 0 < threshold < 1:
            raise UserError(f"threshold={threshold:g}; give a probability between 0 and 1")
        path = resolve_model(source)
        require("torch", extra="cpu")
        with _loading(source, _CLASSIFIER):
            config = pretrained.load("AutoConfig", path)
        tokenizer, names = load_tokenizer(path), dict(config.id2label)
        position = _label(names, label, source)
        limit = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or _UNLIMITED)
        limits = {"max_tokens": int(limit) if limit < _UNLIMITED else 512, **settings}
        return cls(path, tokenizer, source, model_files(path), position, str(names[position]), threshold, **limits)

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        device = "cuda" if require("torch", extra="cpu").cuda.is_available() else "cpu"
        with _loading(self.source, _CLASSIFIER):
            dtype = pretrained.number_format("auto", self.path, device).name
            model = pretrained.load("AutoModelForSequenceClassification", self.path, dtype=dtype)
        return model.eval().to(device)

    def identity(self) -> Mapping[str, Any]:
        """Kind, checkpoint, label and limits."""
        known = {"kind": "nli", "model": self.source, "files": dict(self.files), "label": self.label_name}
        return {**known, "threshold": self.threshold, "max_tokens": self.max_tokens}

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


def _label(names: Mapping[int, str], wanted: str | None, source: str) -> int:
    if wanted is None and len(names) == 1:
        return 0
    known = ", ".join(str(name) for name in names.values())
    entailing = _ENTAILING if wanted is None else {wanted.casefold()}
    found = [at for at, name in names.items() if str(name).casefold() in entailing]
    if wanted is not None and not found:
        raise UserError(f"{source} has no label {wanted!r}; it has {known}")
    if wanted is None and len(found) != 1:
        raise UserError(f"which label of {source} means entailment? It has {known}; give label=")
    return int(found[0])
