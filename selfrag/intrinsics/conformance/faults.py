"""Faults of the public libraries acted out: what our codec returns for a reply that is changed as their fault reads it.

A recorded result that differs from ours is explained if it is exactly what such a fault makes of the reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from selfrag.intrinsics.conformance.compare import MismatchError, Rejoined, compare
from selfrag.intrinsics.conformance.deviations import Deviation
from selfrag.intrinsics.contract import Code, Completion, Reflection, Request, TokenLogprob
from selfrag.intrinsics.dialects.chat import ChatCodec

Fault = Callable[[ChatCodec, Request, Completion], Completion | None]


def explained(
    codec: ChatCodec, request: Request, completion: Completion, ours: Reflection, theirs: Any
) -> set[Deviation]:
    """Reasons for which a recorded result differs from ours; empty if no known fault gives it."""
    joined = Rejoined.of(request)
    if any(note.code is Code.UNKNOWN_LABEL for note in ours.diagnostics):
        found = _same(ours.values, _undefined_too(ours.values, theirs), joined)
        return set() if found is None else found | {Deviation.UNDEFINED}
    for deviation, act in _FAULTS:
        changed = act(codec, request, completion)
        if changed is None:
            continue
        found = _same(codec.decode(request, changed).values, theirs, joined)
        if found is not None:
            return found | {deviation}
    return set()


def _same(ours: Any, theirs: Any, joined: Rejoined) -> set[Deviation] | None:
    try:
        return compare(ours, theirs, joined)
    except MismatchError:
        return None


def _undefined_too(ours: Any, theirs: Any) -> Any:
    """The recorded result with None where ours has None."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {name: _undefined_too(ours.get(name, ""), value) for name, value in theirs.items()}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_undefined_too(a, b) for a, b in zip(ours, theirs, strict=True)]
    return None if ours is None else theirs


def _from_the_end(codec: ChatCodec, request: Request, completion: Completion) -> Completion | None:
    """Negative numbers of sentences counted from the end, as a Python list does."""
    number, value = (codec.binding.number, codec.binding.value) if codec.binding is not None else (None, "")
    try:
        rows = json.loads(completion.text)
        for row in rows:
            row[number] = _counted(row[number], len(request.sites))
            if isinstance(row.get(value), list):
                row[value] = [_counted(one, len(request.sources)) for one in row[value]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Completion(json.dumps(rows), completion.finish)


def _counted(number: Any, size: int) -> Any:
    return number + size if isinstance(number, int) and -size <= number < 0 else number


def _first_label(codec: ChatCodec, request: Request, completion: Completion) -> Completion | None:
    """An alternative that begins several labels (the empty one begins all) taken for the first of them."""
    labels = [str(label) for label in _labels(codec)]

    def taken(token: TokenLogprob, text: str) -> str:
        begun = [label for label in labels if label.startswith(text)]
        return begun[0] if len(begun) > 1 and text != token.token else text

    if not labels or completion.tokens is None:
        return None
    tokens = [replace(one, top=tuple((taken(one, text), p) for text, p in one.top)) for one in completion.tokens]
    return replace(completion, tokens=tuple(tokens))


def _certain(codec: ChatCodec, request: Request, completion: Completion) -> Completion | None:
    """A label that one token writes with its quotes taken as certain."""
    written = tuple(json.dumps(label) for label in _labels(codec) if isinstance(label, str))
    tokens = completion.tokens or ()
    if not written or not any(one.token.endswith(written) for one in tokens):
        return None
    return replace(completion, tokens=tuple(replace(one, top=((one.token, 0.0),), logprob=0.0) for one in tokens))


def _labels(codec: ChatCodec) -> Iterator[Any]:
    for rule in codec.spec.rules:
        if rule.type == "likelihood":
            yield from (label for label, _ in rule.options["categories_to_values"])


_FAULTS: tuple[tuple[Deviation, Fault], ...] = (
    (Deviation.NEGATIVE, _from_the_end),
    (Deviation.FIRST_LABEL, _first_label),
    (Deviation.FIRST_LABEL, _certain),
)
