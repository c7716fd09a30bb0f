"""One case through our codec: what was compared, and how it came out."""

import copy
import json
from dataclasses import dataclass, replace
from enum import StrEnum

from conformance.case import Case
from conformance.compare import Deviation, Rejoined, compare, same, sound
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
        AssertionError: something differs without a reason.
    """
    state = case.state(codec)
    expected = case.raw.get("expected_request")
    if expected is not None:
        requests = (codec.wire(state), expected)
        same("request", *(json.dumps(value, sort_keys=True) for value in requests))
        checked.append("request")
    request = codec.encode(state)
    replace(codec, exact=True).encode(state)
    completions, results = case.completions(), case.raw.get("expected_upstream")
    for number, completion in enumerate(completions):
        sound(codec.decode(request, completion))
        if results is not None:
            deviations |= _result(codec, request, completion, results[number])
    if completions:
        checked.append(f"{len(completions)} results")
    if case.kind == "api" and results is not None:
        # recorded results without the model's words: shape, fields and offsets
        completion = replayed(codec, request, results)
        sound(codec.decode(request, completion))
        again = plain_result(codec, request, completion)
        deviations |= compare(again, results, Rejoined.of(request))
        checked.append("fields and offsets")
    if not checked:
        checked.append("request builds")


def _result(codec, request, completion, expected):
    ours = plain_result(codec, request, completion)
    try:
        return compare(ours, expected, Rejoined.of(request))
    except AssertionError:
        if booleans(codec.spec, completion, ours, expected):
            return {Deviation.BOOLEAN}
        raise


BLANK = JudgeInput((Message("user", "?"),))
"""Of completions that were recorded without their prompt."""


def check_completion(case, codec, deviations, checked):
    """Compare one case; adds to `deviations` and `checked`.

    Raises:
        AssertionError: something differs without a reason.
    """
    values = case.raw.get("input") or {}
    recorded = case.raw.get("request")
    if recorded is not None:
        codec = dated(codec, recorded["turns"])
    if values:
        state = case.state(codec)
    elif recorded is not None:
        state = state_of(codec, recorded["turns"])
    else:
        state = BLANK
    request = codec.encode(state)
    if recorded is not None:
        same("prompt", request.prompt.text, recorded["prompt"])
        _parameters(codec, request, recorded, values.get("generate_inputs") or {})
        checked.append("prompt")
    if not state.messages:
        request = codec.encode(BLANK)
    completions, expected = case.completions(), case.raw.get("expected_upstream")
    for completion in completions:
        reflection = codec.decode(request, completion)
        sound(reflection)
        if case.kind == "decode":
            deviations |= _plain(case, codec, request, reflection, expected)
        else:
            understood = reflection.findings or reflection.text
            assert understood or not reflection.diagnostics, reflection.diagnostics
    if completions:
        checked.append(f"{len(completions)} completions")


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
    if codec.intrinsic != "generation":
        assert ours == theirs, f"parameters: {ours!r:.200}, not {theirs!r:.200}"
    if request.adapter is not None:
        same("adapter", request.adapter, recorded["model"])


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
        assert ours in (None, []), f"garbage was taken for {ours!r:.80}"
        assert reflection.diagnostics, "an undefined result without a diagnostic"
        return {Deviation.UNDEFINED}
    if case.intrinsic == "uncertainty":
        why = f"certainty {ours!r} where {expected!r} was recorded"
        assert ours is not None, why
        assert abs(ours - (float(expected) + 0.05)) <= 1e-9, why
        return {Deviation.DECILE}
    return compare(ours, expected, Rejoined.of(request), subset=True)


class Verdict(StrEnum):
    """How a case came out."""

    PASS = "pass"
    DEVIATION = "deviation"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and how it came out."""

    case: Case
    verdict: Verdict
    deviations: list[Deviation]  # the reasons
    failure: str  # where it failed
    checked: list[str]  # what was compared, such as `request` and `2 results`


def check(case):
    """Run a case; nothing raises."""
    deviations, checked, failure = set(), [], ""
    before = copy.deepcopy(dict(case.raw))
    try:
        codec = case.codec()
        words = isinstance(codec, CompletionCodec)
        (check_completion if words else check_chat)(case, codec, deviations, checked)
        assert before == case.raw, "the input was changed"
    except (AssertionError, UserError) as error:
        failure = str(error)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # A file that is no case, or a fault of ours: one failure, and the other cases still run.
        failure = f"{type(error).__name__}: {error}"
    verdict = Verdict.DEVIATION if deviations else Verdict.PASS
    if failure:
        verdict = Verdict.FAIL
    return Outcome(case, verdict, sorted(deviations), failure, checked)
