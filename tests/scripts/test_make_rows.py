"""Rows made of other rows: of the baselines, of a critic from neighbouring annotations, of hallucination detection."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny

from critic.cases import Case, parse_labelled
from critic.pairs import Pair
from make_baseline_rows import evidence_row
from make_critic_rows import checked_claim, shown_passage
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.intrinsics.rows import read_labelled
from selfrag.training.rows import MASKED, Evidence, Row, TargetLayout, Text, Token


def written(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


PAIR = Pair("a", "nq", "who wrote it?", "Ann", "short_qa")
PASSAGE = Passage("p", "Ann wrote the book.", "Book", 0.7)


def test_a_baseline_learns_output_and_end_after_one_passage_or_none():
    tokenizer = tiny.byte_level_tokenizer()
    prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    learned = (*prompting.codec.encode("Ann"), prompting.vocabulary.eos_id)
    plain, grounded = evidence_row(PAIR, None), evidence_row(PAIR, PASSAGE)
    assert (plain.source, plain.target) == ("nq/short_qa", (Text("Ann"),))
    assert evidence_row(PAIR, Passage("p", " ")) == plain
    for row, evidence in ((plain, ()), (grounded, prompting.evidence(PASSAGE, 256).ids)):
        example = TargetLayout(prompting, learn_markers=False).example(row)
        # The very ids that the fine-tuned systems put before an answer.
        assert example.ids == (*prompting.prompt(PAIR.instruction), *evidence, *learned)
        assert tuple(label for label in example.labels if label != MASKED) == learned


CLAIM = {
    "id": "c1",
    "dataset": "fool_me_twice",
    "kind": "fact_check",
    "instruction": "Is the following statement correct or not?\n\n## Input:\n\nThe Suez Canal links two oceans.",
    "output": "false",
    "gold_passages": [{"title": "Suez Canal", "text": "The Suez Canal is an artificial sea-level waterway in Egypt."}],
}


def test_a_false_claim_is_not_supported_by_its_evidence():
    row = checked_claim(CLAIM)
    assert row.label == parse_labelled(row.as_dict()).label == "No support / Contradictory"
    assert row.case.output == "The Suez Canal links two oceans."
    assert row.case.instruction == "Write one factual sentence about Suez Canal."
    for change in ({"kind": "short_qa"}, {"gold_passages": []}, {"gold_passages": CLAIM["gold_passages"] * 2}):
        assert checked_claim({**CLAIM, **change}) is None
    with pytest.raises(UserError, match="no 'text'"):
        checked_claim({**CLAIM, "gold_passages": [{"title": "T"}]})


def test_the_passage_of_a_generators_row_is_judged_as_its_token_says():
    passage = Passage("p", "Havana is in Cuba.", "Havana")
    parts = (Token("[Retrieval]"), Evidence(passage), Token("[Irrelevant]"), Text("Rome"), Token("[Utility:1]"))
    row = Row("r", "squad2/unanswerable", "Where is Rome?", parts)
    found = shown_passage(row)
    assert (found.label, found.label_source, found.rule) == ("Irrelevant", "derived", "unanswerable")
    assert found.case == Case("IsRel", "Where is Rome?", evidence=passage)
    assert shown_passage(replace(row, source="squad2/answer_removed")) is None  # an altered passage
    for target in (parts[:1] + parts[3:], (*parts[:2], *parts[3:]), (*parts, Evidence(passage))):
        assert shown_passage(replace(row, target=target)) is None  # no passage, not judged, or which of the two?


def test_every_label_of_issup_becomes_that_of_a_response(tmp_path, run_script):
    labels = ["Fully supported", "Partially supported", "No support / Contradictory"]
    row = {"instruction": "Who?", "output": "Goethe. In 1808.", "evidence": {"title": "Faust", "text": "By Goethe."}}
    lines = [{**row, "id": str(at), "dataset": "d", "group": "IsSup", "label": one} for at, one in enumerate(labels)]
    lines.append({**lines[0], "id": "e", "output": " "})
    lines += [{**lines[0], "id": "x", "dataset": "other"}, {**row, "id": "r", "dataset": "d", "group": "IsRel"}]
    file = written(tmp_path / "critic.jsonl", *lines)
    done = run_script("make_support_rows", file, "--without", "other", "--out", tmp_path)
    assert done == (0, "d: 3\nleft out, because the reply is empty: 1\n", "")
    found = read_labelled(tmp_path / "hallucination_dev.jsonl", "hallucination_detection")
    assert [one.response for one in found] == ["faithful", "partial", "unfaithful"]
    assert (found[0].state.response, found[0].state.passages[0].title) == ("Goethe. In 1808.", "Faust")
    code, _, error = run_script("make_support_rows", file, "--without", "none", "--out", tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "has only d, other" in error
