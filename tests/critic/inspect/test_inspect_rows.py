"""What is read for a page: counts by hand, a seeded sample of every source, provenance; and the command."""

import json

import inspected
import pytest

from critic.cli.main import main
from critic.inspect import inspect_rows, problems
from retrieval.errors import UserError
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE
from selfrag.training.rows import Evidence, Text, Token, write_rows

ROWS = [
    *[inspected.short(f"nq-{n}") for n in range(60)],
    *[inspected.unaided(f"alpaca-{n}") for n in range(40)],
    *[inspected.long(f"asqa-{n}") for n in range(3)],
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    return path


def test_table_3_counts_rows_that_retrieve_at_least_once(file):
    statistics = inspect_rows([file]).statistics
    assert {name: (t.rows, t.retrieving) for name, t in statistics.sources.items()} == {
        "nq/short_qa": (60, 60),
        "alpaca/instruction": (40, 0),
        "asqa/long_form": (3, 3),
    }
    long = statistics.sources["asqa/long_form"]  # three of `inspected.long`
    assert (long.labels(RETRIEVE), long.labels(ISREL), long.labels(ISSUP)) == ([6, 0, 3], [3, 3], [3, 3, 0])
    assert (long.labels(ISUSE), long.words) == ([0, 0, 3, 0, 0], {11: 3})  # 4 + 4 + 3 words, passages left out
    total = statistics.total
    assert (total.rows, total.retrieving) == (103, 63)
    assert (total.passages, total.segments) == ({0: 40, 1: 60, 2: 3}, {1: 100, 3: 3})


def test_the_sample_is_seeded_and_takes_from_every_source(file):
    first = inspect_rows([file], count=13, seed=1).sample
    assert first == inspect_rows([file], count=13, seed=1).sample
    assert {row.id for row in first} != {row.id for row in inspect_rows([file], count=13, seed=2).sample}
    by_source = [row.source for row in first]
    assert [by_source.count(s) for s in ("nq/short_qa", "alpaca/instruction", "asqa/long_form")] == [5, 5, 3]
    assert inspect_rows([file], count=0).sample == ()
    assert len(inspect_rows([file], count=1_000).sample) == 103
    assert {row.id for row in inspect_rows([file], count=9, seed=1).sample} <= {row.id for row in first}


def test_shards_give_what_one_file_gives(file, tmp_path):
    shards = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    write_rows(shards[0], ROWS[:70])
    write_rows(shards[1], ROWS[70:])
    one, two = inspect_rows([file], count=20), inspect_rows(shards, count=20)
    assert one.sample == two.sample
    assert one.statistics == two.statistics
    with pytest.raises(UserError, match="'nq-0' occurs in two files"):
        inspect_rows([shards[0], shards[0]])


def test_provenance_is_kept_for_the_sample_and_counted_for_all(file, tmp_path):
    records = tmp_path / "provenance.jsonl"
    records.write_text("".join(json.dumps(inspected.provenance(row)) + "\n" for row in ROWS[:50]))
    found = inspect_rows([file], count=10, provenance=[records])
    assert found.recorded == 50
    assert found.rules == {"relevant and fully supported": 50}
    assert set(found.provenance) == {row.id for row in found.sample} & {row.id for row in ROWS[:50]}
    assert inspect_rows([file]).recorded == 0


PASSAGE = Evidence(inspected.HALL)
NONE, USE = Token("[No Retrieval]"), Token("[Utility:5]")
SHOWN = (Token("[Retrieval]"), PASSAGE, Token("[Relevant]"))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ((*SHOWN, Text("a"), Token("[Fully supported]"), USE), []),
        ((Text("a"), USE), ["does not begin with a Retrieve token"]),
        ((NONE, Text("a")), ["no Utility token"]),
        ((NONE, USE, Text("a"), USE), ["more than one Utility token"]),
        ((NONE, USE, Text("a")), ["the Utility token is not the last"]),
        ((NONE, PASSAGE, Token("[Relevant]"), Text("a"), USE), ["a passage without [Retrieval] before it"]),
        ((Token("[Retrieval]"), PASSAGE, Text("a"), USE), ["a passage without an IsRel token after it"]),
        ((Token("[Retrieval]"), Text("a"), USE), ["[Retrieval] without a passage after it"]),
        (
            (Token("[Continue to Use Evidence]"), Text("a"), Token("[Fully supported]"), USE),
            ["[Continue to Use Evidence] before any passage", "an IsSup token without a passage"],
        ),
        (
            (Token("[Retrieval]"), PASSAGE, Token("[Irrelevant]"), Text("a"), Token("[Partially supported]"), USE),
            ["an IsSup token after an irrelevant passage"],
        ),
        ((*SHOWN[:2], Token("[Irrelevant]"), Text("a"), *SHOWN, Text("b"), Token("[Fully supported]"), USE), []),
    ],
)
def test_the_form_of_a_target(target, expected):
    assert problems(target) == expected


def test_the_command_writes_a_page(file, tmp_path, capsys):
    records, out = tmp_path / "provenance.jsonl", tmp_path / "page.html"
    records.write_text(json.dumps(inspected.provenance(ROWS[0])) + "\n")
    pages = []
    for given in ([str(file), "--provenance", str(records)], [str(tmp_path)]):  # a folder of critic augment
        assert main(["inspect", *given, "-o", str(out), "-n", "103"]) == 0
        assert capsys.readouterr().out == f"103 of 103 rows, 1 with provenance in {out}\n"
        pages.append(out.read_text(encoding="utf-8"))
    assert pages[0].count("<article ") == 103
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["EMPTY"], "no rows in "),
        (["BAD"], "bad.jsonl:1: unknown reflection token '[Perhaps]'"),
        (["ROWS", "-n", "-1"], "count=-1; 0 rows or more"),
        (["ROWS", "--provenance", "NAMELESS"], "a provenance record needs the 'id' of its row"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_page(arguments, message, file, tmp_path, capsys):
    bad = json.dumps(inspected.unaided().as_dict() | {"target": [{"token": "[Perhaps]"}]}) + "\n"
    files, out = {"ROWS": str(file)}, tmp_path / "page.html"
    for name, content in (("bad", bad), ("empty", ""), ("nameless", "{}\n")):
        (tmp_path / f"{name}.jsonl").write_text(content)
        files[name.upper()] = str(tmp_path / f"{name}.jsonl")
    given = [files.get(argument, argument) for argument in arguments]
    assert main(["inspect", *given, "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()
