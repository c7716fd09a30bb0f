"""Judges of entailment by name, as `--judge` gives them: NLI models, prompted judges, the hallucination intrinsic.

`Entailment` is what every judge looks like. TRUE (arXiv 2204.04991) writes 1 or 0; its 11B checkpoint
`google/t5_xxl_true_nli_mixture` is ALCE's judge.

A judge loads its model when it is first asked; what it is (`identity`) is known without. `Remembered` keeps verdicts on
disk, so that a killed run asks nothing twice. Other packages add kinds through the entry-point group
`selfrag.entailment` (kind -> function of the rest of the name).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from retrieval.passage import Passage
from selfrag.common import pretrained
from selfrag.common.errors import UserError, require
from selfrag.common.jsonl import Header, RunLog
from selfrag.common.plugins import load_point
from selfrag.common.progress import Progress
from selfrag.common.provenance import model_files, sha256
from selfrag.evaluation.metrics.citations import Pair
from selfrag.evaluation.metrics.grading import LEAST, Grader, judgments
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.contract import Completion, Executor, Failed, Request
from selfrag.intrinsics.model_library import Library, prompting_of
from selfrag.intrinsics.responses import HallucinationDetection, HallucinationResult
from selfrag.intrinsics.sentences import judged_turn
from selfrag.intrinsics.state import Message, State
from selfrag.loading import load_tokenizer, resolve_model, shipped_adapters, shipped_weights
from selfrag.reflection.labels import Label, LabelSet, Role

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

    @classmethod
    def load(cls, source: str = ALCE_JUDGE) -> TrueEntailment:
        """A checkpoint, loaded at the first verdict: in bfloat16 over the GPUs there are, in float32 on a CPU.

        Several GPUs need `accelerate`.
        """
        torch, path = require("torch", extra="cpu"), resolve_model(source)
        with _loading(source, _SEQ2SEQ):
            config = pretrained.load("AutoConfig", path)
        if not getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{source} is no {_SEQ2SEQ}: it is a {config.model_type}")
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        return cls(path, load_tokenizer(path), source, model_files(path), str(dtype))

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        torch = require("torch", extra="cpu")
        placed: dict[str, Any] = {"device_map": "auto"} if torch.cuda.is_available() else {}
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        with _loading(self.source, _SEQ2SEQ):
            return pretrained.load("AutoModelForSeq2SeqLM", self.path, dtype=dtype, **placed).eval()

    def identity(self) -> Mapping[str, Any]:
        """Kind and checkpoint."""
        return {"kind": "true", "model": self.source, "files": dict(self.files), "dtype": self.dtype}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """1 is entailment and 0 is none; None where the model wrote something else. No input is cut, as in ALCE."""
        texts = [f"premise: {premise} hypothesis: {hypothesis}" for premise, hypothesis in pairs]
        encoded = [list(self.tokenizer(text)["input_ids"]) for text in texts]
        verdicts: Verdicts = [None] * len(pairs)
        for batch in batches([len(ids) for ids in encoded], self.batch_tokens):
            for position, said in zip(batch, self._written([encoded[at] for at in batch]), strict=True):
                verdicts[position] = {"1": True, "0": False}.get(said.strip())
        return verdicts

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
    max_tokens: int = 512  # longer premises lose their end
    batch_tokens: int = 8192  # most tokens of a batch

    @classmethod
    def load(cls, source: str) -> ClassifierEntailment:
        """A checkpoint, its weights loaded at the first verdict, onto the GPU if there is one."""
        path = resolve_model(source)
        require("torch", extra="cpu")
        with _loading(source, _CLASSIFIER):
            config = pretrained.load("AutoConfig", path)
        tokenizer, names = load_tokenizer(path), dict(config.id2label)
        position = _label(names, source)
        limit = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or _UNLIMITED)
        longest = int(limit) if limit < _UNLIMITED else 512
        return cls(path, tokenizer, source, model_files(path), position, str(names[position]), longest)

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        device = "cuda" if require("torch", extra="cpu").cuda.is_available() else "cpu"
        with _loading(self.source, _CLASSIFIER):
            dtype = pretrained.number_format("auto", self.path, device).name
            model = pretrained.load("AutoModelForSequenceClassification", self.path, dtype=dtype)
        return model.eval().to(device)

    def identity(self) -> Mapping[str, Any]:
        """Kind, checkpoint, label and limit."""
        known = {"kind": "nli", "model": self.source, "files": dict(self.files), "label": self.label_name}
        return {**known, "max_tokens": self.max_tokens}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Whether the label for entailment is the most probable one; of a model with one output, reaches 0.5."""
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
        if len(row) == 1:
            return row[0] >= 0.5
        return max(range(len(row)), key=row.__getitem__) == self.label


def _label(names: Mapping[int, str], source: str) -> int:
    """Position of the label for entailment, or of the only output."""
    found = list(names) if len(names) == 1 else [at for at, one in names.items() if str(one).casefold() in _ENTAILING]
    if len(found) != 1:
        known = ", ".join(map(str, names.values()))
        raise UserError(f"which label of {source} means entailment? It has {known}; name one entailment in id2label")
    return int(found[0])


GROUP = "selfrag.entailment"
EXAMPLES = "true, nli:MODEL, judge:MODEL, judge:MODEL@https://HOST/v1, intrinsic:MODEL"

ENTAILMENT = LabelSet(Role.SUPPORT, (Label("entailed", 1.0, "yes"), Label("not entailed", 0.0, "no")))
TASK = (
    "Does everything that the assistant says follow from the documents alone? Answer yes if the documents state or"
    " imply all of it, and no if a part of it is missing from them or contradicts them."
)
CODEC = LabelCodec("entailment", ENTAILMENT, lambda state: TASK, judged_turn)
"""Lays premise and hypothesis out so that neither can pose as the question."""


QUESTION = Message("user", "Write one factual sentence.")
"""Before a hypothesis, since reflection tokens judge what answers an instruction; critics have the same words."""


def _state(pair: Pair, *before: Message) -> State:
    premise, hypothesis = pair
    return State((*before, Message("assistant", hypothesis)), (Passage("premise", premise, ""),))


@dataclass(frozen=True)
class JudgeEntailment:
    """Any chat model, in process or behind an endpoint, asked a question with two answers."""

    executor: Executor  # runs the model
    name: str  # what reports call it
    about: Mapping[str, Any]  # what decides the model's answers, for manifests
    threshold: float = 0.5  # least probability of `yes` among the two answers
    min_coverage: float = LEAST  # least probability on the two answers together; below, there is no verdict

    def identity(self) -> Mapping[str, Any]:
        """Kind, model, question and limits."""
        limits = {"threshold": self.threshold, "min_coverage": self.min_coverage}
        return {"kind": "judge", **self.about, "task": TASK, **limits}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """None where the request failed, or what came back was neither answer."""
        found = judgments(self.executor, CODEC, list(map(_state, pairs)), self.min_coverage)
        return [None if one is None else one.distribution[0] >= self.threshold for one in found]


@dataclass(frozen=True)
class FaithfulEntailment:
    """The hallucination intrinsic: a text follows if each sentence of it is faithful.

    `model`, on which it runs, and `files`, the checksums of model and adapter, are for reports.
    """

    intrinsic: HallucinationDetection
    model: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Intrinsic and model."""
        return f"{self.intrinsic.name} on {short_name(self.model)}"

    def identity(self) -> Mapping[str, Any]:
        """Kind, model, adapter and dialect, and the execution that judges in place of a codec."""
        how = {"adapter": self.intrinsic.adapter, "dialect": self.intrinsic.codec.dialect}
        if self.intrinsic.method is not None:
            how["execution"] = self.intrinsic.method.name
        return {"kind": "intrinsic", "model": self.model, "files": dict(self.files), **how}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Sentences that claim nothing do not count; None where no sentence or not every one could be judged."""
        found = self.intrinsic.reflections([_state(pair, QUESTION) for pair in pairs])
        return [_all_faithful(self.intrinsic.result(one)) for one in found]


def _all_faithful(result: HallucinationResult) -> bool | None:
    degrees = [one.degree for one in result.sentences if one.judgment is None or one.judgment.defined]
    return None if not degrees or None in degrees else all(degree == 1.0 for degree in degrees)


def load_entailment(spec: str) -> Entailment:
    """The judge of a name.

    Args:
        spec: `true` or `true:MODEL` (T5 of TRUE), `nli:MODEL` (a cross-encoder), `judge:MODEL` (prompted, in process),
            `judge:MODEL@URL` (at an OpenAI-compatible endpoint), `intrinsic:MODEL` (hallucination detection), or a kind
            of another package, such as `critic:DIR`. A model is a directory, a hub name, or `demo`.

    Raises:
        UserError: an unknown kind, or a model that cannot be loaded.
    """
    kind, _, rest = spec.partition(":")
    kinds: dict[str, Callable[[str], Entailment]] = {
        "true": lambda model: TrueEntailment.load(model or ALCE_JUDGE),
        "nli": ClassifierEntailment.load,
        "judge": _prompted,
        "intrinsic": _intrinsic,
    }
    others = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in kinds and kind not in others:
        raise UserError(f"unknown judge {spec[:80]!r}; known: {', '.join((EXAMPLES, *(f'{n}:..' for n in others)))}")
    if not rest and kind != "true":
        raise UserError(f"judge {kind!r} of which model? Give {kind}:MODEL")
    load: Callable[[str], Entailment] = kinds[kind] if kind in kinds else load_point(others[kind])
    return load(rest)


def _prompted(rest: str) -> Entailment:
    executor, name, about = executor_of(rest)
    return JudgeEntailment(executor, f"judge {name}", about)


def load_grader(spec: str) -> Grader:
    """A chat model that grades, `MODEL` or `MODEL@URL` as in `executor_of`, with its errors."""
    executor, name, _ = executor_of(spec)
    return Grader(executor, name)


def executor_of(spec: str) -> tuple[Executor, str, dict[str, Any]]:
    """What runs a prompted model, its short name, and what tells it from others.

    Args:
        spec: `MODEL` in process, or `MODEL@URL` at an OpenAI-compatible endpoint.

    Raises:
        UserError: the model cannot be loaded, or no such address.
    """
    model, at, url = spec.partition("@")
    if not at:
        files = model_files(resolve_model(model))
        return _LateExecutor(partial(_library, model, adapters={})), short_name(model), {"model": model, "files": files}
    from selfrag.intrinsics.execution.endpoint import EndpointConfig, EndpointExecutor

    return EndpointExecutor(EndpointConfig(url, model)), short_name(model), {"model": model, "url": url}


def _intrinsic(model: str) -> Entailment:
    path, kind = resolve_model(model), HallucinationDetection
    files, name = model_files(path), kind.name
    shipped, learned = shipped_adapters(model).get(name), shipped_weights(model)
    adapters, prompting = {} if shipped is None else {name: name}, prompting_of(load_tokenizer(path))
    judge = Library(_LateExecutor(partial(_library, model)), adapters, prompting=prompting, weights=learned).get(kind)
    weights = learned.get(name)
    if judge.adapter is not None and shipped is not None:
        files |= {f"{name}/{file}": checksum for file, checksum in model_files(shipped).items()}
    elif judge.method is not None and weights is not None:
        files |= {f"{name}/{weights.name}": sha256(weights)}
    return FaithfulEntailment(judge, model, files)


def _library(model: str, **options: Any) -> Executor:
    return Library.from_pretrained(model, **options).executor


@dataclass(frozen=True)
class _LateExecutor:
    """An executor whose model is loaded by `open` with the first request."""

    open: Callable[[], Executor]

    @cached_property
    def opened(self) -> Executor:
        return self.open()

    @property
    def engine(self) -> Any:
        return getattr(self.opened, "engine", None)

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        return self.opened.run(requests)


AT_ONCE = 256
"""Pairs of one call: a kill loses no more."""


_LOG = Header("selfrag-verdicts/1", "verdicts", "a judge", "take another directory")


class Remembered:
    """A judge whose verdicts are kept in a run log, filed under a digest of their pair.

    A file belongs to one judge: another one is refused. Pairs without a verdict are asked again by the next run.
    """

    def __init__(self, judge: Entailment, path: Path) -> None:
        self.judge = judge
        self.name, self.identity = judge.name, judge.identity
        self._verdicts: dict[str, bool] = {}
        remedy = "delete this line to ask for it again"
        self._log = RunLog(path, _LOG, {"judge": dict(judge.identity())}, self._take, remedy=remedy)
        self._log.close()

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Verdicts from the file, and from the judge for the others; equal pairs are asked once."""
        keys = [hashlib.sha256(json.dumps(pair).encode("utf-8", "surrogatepass")).hexdigest() for pair in pairs]
        unknown = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._verdicts}
        waiting = list(unknown)
        with self._log, Progress(self.name, "verdict", len(waiting)) as progress:
            for start in range(0, len(waiting), AT_ONCE):
                chunk = waiting[start : start + AT_ONCE]
                found = self.judge.entails([unknown[key] for key in chunk])
                for key, verdict in zip(chunk, found, strict=True):
                    if verdict is not None:
                        self._log.append({"pair": key, "entails": verdict})
                        self._verdicts[key] = verdict
                progress.advance(len(chunk))
        return [self._verdicts.get(key) for key in keys]

    def _take(self, line: Mapping[str, Any]) -> None:
        if len(line["pair"]) != 64 or not isinstance(line["entails"], bool):
            raise ValueError("no verdict")
        self._verdicts[line["pair"]] = line["entails"]


def remembered(judge: Entailment, folder: Path) -> Remembered:
    """A judge with its file in a folder, where every judge has one of its own: `verdicts-MARK.jsonl`."""
    mark = hashlib.sha256(json.dumps(dict(judge.identity()), sort_keys=True).encode()).hexdigest()[:12]
    return Remembered(judge, folder / f"verdicts-{mark}.jsonl")
