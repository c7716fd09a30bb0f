"""Judges by name, as a command line gives them: `KIND:MODEL`. Edge: loads what is asked for, when it is first asked.

A judge whose verdicts are all on disk needs no model; what it is (`identity`) is known without. Other packages add
kinds through the entry-point group `selfrag.entailment` (kind -> function of the rest of the name).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import entry_points
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.metrics.entailment.protocol import Entailment
from selfrag.evaluation.records import model_files
from selfrag.intrinsics.contract import Completion, Executor, Failed, Request
from selfrag.loading import resolve_model

GROUP = "selfrag.entailment"
EXAMPLES = "true, nli:MODEL, judge:MODEL, judge:MODEL@https://HOST/v1, intrinsic:MODEL"


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
        "true": _true,
        "nli": _nli,
        "judge": _judge,
        "intrinsic": _intrinsic,
    }
    others = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in kinds and kind not in others:
        raise UserError(f"unknown judge {spec[:80]!r}; known: {', '.join((EXAMPLES, *(f'{n}:..' for n in others)))}")
    if not rest and kind != "true":
        raise UserError(f"judge {kind!r} of which model? Give {kind}:MODEL")
    load: Callable[[str], Entailment] = kinds[kind] if kind in kinds else others[kind].load()
    return load(rest)


def _true(model: str) -> Entailment:
    from selfrag.evaluation.metrics.entailment.true import ALCE_JUDGE, TrueEntailment

    return TrueEntailment.load(model or ALCE_JUDGE)


def _nli(model: str) -> Entailment:
    from selfrag.evaluation.metrics.entailment.classifier import ClassifierEntailment

    return ClassifierEntailment.load(model)


def _judge(rest: str) -> Entailment:
    from selfrag.evaluation.metrics.entailment.judge import JudgeEntailment

    executor, name, about = executor_of(rest)
    return JudgeEntailment(executor, f"judge {name}", about)


def executor_of(spec: str) -> tuple[Executor, str, dict[str, Any]]:
    """What runs a prompted model, its short name, and what tells it from others.

    Args:
        spec: `MODEL` in process, or `MODEL@URL` at an OpenAI-compatible endpoint.

    Raises:
        UserError: the model cannot be loaded, or no such address.
    """
    model, at, url = spec.partition("@")
    short = model.rstrip("/").rpartition("/")[2]
    if not at:
        files = model_files(resolve_model(model))
        return LateExecutor(partial(_library, model, adapters={})), short, {"model": model, "files": files}
    from selfrag.intrinsics.execution.endpoint import EndpointExecutor
    from selfrag.intrinsics.execution.endpoint_config import EndpointConfig

    return EndpointExecutor(EndpointConfig(url, model)), short, {"model": model, "url": url}


def _intrinsic(model: str) -> Entailment:
    from selfrag.demo.intrinsics import adapter_paths
    from selfrag.evaluation.metrics.entailment.faithful import FaithfulEntailment
    from selfrag.intrinsics.hallucination_detection import HallucinationDetection
    from selfrag.intrinsics.model_library import DEMO

    files = model_files(resolve_model(model))
    name = HallucinationDetection.name
    shipped = adapter_paths().get(name) if model == DEMO else None
    if shipped is not None:
        files |= {f"{name}/{file}": checksum for file, checksum in model_files(shipped).items()}
    adapter = None if shipped is None else name
    intrinsic = HallucinationDetection(LateExecutor(partial(_library, model)), adapter=adapter)
    return FaithfulEntailment(intrinsic, model, files)


def _library(model: str, **options: Any) -> Executor:
    from selfrag.intrinsics.model_library import Library

    return Library.from_pretrained(model, **options).executor


@dataclass(frozen=True)
class LateExecutor:
    """An executor whose model is loaded with the first request.

    Attributes:
        open: loads it.
    """

    open: Callable[[], Executor]

    @cached_property
    def opened(self) -> Executor:
        """The executor itself."""
        return self.open()

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        """See `Executor.run`."""
        return self.opened.run(requests)
