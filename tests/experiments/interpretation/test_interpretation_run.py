"""Runs of the grid with a model that can be computed by hand: scores, resumption, counterfactual tests, tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grid_world import Hand, first_context, identity, item, prompt_of, questions, shown, start
from written import EOS, LIMITS, PROMPTING, seen
from written import reply as written_reply

from retrieval.errors import UserError
from selfrag.engines.base import Limits
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import EngineError
from selfrag.evaluation.records import RunDirectory, read_records
from selfrag.experiments.interpretation.effects import effects, foretold
from selfrag.experiments.interpretation.faithfulness import put_to_test
from selfrag.experiments.interpretation.figures import by_kind, grid_figures
from selfrag.experiments.interpretation.grid import Cell, grid
from selfrag.experiments.interpretation.own_writer import OwnWriter
from selfrag.experiments.interpretation.reading import read_grid
from selfrag.experiments.interpretation.replies import read_reply
from selfrag.experiments.interpretation.report import tables
from selfrag.experiments.interpretation.run import Job
from selfrag.experiments.interpretation.scoring import citation_figures, scored
from selfrag.experiments.interpretation.streaming import Stream
from selfrag.experiments.interpretation.trials import Showing, trial
from selfrag.experiments.interpretation.writers import PromptWriter
from selfrag.intrinsics.contract import Failed

RANKED = Cell(3, "ranked", 0, "basic")
CELLS = grid(
    cutoffs=(3, 5), orders=("ranked", "top-last"), examples=(0, 1), prompts=("basic", "direct", "counterfactual")
)


def test_figures_of_one_reply_by_hand():
    # Two answers and two relevant passages among three; the reply has one answer, cites one relevant passage, one that
    # is not, and something that was never given.
    one = trial(item(1), Cell(3, "ranked", 0, "direct"), (), Showing())
    text = "Aare [p1a][p1c][zz]. I think so, as Brenta River [p1b] is in it."
    reply = read_reply(text, one.passage_ids, explains=True)
    found = scored(one, reply, {"p1a", "p1b"}, text)
    assert found["answer_recall"] == (0.5, 1.0)
    assert found["citation_precision"] == (pytest.approx(1 / 3), 1.0)
    assert found["citation_recall"] == (0.5, 1.0)
    assert found["citation_f"] == (pytest.approx(0.4), 1.0)  # 2 (1/3) (1/2) / (5/6)
    assert found["whole_answer_recall"] == (1.0, 1.0)
    assert found["whole_citation_precision"] == (0.5, 1.0)
    assert found["whole_citation_recall"] == (1.0, 1.0)
    assert found["wrong_citations"] == (1.0, 3.0)
    assert found["explains"] == (1.0, 1.0)


def test_citation_figures_at_the_borders():
    assert citation_figures([], 0, ["a"]) == {"citation_precision": 0.0, "citation_recall": 0.0, "citation_f": 0.0}
    assert citation_figures(["a"], 0, []) is None
    assert citation_figures(["a", "b"], 0, ["a", "b"])["citation_f"] == 1.0
    assert citation_figures([], 2, ["a"])["citation_precision"] == 0.0


def test_the_answer_is_matched_as_it_stands_and_by_words():
    one = trial(item(1), RANKED, (), Showing())
    reply = read_reply("aare, BRENTA; Aares", one.passage_ids, explains=False)
    found = scored(one, reply, {"p1a"}, reply.answer)
    assert found["answer_recall"] == (0.5, 1.0)  # `Aare` in `Aares`
    assert found["answer_recall_words"] == (1.0, 1.0)


def test_a_run_by_hand(tmp_path: Path):
    asked = questions(6)
    hand = Hand()
    results = start(tmp_path, asked, CELLS, hand)
    assert list(results) == [cell.name for cell in CELLS]
    assert len(hand.prompts) == 6 * len(CELLS)
    run = read_grid(tmp_path)
    assert run.cells == CELLS
    figures = grid_figures(run)
    # Ranked: the first context is relevant and holds one of two answers. Top-last, k=3: Brenta comes first.
    for cell in CELLS:
        assert figures.of(cell, "answer_recall").value == 0.5
        assert figures.of(cell, "citation_precision").value == 1.0
        assert figures.of(cell, "citation_recall").value == 0.5
        assert figures.of(cell, "citation_f").value == pytest.approx(2 / 3)
    pairs = figures.pairs("direct", "basic", examples=1)
    assert [(mine.name, other.name) for mine, other in pairs][:1] == [("k3-ranked-1-direct", "k3-ranked-1-basic")]
    assert len(pairs) == 4
    assert figures.difference(pairs, "answer_recall").value == 0.0
    assert figures.difference(pairs, "whole_citation_f").value == 0.0
    assert figures.difference([], "answer_recall") is None
    kinds = by_kind(run)
    words = [one.query.split()[0] for one in asked.chosen.items]
    assert {kind: one.questions for kind, one in kinds.items()} == {word: words.count(word) for word in words}
    record = read_records(tmp_path / f"{CELLS[0].name}.jsonl")[0]
    assert record["answer"].startswith("Aare [")
    assert record["cited"] == record["read"][:1]
    assert record["usage"] == {"requests": 1, "prompt_tokens": 9, "generated_tokens": 0}


def test_a_failed_reply_counts_as_wrong_and_is_asked_again_on_demand(tmp_path: Path):
    asked = questions(5)
    victim = asked.chosen.items[2]

    def say(prompt: str) -> str | Failed:
        return Failed("no memory\x1b[2J") if victim.query in prompt else first_context(prompt)

    hand = Hand(say)
    results = start(tmp_path, asked, [RANKED], hand)
    assert results[RANKED.name]["failed"] == 1
    record = read_records(tmp_path / f"{RANKED.name}.jsonl")[2]
    assert record["error"] == "no memory\ufffd[2J"
    assert record["scores"]["answer_recall"] == [0.0, 1.0]
    assert record["scores"]["cites"] is None
    assert grid_figures(read_grid(tmp_path)).of(RANKED, "answer_recall").value == pytest.approx(0.4)
    again = Hand()
    assert start(tmp_path, asked, [RANKED], again, retry_failed=True)[RANKED.name]["failed"] == 0
    assert len(again.prompts) == 1


def test_a_run_goes_on_where_its_server_died_and_ends_with_the_same_bytes(tmp_path: Path):
    asked = questions(7)
    start(tmp_path / "whole", asked, CELLS[:2], Hand())
    calls = []

    def dying(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) in (5, 9):
            raise EngineError("the server is gone")
        return first_context(prompt)

    hand = Hand(dying)
    for _ in range(2):
        with pytest.raises(EngineError):
            start(tmp_path / "dying", asked, CELLS[:2], hand, batch=2)
    seen: list[int] = []
    start(tmp_path / "dying", asked, CELLS[:2], hand, batch=2, progress=seen.append)
    assert sum(seen) == 14
    for cell in CELLS[:2]:
        name = f"{cell.name}.jsonl"
        assert (tmp_path / "dying" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    start(tmp_path / "dying", asked, CELLS[:2], Hand(lambda _: pytest.fail("nothing is left to ask")))


def test_a_directory_of_another_run_is_refused(tmp_path: Path):
    asked = questions(5)
    start(tmp_path, asked, [RANKED], Hand())
    with pytest.raises(UserError, match="holds a run with another questions"):
        start(tmp_path, questions(4), [RANKED], Hand())
    with pytest.raises(UserError, match="holds a run with another questions"):
        start(tmp_path, questions(5, seed=3), [RANKED], Hand())
    path = tmp_path / "questions.jsonl"
    path.write_text(path.read_text().replace("Aare is", "Aar is"))
    with pytest.raises(UserError, match="was changed since the run was started"):
        read_grid(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"questions\.jsonl"):
        read_grid(tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="holds no run"):
        read_grid(tmp_path)
    RunDirectory(tmp_path, {"name": "other"}).admit_entry("x", tmp_path, {"task": {"kind": "short", "metrics": []}})
    with pytest.raises(UserError, match="something else than `selfrag interpret`"):
        read_grid(tmp_path)


def after_tests(folder: Path, asked, cells, hand: Hand):
    """The counterfactual tests of a run, and the run read back."""
    stream = Stream(RunDirectory(folder, identity(asked)))
    put_to_test(Job(asked, Path("rivers.jsonl")), cells, stream, lambda: PromptWriter(hand))
    return read_grid(folder)


def test_the_first_context_model_is_faithful_to_what_it_cites_and_wrong_about_the_order(tmp_path: Path):
    asked = questions(6)
    hand = Hand()
    cells = [Cell(3, "ranked", 0, prompt) for prompt in ("direct", "counterfactual")]
    start(tmp_path, asked, cells, hand)
    run = after_tests(tmp_path, asked, cells, hand)
    (effect,) = effects(run, [cells[0]])
    # Without the cited first context the second one answers; without another one nothing changes.
    assert effect.changed.value == 1.0
    assert effect.control_changed.value == 0.0
    assert (effect.difference.value, effect.difference.n) == (1.0, 6)
    said = foretold(run, [cells[1]])
    rows = run.tested(cells[1], "other-order")
    moved = [row["read"][0] != asked.by_id[row["id"]].passages[0].id for row in rows]
    assert said.claims == {"same": 6}
    assert said.changed.value == pytest.approx(sum(moved) / 6)
    assert said.right.value == pytest.approx(1 - sum(moved) / 6)
    assert foretold(run, [cells[0]]).claims == {None: 6}
    titles = [table.title for table in tables(run)]
    assert "Faithfulness: taking away what was named" in titles
    assert "Faithfulness: another order of the contexts" in titles


def test_what_cannot_be_put_to_the_test_is_counted_and_never_a_number(tmp_path: Path):
    asked = questions(4)

    def say(prompt: str) -> str | Failed:
        names = [name for name, _ in shown(prompt)]
        return "Aare." if "land 1" in prompt.rpartition("QUESTION:")[2] else f"Aare [{', '.join(names)}]."

    cell = Cell(3, "ranked", 0, "direct")
    hand = Hand(say)
    start(tmp_path, asked, [cell], hand)
    asked_before = len(hand.prompts)
    run = after_tests(tmp_path, asked, [cell], hand)
    (effect,) = effects(run, [cell])
    with_land_1 = sum("land 1" in one.query for one in asked.chosen.items)
    assert effect.undefined.get("nothing cited", 0) == with_land_1
    assert effect.undefined["nothing left"] == 4 - with_land_1
    assert effect.changed.n == effect.difference.n == 0
    assert len(hand.prompts) == asked_before + 4  # another order alone
    row = run.tested(cell, "without-cited")[0]
    assert row["scores"] == dict.fromkeys(row["scores"])


def test_examples_that_were_followed_are_taken_away(tmp_path: Path):
    asked = questions(4)
    cell = Cell(3, "ranked", 2, "examples")

    def say(prompt: str) -> str:
        first = prompt.partition("ANSWER: ")[2].split()[0]
        return f"{first} [{shown(prompt)[0][0]}]. I followed the first example."

    hand = Hand(say)
    start(tmp_path, asked, [cell], hand)
    run = after_tests(tmp_path, asked, [cell], hand)
    assert {row["followed"] for row in run.records(cell.name)} == {1}
    rows = run.tested(cell, "without-followed")
    assert all(row["undefined"] is None for row in rows)
    kept = asked.chosen.demonstrations[1].query
    assert sum(prompt.count("(example)\nQUESTION") == 1 and kept in prompt for prompt in hand.prompts) == 4


def test_cells_are_chosen_by_pattern(tmp_path: Path):
    asked = questions(4)
    start(tmp_path, asked, CELLS[:4], Hand())
    run = read_grid(tmp_path)
    assert [cell.name for cell in run.select(["k5-*"])] == [c.name for c in CELLS[:4] if c.cutoff == 5]
    assert run.select([]) == CELLS[:4]
    with pytest.raises(UserError, match=r"--cell x\*: no such cell"):
        run.select(["x*"])


def test_an_interrupted_cell_is_left_out_of_the_tables(tmp_path: Path):
    asked = questions(4)
    start(tmp_path, asked, CELLS[:3], Hand())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["files"][CELLS[1].name]["result"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_grid(tmp_path).cells == (CELLS[0], CELLS[2])
    first = tables(read_grid(tmp_path))[0]
    assert len(first.rows) == 2
    assert first.title == "Prompt basic, beside Table 2"


def test_the_papers_figures_stand_beside_ones_own(tmp_path: Path):
    asked = questions(4)
    start(tmp_path, asked, [RANKED], Hand())
    (row,) = tables(read_grid(tmp_path))[0].rows
    assert row[:3] == ("0", "3", "ranked")
    assert row[3].startswith("0.500 (0.500 to 0.500)")
    assert [row[4], row[6], row[8], row[10]] == ["0.572", "0.786", "0.683", "0.710"]


def test_layouts_of_the_prompt():
    one = trial(item(1), RANKED, (), Showing())
    chat, plain = (PromptWriter(Hand(), layout).request(one) for layout in ("chat", "plain"))
    assert prompt_of(chat) == prompt_of(plain)
    with pytest.raises(UserError, match="unknown layout"):
        PromptWriter(Hand(), "x")


def test_a_model_with_reflection_tokens_is_told_that_there_is_nothing_to_retrieve():
    one = trial(item(1), RANKED, (), Showing())
    writing = "Aare [p1a].[Utility:5][Continue to Use Evidence] Brenta. [Retrieval]<paragraph>made up</s>"
    engine = ScriptedEngine(lambda request: written_reply(writing), EOS, LIMITS)
    writer = OwnWriter(engine, PROMPTING)
    (found,) = writer.write([one])
    prompt = prompt_of(PromptWriter(Hand()).request(one))
    assert seen(engine.requests[0].prompt_ids) == f"### Instruction:\n{prompt}\n\n### Response:\n[No Retrieval]"
    assert found.text == "Aare [p1a]. Brenta."
    assert found.finish == "stop"
    engine.limits = Limits(max_model_len=10, vocab_size=LIMITS.vocab_size)
    (failed,) = writer.write([one])
    assert isinstance(failed, Failed)
