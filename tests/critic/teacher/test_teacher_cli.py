"""`critic sample`, `critic label` and `critic agree` as commands: one after the other, and what they refuse."""

from __future__ import annotations

import json

import pytest
from teaching_server import questions

from critic.cases import Case, Labelled, Question, read_labelled
from critic.cli.main import main
from critic.pairs import Pair
from critic.teacher.base import Constraint, EndpointConfig
from critic.teacher.forms import OWN
from critic.teacher.run import Prices, by_bytes, forecast
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import write_jsonl


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.jsonl"
    write_jsonl(path, [question.as_dict() for question in questions(12)])
    return path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def label(capsys, cases, server, out, *options):
    return run(capsys, "label", cases, "-o", out, "--url", server.url, "--model", "judge", *options)


def test_from_pairs_to_agreement(server, tmp_path, capsys) -> None:
    pairs = [
        Pair(
            f"p{n}",
            "set",
            f"Question {n}?",
            f"Answer {n}. It is known. Everybody says so.",
            passages=(Passage(f"g{n}", f"g {n}"),),
        )
        for n in range(20)
    ]
    write_jsonl(tmp_path / "pairs.jsonl", [pair.as_dict() for pair in pairs])
    wanted = ["--target", "Retrieve=6", "--target", "IsRel=6", "--target", "IsSup=6", "--target", "IsUse=6"]
    for name in ("cases.jsonl", "again.jsonl"):
        code, out, err = run(capsys, "sample", tmp_path / "pairs.jsonl", "-o", tmp_path / name, *wanted, "--seed", 5)
        assert (code, err) == (0, "")
        assert "24 cases in" in out
    assert (tmp_path / "cases.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    assert "## Examples" in (tmp_path / "cases.jsonl.report.md").read_text()
    manifest = json.loads((tmp_path / "cases.jsonl.manifest.json").read_text())
    assert (manifest["seed"], manifest["counts"]["cases"]) == (5, 24)

    for name, constraint in (("one", "choice"), ("two", "logprobs")):
        options = ("--constraint", constraint, "--name", name)
        code, out, _ = label(capsys, tmp_path / "cases.jsonl", server, tmp_path / name, *options)
        assert code == 0, out
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert manifest["identity"]["constraint"] == constraint
        assert manifest["counts"]["rows"] == 24
    code, out, _ = run(capsys, "agree", tmp_path / "one", f"second={tmp_path / 'two'}", "-o", tmp_path / "agree.json")
    assert code == 0
    assert "one and second, with 95% intervals" in out
    found = json.loads((tmp_path / "agree.json").read_text())["agreements"]
    assert [(one["group"], one["agreement"]["value"], one["agreement"]["n"]) for one in found] == [
        (group, 1.0, 6) for group in ("Retrieve", "IsRel", "IsSup", "IsUse")
    ]


def test_a_dry_run_touches_nothing_and_counts_what_is_left(server, cases, tmp_path, capsys) -> None:
    out, prices = tmp_path / "out", ("--price-in", 2, "--price-out", 8, "--rpm", 6, "--dry-run")
    code, _, err = label(capsys, cases, server, out, *prices)
    assert code == 0
    assert "12 questions to ask, about" in err
    assert "at most 2,400 to receive" in err
    assert "at least 2.0 minutes" in err
    assert server.bodies == []
    assert not out.exists()
    assert label(capsys, cases, server, out, "--constraint", "choice")[0] == 0
    (out / "report.md").unlink()
    write_jsonl(cases, [question.as_dict() for question in questions(15)])
    assert "3 questions to ask" in label(capsys, cases, server, out, "--dry-run", "--constraint", "choice")[2]
    assert not (out / "report.md").exists()


def test_a_run_above_the_cost_limit_is_refused_before_the_first_request(server, cases, tmp_path, capsys) -> None:
    prices = ("--price-in", 2000, "--price-out", 8000, "--max-cost", 1)
    code, _, err = label(capsys, cases, server, tmp_path / "out", *prices)
    assert code == 2
    assert "above --max-cost 1.00; raise it" in err
    assert server.bodies == []


def test_questions_without_an_answer_are_told_by_the_exit_code(server, cases, tmp_path, capsys) -> None:
    rows = [*questions(3), *questions(4, fault="!once_500")[3:]]
    write_jsonl(cases, [question.as_dict() for question in rows])
    code, _, err = label(capsys, cases, server, tmp_path / "out", "--retries", 0)
    assert code == 1
    assert "1 questions have no answer; run the same again" in err
    code, out, _ = label(capsys, cases, server, tmp_path / "out", "--retries", 0)
    assert code == 0
    assert "labelled.jsonl" in out


def test_gold_and_a_teacher_agree_or_not(server, cases, tmp_path, capsys) -> None:
    assert label(capsys, cases, server, tmp_path / "judge")[0] == 0
    gold = tmp_path / "judge" / "labelled.jsonl"
    code, out, _ = run(capsys, "label", cases, "-o", tmp_path / "gold", "--gold", gold)
    assert code == 0
    code, _, err = run(capsys, "agree", gold, gold)
    assert (code, err) == (2, "critic: two teachers are called 'labelled'; name them: NAME=PATH\n")
    code, _, err = run(capsys, "agree", gold)
    assert (code, err) == (2, "critic: one teacher agrees with itself; give two or more\n")
    code, out, _ = run(capsys, "agree", tmp_path / "gold", tmp_path / "judge")
    assert code == 0
    assert "1.00 [1.00, 1.00]" in out


HOST = ["--url", "http://h", "--model", "m"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label", "CASES", "-o", "OUT"], "no teacher, or two"),
        (["label", "CASES", "-o", "OUT", *HOST, "--gold", "CASES"], "no teacher, or two"),
        (["label", "CASES", "-o", "OUT", *HOST, "--price-in", "1"], "one price is missing"),
        (["label", "CASES", "-o", "OUT", *HOST, "--max-cost", "1"], "--max-cost needs prices"),
        (["sample", "CASES", "-o", "OUT", "--target", "IsSup/Fully supported=3"], "a label is not known before"),
        (["agree", "OUT"], "cannot be read"),
        (["label", "CASES", "-o", "OUT", "--gol", "CASES"], "No such option"),  # defect 37: `--data` for `--dataset`
    ],
)
def test_what_cannot_be_done_is_one_line(cases, tmp_path, capsys, arguments, message) -> None:
    places = {"CASES": str(cases), "OUT": str(tmp_path / "out")}
    code, out, err = run(capsys, *(places.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_estimate_counts_prompts_and_prices() -> None:
    rows = questions(3)
    config = EndpointConfig("http://h", "m", max_tokens=10)
    expected = forecast(rows, config, Prices(1.0, 10.0))
    assert expected.prompt_tokens == sum(by_bytes(OWN.prompt(row.case)) + 8 for row in rows)
    assert expected.most_cost == pytest.approx((expected.prompt_tokens + 30 * 10) / 1e6)
    scoring = forecast(rows, EndpointConfig("http://h", "m", constraint=Constraint.LOGPROBS), None)
    assert (scoring.most_completion_tokens, scoring.most_cost, scoring.least_minutes) == (3, None, None)
    with pytest.raises(UserError, match="price of a million prompt tokens=-1"):
        Prices(-1, 0)


def test_prompts_of_a_file_are_sent_at_its_temperature_and_the_label_may_be_explained(server, tmp_path, capsys) -> None:
    """Appendix D: temperature 1, and an explanation after the label."""
    prompts, cases = tmp_path / "mine.toml", tmp_path / "cases.jsonl"
    prompts.write_text("""temperature = 1.0
[[form]]
name = "isrel"
task = "Judge this."
fields = ["Instruction", "Evidence"]
question = "Rating:"
label = [{ surface = "[Relevant]", name = "Relevant" }, { surface = "[Irrelevant]", name = "Irrelevant" }]
""")
    case = Case("IsRel", "!explained Who?", evidence=Passage("p", "Ann."))
    write_jsonl(cases, [Question("q", case, "", "").as_dict()])
    code, _, err = label(capsys, cases, server, tmp_path / "out", "--prompts", prompts)
    assert code == 0, err
    (sent,) = server.bodies
    assert (sent["temperature"], "structured_outputs" in sent) == (1.0, False)
    assert sent["messages"][0]["content"] == "Judge this.\n\nInstruction: !explained Who?\nEvidence: Ann.\nRating:"
    assert [row.label for row in read_labelled(tmp_path / "out" / "labelled.jsonl")] == ["Relevant"]
    write_jsonl(cases, [Question("q", Case("Retrieve", "Who?"), "", "").as_dict()])
    code, _, err = label(capsys, cases, server, tmp_path / "other", "--prompts", prompts)
    assert (code, "mine.toml has no form 'retrieve/instruction'" in err) == (2, True)


def test_labels_are_split_with_the_rows_of_one_instruction_together(tmp_path, capsys) -> None:
    rows = [
        Labelled(f"r{n}", Case("IsUse", f"Question {n // 2}?", output=f"Answer {n}."), "5", "set", "gold")
        for n in range(40)
    ]
    write_jsonl(tmp_path / "labelled.jsonl", [row.as_dict() for row in rows])
    command = ("split", tmp_path, "-o", tmp_path / "parts", "--dev", 0.1, "--test", 0.2)
    assert run(capsys, *command)[0] == 0
    parts = {name: [*read_labelled(tmp_path / "parts" / f"{name}.jsonl")] for name in ("train", "dev", "test")}
    assert {name: len(found) for name, found in parts.items()} == {"train": 28, "dev": 4, "test": 8}
    assert sorted(row.id for found in parts.values() for row in found) == sorted(row.id for row in rows)
    asked = [{row.case.instruction for row in found} for found in parts.values()]
    assert not asked[0] & asked[1] | asked[0] & asked[2] | asked[1] & asked[2]
    code, _, err = run(capsys, *command)
    assert (code, "train.jsonl is there already" in err) == (2, True)
    assert run(capsys, "split", tmp_path, "-o", tmp_path / "x", "--dev", 0.5, "--test", 0.5)[0] == 2
