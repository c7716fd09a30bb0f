"""Models of entailment as judges: does a text follow from its passages?

TRUE (arXiv 2204.04991) writes 1 or 0; its 11B checkpoint `google/t5_xxl_true_nli_mixture` is ALCE's judge. A sequence
classifier (NLI) gives a probability of each label. Their weights are loaded when they are first asked. `CODEC` asks a
chat model the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common import pretrained
from selfrag.common.errors import UserError, require
from selfrag.common.provenance import model_files
from selfrag.judges.chat import LabelCodec
from selfrag.judges.external import ServiceJudge, as_reflection
from selfrag.judges.sentences import judged_turn
from selfrag.loading import load_training_tokenizer, resolve_model
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.judge import Cost, Scope
from selfrag.reflection.labels import Label, LabelSet, Role

ALCE_JUDGE = "google/t5_xxl_true_nli_mixture"
LEAST = 0.1
"""Least probability on the labels of a chat model together; below it, nothing was judged."""
ENTAILMENT = LabelSet(
    Role.SUPPORT, (Label("entailed", 1.0, "yes"), Label("not entailed", 0.0, "no"))
)
TASK = (
    "Does everything that the assistant says follow from the documents alone? Answer yes if the documents state or"
    " imply all of it, and no if a part of it is missing from them or contradicts them."
)
CODEC = LabelCodec(
    "entailment", ENTAILMENT, lambda state: TASK, judged_turn, last_turn_only=True
)
"""Lays premise and hypothesis out so that neither can pose as the question."""

_ENTAILING = frozenset(
    {
        "entailment",
        "entail",
        "entails",
        "entailed",
        "supported",
        "supports",
        "consistent",
    }
)
_UNLIMITED = 1_000_000
"""Tokenizers without a limit give a huge number as theirs."""


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield positions of sequences in batches of about one length, longest first: a lack of memory shows at once.

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
    """Return a checkpoint's own name, without its owner or folder."""
    return source.rstrip("/").rpartition("/")[2]


_SEQ2SEQ = "sequence-to-sequence model"
_CLASSIFIER = "sequence classifier"


@contextmanager
def _loading(source: str, kind: str) -> Iterator[None]:
    """Say in one line what cannot be loaded."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source} is no {kind}: {str(error).splitlines()[0]}"
        ) from error


class _Checkpoint(ServiceJudge):
    """A checkpoint of transformers that reads a premise and a hypothesis."""

    cost = Cost.PREFILL
    scope = Scope.SEGMENT
    batch_tokens = 8192

    def __init__(self, path: Path, source: str, labels: LabelSet) -> None:
        super().__init__()
        self.path = path
        self.source = source
        self.labels = labels
        self.tokenizer = load_training_tokenizer(path)
        self.files = model_files(path)
        self.name = short_name(source)

    def serve(self, inputs: Sequence[JudgeInput]) -> Sequence[Reflection]:
        """Return one reflection an input: whether the text under judgment follows from the passages together."""
        pairs = []
        for state in inputs:
            premises = "\n\n".join(map(premise, state.passages))
            pairs.append((premises, state.text or state.query or ""))
        rows = self.probabilities(pairs)
        return [
            as_reflection(state, self.labels, row)
            for state, row in zip(inputs, rows, strict=True)
        ]

    @abstractmethod
    def probabilities(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Sequence[Sequence[float] | None]:
        """Return the probability of each label for each pair of premise and hypothesis; None where there is none."""


class TrueJudge(_Checkpoint):
    """A TRUE model; any sequence-to-sequence checkpoint trained on this form will do."""

    def __init__(self, path: Path, source: str, dtype: str) -> None:
        """Judge by a checkpoint; `dtype` is that of its weights."""
        super().__init__(path, source, ENTAILMENT)
        self.dtype = dtype

    @classmethod
    def load(cls, source: str = ALCE_JUDGE) -> TrueJudge:
        """Return a checkpoint, loaded when first asked: in bfloat16 over the GPUs there are, in float32 on a CPU.

        Several GPUs need `accelerate`.
        """
        torch = require("torch", extra="cpu")
        path = resolve_model(source)
        with _loading(source, _SEQ2SEQ):
            config = pretrained.load("AutoConfig", path)
        if not getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{source} is no {_SEQ2SEQ}: it is a {config.model_type}")
        return cls(
            path,
            source,
            str(torch.bfloat16 if torch.cuda.is_available() else torch.float32),
        )

    @cached_property
    def model(self) -> Any:
        """Return the loaded model."""
        torch = require("torch", extra="cpu")
        placed: dict[str, Any] = (
            {"device_map": "auto"} if torch.cuda.is_available() else {}
        )
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        with _loading(self.source, _SEQ2SEQ):
            return pretrained.load(
                "AutoModelForSeq2SeqLM", self.path, dtype=dtype, **placed
            ).eval()

    def identity(self) -> Mapping[str, Any]:
        """Return kind and checkpoint."""
        return {
            "kind": "true",
            "model": self.source,
            "files": dict(self.files),
            "dtype": self.dtype,
        }

    def probabilities(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Sequence[Sequence[float] | None]:
        """Return hard labels: 1 is entailment and 0 is none; other text is neither. No input is cut, as in ALCE."""
        texts = [
            f"premise: {premise} hypothesis: {hypothesis}"
            for premise, hypothesis in pairs
        ]
        encoded = [list(self.tokenizer(text)["input_ids"]) for text in texts]
        rows: list[Sequence[float] | None] = [None] * len(pairs)
        for batch in batches([len(ids) for ids in encoded], self.batch_tokens):
            for position, said in zip(
                batch, self._written([encoded[at] for at in batch]), strict=True
            ):
                rows[position] = {"1": (1.0, 0.0), "0": (0.0, 1.0)}.get(said.strip())
        return rows

    def _written(self, rows: Sequence[Sequence[int]]) -> list[str]:
        torch = require("torch", extra="cpu")
        padded = self.tokenizer.pad(
            {"input_ids": [list(row) for row in rows]}, return_tensors="pt"
        )
        inputs = {key: value.to(self.model.device) for key, value in padded.items()}
        with torch.inference_mode():
            out = self.model.generate(
                **inputs, max_new_tokens=10, do_sample=False, num_beams=1
            )
        return list(self.tokenizer.batch_decode(out, skip_special_tokens=True))


class NLIJudge(_Checkpoint):
    """A sequence classifier over premise and hypothesis."""

    def __init__(
        self,
        path: Path,
        source: str,
        names: Mapping[int, str],
    ) -> None:
        """Judge by a checkpoint whose labels are called `names`."""
        entailing = _label(names, source)
        labels = ENTAILMENT
        if len(names) > 1:
            listed = [
                Label(str(names[at]), float(at == entailing), str(names[at]))
                for at in sorted(names)
            ]
            labels = LabelSet(Role.SUPPORT, tuple(listed))
        super().__init__(path, source, labels)
        self.label_name = str(names[entailing])
        self.max_tokens = 512  # longer premises lose their end

    @classmethod
    def load(cls, source: str) -> NLIJudge:
        """Return a checkpoint, its weights loaded when first asked, onto the GPU if there is one."""
        path = resolve_model(source)
        require("torch", extra="cpu")
        with _loading(source, _CLASSIFIER):
            config = pretrained.load("AutoConfig", path)
        judge = cls(path, source, dict(config.id2label))
        positions = getattr(config, "max_position_embeddings", None) or _UNLIMITED
        limit = min(judge.tokenizer.model_max_length, positions)
        if limit < _UNLIMITED:
            judge.max_tokens = int(limit)
        return judge

    @cached_property
    def model(self) -> Any:
        """Return the loaded model."""
        device = "cuda" if require("torch", extra="cpu").cuda.is_available() else "cpu"
        with _loading(self.source, _CLASSIFIER):
            dtype = pretrained.number_format("auto", self.path, device).name
            model = pretrained.load(
                "AutoModelForSequenceClassification", self.path, dtype=dtype
            )
        return model.eval().to(device)

    def identity(self) -> Mapping[str, Any]:
        """Return kind, checkpoint, label and limit."""
        known = {
            "kind": "nli",
            "model": self.source,
            "files": dict(self.files),
            "label": self.label_name,
        }
        return {**known, "max_tokens": self.max_tokens}

    def probabilities(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Sequence[Sequence[float] | None]:
        """Return the probability of each label a pair [n, labels]."""
        torch = require("torch", extra="cpu")
        encoded = [self._ids(pair) for pair in pairs]
        rows: list[Sequence[float] | None] = [None] * len(pairs)
        for batch in batches(
            [len(ids["input_ids"]) for ids in encoded], self.batch_tokens
        ):
            padded = self.tokenizer.pad(
                [encoded[at] for at in batch], return_tensors="pt"
            ).to(self.model.device)
            with torch.inference_mode():
                logits = self.model(**padded).logits.float()
            shares = logits.softmax(-1) if logits.shape[-1] > 1 else logits.sigmoid()
            for position, row in zip(batch, shares.tolist(), strict=True):
                rows[position] = row if len(row) > 1 else (row[0], 1.0 - row[0])
        return rows

    def _ids(self, pair: tuple[str, str]) -> dict[str, Any]:
        premise, hypothesis = pair
        # A hypothesis that alone fills the model leaves no premise to cut.
        cut = (
            "only_first"
            if len(self.tokenizer(hypothesis)["input_ids"]) + 3 < self.max_tokens
            else "longest_first"
        )
        return dict(
            self.tokenizer(
                premise, hypothesis, truncation=cut, max_length=self.max_tokens
            )
        )


def _label(names: Mapping[int, str], source: str) -> int:
    """Return the position of the label for entailment, or of the only output."""
    positions = list(names)
    if len(names) > 1:
        positions = [
            position
            for position, name in names.items()
            if str(name).casefold() in _ENTAILING
        ]
    if len(positions) != 1:
        known = ", ".join(map(str, names.values()))
        raise UserError(
            f"which label of {source} means entailment? It has {known}; name one entailment in id2label"
        )
    return int(positions[0])


def premise(passage: Passage) -> str:
    """Return a passage as a judge reads it: ALCE's `Title: .. ` line and the text; the text alone without a title."""
    return (
        f"Title: {passage.title}\n{passage.text}"
        if passage.title.strip()
        else passage.text
    )
