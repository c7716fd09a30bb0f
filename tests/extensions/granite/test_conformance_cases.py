"""Recorded cases of the public libraries: each passes, or differs for a reason that is named in the table."""

from pathlib import Path

import pytest
from conformance.case import read_cases
from conformance.check import check
from conformance.compare import REASONS, Deviation
from json_files import read_json, read_lines, write_json

ROOT = Path(__file__).parents[3]
CASES = ROOT.parent / "shared" / "conformance" / "intrinsics"
EXPECTED = {
    Deviation.UNDEFINED: (
        "D1/AD/canned-03",
        "D1/QR/canned-02",
        "D2/AD/canned-03",
        "D2/QR/canned-02",
    ),
    Deviation.DECILE: ("D1/UQ/canned-02", "D2/UQ/canned-02"),
    Deviation.BOOLEAN: (
        "D3/ARC/answer_relevance_classifier",
        "D3/RC/requirement_check",
    ),
    Deviation.OFFSETS: (
        "D3/CG/citations",
        "D3/HD/gpt_oss_hallucination_detection",
        "D3/HD/hallucination_detection",
        "D4/CA/api-context-attribution",
        "D4/CA/context-attribution",
        "D4/CG/citations",
        "D4/HD/api-hallucination_detection",
        "D4/HD/gpt_oss_hallucination_detection",
        "D4/HD/hallucination_detection",
    ),
}
needs_cases = pytest.mark.skipif(
    not CASES.is_dir(), reason=f"no recorded cases beside the checkout ({CASES.name})"
)


@needs_cases
def test_every_case_and_nothing_but_the_named_deviations():
    outcomes = {case.id: check(case) for case in read_cases(CASES)}
    assert len(outcomes) == 73
    assert {
        name: outcome.failure for name, outcome in outcomes.items() if outcome.failure
    } == {}
    deviations = {
        name: set(outcome.deviations)
        for name, outcome in outcomes.items()
        if outcome.deviations
    }
    assert deviations == {
        name: {deviation} for deviation, names in EXPECTED.items() for name in names
    }
    assert all(outcome.checked for outcome in outcomes.values())


@needs_cases
def test_the_script(tmp_path, run_script):
    code, said, _ = run_script(
        *f"run_conformance {CASES} --only D1/AD --json {tmp_path}/out.jsonl".split()
    )
    assert code == 0
    assert "3 cases: 2 pass, 1 deviation, 0 fail" in said
    assert REASONS[Deviation.UNDEFINED] in said
    rows = read_lines(tmp_path / "out.jsonl")
    assert [row["verdict"] for row in rows] == ["pass", "pass", "deviation"]
    broken = read_json(CASES / "D1" / "AD__answerability-model-01.json")
    broken["request"]["prompt"] += " "
    (tmp_path / "D1").mkdir()
    write_json(tmp_path / "D1" / "x.json", broken)
    code, said, _ = run_script("run_conformance", tmp_path)
    assert code == 1
    assert "prompt: at " in said


@pytest.mark.parametrize(
    "content",
    [None, "[]", "{", '{"dialect": "D9", "intrinsic": "AD", "kind": "wire"}', "{}"],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, content, run_script):
    if content is not None:
        (tmp_path / "case.json").write_text(content)
    code, _, error = run_script("run_conformance", tmp_path)
    assert code == 2
    assert error.count("\n") == 1
