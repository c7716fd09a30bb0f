"""Agreement of citations with reflection tokens and the citation intrinsic, and agreement beyond chance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_world import Hand, identity, questions, start
from hypothesis import given, settings
from hypothesis import strategies as st

from selfrag.evaluation.records import RunDirectory
from selfrag.experiments.interpretation.agreement import agreements
from selfrag.experiments.interpretation.chance import kappa
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.judging import SUFFIX
from selfrag.experiments.interpretation.reading import read_grid
from selfrag.experiments.interpretation.report import tables
from selfrag.experiments.interpretation.run import KIND
from selfrag.experiments.interpretation.streaming import Stream

CELL = Cell(3, "ranked", 0, "basic")


@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6), min_size=1, max_size=6))
@settings(max_examples=40)
def test_kappa_is_cohens(items):
    metrics = pytest.importorskip("sklearn.metrics")
    pairs = [pair for some in items for pair in some]
    found = kappa(items).value
    if not pairs or len({verdict for pair in pairs for verdict in pair}) == 1:
        assert math.isnan(found)
        return
    expected = metrics.cohen_kappa_score([one for one, _ in pairs], [other for _, other in pairs])
    assert found == pytest.approx(expected, abs=1e-9)


def test_kappa_by_hand():
    # Both yes 20, only the first 5, only the second 10, neither 15: observed 0.7, chance 0.5.
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa([pairs]).value == pytest.approx(0.4)
    found = kappa([[pair] for pair in pairs])
    assert found.value == pytest.approx(0.4)
    assert found.low < 0.4 < found.high


def verdict(label: str, score: float) -> dict[str, Any]:
    return {"label": label, "score": score, "coverage": 1.0}


def judged(folder: Path, count: int) -> Any:
    """A run whose first context is cited, with verdicts made up: IsRel is right, IsSup random, nothing cited."""
    asked = questions(count)
    start(folder, asked, [CELL], Hand())
    draw = np.random.default_rng(0)

    def make(ids: list[str]) -> list[tuple[dict[str, Any], int]]:
        made = []
        for one in ids:
            contexts = [
                {
                    "id": passage.id,
                    "cited": at == 0,
                    "credited": at == 0,
                    "relevant": at < 2,
                    "isrel": verdict("Relevant" if at < 2 else "Irrelevant", 0.9 - 0.3 * at),
                    "issup": None if at == 2 else verdict("Fully supported", float(draw.random())),
                    "intrinsic": False,
                }
                for at, passage in enumerate(asked.by_id[one].passages[:3])
            ]
            made.append(({"id": one, "error": None, "scores": {}, "answered": True, "contexts": contexts}, 0))
        return made

    entry = {"task": {"kind": KIND, "metrics": []}, "cell": CELL.as_dict()}
    ids = [item.id for item in asked.chosen.items]
    Stream(RunDirectory(folder, identity(asked))).fill(f"{CELL.name}.{SUFFIX}", folder, entry, ids, make)
    return read_grid(folder)


def test_agreement_by_hand(tmp_path: Path):
    run = judged(tmp_path, 5)
    found = {one.judge: one for one in agreements(run, [CELL])}
    relevance = found["IsRel"]
    assert (relevance.contexts, relevance.says_yes) == (15, 10)
    # Of three contexts IsRel says yes to two and one is cited: observed 2/3, chance (2/3)(1/3) + (1/3)(2/3) = 4/9.
    assert relevance.with_cited.value == pytest.approx(0.4)
    assert relevance.cited_auc.value == 1.0
    assert (relevance.precision.value, relevance.recall.value, relevance.relevant_auc.value) == (1.0, 1.0, 1.0)
    cited = found["cited"]
    assert (cited.precision.value, cited.recall.value) == (1.0, 0.5)
    assert cited.cited_auc is None
    assert found["IsSup"].contexts == 10  # the third context was never judged
    nothing = found["citation intrinsic"]
    assert (nothing.says_yes, nothing.with_cited.value, nothing.f1.value) == (0, 0.0, 0.0)


def test_agreement_has_its_table(tmp_path: Path):
    shown = tables(judged(tmp_path, 4))[-1]
    assert shown.title == "Agreement with reflection tokens and citation intrinsic, prompt basic"
    assert [row[0] for row in shown.rows] == ["cited", "credited", "IsRel", "IsSup", "citation intrinsic"]
    assert "nan" not in str(shown.rows)


def test_nothing_judged_is_no_table(tmp_path: Path):
    start(tmp_path, questions(3), [CELL], Hand())
    assert agreements(read_grid(tmp_path), [CELL]) == []
