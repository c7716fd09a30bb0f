"""Rows of the baselines: the same pairs without reflection tokens, and what the trainer makes of them."""

import json

import pytest
import tiny

import make_baseline_rows as script
from critic.pairs import Pair
from make_baseline_rows import evidence_row, text_row
from retrieval.passage import Passage
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.rows import MASKED, Evidence, TargetLayout, Text, read_rows

PAIR = Pair("a", "nq", "who wrote it?", "Ann", "short_qa")
CLAIM = Pair("b", "", "Is it correct?\n\n## Input:\n\nAnn wrote it.", "true")
PASSAGE = Passage("p", "Ann wrote the book.", "Book", 0.7)


def test_a_row_has_the_output_after_one_passage_or_none_and_no_token():
    row = text_row(PAIR)
    assert (row.id, row.source, row.instruction, row.target) == ("a", "nq/short_qa", "who wrote it?", (Text("Ann"),))
    assert text_row(CLAIM).source == "pairs"
    assert evidence_row(PAIR, PASSAGE).target == (Evidence(Passage("p", "Ann wrote the book.", "Book")), Text("Ann"))
    assert evidence_row(PAIR, None) == evidence_row(PAIR, Passage("p", " ")) == row


def test_the_trainer_learns_output_and_end_and_no_passage_body():
    tokenizer = tiny.byte_level_tokenizer()
    prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    layout = TargetLayout(prompting, learn_markers=False)
    plain, grounded = layout.example(text_row(PAIR)), layout.example(evidence_row(CLAIM, PASSAGE))
    eos = prompting.vocabulary.eos_id
    learned = (*prompting.codec.encode("Ann"), eos)
    assert plain.ids == (*prompting.prompt(PAIR.instruction), *learned)
    assert tuple(label for label in plain.labels if label != MASKED) == learned
    answer = (*prompting.codec.encode("true"), eos)
    assert tuple(label for label in grounded.labels if label != MASKED) == answer
    # The very ids that the fine-tuned systems put before an answer.
    assert grounded.ids == (*prompting.prompt(CLAIM.instruction), *prompting.evidence(PASSAGE, 256).ids, *answer)


def test_rows_from_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    pairs, corpus, out = (tmp_path / name for name in ("pairs.jsonl", "corpus.jsonl", "rows.jsonl"))
    pairs.write_text("".join(json.dumps(pair.as_dict()) + "\n" for pair in (PAIR, CLAIM)))
    texts = {"p1": "Ann wrote the book in 1900.", "p2": "A river in the north.", "p3": "Music and dance."}
    corpus.write_text("".join(json.dumps({"id": i, "title": "", "text": text}) + "\n" for i, text in texts.items()))
    command = ["make_baseline_rows.py", "sail", "--pairs", str(pairs), "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*command, "--corpus", str(corpus)])
    assert script.main() == 0
    assert capsys.readouterr().out == f"2 rows in {out}\n"
    assert [row.target[0] for row in read_rows(out)] == [Evidence(Passage("p1", texts["p1"]))] * 2
    monkeypatch.setattr("sys.argv", command)
    assert script.main() == 2
    assert capsys.readouterr().err == "sail needs passages: give --index DIR or --corpus FILE\n"
