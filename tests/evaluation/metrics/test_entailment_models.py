"""Judges that are models of transformers, against those models asked one pair at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_judges
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UserError
from selfrag.evaluation.metrics.entailment import load_entailment
from selfrag.evaluation.metrics.nli import ClassifierEntailment, TrueEntailment, batches

PAIRS = [
    ("Ann wrote it in Paris.", "Ann wrote it."),
    ("It rained.", "Ann wrote it."),
    ("", "it"),
    ("Title: Ann\nthe rained in Paris a it wrote the", "in Paris it rained"),
    ("a " * 30, "the rained"),
    ("Ann", "Paris wrote the"),
]


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 60))
def test_batches_hold_every_position_once_and_fit(lengths: list[int], tokens: int) -> None:
    found = list(batches(lengths, tokens))
    assert sorted(at for batch in found for at in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or max(lengths[at] for at in batch) * len(batch) <= tokens


def test_true_says_what_the_model_writes_whatever_the_batch(tiny_true: Path) -> None:
    torch = pytest.importorskip("torch")
    judge = TrueEntailment.load(str(tiny_true))
    wanted = []
    for known, said in PAIRS:
        ids = judge.tokenizer(f"premise: {known} hypothesis: {said}", return_tensors="pt").input_ids
        with torch.inference_mode():
            out = judge.model.generate(ids, max_new_tokens=10, do_sample=False)
        wanted.append({"1": True, "0": False}.get(judge.tokenizer.decode(out[0], skip_special_tokens=True).strip()))
    assert judge.entails(PAIRS) == wanted
    assert replace(judge, batch_tokens=1).entails(PAIRS) == wanted
    assert judge.entails([]) == []


@pytest.mark.parametrize(("written", "verdict"), [("1", True), ("0", False), ("Paris", None)])
def test_true_reads_1_and_0_and_takes_nothing_else_for_a_verdict(
    tiny_true: Path, written: str, verdict: bool | None
) -> None:
    torch = pytest.importorskip("torch")
    judge = TrueEntailment.load(str(tiny_true))
    (word,) = judge.tokenizer(written, add_special_tokens=False)["input_ids"]
    turns = torch.zeros(2, len(judge.tokenizer))
    turns[0, word], turns[1, judge.tokenizer.eos_token_id] = 1.0, 1.0

    class Head(torch.nn.Module):
        """Writes the word, then the end."""

        def forward(self, states: object) -> object:
            step = self.calls = getattr(self, "calls", -1) + 1
            return turns[min(step, 1)].expand(*states.shape[:-1], -1)

    judge.model.lm_head = Head()
    assert judge.entails([("Ann", "it")]) == [verdict]


def test_true_cuts_the_premise_and_never_the_hypothesis(tiny_true: Path) -> None:
    judge = TrueEntailment.load(str(tiny_true), max_tokens=12)
    known = judge.tokenizer.convert_ids_to_tokens(judge._ids("Ann " * 40, "it rained in Paris"))
    assert known == ["premise", ":", *["ann"] * 3, "hypothesis", ":", "it", "rained", "in", "paris", "</s>"]
    assert judge.identity()["max_tokens"] == 12
    assert set(judge.identity()["files"]) >= {"config.json", "model.safetensors"}
    assert judge.name == tiny_true.name


def test_a_classifier_is_the_model_whatever_the_batch(tiny_nli: Path) -> None:
    torch = pytest.importorskip("torch")
    judge = ClassifierEntailment.load(str(tiny_nli))
    assert (judge.label, judge.max_tokens) == (2, 48)
    found = judge.probabilities(PAIRS)
    for (known, said), row in zip(PAIRS, found, strict=True):
        encoded = judge.tokenizer(known, said, return_tensors="pt")
        with torch.inference_mode():
            expected = judge.model(**encoded).logits[0].softmax(-1).tolist()
        assert row == pytest.approx(expected, abs=1e-5)
    verdicts = judge.entails(PAIRS)
    assert verdicts == [row.index(max(row)) == 2 for row in found]
    assert len(set(verdicts)) == 2  # the random model says both
    assert replace(judge, batch_tokens=1).entails(PAIRS) == verdicts
    assert replace(judge, threshold=1e-9).entails(PAIRS) == [True] * len(PAIRS)


def test_a_classifier_cuts_the_premise(tiny_nli: Path) -> None:
    judge = ClassifierEntailment.load(str(tiny_nli))
    ids = judge._ids(("Ann " * 100, "it rained"))["input_ids"]
    assert len(ids) == 48
    assert judge.tokenizer.convert_ids_to_tokens(ids)[-4:] == ["[SEP]", "it", "rained", "[SEP]"]
    assert len(judge._ids(("Ann", "it " * 100))["input_ids"]) == 48


def test_the_label_is_found_or_asked_for(tiny_nli: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no label 'yes'; it has contradiction, neutral, entailment"):
        ClassifierEntailment.load(str(tiny_nli), label="yes")
    with pytest.raises(UserError, match="between 0 and 1"):
        ClassifierEntailment.load(str(tiny_nli), threshold=2.0)
    config = json.loads((tiny_nli / "config.json").read_text())
    config |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}
    config.pop("label2id")
    other = tmp_path / "nameless"
    other.mkdir()
    for path in tiny_nli.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"which label of .* means entailment"):
        ClassifierEntailment.load(str(other))
    assert ClassifierEntailment.load(str(other), label="label_1").label == 1


def test_one_output_is_a_probability(tmp_path: Path) -> None:
    judge = ClassifierEntailment.load(str(tiny_judges.save_classifier(tmp_path / "one", ("score",))))
    found = judge.probabilities(PAIRS)
    assert all(len(row) == 1 and 0 <= row[0] <= 1 for row in found)
    assert judge.entails(PAIRS) == [row[0] >= 0.5 for row in found]


def test_judges_by_name(tiny_nli: Path, tiny_true: Path, tmp_path: Path) -> None:
    assert load_entailment(f"nli:{tiny_nli}").identity()["kind"] == "nli"
    assert load_entailment(f"true:{tiny_true}").identity()["kind"] == "true"
    with pytest.raises(UserError, match="is no sequence-to-sequence model: it is a bert"):
        load_entailment(f"true:{tiny_nli}")
    with pytest.raises(UserError, match="unknown judge 'oracle'; known: true, nli:MODEL"):
        load_entailment("oracle")
    with pytest.raises(UserError, match="'nli' of which model"):
        load_entailment("nli")
    with pytest.raises(UserError, match="no model at"):
        load_entailment(f"true:{tmp_path / 'nothing'}")
    with pytest.raises(UserError, match="is not a web address"):
        load_entailment("judge:some-model@localhost")
