"""Weights of tokens and words: learned from rows, an ablation by data sets left out, a run that goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learn_combined import Example, ablation, fit, left_out, main
from selfrag.errors import UserError
from selfrag.intrinsics.execution.tokens import FEATURES, Weighing
from selfrag.jsonl import write_jsonl


def examples(count: int = 60) -> list[Example]:
    """Words tell all, tokens nothing, in three data sets."""
    made = np.random.default_rng(0)
    return [
        Example(str(at), "abc"[at % 3], at % 2 == 0, (made.normal(), 0.9 if at % 2 == 0 else 0.2))
        for at in range(count)
    ]


def test_what_tells_labels_apart_gets_the_weight() -> None:
    bias, weights = fit(examples(), FEATURES)
    assert weights["overlap"] > 5 * abs(weights["token"])
    scores = left_out(examples(), FEATURES)
    assert [score > 0 for score in scores] == [one.good for one in examples()]
    assert bias < 0
    table = ablation(examples(), 0).splitlines()
    assert table[2].startswith("| token |")
    assert table[3].startswith("| overlap | 100.0 [100.0, 100.0] | 1.000 (3) | 100 % | 100 % |")
    with pytest.raises(UserError, match="all examples have one label"):
        fit(examples()[::2], FEATURES)


@pytest.mark.engine
def test_a_file_of_weights_is_written_and_a_second_run_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tiny

    model = tiny.save_llama(tmp_path / "model", context=512)
    rows = [
        {
            **{"id": f"{name}{at}", "dataset": name, "label": ("answerable", "unanswerable")[at % 2]},
            "conversation": [{"role": "user", "content": "Q?"}],
            "documents": [{"doc_id": "d", "title": "T", "text": f"Text {at}."}],
        }
        for name in "ab"
        for at in range(6)
    ]
    rows[0]["documents"] *= 2  # two passages: left out
    write_jsonl(file := tmp_path / "rows.jsonl", rows)
    words = ["answerability", "--model", str(model), "--engine", "transformers", "--rows", str(file)]
    monkeypatch.setattr("sys.argv", ["learn_combined.py", *words, "--out", str(tmp_path / "out")])
    assert main() == 0
    first = capsys.readouterr()
    assert main() == 0
    second = capsys.readouterr()
    assert "11 of 12 rows are one text and one passage: a 2 good and 3 bad, b 3 good and 3 bad" in first.out
    assert "11 of 11" in first.err
    assert "11 of 11" not in second.err
    assert first.out == second.out
    assert Weighing.read(tmp_path / "out" / "combined.json").intrinsic == "answerability"
