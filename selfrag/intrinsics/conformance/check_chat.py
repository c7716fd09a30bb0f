"""Cases of the chat dialects: the request field by field, and every recorded reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from selfrag.intrinsics.conformance.case import Case
from selfrag.intrinsics.conformance.compare import MismatchError, Rejoined, compare
from selfrag.intrinsics.conformance.deviations import Deviation
from selfrag.intrinsics.conformance.differences import first_difference, whole
from selfrag.intrinsics.conformance.faults import explained
from selfrag.intrinsics.conformance.recorded import all_texts, recorded_finder
from selfrag.intrinsics.conformance.replay import booleans, kinds, replayed
from selfrag.intrinsics.conformance.soundness import sound
from selfrag.intrinsics.contract import Completion, Request, State
from selfrag.intrinsics.dialects.chat import ChatCodec
from selfrag.intrinsics.dialects.replies import Shape


def check_chat(case: Case, codec: ChatCodec, found: set[Deviation], checked: list[str]) -> None:
    """Compare one case; adds to `found` and `checked`.

    Raises:
        MismatchError: something differs without a reason.
    """
    state = case.state(codec)
    expected = case.raw.get("expected_request")
    if expected is not None:
        codec = _as_recorded(codec, state, expected, found)
        checked.append("request")
    request = codec.encode(state)
    replace(codec, exact=True).encode(state)
    results = case.raw.get("expected_upstream")
    for number, completion in enumerate(case.completions()):
        found |= _result(codec, request, completion, None if results is None else (results[number],))
    if case.completions():
        checked.append(f"{len(case.completions())} results")
    if case.kind == "api" and results is not None:
        found |= _replay(codec, request, results)
        checked.append("fields and offsets")
    if not checked:
        checked.append("request builds")


def _result(codec: ChatCodec, request: Request, completion: Completion, expected: tuple[Any] | None) -> set[Deviation]:
    reflection = codec.decode(request, completion)
    sound(reflection)
    if expected is None:
        return set()
    if expected[0] is None and reflection.diagnostics:
        return {Deviation.RECOVERED}
    try:
        return compare(reflection.values, expected[0], Rejoined.of(request))
    except MismatchError:
        if booleans(codec.spec, completion, reflection.values, expected[0]):
            return {Deviation.BOOLEAN}
        reasons = explained(codec, request, completion, reflection, expected[0])
        if not reasons:
            raise
        return reasons


def _replay(codec: ChatCodec, request: Request, results: Any) -> set[Deviation]:
    """Recorded results without the model's words: shape, fields and offsets."""
    again = codec.decode(request, replayed(codec, request, results))
    sound(again)
    if codec.binding is not None and codec.binding.shape is Shape.LABEL:
        return compare(kinds(again.values), kinds(results), Rejoined.of(request))
    return compare(again.values, results, Rejoined.of(request))


def _as_recorded(codec: ChatCodec, state: State, expected: Any, found: set[Deviation]) -> ChatCodec:
    """The codec that builds the recorded request: ours, or ours with the recorded sentences."""
    ours = codec.wire(state)
    if ours == expected:
        return codec
    other = replace(codec, find=recorded_finder(all_texts(expected), codec.find))
    if other.wire(state) == expected:
        found.add(Deviation.SPLITTER)
        return other
    letters = frozenset(codec.spec.tags.values())
    if whole(ours, letters) == whole(expected, letters):
        found.add(Deviation.LOOKALIKE)
        return codec
    raise MismatchError(first_difference(ours, expected))
