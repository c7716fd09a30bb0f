"""Recorded cases of the public libraries: each passes, or differs for a reason that is named in the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wire_help import token

from conformance.case import read_cases
from conformance.check import Verdict, check
from conformance.compare import REASONS, Deviation, MismatchError, Rejoined, compare
from conformance.recorded import explained
from retrieval.passage import Passage
from selfrag.intrinsics.contract import Completion, Message, State, TokenLogprob
from selfrag.intrinsics.dialects.registry import codec

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared" / "conformance" / "intrinsics"
EXPECTED = {
    "D1/AD/canned-03": Deviation.UNDEFINED,
    "D1/QR/canned-02": Deviation.UNDEFINED,
    "D1/UQ/canned-02": Deviation.DECILE,
    "D2/AD/canned-03": Deviation.UNDEFINED,
    "D2/QR/canned-02": Deviation.UNDEFINED,
    "D2/UQ/canned-02": Deviation.DECILE,
    "D3/ARC/answer_relevance_classifier": Deviation.BOOLEAN,
    "D3/CG/citations": Deviation.OFFSETS,
    "D3/HD/gpt_oss_hallucination_detection": Deviation.OFFSETS,
    "D3/HD/hallucination_detection": Deviation.OFFSETS,
    "D3/RC/requirement_check": Deviation.BOOLEAN,
    "D4/CA/api-context-attribution": Deviation.OFFSETS,
    "D4/CA/context-attribution": Deviation.OFFSETS,
    "D4/CG/citations": Deviation.OFFSETS,
    "D4/HD/api-hallucination_detection": Deviation.OFFSETS,
    "D4/HD/gpt_oss_hallucination_detection": Deviation.OFFSETS,
    "D4/HD/hallucination_detection": Deviation.OFFSETS,
}
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"no recorded cases beside the checkout ({CASES.name})")


@needs_cases
def test_every_case_and_nothing_but_the_named_deviations():
    outcomes = {case.id: check(case) for case in read_cases(CASES)}
    assert len(outcomes) == 73
    assert {name: outcome.failure for name, outcome in outcomes.items() if outcome.failure} == {}
    found = {name: set(outcome.deviations) for name, outcome in outcomes.items() if outcome.deviations}
    assert found == {name: {deviation} for name, deviation in EXPECTED.items()}
    assert all(outcome.checked for outcome in outcomes.values())


def _tampered(tmp_path: Path, name: str, change) -> str:
    source = CASES / name
    raw = json.loads(source.read_text())
    change(raw)
    folder = tmp_path / source.parent.name
    folder.mkdir(exist_ok=True)
    (folder / source.name).write_text(json.dumps(raw))
    contracts = source.parent / "_contracts.json"
    if contracts.exists():
        (folder / "_contracts.json").write_text(contracts.read_text())
    (case,) = read_cases(tmp_path)
    outcome = check(case)
    assert outcome.verdict is Verdict.FAIL
    return outcome.failure


def _prompt(raw):
    raw["request"]["prompt"] = raw["request"]["prompt"].replace("fleas?", "flees?")


def _offset(raw):
    raw["expected_upstream"][0][0]["citation_begin"] += 1


def _request(raw):
    raw["expected_request"]["extra_body"]["documents"][1]["text"] += " "


@needs_cases
@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("D1/AD__answerability-model-01.json", _prompt, "prompt: at "),
        ("D3/CG__citations.json", _request, "request.extra_body.documents[1].text: at "),
        ("D4/CG__citations.json", _offset, "result[0].citation: "),
    ],
)
def test_the_runner_sees_a_difference(tmp_path: Path, name: str, change, where: str):
    assert where in _tampered(tmp_path, name, change)


FORGED = "With <c1> inside. Another."
SPACED = "  One. Two."


@pytest.mark.parametrize(
    ("original", "spans", "ours", "recorded", "reason"),
    [
        (FORGED, ((0, 17), (18, 26)), (0, 17), (0, 5, "With "), Deviation.LOOKALIKE),
        (SPACED, ((2, 6), (7, 11)), (2, 6), (0, 6, "  One."), Deviation.WHITESPACE),
        (SPACED, ((2, 6), (7, 11)), (2, 6), (0, 7, "  One. "), Deviation.OFFSETS),
        (SPACED, ((2, 6), (7, 11)), (2, 6), (2, 6, "Two."), None),
    ],
)
def test_a_span_differs_for_a_reason_or_not_at_all(original, spans, ours, recorded, reason):
    mine = {"x_begin": ours[0], "x_end": ours[1], "x_text": original[slice(*ours)]}
    theirs = dict(zip(("x_begin", "x_end", "x_text"), recorded, strict=True))
    joined = Rejoined(((original, spans),))
    if reason is None:
        with pytest.raises(MismatchError, match=r"result\.x: 2:6 'One\.'"):
            compare(mine, theirs, joined, subset=True)
    else:
        assert compare(mine, theirs, joined, subset=True) == {reason}


@needs_cases
def test_the_script(tmp_path: Path, run_script):
    code, said, _ = run_script("run_conformance", CASES, "--only", "D1/AD", "--json", str(tmp_path / "out.jsonl"))
    assert code == 0
    assert "3 cases: 2 pass, 1 deviation, 0 fail" in said
    assert REASONS[Deviation.UNDEFINED] in said
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["verdict"] for row in rows] == ["pass", "pass", "deviation"]
    (tmp_path / "D1").mkdir()
    broken = json.loads((CASES / "D1" / "AD__answerability-model-01.json").read_text())
    _prompt(broken)
    (tmp_path / "D1" / "x.json").write_text(json.dumps(broken))
    code, said, _ = run_script("run_conformance", tmp_path)
    assert code == 1
    assert "fail" in said


@pytest.mark.parametrize("content", [None, "[]", "{", '{"dialect": "D9", "intrinsic": "AD", "kind": "wire"}', "{}"])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, content: str | None, run_script):
    if content is not None:
        (tmp_path / "case.json").write_text(content)
    code, _, error = run_script("run_conformance", tmp_path)
    assert (code, error.count("\n")) == (2, 1)


STATE = State((Message("user", "q"), Message("assistant", "One. Two.")), (Passage("1", "Alpha. Beta."),))


def reasons(intrinsic: str, completion: Completion, theirs: Any) -> set[Deviation]:
    made = codec("granite-common", intrinsic, exact=False, find=_halves)
    request = made.encode(STATE)
    return explained(made, request, completion, made.decode(request, completion), theirs)  # type: ignore[arg-type]


def _halves(text: str) -> list[tuple[int, int]]:
    cut = text.index(" ") if " " in text else len(text)
    return [(0, cut), (cut + 1, len(text))] if cut < len(text) else [(0, cut)]


QUOTE, END = token(('"', 1.0)), token(('answerable"', 1.0))
EMPTY = (QUOTE, token(("un", 0.6), ("", 0.2), ("answer", 0.1)), END)
MERGED = (token(('"answerable"', 0.9), ('"unanswerable"', 0.1)),)


@pytest.mark.parametrize(
    ("text", "tokens", "recorded"), [('"unanswerable"', EMPTY, 1 / 3), ('"answerable"', MERGED, 1.0)]
)
def test_tokens_that_fit_no_single_label(text: str, tokens: tuple[TokenLogprob, ...], recorded: float):
    completion = Completion(text, tokens=tokens)
    assert reasons("answerability", completion, {"answerability_likelihood": recorded}) == {Deviation.FIRST_LABEL}
    assert reasons("answerability", completion, {"answerability_likelihood": 0.77}) == set()
    plain = replace(completion, tokens=(QUOTE, token((text[1:], 0.9), ("x", 0.1))))
    assert reasons("answerability", plain, {"answerability_likelihood": 0.5}) == set()
