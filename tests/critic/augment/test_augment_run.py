"""Whole runs on small files: counts, sources, interruptions, the command, and what workers make of a shard."""

import contextlib
import functools
import json
import os
import pickle
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
from full_disk import full_disk
from json_files import parse_table, read_lines, write_lines
from refusals import refused
from scripted_critic import CountingRetriever, ScriptedCritic, passages

from critic.augment.algorithm import BALANCES, AugmentOptions
from critic.augment.run import (
    augment_in_actor,
    augment_locally,
    augment_pairs,
    augment_shard,
    count_source,
    sharded,
)
from critic.baselines import open_critic
from critic.pairs import PairSource, read_pairs
from retrieval.sentences import sentence_finder
from selfrag.cluster import Actor
from selfrag.common.jsonl import write_jsonl
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, read_rows


def record(n, **changes):
    return {
        "id": f"p{n}",
        "dataset": "made",
        "instruction": f"Question {n}?",
        "output": f"Answer {n}",
    } | changes


def written(path, records):
    write_lines(path, records)
    return PairSource(path)


def run(source, out, rule=None, find=None, shard=4, **options):
    chosen = AugmentOptions(**options)
    critic = ScriptedCritic(rule)
    retriever = CountingRetriever(find or (lambda query: passages("d1", "d2")))
    manifest = augment_pairs(
        source, out, augment_locally(critic, retriever, chosen), chosen, shard=shard
    )
    return SimpleNamespace(
        manifest=manifest, critic=critic, retriever=retriever, counts=manifest["counts"]
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    pairs = small_run.write_pairs(folder / "pairs.jsonl")
    return SimpleNamespace(
        pairs=pairs, out=folder / "out", manifest=small_run.run(pairs, folder / "out")
    )


@pytest.mark.parametrize("count", [1, 10, 11])
def test_defect_31_counts_in_are_counts_out(tmp_path, count):
    source = written(tmp_path / "pairs.jsonl", [record(n) for n in range(count)])
    for shard in (1, 10):
        found = run(source, tmp_path / f"out{shard}", shard=shard)
        assert found.counts["items"] == found.counts["rows"] == count
        assert [row.id for row in read_rows(tmp_path / f"out{shard}/rows.jsonl")] == [
            f"p{n}" for n in range(count)
        ]


def test_every_row_is_its_pair_and_has_a_provenance(made):
    pairs = {pair.id: pair for pair in read_pairs(made.pairs)}
    rows = list(read_rows(made.out / "rows.jsonl"))
    reasons = read_lines(made.out / "provenance.jsonl")
    assert [row.id for row in rows] == [reason["id"] for reason in reasons]
    for row, reason in zip(rows, reasons, strict=True):
        pair, chosen = pairs[reason["pair"]], reason["segments"]
        assert row.instruction == pair.instruction
        texts = [part.text for part in row.target if isinstance(part, TargetText)]
        assert "".join(texts) == pair.output
        shown = [p.passage.id for p in row.target if isinstance(p, TargetEvidence)]
        assert shown == [s["chosen"] for s in chosen if "chosen" in s]
        said = "".join(pair.output[s["start"] : s["end"]] for s in chosen)
        assert said == pair.output
    dropped = {line["id"] for line in read_lines(made.out / "dropped.jsonl")}
    assert dropped ^ {reason["pair"] for reason in reasons} == set(pairs)
    counts = made.manifest["counts"]
    parts = [part for row in rows for part in row.target]
    tokens = Counter(part.token for part in parts if isinstance(part, TargetToken))
    assert counts["tokens"] == tokens
    assert counts["rows"] == len(rows)
    assert counts["items"] == 40
    assert counts["gold_passages"] > 0
    assert sum(counts["dropped"].values()) == len(dropped)
    assert {row.source for row in rows} == set(counts["sources"])
    assert str(made.out) not in json.dumps(made.manifest)


def test_defect_33_same_seed_same_bytes_and_unknown_names_work(tmp_path, made):
    small_run.run(made.pairs, tmp_path / "again")
    assert small_run.contents(tmp_path / "again") == small_run.contents(made.out)
    source = PairSource(made.pairs)

    def rule(case):
        return "Irrelevant" if case.group == "IsRel" else ...

    def found(query):
        return passages(*"abcdefgh")

    first, second = (
        run(source, tmp_path / str(s), rule, found, seed=s, passages=8).manifest
        for s in (1, 2)
    )
    assert first["files"]["rows.jsonl"] != second["files"]["rows.jsonl"]


def test_a_finished_run_is_not_done_again_and_no_other_run_takes_its_place(tmp_path):
    path = tmp_path / "pairs.jsonl"
    source = written(path, [record(1)])
    first, again = (run(source, tmp_path / "out") for _ in range(2))
    assert again.manifest == first.manifest
    assert again.critic.calls == []
    with refused(r"options\.seed, options\.gold"):
        run(source, tmp_path / "out", seed=5, gold="join")
    written(path, [record(1, output="Another")])
    with refused("other pairs"):
        run(source, tmp_path / "out")
    with refused("holds no pairs"):
        run(written(tmp_path / "empty.jsonl", []), tmp_path / "none")
    records = [
        record(0),
        record(1, output="word " * 5000),
        record(2, output="\ud83d half"),
        record(3, id="\udc00"),
    ]
    found = run(written(path, records), tmp_path / "untrained")
    assert found.counts["dropped"] == {"not Unicode": 2, "too long": 1}


class Stopped(BaseException):
    """In the place of a kill; `tests/long_jobs.py` has real ones."""


def test_a_run_that_breaks_off_asks_only_for_what_is_missing_and_takes_no_other_pairs(
    tmp_path,
):
    path, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    source = written(path, [record(n) for n in range(10)])
    execute = augment_locally(
        ScriptedCritic(), lambda queries, k: [[]], AugmentOptions()
    )

    def breaking_off(shards):
        for done in execute(shards):
            if done[0].number == 2:
                raise Stopped
            yield done

    with pytest.raises(Stopped):
        augment_pairs(source, out, breaking_off, AugmentOptions(), shard=4)
    assert not (out / "rows.jsonl").exists()
    written(path, [record(n, output="Another") for n in range(10)])
    with refused(r"shards.jsonl"):
        run(source, out)
    written(path, [record(n) for n in range(10)])
    resumed, whole = run(source, out), run(source, tmp_path / "whole")
    # two of three shards were there
    assert len(resumed.critic.calls) == len(whole.critic.calls) / 3
    assert resumed.manifest["pairs"] == whole.manifest["pairs"]


def test_stopped_before_any_publishing_step_it_ends_with_the_same_bytes(
    tmp_path, monkeypatch
):
    pairs, replace = small_run.write_pairs(tmp_path / "pairs.jsonl", 4), Path.replace
    small_run.run(pairs, tmp_path / "whole")
    ended = []
    for steps in range(5):
        left = iter(range(steps))

        def replacing(self, target, left=left):
            if next(left, None) is None:
                raise Stopped
            return replace(self, target)

        with monkeypatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(Path, "replace", replacing)
            small_run.run(pairs, tmp_path / str(steps))
            ended.append(steps)
        small_run.run(pairs, tmp_path / str(steps))
        assert small_run.contents(tmp_path / str(steps)) == small_run.contents(
            tmp_path / "whole"
        ), steps
    assert ended == [4]  # 3 files and the manifest


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_full_disk_is_one_line_and_the_next_run_finishes(tmp_path, made):
    line = r"^no space left while writing .*; free some and run the same again$"
    # in the first line of the log, in a shard, in the final files
    for size in (200, 4_000, 20_000):
        with refused(line), full_disk(size):
            small_run.run(made.pairs, tmp_path / "out")
    small_run.run(made.pairs, tmp_path / "out")
    assert small_run.contents(tmp_path / "out") == small_run.contents(made.out)


@pytest.mark.parametrize(
    "change, named",
    parse_table(r"""
{"output": "  \n"} | 'output' must be text that is not empty
{"output": null} | 'output' must be text, not None
{"gold_passages": ["x"]} | 'gold_passages.0' must be an object
{"id": "p0"} | id 'p0' occurs twice
"""),
)
def test_a_bad_row_stops_before_anything_is_spent(tmp_path, change, named):
    path = tmp_path / "pairs.jsonl"
    source = written(path, [record(0), record(1), record(2, **change)])
    with refused(f"{path}:3: {re.escape(named)}"):
        run(source, tmp_path / "out", lambda case: pytest.fail("asked"), shard=1)


@pytest.mark.parametrize("gold", ["off", "join", "only"])
def test_an_estimate_is_what_the_dearest_run_asks_for(tmp_path, gold):
    texts = ["One is here now.", "One is here now. Two is here now. Three is here now."]
    records = [
        record(n, output=text, gold_passages=[{"text": f"gold {n}"}] * n)
        for n, text in enumerate(texts)
    ]
    source = written(tmp_path / "pairs.jsonl", records)
    options = AugmentOptions(gold=gold, passages=3, balance=BALANCES["none"])
    find = lambda query: passages("d1", "d2", "d3")  # noqa: E731
    found = run(source, tmp_path / "out", None, find, gold=gold, passages=3)
    guess = count_source(source, options, sentence_finder())
    assert guess.items == 2
    assert guess.pairs == 2
    assert guess.sentences == 4
    assert guess.judgments == len(found.critic.cases)
    assert guess.searches == len(found.retriever.queries)


@pytest.fixture
def pairs(tmp_path):
    """Pairs that all bring a passage, so that no index is needed."""
    rows = [
        record(
            n,
            dataset="made\x1b[31m",
            kind="short_qa",
            output=f"{place}ina",
            instruction=f"What is the river of {place}?",
            gold_passages=[{"title": place, "text": f"The river is {place}ina."}],
        )
        for n, place in enumerate(small_run.PLACES)
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    return tmp_path / "pairs.jsonl"


def augmenting(pairs, out, options=""):
    return f"critic augment {pairs} --critic lexical -o {out} --gold-passages only {options}"


def test_the_command_says_what_came_out_and_refuses_other_settings(
    pairs, tmp_path, command, refusal
):
    line = augmenting(pairs, tmp_path / "out", "--balance none")
    shown, _ = command(line)
    assert len(list(read_rows(tmp_path / "out/rows.jsonl"))) == 10
    assert "10 rows of 10 pairs" in shown
    assert "[Fully supported]" in shown
    assert "\x1b" not in shown
    command(line)
    assert "other options.seed" in refusal(f"{line} --seed 4")


@pytest.mark.parametrize(
    "changes, said",
    [("--gold-passages off", "no index: give --index DIR"), ("--gol only", "--gol")],
)
def test_defect_37_what_is_wrong_is_one_line(pairs, tmp_path, refusal, changes, said):
    assert said in refusal(augmenting(pairs, tmp_path / "out", changes))
    assert not (tmp_path / "out/rows.jsonl").exists()


@pytest.mark.engine
def test_a_trained_critic_on_a_real_engine(
    pairs, tmp_path, tiny_llama, command, refusal
):
    from transformers import AutoTokenizer

    from critic.student.card import write_card
    from critic.student.prompt import CriticLayout, PartLimits, PromptCodec

    model = tmp_path / "critic"
    shutil.copytree(tiny_llama, model)
    options = f"--critic {model} --engine transformers --balance none --threshold 0"
    line = augmenting(pairs, tmp_path / "x", options)
    assert "no critic" in refusal(line)
    limits = PartLimits(evidence=40, preceding=20, output=20, instruction=40)
    write_card(
        model,
        PromptCodec.from_tokenizer(
            AutoTokenizer.from_pretrained(model), CriticLayout(), limits
        ),
    )
    counted, _ = command(f"{line} --dry-run")
    assert counted.endswith("at most 40 judgments and 0 searches\n")
    command(line)
    row = read_lines(tmp_path / "x/provenance.jsonl")[0]
    judged = row["segments"][0]["candidates"][0]["isrel"]
    assert judged["source"] == "judge"
    assert 0 < judged["coverage"] < 1


def test_a_worker_makes_the_same_bytes_and_says_what_it_cannot_open(tmp_path):
    def actor(critic):
        opening = functools.partial(
            augment_in_actor,
            functools.partial(open_critic, critic),
            small_run.WordRetriever,
            small_run.OPTIONS,
        )
        return Actor(pickle.loads(pickle.dumps(opening)))

    source = PairSource(small_run.write_pairs(tmp_path / "pairs.jsonl"))
    shard = next(sharded(source, small_run.SHARD))
    sent = {"task": pickle.dumps(shard)}
    words, options = small_run.WordRetriever(), small_run.OPTIONS
    local = augment_shard(
        shard, open_critic("lexical"), words, options, sentence_finder()
    )
    done = actor("lexical")(sent)
    assert pickle.loads(done["results"]) == [(shard, local)]
    assert done["error"] == ""
    assert actor("nowhere")(sent)["error"].startswith("no critic 'nowhere'")


@pytest.mark.slow
def test_ray_writes_the_bytes_of_a_local_run(pairs, tmp_path, command, process):
    pytest.importorskip("ray")
    command(augmenting(pairs, tmp_path / "here", "--shard 2"))
    line = augmenting(pairs, tmp_path / "there", "--shard 2 --ray local --workers 2")
    # Workers are less nice by default: on a busy machine they would not even start.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    program = [sys.executable, "-m", *line.split()]
    done = process(*program, env=os.environ | quiet, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in small_run.FILES:
        here, there = (tmp_path / place / name for place in ("here", "there"))
        assert here.read_bytes() == there.read_bytes()
