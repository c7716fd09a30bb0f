"""Rows made of other rows: of the baselines, of a critic from neighbouring annotations, of hallucination detection."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny

from critic.cases import Case, parse_labelled
from critic.pairs import Pair
from make_baseline_rows import evidence_row
from make_critic_rows import checked_claim, fresh, marked_reply, shown_passage
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.intrinsics.rows import read_labelled
from selfrag.training.rows import MASKED, Evidence, Row, TargetLayout, Text, Token, read_rows


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


def test_rows_of_baselines_from_the_command_line(tmp_path, run_script):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    texts = {"p1": "Ann wrote the book in 1900.", "p2": "A river in the north.", "p3": "Music and dance."}
    corpus = written(tmp_path / "corpus.jsonl", *({"id": i, "title": "", "text": text} for i, text in texts.items()))
    pairs, out = written(tmp_path / "pairs.jsonl", PAIR.as_dict()), tmp_path / "rows.jsonl"
    command = ["make_baseline_rows", "sail", "--pairs", pairs, "--out", out]
    assert run_script(*command, "--corpus", corpus) == (0, f"1 rows in {out}\n", "")
    assert [row.target[0] for row in read_rows(out)] == [Evidence(Passage("p1", texts["p1"]))]
    assert run_script(*command) == (2, "", "sail needs passages: give --index DIR or --corpus FILE\n")


CLAIM = {
    "id": "c1",
    "dataset": "fool_me_twice",
    "kind": "fact_check",
    "instruction": "Is the following statement correct or not?\n\n## Input:\n\nThe Suez Canal links two oceans.",
    "output": "false",
    "gold_passages": [{"title": "Suez Canal", "text": "The Suez Canal is an artificial sea-level waterway in Egypt."}],
}
REPLY = {
    "id": "r1",
    "dataset": "faithdial_audit",
    "conversation": [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": "It is so. Perhaps."}],
    "documents": [{"doc_id": "d", "title": "", "text": "So it is."}],
    "sentences": [
        {"begin": 0, "end": 9, "text": "It is so.", "label": "faithful"},
        {"begin": 10, "end": 18, "text": "Perhaps.", "label": "NA"},
    ],
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


def test_marked_sentences_become_rows_and_unmarked_do_not():
    [row] = marked_reply(REPLY)
    assert (row.label, row.case.output, row.case.preceding) == ("Fully supported", "It is so.", "")
    second = {**REPLY["sentences"][1], "label": "partial"}
    assert [r.case.preceding for r in marked_reply({**REPLY, "sentences": [second]})] == ["It is so."]
    wrong = [{**REPLY["sentences"][0], "label": "unfaithful"}]
    assert not list(marked_reply({**REPLY, "dataset": "begin", "sentences": wrong}))  # its class mixes two labels
    with pytest.raises(UserError, match="'sentences'"):
        list(marked_reply({**REPLY, "sentences": 7.5}))


def test_known_rows_and_rows_of_held_out_text_are_left_out():
    row = checked_claim(CLAIM)
    assert fresh([row, row], [], [])[0] == [row]
    assert fresh([row], [row], [])[1] == {"known": 1}
    words = "one two three four five six seven eight nine ten eleven twelve"
    long = replace(row, case=replace(row.case, output=f"First {words} last."))
    held_out = replace(row, case=replace(row.case, output=f"Other {words} words.", evidence=None))
    assert fresh([long], [], [held_out])[1] == {"shares text with held-out rows": 1}
    shorter = replace(held_out, case=replace(held_out.case, output="One two three."))
    assert fresh([long], [], [shorter])[0] == [long]


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
