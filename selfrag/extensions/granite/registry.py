"""Codecs by name of their dialect, and what the replies of each intrinsic mean.

A new intrinsic is one entry in `BINDINGS`. `granite-common` and `mellea` also have variants for gpt-oss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeAlias

from selfrag.extensions.granite.chat import ChatCodec, Spec, load_spec, read_spec
from selfrag.extensions.granite.completion import CompletionCodec, completion_specs
from selfrag.extensions.granite.published import EMBEDDED
from selfrag.extensions.granite.replies import Binding, Shape
from selfrag.interface import (
    LabelSet,
    Role,
    SiteKind,
    Span,
    UserError,
    count_of,
    read_json,
    require,
)
from selfrag.intrinsics.catalog import find
from selfrag.intrinsics.criteria import guardian_arguments
from selfrag.reflection.intrinsic_labels import FAITHFULNESS_BINS

SWITCH = "granite-switch"
"""Dialect of the adapters inside Granite Switch checkpoints."""
DIALECTS = (
    "granite-3.2",
    "granite-3.3",
    "granite-common",
    "granite-common-gpt-oss",
    "mellea",
    "mellea-gpt-oss",
    SWITCH,
)
"""What `codec` speaks; each is an entry point of `selfrag.dialects`."""

_GRADES = LabelSet(Role.SUPPORT, find("hallucination_detection").labels.labels[:3])
"""Faithfulness without NA, as schemas of older adapters have it."""
_STATED = {"policy_text": "The rules that the conversation states."}
"""For a policy that stands in a system turn."""


def _by_name(*bindings: Binding) -> Mapping[str, Binding]:
    return MappingProxyType({binding.intrinsic: binding for binding in bindings})


def _bind(intrinsic: str, shape: Shape, **fields: Any) -> Binding:
    """Return the binding of a reply that says a label of its intrinsic."""
    return Binding(intrinsic, shape, find(intrinsic).labels, **fields)


BINDINGS = _by_name(
    _bind("answerability", Shape.LABEL),
    _bind("uncertainty", Shape.LABEL, scope=SiteKind.TURN),
    _bind("context_relevance", Shape.LABEL, scope=SiteKind.PASSAGE),
    _bind("requirement_check", Shape.LABEL, scope=SiteKind.TURN),
    _bind(
        "answer_relevance_classifier",
        Shape.LABEL,
        written=(True, False),
        path=("answer_relevance_judgment",),
        scope=SiteKind.TURN,
        note="answer_relevance_analysis",
    ),
    _bind(
        "guardian",
        Shape.LABEL,
        scope=SiteKind.TURN,
        defaults=guardian_arguments("harm", "user_prompt"),
    ),
    _bind("factuality_detection", Shape.LABEL, scope=SiteKind.TURN),
    _bind("policy_guardrails", Shape.LABEL, scope=SiteKind.TURN, defaults=_STATED),
    _bind(
        "hallucination_detection",
        Shape.SENTENCES,
        number="r",
        value="f",
        note="e",
    ),
    Binding("citation_generation", Shape.CITATIONS, number="r", value="c"),
    Binding("context_attribution", Shape.CITATIONS, number="r", value="c", ranked=True),
    _bind("query_rewrite", Shape.TEXT, path=("rewritten_question",)),
    _bind("query_clarification", Shape.TEXT, path=("clarification",), quiet="CLEAR"),
    Binding(
        "answer_relevance_rewriter",
        Shape.TEXT,
        path=("answer_relevance_rewrite",),
        scope=SiteKind.TURN,
    ),
    _bind(
        "factuality_correction",
        Shape.TEXT,
        path=("correction",),
        scope=SiteKind.TURN,
        quiet="none",
    ),
)
"""What the replies of the chat dialects mean."""

_WORDS = (
    Binding("generation", Shape.FREE),
    _bind("uncertainty", Shape.WORD, scope=SiteKind.TURN),
    _bind("answerability", Shape.WORD),
)

GRANITE_3_2 = _by_name(
    *_WORDS,
    BINDINGS["query_rewrite"],
    Binding(
        "hallucination_detection", Shape.SENTENCES, FAITHFULNESS_BINS, doubled=True
    ),
    Binding("citation_generation", Shape.CITATIONS),
)
"""What the replies of the paper's adapters mean."""

GRANITE_3_3 = _by_name(
    *_WORDS,
    replace(BINDINGS["query_rewrite"], fenced=True),
    replace(BINDINGS["hallucination_detection"], number="i", note="r", note_first=True),
    BINDINGS["citation_generation"],
    replace(BINDINGS["context_relevance"], path=("context_relevance",), fenced=True),
    BINDINGS["answer_relevance_classifier"],
    BINDINGS["answer_relevance_rewriter"],
)
"""The same of Granite 3.3."""

_SPOKEN = {"yes": True, "no": False}


def bind(intrinsic: str, schema: Mapping[str, Any] | None) -> Binding:
    """Return the binding of an intrinsic, with the label's place and its written forms as a schema has them.

    Raises a `UserError` for what the chat dialects do not have, and for a schema with other labels.
    """
    if intrinsic not in BINDINGS:
        raise UserError(
            f"no meaning known for {intrinsic!r}; known: {', '.join(sorted(BINDINGS))}"
        )
    binding = BINDINGS[intrinsic]
    if (
        schema is None
        or binding.labels is None
        or binding.shape not in (Shape.LABEL, Shape.SENTENCES)
    ):
        return binding
    if binding.shape is Shape.SENTENCES:
        enum = _enum(_record(schema).get(binding.value, {}))
        if enum is not None and len(enum) == len(_GRADES):
            binding = replace(binding, labels=_GRADES, written=_GRADES.tokens)
        return replace(binding, written=_written(binding, enum))
    if schema.get("type") != "object":
        return replace(binding, path=(), written=_written(binding, _enum(schema)))
    properties = schema.get("properties", {})
    names = [name for name in properties if _enum(properties[name]) is not None]
    if binding.path:
        names = [binding.path[0]]
    if len(names) != 1:
        raise UserError(
            f"{intrinsic}: the schema has {count_of(len(names), 'fields')} with labels, not one"
        )
    return replace(
        binding,
        path=(names[0],),
        written=_written(binding, _enum(properties.get(names[0], {}))),
    )


def _record(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of the objects of an array."""
    items = schema.get("items", {})
    name = str(items.get("$ref", "")).rsplit("/", 1)[-1]
    record = schema.get("$defs", {}).get(name, items)
    properties: Mapping[str, Any] = record.get("properties", {})
    return properties


def _enum(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    if schema.get("type") == "boolean":
        return (True, False)
    codecs: Sequence[Any] | None = schema.get("enum")
    return codecs


def _written(binding: Binding, enum: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return the forms of the schema in label order."""
    if enum is None:
        return binding.written
    forms: list[Any] = []
    for form in binding.written:
        spoken = _SPOKEN.get(str(form).casefold())
        same = []
        for entry in enum:
            alike = str(entry).casefold() == str(form).casefold()
            if entry is spoken if isinstance(entry, bool) else alike:
                same.append(entry)
        if isinstance(form, bool):
            same = [e for e in enum if e is form]
        if len(same) != 1:
            raise UserError(
                f"{binding.intrinsic}: the schema has no label {form!r} among {list(enum)}"
            )
        forms += same
    return tuple(forms)


def punkt(text: str) -> Sequence[Span]:
    """Return sentences by NLTK's Punkt without trained parameters, as the public libraries do; needs no download.

    NLTK is asked for at the first text only, so that intrinsics that split nothing work without it.
    """
    return list(_tokenizer().span_tokenize(text))


@cache
def _tokenizer() -> Any:
    return require("nltk.tokenize.punkt", extra="granite").PunktSentenceTokenizer()


DialectCodec: TypeAlias = ChatCodec | CompletionCodec

_COMPLETION = {"granite-3.2": GRANITE_3_2, "granite-3.3": GRANITE_3_3}
_GPT_OSS = "-gpt-oss"
_CHAT = tuple(dialect for dialect in DIALECTS if dialect not in _COMPLETION)

_PUBLISHED = {
    "citation_generation": "citations",
    "context_attribution": "context-attribution",
    "guardian": "guardian-core",
    "policy_guardrails": "policy-guardrails",
    "factuality_detection": "factuality-detection",
    "factuality_correction": "factuality-correction",
}
"""What an intrinsic is called where its adapter is published, if not by its own name."""


def intrinsics_of(dialect: str) -> tuple[str, ...]:
    """Return the names of the intrinsics that a dialect has; an unknown dialect is refused."""
    if dialect in _COMPLETION:
        return tuple(completion_specs(dialect))
    specs = chat_specs(dialect)
    bindings = BINDINGS if dialect != SWITCH else EMBEDDED
    return tuple(name for name in bindings if _file(dialect, name) in specs)


def codec(dialect: str, intrinsic: str, **changes: Any) -> DialectCodec:
    """Return the codec of an intrinsic in one of `DIALECTS`; `changes` are fields of it, such as `exact` or `find`."""
    known = intrinsics_of(dialect)
    if intrinsic not in known:
        raise UserError(f"{dialect} has no {intrinsic!r}; it has: {', '.join(known)}")
    if dialect in _COMPLETION:
        spec = completion_specs(dialect)[intrinsic]
        binding = _COMPLETION[dialect][intrinsic]
        joined = dialect == "granite-3.2"
        return replace(
            CompletionCodec(
                dialect, spec, binding, joined, punkt, adapter=spec.adapter
            ),
            **changes,
        )
    newest = EMBEDDED if dialect in ("mellea", SWITCH) else {}
    published = newest.get(intrinsic) or _PUBLISHED.get(intrinsic, intrinsic)
    chat = chat_specs(dialect)[_file(dialect, intrinsic)]
    made = ChatCodec(
        dialect, chat, bind(intrinsic, chat.schema), punkt, adapter=published
    )
    if dialect == SWITCH:
        # As published: a server that begins the reply with a label's prefill has the control token behind it.
        made = replace(
            embedded(made, published, activated=intrinsic not in _PLAIN), exact=False
        )
    return replace(made, **changes)


def codec_of_file(
    path: Path, intrinsic: str | None = None, **changes: Any
) -> ChatCodec:
    """Return the codec of an adapter by its own `io.yaml`; without an intrinsic, the reply is free text."""
    return codec_of_spec(load_spec(path), intrinsic, **changes)


def codec_of_spec(
    spec: Spec, intrinsic: str | None = None, **changes: Any
) -> ChatCodec:
    """Return the codec of a configuration that was read already; see `codec_of_file`."""
    binding = (
        Binding(spec.name, Shape.FREE)
        if intrinsic is None
        else bind(intrinsic, spec.schema)
    )
    return replace(
        ChatCodec("io.yaml", spec, binding, punkt, adapter=spec.name), **changes
    )


_PLAIN = frozenset(
    {"citation_generation", "hallucination_detection", "context_attribution"}
)
"""Adapters that are published as plain LoRA only."""


def embedded(made: ChatCodec, name: str, *, activated: bool) -> ChatCodec:
    """Return the codec of an adapter inside a Granite Switch checkpoint, made of that of the same adapter by itself.

    Its requests name the adapter to the model's chat template, which writes the adapter's control token.
    """
    extra = {
        **(made.spec.parameters.get("extra_body") or {}),
        "chat_template_kwargs": {"adapter_name": name},
    }
    spec = replace(
        made.spec,
        name=name,
        model=None,
        parameters={**made.spec.parameters, "extra_body": extra},
    )
    kind = "activated adapter" if activated else "adapter"
    return replace(made, dialect=SWITCH, spec=spec, adapter=None, embedded=kind)


def switch_codecs(folder: Path) -> dict[str, ChatCodec]:
    """Return the codecs of the adapters inside a Granite Switch checkpoint, by intrinsic; empty for any other one.

    Each is made of the adapter's own `io.yaml`, as `adapter_index.json` lists them. Adapters without one, and those of
    functions that are not known here, are left out.
    """
    path = folder / "adapter_index.json"
    if not path.is_file():
        return {}
    known = {name: intrinsic for intrinsic, name in EMBEDDED.items()}
    codecs: dict[str, ChatCodec] = {}
    index = read_json(path)
    entries = index.get("adapters") if isinstance(index, dict) else None
    if not isinstance(entries, list):
        raise UserError(
            f"{path} lists no adapters; give a checkpoint as granite-switch composes it"
        )
    for entry in entries:
        match entry:
            case {"adapter_name": str(name), "io_config": str(file)} if name in known:
                inside = PurePosixPath(file)
                if inside.is_absolute() or ".." in inside.parts:
                    raise UserError(
                        f"{path}: io_config={file!r:.80} of {name} leaves the checkpoint"
                    )
                made = codec_of_file(folder / file, known[name])
                codecs[known[name]] = embedded(
                    made, name, activated=entry.get("technology") == "alora"
                )
    return codecs


@cache
def chat_specs(dialect: str) -> Mapping[str, Spec]:
    """Return all configurations of a chat dialect, by the name of their file; an unknown dialect is refused."""
    if dialect not in _CHAT:
        raise UserError(f"unknown dialect {dialect!r}; known: {', '.join(DIALECTS)}")
    shared = "mellea" if dialect == SWITCH else dialect.removesuffix(_GPT_OSS)
    file = files(__package__).joinpath("data", f"{shared}.json")
    contracts = json.loads(file.read_text("utf-8"))["contracts"]
    return MappingProxyType(
        {name: read_spec(name, raw) for name, raw in contracts.items()}
    )


def _file(dialect: str, intrinsic: str) -> str:
    name = _PUBLISHED.get(intrinsic, intrinsic)
    if dialect.endswith(_GPT_OSS):
        return f"gpt_oss_{name}"
    return "answerability_simple" if name == "answerability" else name
