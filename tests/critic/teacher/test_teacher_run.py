"""A labelling run: targets, money, resumption, outputs; its journal; and `critic sample`, `label`, `agree`, `split`."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_files import parse_table, read_json, read_lines, write_lines, write_records
from refusals import refused
from teaching_server import questions

from critic.case_files import read_labelled, read_questions
from critic.cases import Case
from critic.pairs import Pair
from critic.targets import parse_targets
from critic.teacher.endpoint import EndpointTeacher, TeacherConfig, by_bytes, forecast
from critic.teacher.forms import OWN
from critic.teacher.run import (
    PATIENCE,
    LabelOutcome,
    ReplyJournal,
    TeacherReply,
    label_questions,
)
from critic.teacher.settings import (
    LabelConstraint,
    LabellingLimits,
    TeacherError,
)
from retrieval.passage import Passage
from selfrag.common.atomic import locked_directory


def teacher(server, **options):
    given = {
        "backoff": 0.01,
        "retries": 0,
        "constraint": LabelConstraint.CHOICE,
        **options,
    }
    return EndpointTeacher(TeacherConfig(server.url, "judge", **given))


def bad(count, fault):
    rows = questions(count, fault=f"!{fault}")
    return [replace(row, id=f"bad{row.id}") for row in rows]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("count", [0, 1, 11])
def test_defect_31_as_many_rows_come_out_as_went_in(server, tmp_path, count):
    """Official code: a last partial batch is computed and not saved."""
    rows = questions(count)
    outcomes = label_questions(rows, teacher(server, max_concurrency=4), tmp_path)
    ids = [row.id for row in rows]
    assert [row.id for row in outcomes.rows] == ids
    assert [row.id for row in read_labelled(tmp_path / "labelled.jsonl")] == ids
    assert outcomes.requests == count


def test_what_is_no_label_is_kept_aside_and_a_finished_run_is_not_asked_again(
    server, tmp_path
):
    rows = [*questions(4), *bad(2, "off_set")]
    first = label_questions(rows, teacher(server), tmp_path)
    assert len(first.rows) == 4
    assert [question.id for question, _ in first.aside] == ["badq0", "badq1"]
    for row in read_lines(tmp_path / "aside.jsonl"):
        assert row["raw"] == "Perhaps."
        assert row["reason"] == "0 labels of the set in the first line"
    assert "Set aside" in (tmp_path / "report.md").read_text()
    manifest = read_json(tmp_path / "manifest.json")
    assert manifest["counts"]["rows"] == 4
    assert manifest["counts"]["aside"] == 2
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    asked = len(server.bodies)
    assert label_questions(rows, teacher(server), tmp_path) == first
    assert len(server.bodies) == asked
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with locked_directory(tmp_path), refused("another process is writing"):
        label_questions(rows, teacher(server), tmp_path)


def test_an_endpoint_without_answers_ends_the_run_once(server, tmp_path):
    """Questions that never get one, too long say, do not keep later runs from the others."""
    rows = [
        *questions(3),
        *bad(PATIENCE, "400"),
        *(replace(row, id=f"last{row.id}") for row in questions(2)),
    ]
    said = (
        rf"no answer {PATIENCE} times in a row .*400.* 3 answers are kept, run the same"
    )
    with pytest.raises(TeacherError, match=said):
        label_questions(rows, teacher(server, max_concurrency=1), tmp_path)
    path = tmp_path / "journal.jsonl"
    with ReplyJournal(path, teacher(server).identity()) as journal:
        assert all(journal.reply(row).label for row in rows[:3])
    outcomes = label_questions(rows, teacher(server, max_concurrency=1), tmp_path)
    assert len(outcomes.rows) == 5
    assert len(outcomes.failed) == PATIENCE


def test_targets_stop_the_asking_and_what_lacks_is_reported(server, tmp_path):
    limits = LabellingLimits(parse_targets(["IsRel/Relevant=3", "IsRel/Irrelevant=2"]))
    outcomes = label_questions(
        questions(60), teacher(server), tmp_path / "out", limits=limits
    )
    assert (
        sorted(row.label for row in outcomes.rows)
        == ["Irrelevant"] * 2 + ["Relevant"] * 3
    )
    assert outcomes.not_asked > 20
    assert len(outcomes.rows) + len(outcomes.surplus) + outcomes.not_asked == 60
    assert outcomes.missing == {}
    outcomes = label_questions(
        questions(5),
        teacher(server),
        tmp_path / "few",
        limits=LabellingLimits({"IsRel": 9}),
    )
    assert outcomes.missing == {"IsRel": 4}
    assert "Targets not reached" in (tmp_path / "few/report.md").read_text()


def test_the_same_rows_whatever_the_order_of_arrival_and_whatever_was_lost_under_way(
    server, tmp_path
):
    limits = LabellingLimits(parse_targets(["IsRel/Relevant=4", "IsRel/Irrelevant=4"]))

    def labelled(concurrency):
        out = tmp_path / str(concurrency)
        return label_questions(
            questions(40),
            teacher(server, max_concurrency=concurrency),
            out,
            limits=limits,
        ).rows

    whole = labelled(1)
    journal = (tmp_path / "1/journal.jsonl").read_text().splitlines(keepends=True)
    # Killed with the first question under way, when later ones had filled the target already.
    (tmp_path / "2").mkdir()
    (tmp_path / "2/journal.jsonl").write_text(
        "".join(line for line in journal if f'"{whole[0].id}"' not in line)
    )
    assert labelled(2) == whole
    server.delay = 0.05
    assert labelled(16) == whole


def test_money_stops_the_asking(server, tmp_path):
    # 100 tokens a request: 1.0 each
    limits = LabellingLimits(price_in=1e4, price_out=0.0, most_cost=5.0)
    outcomes = label_questions(
        questions(20), teacher(server, max_concurrency=1), tmp_path, limits=limits
    )
    # what is under way when the limit is reached is still paid for
    assert outcomes.cost in (5.0, 6.0)
    assert len(outcomes.rows) == 20 - outcomes.not_asked == outcomes.cost


@pytest.mark.parametrize(
    "change, reason",
    parse_table(r"""
{"evidence": null} | IsRel needs 'evidence'
{"evidence": {"title": "T", "text": " "}} | the text of 'evidence' is empty
{"group": "IsSup"} | IsSup needs 'output'
{"group": "Mood"} | 'group' must be 'Retrieve', 'IsRel', 'IsSup' or 'IsUse'
{"instruction": ""} | 'instruction' must be text that is not empty
{"id": ""} | 'id' must be text that is not empty
{"id": "q0"} | id 'q0' occurs twice
{"dataset": null} | 'dataset' must be text
{"output": "\ud800"} | half of a character
"""),
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, reason):
    good, other = (row.as_dict() for row in questions(2))
    path = tmp_path / "cases.jsonl"
    write_lines(path, (good, {**other, **change}))
    with refused(rf"cases\.jsonl:2: .*{reason}"):
        list(read_questions(path))


TEACHER = {"teacher": "judge", "temperature": 0.0}
GOOD = TeacherReply(
    LabelOutcome.LABELLED,
    "Relevant",
    "[Relevant]\x00\x1b[31m \u2028",
    source="judge",
    distribution=(0.75, 0.25),
)
ASIDE = TeacherReply(
    LabelOutcome.ASIDE, raw="Perhaps.", reason="0 labels", prompt_tokens=3, requests=1
)
LINE = {
    "id": "q",
    "group": "IsRel",
    "case": "x",
    **dict.fromkeys(TeacherReply.__slots__),
}


@settings(max_examples=25)
@given(cut=st.integers(min_value=0, max_value=2_000))
def test_a_journal_cut_anywhere_loses_the_torn_line_only(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "j"
    rows = questions(4)
    with ReplyJournal(path, TEACHER) as journal:
        for row in rows:
            journal.append(row, ASIDE if row is rows[1] else GOOD)
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    whole = max(0, content[:cut].count(b"\n") - 1)  # without the header
    with ReplyJournal(path, TEACHER) as journal:
        known = [GOOD, ASIDE, GOOD, GOOD][:whole] + [None] * (4 - whole)
        assert [*map(journal.reply, rows)] == known
        spent = (journal.prompt_tokens, journal.requests)
        assert spent == ((3, 1) if whole > 1 else (0, 0))
        for row in rows[whole:]:
            journal.append(row, ASIDE if row is rows[1] else GOOD)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        json.dumps(LINE | {"outcome": "maybe"}),
        json.dumps(LINE | {"outcome": "labelled"}),
    ],
)
def test_a_journal_that_is_damaged_or_of_others_is_refused(tmp_path, line):
    [row], [other] = questions(1), questions(1, fault="changed")
    with ReplyJournal(tmp_path / "j", TEACHER) as journal:
        journal.append(row, GOOD)
        with refused("'q0'"):
            journal.reply(other)
    with refused(r"other temperature"):
        ReplyJournal(tmp_path / "j", {**TEACHER, "temperature": 1.0})
    with (tmp_path / "j").open("a") as file:
        file.write(line + "\n")
    with refused(r"j:3: damaged"):
        ReplyJournal(tmp_path / "j", TEACHER)


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.jsonl"
    write_records(path, questions(12))
    return path


@pytest.fixture
def label(command, cases, server):
    """Labels the cases, or those of a file, into a folder."""

    def run(out, options="", file=cases, code=0):
        judge = f"--url {server.url} --model judge"
        return command(f"critic label {file} -o {out} {judge} {options}", code=code)

    return run


def test_from_pairs_to_agreement(command, label, tmp_path):
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
    write_records(tmp_path / "pairs.jsonl", pairs)
    groups = ("Retrieve", "IsRel", "IsSup", "IsUse")
    targets = " ".join(f"--target {group}=6" for group in groups)
    for name in ("drawn.jsonl", "again.jsonl"):
        out, err = command(
            f"critic sample {tmp_path}/pairs.jsonl -o {tmp_path}/{name} --seed 5 {targets}"
        )
        assert err == ""
        assert "24 cases in" in out
    drawn, again = (tmp_path / name for name in ("drawn.jsonl", "again.jsonl"))
    assert drawn.read_bytes() == again.read_bytes()
    assert "## Examples" in (tmp_path / "drawn.jsonl.report.md").read_text()
    manifest = read_json(tmp_path / "drawn.jsonl.manifest.json")
    assert manifest["seed"] == 5
    assert manifest["counts"]["cases"] == 24

    for name, constraint in (("one", "choice"), ("two", "schema")):
        options = f"--constraint {constraint} --name {name}"
        label(tmp_path / name, options, tmp_path / "drawn.jsonl")
        manifest = read_json(tmp_path / name / "manifest.json")
        assert manifest["identity"]["constraint"] == constraint
        assert manifest["counts"]["rows"] == 24
    out, _ = command(
        f"critic agree {tmp_path}/one second={tmp_path}/two -o {tmp_path}/agree.json"
    )
    assert "one and second, with 95% intervals" in out
    found = read_json(tmp_path / "agree.json")["agreements"]
    for group, one in zip(groups, found, strict=True):
        assert one["group"] == group
        assert one["agreement"]["n"] == 6
        assert one["agreement"]["value"] == 1.0


def test_a_dry_run_touches_nothing_and_counts_what_is_left(
    server, label, cases, tmp_path
):
    out, prices = tmp_path / "out", "--price-in 2 --price-out 8 --rpm 6 --dry-run"
    assert "12 questions" in label(out, prices)[0]
    shown, _ = label(out, f"{prices} --json")
    plan = json.loads(shown)
    assert plan["questions"] == 12
    assert plan["least_minutes"] == 2.0
    assert plan["most_completion_tokens"] == 2_400
    assert server.bodies == []
    assert not out.exists()
    label(out, "--constraint choice")
    (out / "report.md").unlink()
    write_records(cases, questions(15))
    left, _ = label(out, "--dry-run --constraint choice")
    assert "3 questions to ask" in left
    assert not (out / "report.md").exists()
    server.bodies.clear()
    prices = "--price-in 2000 --price-out 8000 --max-cost 1"
    _, err = label(tmp_path / "dear", prices, code=2)
    assert "--max-cost 1.00" in err
    assert server.bodies == []
    _, err = label(tmp_path / "free", "--max-cost 1", code=2)
    assert "--max-cost" in err
    assert server.bodies == []


def test_questions_without_an_answer_are_told_by_the_exit_code(label, cases, tmp_path):
    write_records(cases, [*questions(3), *bad(1, "once_500")])
    _, err = label(tmp_path / "out", "--retries 0", code=1)
    assert "1 question" in err
    out, _ = label(tmp_path / "out", "--retries 0")
    assert "labelled.jsonl" in out


def test_gold_rows_are_a_teacher_and_agree_with_another_or_not(
    command, refusal, label, cases, tmp_path
):
    label(tmp_path / "judge")
    rows = [
        replace(row, label_source="human")
        for row in read_labelled(tmp_path / "judge/labelled.jsonl")
    ]
    other = "Relevant" if rows[0].label == "Irrelevant" else "Irrelevant"
    gold, twice = tmp_path / "gold.jsonl", replace(rows[0], id="again", label=other)
    write_records(gold, [*rows[:11], twice])
    command(f"critic label {cases} -o {tmp_path}/human --gold {gold}")
    assert list(read_labelled(tmp_path / "human/labelled.jsonl")) == rows[1:11]
    aside = read_lines(tmp_path / "human/aside.jsonl")
    told = {one["id"]: one["reason"] for one in aside}
    assert told == {"q0": "the gold rows disagree", "q11": "no gold row"}
    out, _ = command(f"critic agree {tmp_path}/human {tmp_path}/judge")
    assert "1.00 [" in out
    assert "'gold'" in refusal(f"critic agree {gold} {gold}")


def test_the_estimate_counts_prompts_and_prices():
    rows = questions(3)
    config = TeacherConfig("http://h", "m", max_tokens=10)
    expected = forecast(rows, config, LabellingLimits({}, 1.0, 10.0))
    assert expected.prompt_tokens == sum(by_bytes(OWN.prompt(row)) + 8 for row in rows)
    assert expected.most_cost == pytest.approx((expected.prompt_tokens + 30 * 10) / 1e6)
    unpriced = forecast(rows, config, LabellingLimits())
    assert unpriced.most_completion_tokens == 30
    assert unpriced.most_cost is None
    assert unpriced.least_minutes is None
    with refused("price_in=-1"):
        LabellingLimits({}, -1, 0)


def test_labels_are_split_with_the_rows_of_one_instruction_together(
    tmp_path, command, refusal
):
    rows = [
        Case.of(
            "IsUse",
            f"Question {n // 2}?",
            output=f"Answer {n}.",
            id=f"r{n}",
            label="5",
            dataset="set",
            label_source="gold",
        )
        for n in range(40)
    ]
    write_records(tmp_path / "labelled.jsonl", rows)
    line = f"critic split {tmp_path} -o {tmp_path}/parts --dev 0.1 --test 0.2"
    command(line)
    parts = [
        [*read_labelled(tmp_path / f"parts/{name}.jsonl")]
        for name in ("train", "dev", "test")
    ]
    assert [*map(len, parts)] == [28, 4, 8]
    assert {row.id for part in parts for row in part} == {row.id for row in rows}
    train, dev, test = ({row.instruction for row in part} for part in parts)
    assert not train & dev | train & test | dev & test
    assert "train.jsonl" in refusal(line)
    refusal(f"critic split {tmp_path} -o {tmp_path}/x --dev 0.5 --test 0.5")
