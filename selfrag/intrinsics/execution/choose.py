"""Executions by name: what judges an intrinsic, as a caller asks for it or by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError, VocabularyError
from selfrag.intrinsics.catalog import find
from selfrag.intrinsics.contract import Execution
from selfrag.intrinsics.execution.critiques import BM25, VIEWS, Overlap
from selfrag.intrinsics.execution.tokens import Combined, ScoreCalibrator, Tokens, TraceCertainty, Weighing
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec

EXECUTIONS: Mapping[str, str] = MappingProxyType(
    {
        "tokens": "the model's own reflection tokens",
        "combined": "reflection tokens and words in common, weighed as the model's own file says",
        "adapter": "the LoRA adapter of the intrinsic, plain or activated",
        "prompt": "the base model, asked by a prompt",
        "overlap": "words in common, without a model",
        "bm25": "BM25 among the given sentences, without a model",
    }
)
"""Name of an execution to what judges."""

DEFAULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "answerability": ("tokens",),
        "context_relevance": ("tokens",),
        "hallucination_detection": ("combined", "tokens"),
        "citation_generation": ("overlap",),
        "uncertainty": ("tokens",),
    }
)
"""What judges on a model with reflection tokens if nothing else is asked for, as far as it is there; the best measured
(`docs/results/intrinsics.md`)."""
_LEARNED = frozenset({("hallucination_detection", "combined"), ("uncertainty", "tokens")})  # need a file of the model


def split_name(name: str) -> tuple[str, str | None]:
    """`answerability.overlap` as the intrinsic's name and the execution's; the second is None where none is named.

    Raises:
        UserError: the intrinsic or the execution is unknown.
    """
    kind, dot, execution = name.partition(".")
    if not dot:
        return find(name).name, None
    return find(kind).name, checked(execution)


def checked(name: str) -> str:
    """The name of an execution.

    Raises:
        UserError: there is none of that name; the message lists the known ones.
    """
    if name not in EXECUTIONS:
        raise UserError(f"unknown execution {name!r:.60}; known: {', '.join(EXECUTIONS)}")
    return name


def prompting_of(tokenizer: Any) -> Prompting | None:
    """The layout of a model with reflection tokens; None for any other model."""
    try:
        return Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    except VocabularyError:
        return None


def by_default(intrinsic: str, *, tokens: bool, adapter: bool, learned: bool) -> str:
    """The execution of an intrinsic that nobody chose one for: of `DEFAULTS`, else the adapter, else a prompt.

    Args:
        intrinsic: its name.
        tokens: whether the model has reflection tokens.
        adapter: whether there is an adapter for it.
        learned: whether the model brings weights of tokens and words, or a calibrator, for it.
    """
    for one in DEFAULTS.get(intrinsic, ()) if tokens else ():
        if learned or (intrinsic, one) not in _LEARNED:
            return one
    return "adapter" if adapter else "prompt"


def method(intrinsic: str, execution: str, prompting: Prompting | None, weights: Path | None) -> Execution:
    """What judges an intrinsic without a codec.

    Args:
        intrinsic: its name.
        execution: `tokens`, `combined`, `overlap` or `bm25`.
        prompting: of a model with reflection tokens.
        weights: file of what was learned about tokens and words for this model.

    Raises:
        UserError: this model or this intrinsic does not have it.
    """
    if intrinsic == "uncertainty" and execution == "tokens":
        if weights is None:
            raise UserError("uncertainty.tokens: no calibrator was fitted for this model; ask for prompt")
        return TraceCertainty(ScoreCalibrator.read(weights))
    if intrinsic not in VIEWS:
        raise UserError(f"{intrinsic} cannot be judged by {execution}; it has: adapter, prompt")
    if execution in ("overlap", "bm25"):
        return Overlap(intrinsic) if execution == "overlap" else BM25(intrinsic)
    if prompting is None:
        raise UserError(f"{intrinsic}.{execution}: the model has no reflection tokens; ask for prompt or overlap")
    if execution == "tokens":
        return Tokens(intrinsic, prompting)
    if weights is None:
        raise UserError(f"{intrinsic}.combined: no weights were learned for this model; ask for tokens")
    return Combined(intrinsic, prompting, Weighing.read(weights))
