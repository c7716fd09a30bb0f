"""Recall and nDCG by hand, and against trec_eval through ir-measures."""

from __future__ import annotations

import math
import random

import pytest

from selfrag.evaluation.metrics.retrieval import ndcg_at, recall_at


def test_recall_by_hand() -> None:
    ranking = ["a", "x", "b", "y", "c"]
    assert recall_at(ranking, {"a", "b", "z"}, 1) == pytest.approx(1 / 3)
    assert recall_at(ranking, {"a", "b", "z"}, 3) == pytest.approx(2 / 3)
    assert recall_at(ranking, {"a"}, 20) == 1.0
    assert recall_at([], {"a"}, 5) == 0.0
    assert recall_at(ranking, set(), 5) is None


def test_ndcg_by_hand() -> None:
    # Gains 3, 0, 1 at ranks 1 to 3, ideal 3, 2, 1.
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg_at(["a", "x", "c"], {"a": 3, "b": 2, "c": 1}, 3) == pytest.approx((3 + 1 / 2) / ideal)
    assert ndcg_at(["a", "b", "c"], {"a": 3, "b": 2, "c": 1}, 3) == 1.0
    assert ndcg_at(["x"], {"a": 1}, 3) == 0.0
    assert ndcg_at(["x"], {"a": 0}, 3) is None


def test_a_passage_named_twice_counts_once() -> None:
    assert recall_at(["a", "a", "b"], {"a", "b"}, 2) == 1.0
    assert ndcg_at(["a", "a"], {"a": 1, "b": 1}, 2) == pytest.approx(1 / (1 + 1 / math.log2(3)))


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k=0"):
        recall_at(["a"], {"a"}, 0)


def test_both_agree_with_trec_eval() -> None:
    measures = pytest.importorskip("ir_measures")
    rng = random.Random(5)
    documents = [f"d{i}" for i in range(30)]
    qrels, run, rankings = {}, {}, {}
    for number in range(40):
        query = f"q{number}"
        qrels[query] = {one: rng.randint(0, 3) for one in rng.sample(documents, rng.randint(1, 12))}
        rankings[query] = rng.sample(documents, rng.randint(1, 25))
        run[query] = {one: 100.0 - rank for rank, one in enumerate(rankings[query])}
    wanted = [measures.parse_measure(f"{name}@{k}") for name in ("R", "nDCG") for k in (1, 5, 10, 20)]
    compared = 0
    for found in measures.iter_calc(wanted, qrels, run):
        ranking, gains = rankings[found.query_id], qrels[found.query_id]
        k = found.measure.params["cutoff"]
        relevant = [one for one, gain in gains.items() if gain > 0]
        ours = recall_at(ranking, relevant, k) if found.measure.NAME == "R" else ndcg_at(ranking, gains, k)
        assert (ours or 0.0) == pytest.approx(found.value, abs=1e-4)  # trec_eval gives four digits
        compared += 1
    assert compared == 40 * 8
