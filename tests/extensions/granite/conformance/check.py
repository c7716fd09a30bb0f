"""One case through our codec: what was compared, and how it came out."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from enum import StrEnum

from conformance.case import Case
from conformance.compare import (
    Deviation,
    MismatchError,
    Rejoined,
    compare,
    difference,
    sound,
)
from conformance.recorded import booleans, dated, replayed, state_of
from conformance.records import plain_result
from selfrag.common.errors import UserError
from selfrag.extensions.granite.completion import CompletionCodec
from selfrag.extensions.granite.replies import Shape
from selfrag.judges.lenient_json import read
from selfrag.judges.wire import Completion
from selfrag.reflection.inputs import JudgeInput, Message


def check_chat(case, codec, deviations, checked):
    """Compare one case; adds to `deviations` and `checked`.

    Raises:
        MismatchError: something differs without a reason.
    """
    state = case.state(codec)
    expected = case.raw.get("expected_request")
    if expected is not None:
        ours = codec.wire(state)
        if ours != expected:
            raise MismatchError(
                difference("request", json.dumps(ours), json.dumps(expected))
            )
        checked.append("request")
    request = codec.encode(state)
    replace(codec, exact=True).encode(state)
    results = case.raw.get("expected_upstream")
    for number, completion in enumerate(case.completions()):
        deviations |= _result(
            codec, request, completion, None if results is None else (results[number],)
        )
    if case.completions():
        checked.append(f"{len(case.completions())} results")
    if case.kind == "api" and results is not None:
        deviations |= _replay(codec, request, results)
        checked.append("fields and offsets")
    if not checked:
        checked.append("request builds")


def _result(codec, request, completion, expected):
    reflection = codec.decode(request, completion)
    sound(reflection)
    if expected is None:
        return set()
    ours = plain_result(codec, request, completion)
    try:
        return compare(ours, expected[0], Rejoined.of(request))
    except MismatchError:
        if booleans(codec.spec, completion, ours, expected[0]):
            return {Deviation.BOOLEAN}
        raise


def _replay(codec, request, results):
    """Recorded results without the model's words: shape, fields and offsets."""
    completion = replayed(codec, request, results)
    sound(codec.decode(request, completion))
    again = plain_result(codec, request, completion)
    return compare(again, results, Rejoined.of(request))


def check_completion(case, codec, deviations, checked):
    """Compare one case; adds to `deviations` and `checked`.

    Raises:
        MismatchError: something differs without a reason.
    """
    recorded = case.raw.get("request")
    state = JudgeInput(())
    if recorded is not None:
        codec = dated(codec, recorded["turns"])
        state = (
            case.state(codec)
            if case.raw.get("input")
            else state_of(codec, recorded["turns"])
        )
        request = codec.encode(state)
        prompt = request.prompt.text
        if prompt != recorded["prompt"]:
            raise MismatchError(difference("prompt", prompt, recorded["prompt"]))
        _parameters(
            codec,
            request,
            recorded,
            (case.raw.get("input") or {}).get("generate_inputs") or {},
        )
        checked.append("prompt")
    elif case.raw.get("input"):
        state = case.state(codec)
    request = codec.encode(state) if state.messages else _blank(codec)
    expected = case.raw.get("expected_upstream")
    for number, completion in enumerate(case.completions()):
        reflection = codec.decode(request, completion)
        sound(reflection)
        if case.kind == "decode":
            deviations |= _plain(case, codec, request, reflection, expected)
        elif reflection.diagnostics and not (reflection.findings or reflection.text):
            raise MismatchError(
                f"completion {number} was not understood: {reflection.diagnostics[0].message}"
            )
    if case.completions():
        checked.append(f"{len(case.completions())} completions")


def _blank(codec):
    """A request for completions that were recorded without their prompt."""
    return codec.encode(JudgeInput((Message("user", "?"),)))


def _parameters(codec, request, recorded, caller):
    """Limits, constraint and adapter; a limit that was left to the server, or to the caller, is ours to set."""
    params = dict(recorded["params"])
    if "max_tokens" in caller and caller["max_tokens"] == params.get("max_tokens"):
        del params["max_tokens"]
    form = request.constraint
    ours = {"max_tokens": request.max_tokens} if "max_tokens" in params else {}
    if form is not None:
        ours[f"guided_{form.form}"] = form.value
    theirs = {
        k: v for k, v in params.items() if k == "max_tokens" or k.startswith("guided_")
    }
    if codec.intrinsic != "generation" and ours != theirs:
        raise MismatchError(
            f"parameters: {ours!r:.200} where {theirs!r:.200} was recorded"
        )
    if request.adapter is not None and request.adapter != recorded["model"]:
        raise MismatchError(
            f"adapter: {request.adapter!r} where {recorded['model']!r} was recorded"
        )


def _plain(case, codec, request, reflection, expected):
    """A decoded completion against what upstream returned for it."""
    ours = plain_result(codec, request, Completion(reflection.raw))
    nothing = not reflection.judgments and reflection.text is None
    unread = (
        codec.binding.shape is Shape.WORD
        or read(reflection.raw).root is None
        or expected == reflection.raw
    )
    if nothing and unread:
        return _undefined(reflection, ours)
    if case.intrinsic == "uncertainty":
        if ours is None or abs(ours - (float(expected) + 0.05)) > 1e-9:
            raise MismatchError(f"certainty {ours!r} where {expected!r} was recorded")
        return {Deviation.DECILE}
    return compare(ours, expected, Rejoined.of(request), subset=True)


def _noted(reflection):
    if not reflection.diagnostics:
        raise MismatchError("an undefined result without a diagnostic")
    return {Deviation.UNDEFINED}


def _undefined(reflection, ours):
    if ours not in (None, []):
        raise MismatchError(f"garbage was taken for {ours!r:.80}")
    return _noted(reflection)


class Verdict(StrEnum):
    """How a case came out."""

    PASS = "pass"
    DEVIATION = "deviation"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and how it came out."""

    case: Case  # which
    verdict: Verdict  # passed, differs for named reasons, or failed
    deviations: tuple[Deviation, ...] = ()  # the reasons
    failure: str = ""  # where it failed
    checked: tuple[
        str, ...
    ] = ()  # what was compared, such as `request` and `2 results`


def check(case):
    """Run a case; nothing raises."""
    deviations = set()
    checked = []
    before = copy.deepcopy(dict(case.raw))
    try:
        codec = case.codec()
        if isinstance(codec, CompletionCodec):
            check_completion(case, codec, deviations, checked)
        else:
            check_chat(case, codec, deviations, checked)
        if before != case.raw:
            raise MismatchError("the input was changed")
    except (MismatchError, UserError) as error:
        return Outcome(
            case, Verdict.FAIL, tuple(sorted(deviations)), str(error), tuple(checked)
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # A file that is no case, or a fault of ours: one failure, and the other cases still run.
        why = f"{type(error).__name__}: {error}"
        return Outcome(
            case, Verdict.FAIL, tuple(sorted(deviations)), why, tuple(checked)
        )
    verdict = Verdict.DEVIATION if deviations else Verdict.PASS
    return Outcome(case, verdict, tuple(sorted(deviations)), "", tuple(checked))
