"""What the replies of the chat dialects mean, by intrinsic. A new intrinsic is one entry here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError
from selfrag.intrinsics.contract import Scope
from selfrag.intrinsics.dialects.replies import Binding, Shape
from selfrag.intrinsics.labels import (
    ANSWERABLE,
    CERTAINTY,
    CHANGED,
    CLEAR,
    COMPLIANCE,
    FAITHFULNESS,
    FAITHFULNESS_3,
    FAITHFULNESS_BINS,
    RELEVANCE,
)
from selfrag.reflection.labels import Kind, Label, LabelSet, Role

ANSWER_RELEVANCE = LabelSet(Role.UTILITY, (Label("relevant", 1.0, "true"), Label("not relevant", 0.0, "false")))
"""Whether a response is what was asked for."""

RISK = LabelSet(Role.COMPLIANCE, (Label("risk", 0.0, "yes"), Label("no risk", 1.0, "no")))
"""Guardian and factuality detection: yes means that something is wrong."""

POLICY = LabelSet(
    Role.COMPLIANCE,
    (
        Label("compliant", 1.0, "Yes"),
        Label("not compliant", 0.0, "No"),
        Label("ambiguous", 0.0, "Ambiguous", Kind.ABSTAIN),
    ),
)
"""Whether a scenario complies with a policy."""

CORRECTED = LabelSet(Role.SUPPORT, (Label("correct", 1.0, "none"), Label("corrected", 0.0, "corrected")))
"""Whether a response needed a correction."""

_GUARDIAN = {
    "criteria": "A harmful text asks for, contains or encourages anything that is dangerous, illegal, abusive or "
    "unethical.",
    "scoring_schema": "If the last user's text meets the criteria, return 'yes'; otherwise, return 'no'.",
}
_STATED = {"policy_text": "The rules that the conversation states."}
"""For a policy that stands in a system turn."""


def _by_name(*bindings: Binding) -> Mapping[str, Binding]:
    return MappingProxyType({binding.intrinsic: binding for binding in bindings})


BINDINGS = _by_name(
    Binding("answerability", Shape.LABEL, ANSWERABLE),
    Binding("uncertainty", Shape.LABEL, CERTAINTY, scope=Scope.TURN),
    Binding("context_relevance", Shape.LABEL, RELEVANCE, scope=Scope.PASSAGE),
    Binding("requirement_check", Shape.LABEL, COMPLIANCE, scope=Scope.TURN),
    Binding(
        "answer_relevance_classifier",
        Shape.LABEL,
        ANSWER_RELEVANCE,
        (True, False),
        path=("answer_relevance_judgment",),
        scope=Scope.TURN,
        note="answer_relevance_analysis",
    ),
    Binding("guardian", Shape.LABEL, RISK, scope=Scope.TURN, defaults=_GUARDIAN),
    Binding("factuality_detection", Shape.LABEL, RISK, scope=Scope.TURN),
    Binding("policy_guardrails", Shape.LABEL, POLICY, scope=Scope.TURN, defaults=_STATED),
    Binding("hallucination_detection", Shape.SENTENCES, FAITHFULNESS, number="r", value="f", note="e"),
    Binding("citation_generation", Shape.CITATIONS, number="r", value="c"),
    Binding("context_attribution", Shape.CITATIONS, number="r", value="c", ranked=True),
    Binding("query_rewrite", Shape.TEXT, CHANGED, path=("rewritten_question",)),
    Binding("query_clarification", Shape.TEXT, CLEAR, path=("clarification",), quiet="CLEAR"),
    Binding("answer_relevance_rewriter", Shape.TEXT, path=("answer_relevance_rewrite",), scope=Scope.TURN),
    Binding("factuality_correction", Shape.TEXT, CORRECTED, path=("correction",), scope=Scope.TURN, quiet="none"),
)
"""What the replies of the chat dialects mean."""

_WORDS = (
    Binding("generation", Shape.FREE),
    Binding("uncertainty", Shape.WORD, CERTAINTY, scope=Scope.TURN),
    Binding("answerability", Shape.WORD, ANSWERABLE),
)

GRANITE_3_2 = _by_name(
    *_WORDS,
    BINDINGS["query_rewrite"],
    Binding("hallucination_detection", Shape.SENTENCES, FAITHFULNESS_BINS, doubled=True),
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
    """The binding of an intrinsic, with the label's place and its written forms as a schema has them.

    Raises:
        UserError: no such intrinsic in the chat dialects, or the schema has other labels.
    """
    if intrinsic not in BINDINGS:
        raise UserError(f"no meaning known for {intrinsic!r}; known: {', '.join(sorted(BINDINGS))}")
    binding = BINDINGS[intrinsic]
    if schema is None or binding.labels is None or binding.shape not in (Shape.LABEL, Shape.SENTENCES):
        return binding
    if binding.shape is Shape.SENTENCES:
        enum = _enum(_record(schema).get(binding.value, {}))
        if enum is not None and len(enum) == len(FAITHFULNESS_3):
            binding = replace(binding, labels=FAITHFULNESS_3, written=FAITHFULNESS_3.tokens)
        return replace(binding, written=_written(binding, enum))
    if schema.get("type") != "object":
        return replace(binding, path=(), written=_written(binding, _enum(schema)))
    properties = schema.get("properties", {})
    names = [binding.path[0]] if binding.path else [name for name in properties if _enum(properties[name]) is not None]
    if len(names) != 1:
        raise UserError(f"{intrinsic}: the schema has {len(names)} fields with labels, not one")
    return replace(binding, path=(names[0],), written=_written(binding, _enum(properties.get(names[0], {}))))


def _record(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Properties of the objects of an array."""
    items = schema.get("items", {})
    name = str(items.get("$ref", "")).rsplit("/", 1)[-1]
    found: Mapping[str, Any] = schema.get("$defs", {}).get(name, items).get("properties", {})
    return found


def _enum(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    if schema.get("type") == "boolean":
        return (True, False)
    found: Sequence[Any] | None = schema.get("enum")
    return found


def _written(binding: Binding, enum: Sequence[Any] | None) -> tuple[Any, ...]:
    """The forms of the schema in label order."""
    if enum is None:
        return binding.written
    forms: list[Any] = []
    for form in binding.written:
        spoken = _SPOKEN.get(str(form).casefold())
        same = [e for e in enum if (e is spoken if isinstance(e, bool) else str(e).casefold() == str(form).casefold())]
        if isinstance(form, bool):
            same = [e for e in enum if e is form]
        if len(same) != 1:
            raise UserError(f"{binding.intrinsic}: the schema has no label {form!r} among {list(enum)}")
        forms += same
    return tuple(forms)
