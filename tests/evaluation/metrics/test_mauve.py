"""MAUVE: texts as ALCE prepares them, features as mauve-text makes them, and figures at the ends of the scale."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.errors import MissingExtraError, UserError
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.judging import Record, judge_likeness
from selfrag.evaluation.metrics.mauve import HiddenStates, as_alce, mauve


class Drawn:
    """Vectors by hand: `a..` near one corner, everything else near another, with a little seeded noise."""

    name = "drawn"

    def identity(self) -> Mapping[str, Any]:
        return {"kind": "drawn"}

    def embed(self, texts: Sequence[str]) -> Any:
        noise = np.random.default_rng(len(texts)).normal(scale=0.01, size=(len(texts), 4))
        return noise + [[1.0, 0, 0, 0] if text.startswith("a") else [0, 1.0, 0, 0] for text in texts]


def test_equal_sets_score_high_and_disjoint_ones_low() -> None:
    pytest.importorskip("mauve", reason="mauve-text is not installed")
    pytest.importorskip("faiss", reason="faiss is not installed")
    mixed = [("a" if at % 2 else "b") + str(at) for at in range(40)]
    same, other = mauve(mixed, mixed[::-1], Drawn(), seeds=(1, 2)), mauve(["a"] * 40, ["b"] * 40, Drawn(), seeds=(1, 2))
    assert 0.95 < same.low <= same.value <= same.high <= 1.0
    assert other.value < 0.05
    assert (same.texts, same.features) == (40, "drawn")


def test_answers_are_judged_as_alce_prepares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_alce("q", "w " * 200) == "q" + " w" * 99
    seen: list[list[str]] = []
    monkeypatch.setattr("selfrag.evaluation.judging.mauve", lambda human, said, features: seen.extend((human, said)))
    item = Item("q", "what", True, query="who?", references=("Ann did.\nIn May.!", "second"))
    texts = ("Ann did [1], in May [2][3].\nQuestion: what?", "[1]", " ")
    judge_likeness([*(Record(item, Output(text), {}) for text in texts), Record(item, None, {})], Drawn())
    assert seen == [["who? Ann did. In May"], ["who? Ann did, in May"]]


def test_few_texts_have_no_figure_and_uneven_sides_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mauve", reason="mauve-text is not installed")
    assert mauve(["a"] * 19, ["b"] * 19, Drawn()) is None
    assert mauve(["a"] * 20, ["b"] * 10 + [" "] * 10, Drawn()) is None
    with pytest.raises(UserError, match="2 human texts for 1"):
        mauve(["a", "b"], ["a"], Drawn())
    records = [Record(Item(f"q{at}", "", True, references=("a", "b")), Output("a"), {}) for at in range(30)]
    assert (judge_likeness(records, Drawn()).whole["mauve"] or {})["texts"] == 30
    assert judge_likeness(records[:5], Drawn()).whole == {"mauve": None}
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(MissingExtraError, match=r"mauve is not installed; run: .*mauve"):
        mauve(["a"] * 20, ["b"] * 20, Drawn())


def test_features_are_the_last_states_and_those_of_mauve_text_whatever_the_batch(tiny_gpt2: Path) -> None:
    torch = pytest.importorskip("torch")
    made = HiddenStates.load(str(tiny_gpt2))
    texts = ["The capital of France is Paris.", "Water", "In 1969 two people walked on the Moon."]
    found = made.embed(texts)
    tokens = [made.tokenizer(text, return_tensors="pt").input_ids for text in texts]
    with torch.inference_mode():
        states = [made.model(ids).last_hidden_state[0, -1].numpy() for ids in tokens]
    assert found == pytest.approx(np.array(states), abs=1e-4)
    one_by_one = HiddenStates(made.model, made.tokenizer, made.source, made.files, 1).embed(texts)
    assert one_by_one == pytest.approx(found, abs=1e-4)
    with pytest.raises(UserError, match="empty text"):
        made.embed([""])
    utils = pytest.importorskip("mauve.utils", reason="mauve-text is not installed")
    theirs = utils.featurize_tokens_from_model(made.model, tokens, 2, "p")
    assert found == pytest.approx(theirs.numpy(), abs=1e-4)
