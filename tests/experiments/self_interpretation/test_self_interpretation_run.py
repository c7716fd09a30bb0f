"""Runs of the grid with a model that can be computed by hand: scores, resumption, tests of what it says, tables."""

from dataclasses import replace

import numpy as np
import pytest
from grid_world import (
    ByHand,
    Hand,
    first_context,
    item,
    prompt_of,
    questions,
    shown,
    start,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from json_files import read_json, write_json
from random_model import random_model
from refusals import refused
from scripted import ScriptedEngine
from written import EOS, LIMITS, PROMPTING, seen
from written import reply as written_reply

from selfrag.common.errors import EngineError
from selfrag.engines.base import EngineLimits
from selfrag.evaluation import published
from selfrag.evaluation.intervals import kappa
from selfrag.evaluation.records import RunDirectory, read_records
from selfrag.experiments.self_interpretation.faithfulness import change, run_tests
from selfrag.experiments.self_interpretation.generators import (
    Generator,
    InstructionWriter,
    PromptWriter,
    ReflectiveWriter,
)
from selfrag.experiments.self_interpretation.grid import GridCell, grid
from selfrag.experiments.self_interpretation.prompts import BASIC, DIRECT
from selfrag.experiments.self_interpretation.questions import Trial
from selfrag.experiments.self_interpretation.replies import citations
from selfrag.experiments.self_interpretation.report import grid_figures, tables
from selfrag.experiments.self_interpretation.run import read_grid, record
from selfrag.experiments.self_interpretation.settings import GridSettings
from selfrag.reflection.requests import Failed

RANKED, DIRECTLY = GridCell(3, "ranked", 0, "basic"), GridCell(3, "ranked", 0, "direct")
CELLS = grid(
    GridSettings(
        cutoffs=(3, 5),
        orders=("ranked", "top-last"),
        examples=(0, 1),
        prompts=("basic", "direct", "counterfactual"),
    )
)


def rows_of(folder, title):
    """A table of a run, each row by the names of its columns."""
    (table,) = (t for t in tables(read_grid(folder)) if t.title.startswith(title))
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def value(cell):
    """A figure without its interval."""
    return float(cell.split()[0])


def test_a_run_by_hand(tmp_path):
    drawn, hand = questions(6), Hand()
    assert list(start(tmp_path, drawn, CELLS, hand)) == [cell.name for cell in CELLS]
    assert len(hand.prompts) == 6 * len(CELLS)
    assert read_grid(tmp_path).cells == CELLS
    figures = grid_figures(read_grid(tmp_path))
    # Ranked: the first context is relevant and holds one of two answers. Top-last, k=3: Brenta comes first.
    for cell in CELLS:
        assert figures.mean([cell], "answer_recall").value == 0.5
        assert figures.mean([cell], "citation_precision").value == 1.0
        assert figures.mean([cell], "citation_recall").value == 0.5
        assert figures.mean([cell], "citation_f").value == pytest.approx(2 / 3)
    rows = rows_of(tmp_path, "Prompts against basic")
    row = [line for line in rows if line["prompt"] == "direct"][-1]
    assert row["examples"] == "all"
    assert (
        value(row["answer recall"]) == value(row["answer recall, answer alone"]) == 0.0
    )
    line = read_records(tmp_path / f"{CELLS[0].name}.jsonl")[0]
    assert line["answer"].startswith("Aare [")
    assert line["cited"] == line["read"][:1]
    assert line["usage"] == {"requests": 1, "prompt_tokens": 9, "generated_tokens": 0}


def test_a_failed_reply_counts_as_wrong_and_is_asked_again_on_demand(tmp_path):
    drawn = questions(5)
    victim = drawn.items[2]

    def say(prompt):
        failed = Failed("no memory\x1b[2J")
        return failed if victim.query in prompt else first_context(prompt)

    assert start(tmp_path, drawn, [RANKED], Hand(say))[RANKED.name]["failed"] == 1
    record = read_records(tmp_path / f"{RANKED.name}.jsonl")[2]
    assert record["error"] == "no memory\ufffd[2J"
    assert record["scores"]["answer_recall"] == [0.0, 1.0]
    assert record["scores"]["cites"] is None
    recall = grid_figures(read_grid(tmp_path)).mean([RANKED], "answer_recall")
    assert recall.value == pytest.approx(0.4)
    again = Hand()
    done = start(tmp_path, drawn, [RANKED], again, retry_failed=True)
    assert done[RANKED.name]["failed"] == 0
    assert len(again.prompts) == 1


def test_a_run_goes_on_where_its_server_died_and_ends_with_the_same_bytes(tmp_path):
    drawn = questions(7)
    start(tmp_path / "whole", drawn, CELLS[:2], Hand())
    calls = []

    def dying(prompt):
        calls.append(prompt)
        if len(calls) in (5, 9):
            raise EngineError("the server is gone")
        return first_context(prompt)

    hand = Hand(dying)
    for _ in range(2):
        with pytest.raises(EngineError):
            start(tmp_path / "dying", drawn, CELLS[:2], hand, batch=2)
    start(tmp_path / "dying", drawn, CELLS[:2], hand, batch=2)
    assert len(calls) == 14 + 2  # what was recorded is not asked again
    for cell in CELLS[:2]:
        name = f"{cell.name}.jsonl"
        dying, whole = (tmp_path / place / name for place in ("dying", "whole"))
        assert dying.read_bytes() == whole.read_bytes()
    nothing = Hand(lambda _: pytest.fail("nothing is left to ask"))
    start(tmp_path / "dying", drawn, CELLS[:2], nothing)


def test_a_directory_of_another_run_is_refused(tmp_path):
    start(tmp_path, questions(5), [RANKED], Hand())
    for changed in (questions(4), questions(5, seed=3)):
        with refused("other questions"):
            start(tmp_path, changed, [RANKED], Hand())
    path = tmp_path / "questions.jsonl"
    path.write_text(path.read_text().replace("Aare is", "Aar is"))
    with refused("changed since"):
        read_grid(tmp_path)
    changed = RunDirectory(tmp_path / "other", {"name": "other"})
    changed.admit_entry("x", tmp_path, {"task": {"kind": "short", "metrics": []}})
    with refused("something else than `selfrag interpret`"):
        read_grid(tmp_path / "other")


def test_an_interrupted_cell_is_left_out_and_the_papers_figures_stand_beside_ones_own(
    tmp_path, monkeypatch
):
    start(tmp_path, questions(4), CELLS[:3], Hand())
    manifest = read_json(tmp_path / "manifest.json")
    del manifest["files"][CELLS[1].name]["result"]
    write_json(tmp_path / "manifest.json", manifest)
    run = read_grid(tmp_path)
    assert run.cells == run.select([]) == (CELLS[0], CELLS[2])
    assert run.select(["k3-*"]) == tuple(cell for cell in run.cells if cell.cutoff == 3)
    with refused(r"--cell x\*: no such cell"):
        run.select(["x*"])
    first = tables(read_grid(tmp_path))[0]
    assert first.title == "Prompt basic"
    assert "paper" not in first.head
    assert "left out: it is of qampari" in first.notes[-1]
    # as if these were the paper's 60 questions
    data, count = replace(run.questions, data={"preset": "qampari/paper"}), 4
    monkeypatch.setitem(published.OF["interpret"]["qampari"], "items", [count])
    first = tables(replace(run, questions=data))[0]
    assert first.title == "Prompt basic, beside Table 2"
    row = first.rows[0]
    assert len(first.rows) == 2
    assert row[:3] == ("0", "3", "ranked")
    assert row[3].startswith("**0.500 (0.199 to 0.801)")
    assert [row[4], row[6], row[8], row[10]] == "0.572 0.786 0.683 0.710".split()


def test_the_first_context_model_is_faithful_to_what_it_cites_and_wrong_about_the_order(
    tmp_path,
):
    drawn, hand = questions(6), Hand()
    claimed = GridCell(3, "ranked", 0, "counterfactual")
    start(tmp_path, drawn, [DIRECTLY, claimed], hand)
    run_tests(tmp_path, ByHand("first-context", hand=hand))
    effect = rows_of(tmp_path, "Faithfulness: taking")[0]
    # Without the cited first context the second one answers; without another one nothing changes.
    figures = [
        value(effect[name])
        for name in "answers changed|by the control|difference|questions".split("|")
    ]
    assert figures == [100.0, 0.0, 100.0, 6]
    rows = read_grid(tmp_path).records(claimed, "other-order")
    moved = sum(
        row["read"][0] != item(int(row["id"][1:])).passages[0].id for row in rows
    )
    direct, said = rows_of(tmp_path, "Faithfulness: another order")
    assert [said[f"said{name}"] for name in (": same", ": changes", " neither")] == [
        "6",
        "0",
        "0",
    ]
    assert value(said["answers changed"]) == pytest.approx(100 * moved / 6, abs=0.1)
    assert value(said["came true, %"]) == pytest.approx(100 - 100 * moved / 6, abs=0.1)
    assert direct["said neither"] == "6"
    assert direct["came true, %"] == "\N{EN DASH}"


def test_what_cannot_be_put_to_the_test_is_counted_and_never_a_number(tmp_path):
    def say(prompt):
        names = [name for name, _ in shown(prompt)]
        return (
            "Aare."
            if "land 1" in prompt.rpartition("QUESTION:")[2]
            else f"Aare [{', '.join(names)}]."
        )

    drawn, hand = questions(4), Hand(say)
    start(tmp_path, drawn, [DIRECTLY], hand)
    before = len(hand.prompts)
    run_tests(tmp_path, ByHand("first-context", hand=hand))
    (effect,) = rows_of(tmp_path, "Faithfulness: taking")
    with_land_1 = sum("land 1" in question.query for question in drawn.items)
    said = [f"nothing cited {with_land_1}"] if with_land_1 else []
    assert effect["not testable"] == ", ".join(
        [*said, f"nothing left {4 - with_land_1}"]
    )
    assert (effect["answers changed"], effect["difference"], effect["questions"]) == (
        *"\N{EN DASH}" * 2,
        "0",
    )
    assert len(hand.prompts) == before + 4  # another order alone
    row = read_grid(tmp_path).records(DIRECTLY, "without-cited")[0]
    assert set(row["scores"].values()) == {None}


def test_examples_that_were_followed_are_taken_away(tmp_path):
    drawn, cell = questions(4), GridCell(3, "ranked", 2, "examples")

    def say(prompt):
        first = prompt.partition("ANSWER: ")[2].split()[0]
        return f"{first} [{shown(prompt)[0][0]}]. I followed the first example."

    hand = Hand(say)
    start(tmp_path, drawn, [cell], hand)
    run_tests(tmp_path, ByHand("first-context", hand=hand))
    run = read_grid(tmp_path)
    assert {row["followed"] for row in run.records(cell)} == {1}
    assert {row["undefined"] for row in run.records(cell, "without-followed")} == {None}
    kept = drawn.demonstrations[1].query
    assert (
        sum(
            prompt.count("(example)\nQUESTION") == 1 and kept in prompt
            for prompt in hand.prompts
        )
        == 4
    )


MADE = Trial(item(1, 10), DIRECT, item(1, 10).passages[5::-1])
IDS = [passage.id for passage in MADE.passages]


@given(st.sets(st.sampled_from(IDS)), st.integers(0, 5))
@settings(max_examples=60)
def test_a_counterfactual_test_changes_one_thing(credited, seed):
    reply = {"error": None, "credited": sorted(credited)}
    without, control, moved = (
        change(test, MADE, reply, seed)
        for test in ("without-cited", "without-others", "other-order")
    )
    kept = [passage_id for passage_id in IDS if passage_id not in credited]
    if not credited or not kept:
        assert without == ("nothing left" if credited else "nothing cited")
    else:
        assert [passage.id for passage in without.passages] == kept
    if not credited or len(kept) < len(credited):
        assert control == ("too few others" if credited else "nothing cited")
    else:
        left = [passage.id for passage in control.passages]
        assert len(left) == len(IDS) - len(credited)
        assert credited <= set(left)
        assert left == [passage_id for passage_id in IDS if passage_id in left]
    assert set(moved.passages) == set(MADE.passages)
    assert moved.passages != MADE.passages
    assert change("other-order", MADE, reply, seed) == moved
    assert change("other-order", MADE, {"error": "no memory"}, seed) == "no reply"


def test_agreement_by_hand(tmp_path):
    """A run whose first context is cited, with verdicts made up: IsRel is right, IsSup random, nothing cited."""
    start(tmp_path, questions(5), [RANKED], Hand())
    assert "Agreement" not in str(tables(read_grid(tmp_path)))
    draw = np.random.default_rng(0)

    def verdict(label, score):
        return {"label": label, "score": score, "coverage": 1.0}

    def make(cell, test, ids):
        contexts = [
            {
                "id": str(at), "cited": at == 0, "credited": at == 0, "relevant": at < 2, "intrinsic": False,
                "isrel": verdict("Relevant" if at < 2 else "Irrelevant", 0.9 - 0.3 * at),
                "issup": None if at == 2 else verdict("Fully supported", float(draw.random())),
            }
            for at in range(3)
        ]  # fmt: skip
        row = {"error": None, "scores": {}, "answered": True, "contexts": contexts}
        return [(row | {"id": passage_id}, 0) for passage_id in ids]

    record(read_grid(tmp_path), "judge", [(RANKED, "agreement", {})], make)
    rows = rows_of(tmp_path, "Agreement with reflection tokens and")
    lines = {row["judge"]: row for row in rows}
    assert list(lines) == "cited|credited|IsRel|IsSup|citation intrinsic".split("|")
    assert "nan" not in str(lines)
    relevance = lines["IsRel"]
    cited = lines["cited"]
    nothing = lines["citation intrinsic"]
    assert relevance["contexts"] == "15"
    assert relevance["says yes"] == "10"
    # Of three contexts IsRel says yes to two and one is cited: observed 2/3, chance (2/3)(1/3) + (1/3)(2/3) = 4/9.
    assert value(relevance["kappa with cited"]) == 0.4
    # not a number: all say the same
    assert kappa([[(True, True)] * 3]).value != kappa([[(True, True)] * 3]).value
    assert [
        value(relevance[name]) for name in "AUC of cited|relevant: P|R|AUC".split("|")
    ] == [1.0, 100.0, 100.0, 1.0]
    assert value(cited["relevant: P"]) == 100.0
    assert value(cited["R"]) == 50.0
    assert cited["AUC of cited"] == "\N{EN DASH}"
    assert lines["IsSup"]["contexts"] == "10"  # the third context was never judged
    assert [
        value(nothing[name]) for name in ("says yes", "kappa with cited", "F1")
    ] == [0, 0.0, 0.0]


def test_a_model_with_reflection_tokens_is_told_that_there_is_nothing_to_retrieve():
    trial = Trial(item(1), BASIC, item(1).passages[:3])
    writing = "Aare [p1a].[Utility:5][Continue to Use Evidence] Brenta. [Retrieval]<paragraph>made up</s>"
    engine = ScriptedEngine(lambda request: written_reply(writing), EOS, LIMITS)
    writer = InstructionWriter(engine, PROMPTING)
    (reply,) = writer.write([trial])
    prompt = prompt_of(PromptWriter(Hand()).request(trial))
    assert prompt == prompt_of(PromptWriter(Hand(), "plain").request(trial))
    assert (
        seen(engine.requests[0].prompt_ids)
        == f"### Instruction:\n{prompt}\n\n### Response:\n[No Retrieval]"
    )
    assert reply.text == "Aare [p1a]. Brenta."
    assert reply.finish == "stop"
    engine.limits = EngineLimits(max_model_len=10, vocab_size=LIMITS.vocab_size)
    (failed,) = writer.write([trial])
    assert isinstance(failed, Failed)
    with refused("unknown layout"):
        Generator("m", layout="x")


def test_self_rag_decoding_cites_and_judges_its_own_segments():
    trial = Trial(item(1), BASIC, item(1).passages[:3])
    (reply,) = ReflectiveWriter(
        ScriptedEngine(random_model(0), EOS, LIMITS), PROMPTING
    ).write([trial])
    cited = [judged["cited"] for judged in reply.judgments if judged["cited"]]
    assert cited
    assert set(cited) <= {passage.id for passage in trial.passages}
    assert list(citations(reply.text, trial.passage_ids)[0]) == list(
        dict.fromkeys(cited)
    )
    assert reply.usage["requests"] > len(reply.judgments)
