"""A labelling run: targets, resumption, failures, outputs; killed at any moment it ends with the same rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from teaching_server import questions

from critic.cases import parse_targets, read_labelled, read_questions
from critic.teacher.base import Constraint, EndpointConfig, GoldTeacher, TeacherError
from critic.teacher.endpoint import EndpointTeacher
from critic.teacher.run import PATIENCE, Journal, Limits, Prices, label_questions
from retrieval.errors import UserError
from selfrag.jsonl import write_jsonl

FILES = ("labelled.jsonl", "surplus.jsonl", "aside.jsonl", "report.md")


def teacher(server, **options):
    settings = {"backoff": 0.01, "retries": 0, "constraint": Constraint.CHOICE, **options}
    return EndpointTeacher(EndpointConfig(server.url, "judge", **settings))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11])
def test_defect_31_as_many_rows_come_out_as_went_in(server, tmp_path, count) -> None:
    """Official code: a last partial batch is computed and not saved."""
    rows = questions(count)
    outcomes = label_questions(rows, teacher(server, max_concurrency=4), tmp_path / "out")
    assert [row.id for row in outcomes.rows] == [row.id for row in rows]
    assert [row.id for row in read_labelled(tmp_path / "out" / "labelled.jsonl")] == [row.id for row in rows]
    assert outcomes.requests == count


def test_what_is_no_label_is_counted_and_kept_aside(server, tmp_path) -> None:
    rows = [*questions(4), *(replace(row, id=f"bad{row.id}") for row in questions(2, fault="!off_set"))]
    outcomes = label_questions(rows, teacher(server), tmp_path / "out")
    assert len(outcomes.rows) == 4
    assert [question.id for question, _ in outcomes.aside] == ["badq0", "badq1"]
    for line in (tmp_path / "out" / "aside.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert (row["raw"], row["reason"]) == ("Perhaps.", "0 labels of the set in the first line")
    report = (tmp_path / "out" / "report.md").read_text()
    assert "Set aside" in report
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["counts"]["rows"], manifest["counts"]["aside"]) == (4, 2)


def test_a_finished_run_is_not_asked_again_and_aside_stays_aside(server, tmp_path) -> None:
    rows = [*questions(3), *(replace(row, id="bad") for row in questions(1, fault="!off_set"))]
    first = label_questions(rows, teacher(server), tmp_path / "out")
    asked = len(server.bodies)
    before = {name: (tmp_path / "out" / name).read_bytes() for name in FILES}
    second = label_questions(rows, teacher(server), tmp_path / "out")
    assert (len(server.bodies), second) == (asked, first)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before


def test_a_dead_endpoint_ends_the_run_and_keeps_what_there_is(server, tmp_path) -> None:
    rows = [*questions(3), *(replace(row, id=f"bad{row.id}") for row in questions(PATIENCE + 9, fault="!503"))]
    with pytest.raises(
        TeacherError, match=rf"no answer {PATIENCE} times in a row .*503.* 3 answers are kept, run the same"
    ):
        label_questions(rows, teacher(server, max_concurrency=1), tmp_path / "out")
    with Journal(tmp_path / "out" / "journal.jsonl", teacher(server).identity()) as journal:
        assert [journal.reply(row).label is not None for row in rows[:3]] == [True] * 3


def test_questions_that_never_get_an_answer_do_not_keep_later_runs_from_the_others(server, tmp_path) -> None:
    """Too long for the endpoint, say: as many as end a run, all before the rest."""
    rows = [*(replace(row, id=f"bad{row.id}") for row in questions(PATIENCE, fault="!400")), *questions(3)]
    with pytest.raises(TeacherError, match=rf"no answer {PATIENCE} times in a row"):
        label_questions(rows, teacher(server, max_concurrency=1), tmp_path / "out")
    for _ in range(2):
        outcomes = label_questions(rows, teacher(server, max_concurrency=1), tmp_path / "out")
        assert (len(outcomes.rows), len(outcomes.failed)) == (3, PATIENCE)


def test_targets_stop_the_asking_and_the_rest_is_surplus(server, tmp_path) -> None:
    targets = parse_targets(["IsRel/Relevant=3", "IsRel/Irrelevant=2"])
    outcomes = label_questions(questions(60), teacher(server), tmp_path / "out", limits=Limits(targets))
    found = sorted(row.label for row in outcomes.rows)
    assert found == ["Irrelevant"] * 2 + ["Relevant"] * 3
    assert outcomes.not_asked > 20
    assert len(outcomes.rows) + len(outcomes.surplus) + outcomes.not_asked == 60
    assert outcomes.missing == {}


def test_a_target_that_cannot_be_reached_is_reported(server, tmp_path) -> None:
    outcomes = label_questions(questions(5), teacher(server), tmp_path / "out", limits=Limits({"IsRel": 9}))
    assert outcomes.missing == {"IsRel": 4}
    assert "Targets not reached" in (tmp_path / "out" / "report.md").read_text()


def test_the_same_rows_whatever_the_order_of_arrival(server, tmp_path) -> None:
    limits = Limits(parse_targets(["IsRel/Relevant=4", "IsRel/Irrelevant=4"]))
    found = []
    for concurrency in (1, 3, 16):
        server.delay = 0.01 * concurrency
        out = tmp_path / str(concurrency)
        outcomes = label_questions(questions(60), teacher(server, max_concurrency=concurrency), out, limits=limits)
        assert outcomes.failed == []
        found.append(outcomes.rows)
    assert found[0] == found[1] == found[2]


def test_a_question_lost_under_way_is_asked_again_though_later_ones_filled_the_target(server, tmp_path) -> None:
    """Killed with an early question under way: the rows must be those of a run that was not killed."""
    limits = Limits(parse_targets(["IsRel/Relevant=2", "IsRel/Irrelevant=2"]))
    rows = questions(40)
    whole = label_questions(rows, teacher(server, max_concurrency=1), tmp_path / "whole", limits=limits)
    lost = whole.rows[0].id
    (tmp_path / "killed").mkdir()
    journal = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed" / "journal.jsonl").write_text("".join(line for line in journal if f'"{lost}"' not in line))
    again = label_questions(rows, teacher(server, max_concurrency=1), tmp_path / "killed", limits=limits)
    assert again.rows == whole.rows


def test_money_stops_the_asking(server, tmp_path) -> None:
    limits = Limits(prices=Prices(1e4, 0.0), most_cost=5.0)  # 100 tokens a request: 1.0 each
    outcomes = label_questions(questions(20), teacher(server, max_concurrency=1), tmp_path / "out", limits=limits)
    assert outcomes.cost in (5.0, 6.0)  # what is under way when the limit is reached is still paid for
    assert (len(outcomes.rows), outcomes.not_asked) == (outcomes.cost, 20 - outcomes.cost)


def test_another_process_in_the_same_directory_is_refused(server, tmp_path) -> None:
    from retrieval.atomic import locked_directory

    with locked_directory(tmp_path / "out"), pytest.raises(UserError, match="another process is writing"):
        label_questions(questions(1), teacher(server), tmp_path / "out")


def test_gold_rows_are_a_teacher(server, tmp_path) -> None:
    rows = questions(4)
    made = label_questions(rows[:3], teacher(server), tmp_path / "made")
    gold = tmp_path / "gold.jsonl"
    human = [replace(row, label_source="human") for row in made.rows]
    other = "Relevant" if human[0].label == "Irrelevant" else "Irrelevant"
    write_jsonl(gold, [row.as_dict() for row in [*human, replace(human[0], id="again", label=other)]])
    outcomes = label_questions(rows, GoldTeacher([gold]), tmp_path / "out")
    assert outcomes.rows == human[1:]
    assert [(q.id, r.reason) for q, r in outcomes.aside] == [("q0", "the gold rows disagree"), ("q3", "no gold row")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"evidence": None}, "IsRel needs 'evidence'"),
        ({"evidence": {"title": "T", "text": " "}}, "the text of 'evidence' is empty"),
        ({"group": "IsSup"}, "IsSup needs 'output'"),
        ({"group": "Mood"}, "unknown group 'Mood'"),
        ({"instruction": ""}, "'instruction' is empty"),
        ({"id": ""}, "'id' is empty"),
        ({"id": "q0"}, "id 'q0' occurs twice"),
        ({"dataset": None}, "'dataset' must be text"),
        ({"output": "\ud800"}, "half of a character"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, reason) -> None:
    good, bad = (row.as_dict() for row in questions(2))
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, {**bad, **change})))
    with pytest.raises(UserError, match=rf"cases\.jsonl:2: .*{reason}"):
        list(read_questions(path))
