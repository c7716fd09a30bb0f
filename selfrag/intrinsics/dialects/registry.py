"""Codecs by name: `granite-3.2`, `granite-3.3`, `granite-common`, `mellea`, the last two also for gpt-oss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from retrieval.splitting import SentenceFinder, sentence_finder
from selfrag.errors import UserError, require
from selfrag.intrinsics.dialects.bindings import BINDINGS, GRANITE_3_2, GRANITE_3_3, bind
from selfrag.intrinsics.dialects.chat import ChatCodec
from selfrag.intrinsics.dialects.completion import DATE, CompletionCodec, System, completion_specs
from selfrag.intrinsics.dialects.completion import GRANITE_3_2 as TEMPLATE_3_2
from selfrag.intrinsics.dialects.completion import GRANITE_3_3 as TEMPLATE_3_3
from selfrag.intrinsics.dialects.io_yaml import Spec, load_spec, read_spec

PUNKT = "punkt"
"""NLTK's Punkt without trained parameters, as the public libraries use it; needs no download."""


def finder(name: str = PUNKT) -> SentenceFinder:
    """A sentence splitter by name.

    Args:
        name: `punkt`, or what `retrieval.splitting.sentence_finder` takes: `rules` or the name of a spaCy model.

    Raises:
        MissingExtraError: NLTK is not installed.
        UserError: no such spaCy model.
    """
    if name != PUNKT:
        return sentence_finder(name)
    punkt = require("nltk.tokenize.punkt", extra="granite").PunktSentenceTokenizer()
    return lambda text: list(punkt.span_tokenize(text))


DialectCodec: TypeAlias = ChatCodec | CompletionCodec

_COMPLETION = MappingProxyType({"granite-3.2": (TEMPLATE_3_2, GRANITE_3_2), "granite-3.3": (TEMPLATE_3_3, GRANITE_3_3)})
_CHAT = MappingProxyType(
    {
        "granite-common": ("granite-common", ""),
        "granite-common-gpt-oss": ("granite-common", "gpt_oss_"),
        "mellea": ("mellea", ""),
        "mellea-gpt-oss": ("mellea", "gpt_oss_"),
    }
)
DIALECTS: tuple[str, ...] = (*_COMPLETION, *_CHAT)
"""Names of the dialects of published adapters."""

_PUBLISHED = MappingProxyType(
    {
        "citation_generation": "citations",
        "context_attribution": "context-attribution",
        "guardian": "guardian-core",
        "policy_guardrails": "policy-guardrails",
        "factuality_detection": "factuality-detection",
        "factuality_correction": "factuality-correction",
    }
)
"""What an intrinsic is called where its adapter is published, if not by its own name."""

_RENAMED = MappingProxyType({("mellea", "requirement_check"): "requirement-check"})
"""Adapters that a later release publishes under another name."""

_FILES = MappingProxyType({"answerability": "answerability_simple"})


@dataclass(frozen=True, slots=True)
class Options:
    """What a codec can be told.

    Attributes:
        exact: score labels as slots where that is possible; False sends requests exactly as published.
        adapter: name of the adapter on the server; empty for its published name, None for the base model.
        find: sentence splitter; None for the one that the adapters were trained with.
        date: what the system turn of Granite 3.x calls today.
        system: what stands in that turn.
    """

    exact: bool = True
    adapter: str | None = ""
    find: SentenceFinder | None = None
    date: str = DATE
    system: System = System.DEFAULT


def intrinsics_of(dialect: str) -> tuple[str, ...]:
    """Names of the intrinsics that a dialect has.

    Raises:
        UserError: no such dialect.
    """
    if dialect in _COMPLETION:
        return tuple(completion_specs(dialect))
    specs = chat_specs(dialect)
    return tuple(name for name in BINDINGS if _file(dialect, name) in specs)


def codec(dialect: str, intrinsic: str, options: Options | None = None) -> DialectCodec:
    """The codec of an intrinsic in a dialect.

    Args:
        dialect: one of `DIALECTS`.
        intrinsic: such as `answerability`; see `intrinsics_of`.
        options: see `Options`.

    Raises:
        UserError: no such dialect, or it has no such intrinsic.
        MissingExtraError: the splitter of the published adapters is not installed.
    """
    given = options or Options()
    known = intrinsics_of(dialect)
    if intrinsic not in known:
        raise UserError(f"{dialect} has no {intrinsic!r}; it has: {', '.join(known)}")
    find = given.find or finder()
    if dialect in _COMPLETION:
        template, bindings = _COMPLETION[dialect]
        spec = completion_specs(dialect)[intrinsic]
        adapter = spec.adapter if given.adapter == "" else given.adapter
        return CompletionCodec(
            dialect, spec, bindings[intrinsic], template, find, given.exact, adapter, given.date, given.system
        )
    published = _RENAMED.get((dialect, intrinsic)) or _PUBLISHED.get(intrinsic, intrinsic)
    adapter = published if given.adapter == "" else given.adapter
    chat = chat_specs(dialect)[_file(dialect, intrinsic)]
    return ChatCodec(dialect, chat, bind(intrinsic, chat.schema), find, given.exact, adapter)


def codec_of_file(path: Path, intrinsic: str | None = None, options: Options | None = None) -> ChatCodec:
    """The codec of an adapter by its own `io.yaml`.

    Args:
        path: the file.
        intrinsic: what its reply means; None if its records are all that is wanted.
        options: see `Options`.

    Raises:
        UserError: the file is no such configuration, or its labels are not those of the intrinsic.
    """
    return codec_of_spec(load_spec(path), intrinsic, options)


def codec_of_spec(spec: Spec, intrinsic: str | None = None, options: Options | None = None) -> ChatCodec:
    """The codec of a configuration that was read already; see `codec_of_file`."""
    given = options or Options()
    binding = None if intrinsic is None else bind(intrinsic, spec.schema)
    adapter = spec.name if given.adapter == "" else given.adapter
    return ChatCodec("io.yaml", spec, binding, given.find or finder(), given.exact, adapter)


@cache
def chat_specs(dialect: str) -> Mapping[str, Spec]:
    """All configurations of a chat dialect, by the name of their file.

    Raises:
        UserError: no such dialect.
    """
    if dialect not in _CHAT:
        raise UserError(f"unknown dialect {dialect!r}; known: {', '.join(DIALECTS)}")
    text = files("selfrag.intrinsics.dialects").joinpath("data", f"{_CHAT[dialect][0]}.json").read_text("utf-8")
    return MappingProxyType({name: read_spec(name, raw) for name, raw in json.loads(text)["contracts"].items()})


def _file(dialect: str, intrinsic: str) -> str:
    prefix = _CHAT[dialect][1]
    name = _PUBLISHED.get(intrinsic, intrinsic)
    return f"{prefix}{name}" if prefix else _FILES.get(name, name)
