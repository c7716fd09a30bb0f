"""Judges of entailment by name, as `--judge` gives them: NLI models, prompted judges, the hallucination intrinsic.

A judge loads its model when it is first asked; what it is (`identity`) is known without. `Remembered` keeps verdicts on
disk, so that a killed run asks nothing twice. Other packages add kinds through the entry-point group
`selfrag.entailment` (kind -> function of the rest of the name).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from retrieval.progress import Progress
from selfrag.errors import UserError
from selfrag.evaluation.metrics.grading import LEAST, Grader, judgments
from selfrag.evaluation.metrics.nli import (
    ALCE_JUDGE,
    ClassifierEntailment,
    Entailment,
    Pair,
    TrueEntailment,
    Verdicts,
    short_name,
)
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.contract import Completion, Executor, Failed, Request
from selfrag.intrinsics.execution.choose import capability, prompting_of
from selfrag.intrinsics.hallucination_detection import HallucinationDetection, HallucinationResult
from selfrag.intrinsics.sentences import judged_turn
from selfrag.intrinsics.state import Message, State
from selfrag.loading import load_tokenizer, resolve_model, shipped_adapters, shipped_weights
from selfrag.provenance import model_files, sha256
from selfrag.reflection.labels import Label, LabelSet, Role
from selfrag.runlog import Header, RunLog

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
    load: Callable[[str], Entailment] = kinds[kind] if kind in kinds else others[kind].load()
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
    shipped, weights = shipped_adapters(model).get(name), shipped_weights(model).get(name)
    judge = capability(
        kind,
        None,
        _LateExecutor(partial(_library, model)),
        kind.default_codec(),
        adapter=None if shipped is None else name,
        prompting=prompting_of(load_tokenizer(path)),
        weights=weights,
    )
    if judge.adapter is not None and shipped is not None:
        files |= {f"{name}/{file}": checksum for file, checksum in model_files(shipped).items()}
    elif judge.method is not None and weights is not None:
        files |= {f"{name}/{weights.name}": sha256(weights)}
    return FaithfulEntailment(judge, model, files)


def _library(model: str, **options: Any) -> Executor:
    from selfrag.intrinsics.model_library import Library

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

    Args:
        judge: who decides.
        path: of the file; its folder must exist.

    Raises:
        UserError: the file is of another judge, damaged, or written by another process.
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
    """A judge with its file in a folder, where every judge has one of its own: `verdicts-MARK.jsonl`.

    Raises:
        UserError: as `Remembered`.
    """
    mark = hashlib.sha256(json.dumps(dict(judge.identity()), sort_keys=True).encode()).hexdigest()[:12]
    return Remembered(judge, folder / f"verdicts-{mark}.jsonl")
