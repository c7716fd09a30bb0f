"""Rows from files and data sets, drawing from sources and writing a mixture: seeded, counted, all or nothing."""

import gzip
import json
from pathlib import Path

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_files import parse_table, read_json
from refusals import refused

from critic.cli.augment import read_part
from critic.cli.main import main
from critic.formats import format_of
from critic.mixture import (
    MixturePart,
    MixtureReading,
    MixtureTally,
    SeededSample,
    load,
    pairs,
    write_mixture,
)
from critic.pairs import Dropped, Pair, open_dataset, read_pairs
from selfrag.common.jsonl import write_jsonl
from selfrag.common.public_rows import raw_rows

SAMPLES = Path(__file__).parent / "samples"
TWICE = f"kilt_nq={SAMPLES / 'kilt_nq.jsonl'}"
MANY = [Pair(f"p{n}", "d", "instruction", "output") for n in range(300)]


def draw(items, count, seed):
    sample = SeededSample(count, seed)
    for pair in items:
        sample.add(pair.id, pair)
    return sample.items()


@settings(max_examples=30)
@given(
    small=st.integers(0, 60),
    large=st.integers(0, 60),
    seed=st.integers(0, 5),
    order=st.permutations(MANY[:50]),
)
def test_a_smaller_draw_is_part_of_a_larger_one_and_the_order_of_rows_does_not_matter(
    small, large, seed, order
):
    small, large = sorted((small, large))
    drawn = {pair.id for pair in draw(order, large, seed)}
    assert drawn == {pair.id for pair in draw(MANY[:50], large, seed)}
    assert {pair.id for pair in draw(order, small, seed)} <= drawn
    assert len(drawn) == min(large, 50)
    assert draw(MANY, 0, seed) == []
    assert draw(MANY, 1_000, seed) == MANY
    assert draw(MANY, 50, seed) != draw(MANY, 50, seed + 1)


def test_defect_33_the_same_seed_writes_the_same_bytes_and_unknown_names_work(tmp_path):
    """Official builder: unseeded samples, and a crash on data sets it does not know."""
    talk = [{"role": role, "content": "Hi"} for role in ("user", "assistant")]
    mine = [
        {"dataset": "a set of mine", "id": f"m{n}", "messages": talk} for n in range(9)
    ]
    parts = [
        MixturePart(format_of("stanford_alpaca"), SAMPLES / "alpaca.json", 2),
        MixturePart(format_of("open_instruct"), mine, 3),
    ]
    first, second = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    write_mixture(first, parts, seed=3)
    write_mixture(second, parts, seed=3)
    assert first.read_bytes() == second.read_bytes()
    names = [pair.dataset for pair in read_pairs(first)]
    assert names == ["stanford_alpaca"] * 2 + ["a set of mine"] * 3


def test_defect_31_counts_in_are_counts_out():
    rows = [
        {"inputs": f"Say {n}.", "targets": "" if n % 7 == 0 else str(n)}
        for n in range(100)
    ]
    tally = MixtureTally("rows")
    taken = list(pairs(MixturePart(format_of("flan_v2"), rows, 40), tally))
    assert len(taken) == tally.taken == 40
    assert tally.pairs + sum(tally.skipped.values()) == 100
    assert tally.skipped == {"no output": 15}
    assert tally.places["no output"] == [
        f"data set: row {n}" for n in (1, 8, 15, 22, 29)
    ]


def test_a_bad_row_leaves_no_file_and_keeps_the_old_one(tmp_path):
    out, bad = tmp_path / "pairs.jsonl", tmp_path / "bad.jsonl"
    bad.write_text('{"inputs": "a", "targets": "b"}\n{"inputs": "a"}\n')
    out.write_text("old")
    with refused(r"bad\.jsonl:2: no 'targets'"):
        write_mixture(out, [MixturePart(format_of("flan_v2"), bad)])
    assert sorted(tmp_path.iterdir()) == [bad, out]
    assert out.read_text() == "old"


def test_the_command_writes_pairs_with_a_manifest_and_says_what_it_left_out(
    tmp_path, capsys
):
    out = tmp_path / "pairs.jsonl"
    parts = [
        f"stanford_alpaca:2={SAMPLES / 'alpaca.json'}",
        f"asqa={SAMPLES / 'asqa.json'}",
    ]
    assert main(["pairs", *parts, *f"--seed 5 -o {out}".split()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stanford_alpaca: 2 of 3 pairs; left out: no output 1",
        "asqa: 1 of 1 pair; left out: no output 1",
        f"3 pairs in {out}",
    ]
    names = [pair.dataset for pair in read_pairs(out)]
    assert names == "stanford_alpaca stanford_alpaca asqa".split()
    manifest = read_json(tmp_path / "pairs.jsonl.manifest.json")
    assert manifest["pairs"] == 3
    assert manifest["seed"] == 5
    alpaca, asqa = manifest["parts"]
    assert alpaca.items() >= {"wanted": 2, "pairs": 3, "taken": 2}.items()
    assert len(alpaca["sha256"]) == 64
    assert asqa["source"] == "asqa.json"
    assert asqa["skipped"] == {"no output": 1}


def test_a_pair_from_two_sources_is_one_line_and_leaves_no_file(tmp_path, refusal):
    error = refusal(f"critic pairs {TWICE} {TWICE} -o {tmp_path}/out.jsonl")
    said = "comes from kilt_nq.jsonl and from kilt_nq.jsonl; leave one out\n"
    assert error.endswith(said)
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_may_hold_any_character():
    part = read_part("asqa:5=a=b:c.json")
    assert part.count == 5
    assert part.source == Path("a=b:c.json")
    assert read_part("asqa=x.json", paper_counts=True).count == 3_897
    assert read_part("asqa:7=x.json", paper_counts=True).count == 7
    assert read_part("open_instruct=x.json", paper_counts=True).count is None
    for text, said in (
        ("asqa=", "write FORMAT=FILE"),
        ("asqa:many=x", "'many' is no count"),
    ):
        with refused(said):
            read_part(text)


ROWS = [{"instruction": f"Say {n}.", "input": "", "output": f"{n}"} for n in range(700)]


@pytest.mark.parametrize("name", "a.jsonl a.jsonl.gz a.json.gz a.parquet".split())
def test_a_file_gives_its_rows_in_order_with_their_places(name, tmp_path):
    path, text = tmp_path / name, "".join(json.dumps(row) + "\n" for row in ROWS)
    if "jsonl" not in name:
        text = json.dumps(ROWS, indent=1)
    path.write_bytes(
        gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    )
    if name == "a.parquet":
        datasets.Dataset.from_list(ROWS).to_parquet(path)
    rows = list(raw_rows(path))
    assert [row.record for row in rows] == ROWS
    assert [row.key for row in rows] == [str(n) for n in range(700)]
    assert rows[1].place.endswith(f"{name}:2" if "jsonl" in name else f"{name}: row 2")


def test_hugging_face_data_sets_give_the_same_pairs_whole_streamed_and_from_a_folder(
    tmp_path,
):
    whole, form = datasets.Dataset.from_list(ROWS), format_of("stanford_alpaca")
    expected = list(load(ROWS, form))
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    for source in (whole, whole.to_iterable_dataset(3), open_dataset(str(tmp_path))):
        assert list(load(source, form)) == expected
    for name, split in ((tmp_path, "nothing"), (tmp_path / "nowhere", "train")):
        with refused("hf:"):
            open_dataset(str(name), split=split)
    # lists of objects are turned inside out
    choices = {"text": ["stone", "cork"], "label": ["A", "B"]}
    row = {"id": "q", "question": "What floats?", "choices": choices, "answerKey": "B"}
    (pair,) = load(datasets.Dataset.from_list([row]), format_of("arc_easy"))
    assert pair.instruction.endswith("What floats?\nA: stone\nB: cork")
    parts = datasets.DatasetDict(train=whole.select([0]), test=whole.select([2]))
    (pair,) = load(parts, form, MixtureReading(split="test"))
    assert pair.output == "2"
    with refused("'dev'; .*train, test"):
        list(load(parts, form, MixtureReading(split="dev")))


@pytest.mark.parametrize(
    "name, content, message",
    [
        *parse_table(r"""
a.json | "[{\"a\": 1},\n 3]" | a.json: row 2: a row must be an object, not int
a.json | "{\"a\": 1}\n{\"a\": 2}\n" | a.json:2: not JSON .*; JSON lines are named .jsonl
a.json | "\"text\"" | a file of rows, not one str
a.json | "{\"dev\": []}" | no split 'train'; choose one of dev
a.jsonl | "{\"a\": 1}\n[1]\n" | a.jsonl:2: a row must be an object, not list
a.parquet | not parquet | not a readable Parquet file
a.xml | <a/> | no reader for it; known: \.jsonl
"""),
        ("a.json", "[" + '{"a":' * 20_000, "a.json: cannot be read|not JSON"),
        ("a.json", b'[{"a": "\xff"}]', "cannot be read"),
    ],
)
def test_a_bad_file_is_one_line(name, content, message, tmp_path):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(message):
        list(raw_rows(file))


def test_what_holds_no_rows_or_pairs_is_named():
    for rows, said in parse_table(r"""
[{"inputs": "a", "targets": "b"}, "text"] | row 2: a row must be an object, not str
[{"inputs": "a", "targets": ""}] | no pair in the flan_v2 source .*1 skipped.*row 1: no output
nowhere.jsonl | nowhere\.jsonl: cannot be read
"""):
        with refused(said):
            list(load(rows, format_of("flan_v2")))


def test_filters_say_what_they_left_out():
    rows = [
        dict(zip(("inputs", "targets"), texts, strict=True))
        for texts in parse_table(r"""
short | yes
a b c d e f | yes
short | a b c d e f
" " | yes
"half \ud800 a character" | yes
""")
    ]
    found = load(rows, format_of("flan_v2"), MixtureReading(most_words=5))
    reasons = [outcome.reason for outcome in found if isinstance(outcome, Dropped)]
    assert reasons == (
        "more than 5 words in the instruction|more than 5 words in the output|no instruction|"
        "text with half a character (a lone surrogate)"
    ).split("|")
    row = {"id": "7", "input": "who", "output": [{"answer": "me"}]}
    first, second = load([row, row], format_of("kilt_nq"))
    assert first.id == "nq-7"
    assert second.reason == "an id that occurred before (nq-7)"


def test_other_languages_are_left_out_where_that_is_asked_for():
    pytest.importorskip("py3langid")
    said = "Describe the weather of the northern coast in winter.|It is cold, wet and windy."
    gesagt = "Beschreibe das Wetter an der Nordsee im Winter.|Es ist kalt, nass und windig dort."
    rows = [
        dict(zip(("inputs", "targets"), text.split("|"), strict=True))
        for text in (said, gesagt)
    ]
    english, german = load(rows, format_of("flan_v2"), MixtureReading(language="en"))
    assert english.output == "It is cold, wet and windy."
    assert german.reason == "not in 'en'"
    with refused("'English'"):
        list(load(rows, format_of("flan_v2"), MixtureReading(language="English")))
