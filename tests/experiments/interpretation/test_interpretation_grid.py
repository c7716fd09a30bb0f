"""The grid, its orders, its questions, and the published figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grid_world import item, questions

from retrieval.errors import UserError
from selfrag.evaluation.presets import Given
from selfrag.experiments.interpretation.context_ids import contexts_of
from selfrag.experiments.interpretation.grid import Cell, arranged, grid, parse_orders
from selfrag.experiments.interpretation.published import PUBLISHED, published_mean
from selfrag.experiments.interpretation.questions import choose, example, relevant
from selfrag.experiments.interpretation.row_facts import asked_how
from selfrag.experiments.interpretation.scoring import MEASURES
from selfrag.experiments.interpretation.source import Drawing, draw
from selfrag.experiments.interpretation.trials import Showing, trial


def test_the_papers_grid_has_81_cells_and_all_of_them_are_published():
    cells = grid()
    assert len(cells) == len(set(cells)) == 81
    assert set(cells) == set(PUBLISHED)
    assert len({cell.name for cell in cells}) == 81
    assert all(Cell.from_dict(cell.as_dict()) == cell for cell in cells)


def test_published_figures_have_the_means_that_the_reference_worked_out():
    expected = {
        ("basic", 0): (0.4568, 0.5831), ("basic", 1): (0.3845, 0.5375), ("basic", 2): (0.4422, 0.5672),
        ("direct", 0): (0.4746, 0.5700), ("direct", 1): (0.4494, 0.5563), ("direct", 2): (0.4795, 0.5960),
        ("counterfactual", 0): (0.4679, 0.5756), ("counterfactual", 1): (0.4609, 0.6072),
        ("counterfactual", 2): (0.4999, 0.6139), ("basic", None): (0.4278, 0.5626),
        ("direct", None): (0.4679, 0.5741), ("counterfactual", None): (0.4763, 0.5989),
    }  # fmt: skip
    for (prompt, examples), values in expected.items():
        cells = [c for c in PUBLISHED if c.prompt == prompt and examples in (None, c.examples)]
        found = [published_mean(cells, name) for name in ("answer_recall", "citation_f")]
        assert found == pytest.approx(values, abs=5.1e-5)
    assert published_mean([], "citation_f") is None
    assert published_mean([*PUBLISHED, Cell(4, "ranked", 0, "basic")], "citation_f") is None
    best = {name: max(PUBLISHED, key=lambda cell: PUBLISHED[cell][MEASURES.index(name)]).name for name in MEASURES}
    assert best["answer_recall"] == "k3-random-2-counterfactual"
    assert best["citation_f"] == "k3-random-1-counterfactual"


def test_orders():
    ranking = (1, 2, 3, 4, 5)
    assert arranged(ranking, 3, "ranked", "s") == (1, 2, 3)
    assert arranged(ranking, 4, "top-last", "s") == (2, 3, 4, 1)
    assert arranged(ranking, 5, "reversed", "s") == (5, 4, 3, 2, 1)
    drawn = arranged(ranking, 5, "random", "0:q1")
    assert sorted(drawn) == [1, 2, 3, 4, 5]
    assert drawn == arranged(ranking, 5, "random", "0:q1")
    assert len({arranged(ranking, 5, "random", f"0:q{i}") for i in range(20)}) > 5
    assert ranking == (1, 2, 3, 4, 5)


def test_every_prompt_shows_a_question_the_same_random_order():
    asked = questions()
    cells = grid(cutoffs=(5,), orders=("random",), examples=(0, 1), prompts=("basic", "direct"))
    one = asked.chosen.items[0]
    orders = {trial(one, cell, asked.chosen.demonstrations, Showing()).passages for cell in cells}
    assert len(orders) == 1


def test_wrong_values_are_named():
    with pytest.raises(UserError, match="unknown order 'best'; known: ranked, top-last, random, reversed"):
        parse_orders(["best"])
    with pytest.raises(UserError, match="unknown prompt 'why'"):
        grid(prompts=("why",))
    with pytest.raises(UserError, match="cut-off 0"):
        grid(cutoffs=(0,))
    with pytest.raises(UserError, match="3 examples"):
        grid(examples=(3,))
    with pytest.raises(UserError, match="asks about examples"):
        Cell(3, "ranked", 0, "examples")
    with pytest.raises(UserError, match="nothing is left"):
        grid(examples=(0,), prompts=("examples",))
    assert {cell.examples for cell in grid(prompts=("examples",))} == {1, 2}
    with pytest.raises(UserError, match="no cell"):
        Cell.from_dict({"cutoff": 3})


def test_questions_without_an_answer_among_the_top_passages_are_left_out():
    items = [item(number) for number in range(6)]
    far = item(9)
    far = type(far)(**{f: getattr(far, f) for f in far.__slots__} | {"passages": far.passages[2:], "id": "far"})
    chosen = choose([*items, far], limit=3)
    assert chosen.answerable == 6
    assert len(chosen.items) == 3
    assert "far" not in {one.id for one in (*chosen.items, *chosen.demonstrations)}
    assert not {one.id for one in chosen.items} & {one.id for one in chosen.demonstrations}
    assert choose([*items, far], limit=3) == chosen
    assert choose(items, limit=3, seed=5) != choose(items, limit=3)
    with pytest.raises(UserError, match="no question of which an answer occurs"):
        choose([far])
    with pytest.raises(UserError, match="none is left to ask"):
        choose(items[:2])


def test_what_a_file_sets_aside_is_an_example_and_never_asked():
    items = [item(number) for number in range(8)]
    chosen = choose(items, limit=None, set_aside={"q1", "q4", "q6"})
    assert {one.id for one in chosen.demonstrations} <= {"q1", "q4", "q6"}
    assert [one.id for one in chosen.items] == ["q0", "q2", "q3", "q5", "q7"]
    assert chosen.answerable == 5


def test_an_example_answers_with_what_its_contexts_hold():
    assert example(item(3), 3, None).answer == "Aare [p3a], Brenta [p3b]."
    assert example(item(3), 1, None).answer == "Aare [p3a]."
    assert [context.text for context in example(item(3), 2, 3).contexts] == ["Aare is a", "Brenta is a"]


def test_relevance_is_what_the_file_calls_gold_or_what_holds_an_answer():
    one = item(1)
    assert relevant(one, one.passages[1:], "gold") == {"p1b"}
    assert relevant(one, one.passages, "answers") == {"p1a", "p1b"}
    without = type(one)(**{f: getattr(one, f) for f in one.__slots__} | {"gold": None})
    assert relevant(without, without.passages, "gold") == {"p1a", "p1b"}


def test_ids_of_contexts():
    one = item(1)
    assert [context.id for context in contexts_of(one.passages)] == [passage.id for passage in one.passages]


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("Which films star X?", "which"),
        ("How many rivers?", "how many"),
        ("Name rivers.", "other"),
        ("Somehow.", "other"),
    ],
)
def test_types_of_questions_by_how_they_ask(question, form):
    assert asked_how(question) == form


def test_the_paper_s_own_data_is_drawn_from_the_file_that_alce_publishes(tmp_path: Path):
    """One array with up to 100 documents a question; the types of questions are in QAMPARI's ids."""
    kinds = ("wikidata_simple", "wikidata_comp", "wikitables_simple", "wikidata_intersection")
    rows = [
        {
            "id": f"{number}__{kind}__dev",
            "question": f"Which rivers are in land {number}?",
            "answers": [["Aare"], ["Inn", "Inn River"]],
            "docs": [{"title": "", "text": f"The {'Aare' if at == 1 else 'Po'} is number {at}."} for at in range(30)],
        }
        for number, kind in enumerate(kinds)
    ]
    path = tmp_path / "qampari_eval_gtr_top100.json"
    path.write_text(json.dumps(rows))
    asked, data = draw(Drawing(Given.parse(f"qampari={path}")), passages=10)
    assert [len(one.passages) for one in asked.chosen.items] == [10, 10]  # two others are examples
    assert [asked.kinds[f"{number}__{kind}__dev"] for number, kind in enumerate(kinds)] == list(kinds)
    assert asked.relevance == "answers"
    one = asked.chosen.items[0]
    assert asked.relevant(one, one.passages) == {"p2"}
    assert (data["preset"], data["rows"]) == ("qampari/paper", 4)
    with pytest.raises(UserError, match="no question has 31 passages, the most is 30"):
        draw(Drawing(Given.parse(f"qampari={path}")), passages=31)
