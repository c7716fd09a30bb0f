"""Drawing from sources and writing a mixture: seeded, nested, counted, all or nothing; and the command."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from critic.cli.augment import read_part
from critic.cli.main import main
from critic.formats import named
from critic.mixture import Part, Reading, Sample, Tally, pairs, write_mixture
from critic.pairs import Pair, read_pairs
from retrieval.errors import UserError

SAMPLES = Path(__file__).parent / "samples"
TWICE = f"kilt_nq={SAMPLES / 'kilt_nq.jsonl'}"
MANY = [Pair(f"p{n}", "d", "instruction", "output") for n in range(300)]


def draw(items, count, seed):
    sample = Sample(count, seed)
    for pair in items:
        sample.add(pair.id, pair)
    return sample.items()


@given(small=st.integers(0, 60), large=st.integers(0, 60), seed=st.integers(0, 5), order=st.permutations(MANY[:50]))
def test_a_smaller_draw_is_part_of_a_larger_one_and_the_order_of_rows_does_not_matter(small, large, seed, order):
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
    parts = [Part(named("stanford_alpaca"), SAMPLES / "alpaca.json", 2), Part(named("flan_v2"), SAMPLES / "flan.jsonl")]
    first, second, other = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    write_mixture(first, parts, seed=3)
    write_mixture(second, parts, seed=3)
    assert first.read_bytes() == second.read_bytes()
    write_mixture(other, parts[1:], reading=Reading(dataset="a set of mine"))
    assert {pair.dataset for pair in read_pairs(other)} == {"a set of mine"}


def test_defect_31_counts_in_are_counts_out():
    rows = [{"inputs": f"Say {n}.", "targets": "" if n % 7 == 0 else str(n)} for n in range(100)]
    tally = Tally("rows")
    taken = list(pairs(Part(named("flan_v2"), rows, 40), tally))
    assert len(taken) == tally.taken == 40
    assert tally.pairs + sum(tally.skipped.values()) == 100
    assert tally.skipped == {"no output": 15}
    assert tally.places["no output"] == [f"data set: row {n}" for n in (1, 8, 15, 22, 29)]


def test_a_bad_row_leaves_no_file_and_keeps_the_old_one(tmp_path):
    out, bad = tmp_path / "pairs.jsonl", tmp_path / "bad.jsonl"
    bad.write_text('{"inputs": "a", "targets": "b"}\n{"inputs": "a"}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl:2: no 'targets'"):
        write_mixture(out, [Part(named("flan_v2"), bad)])
    assert list(tmp_path.iterdir()) == [bad]
    write_mixture(out, [Part(named("flan_v2"), SAMPLES / "flan.jsonl")])
    before = out.read_bytes()
    with pytest.raises(UserError, match="no 'targets'"):
        write_mixture(out, [Part(named("flan_v2"), bad)])
    assert out.read_bytes() == before


def test_the_command_writes_pairs_with_a_manifest_and_says_what_it_left_out(tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    parts = [f"stanford_alpaca:2={SAMPLES / 'alpaca.json'}", f"asqa={SAMPLES / 'asqa.json'}"]
    assert main(["pairs", *parts, "--seed", "5", "-o", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stanford_alpaca: 2 of 3 pairs; left out: no output 1",
        "asqa: 1 of 1 pairs; left out: no output 1",
        f"3 pairs in {out}",
    ]
    assert [pair.dataset for pair in read_pairs(out)] == ["stanford_alpaca", "stanford_alpaca", "asqa"]
    manifest = json.loads((tmp_path / "pairs.jsonl.manifest.json").read_text())
    assert (manifest["pairs"], manifest["seed"]) == (3, 5)
    alpaca, asqa = manifest["parts"]
    assert (alpaca["wanted"], alpaca["pairs"], alpaca["taken"], len(alpaca["sha256"])) == (2, 3, 2, 64)
    assert (asqa["source"], asqa["skipped"]) == ("asqa.json", {"no output": 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["asqa="], "write FORMAT=FILE"),
        (["alpaka=x"], "unknown format 'alpaka'; known: gpt4_alpaca"),
        (["asqa:many=x"], "'many' is no count"),
        ([TWICE, TWICE], "comes from kilt_nq.jsonl and from kilt_nq.jsonl; leave one out"),
        (["asqa=x.json", "--most-words", "0"], "critic: most_words=0: give a whole number of at least 1\n"),
    ],
)
def test_a_bad_argument_is_one_line(arguments, message, tmp_path, capsys):
    assert main(["pairs", *arguments, "-o", str(tmp_path / "out.jsonl")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_may_hold_any_character():
    part = read_part("asqa:5=a=b:c.json")
    assert (part.count, part.source) == (5, Path("a=b:c.json"))
    assert read_part("asqa=x.json", paper_counts=True).count == 3_897
    assert read_part("asqa:7=x.json", paper_counts=True).count == 7
    assert read_part("open_instruct=x.json", paper_counts=True).count is None
