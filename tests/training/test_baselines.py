"""Rows of the baselines: the same pairs without reflection tokens, and what the trainer makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny

from critic.pairs import Pair
from make_baseline_rows import evidence_row, evidence_rows, question_of, text_row, text_rows
from retrieval.passage import Passage
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.rows import MASKED, Evidence, TargetLayout, Text, read_rows, write_rows

PAIR = Pair("a", "nq", "who wrote it?", "Ann", "short_qa")
CLAIM = Pair("b", "", "Is it correct?\n\n## Input:\n\nAnn wrote it.", "true")
PASSAGE = Passage("p", "Ann wrote the book.", "Book", 0.7)
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_baseline_rows.py"


def test_a_text_row_has_the_output_only() -> None:
    row = text_row(PAIR)
    assert (row.id, row.source, row.instruction, row.target) == ("a", "nq/short_qa", "who wrote it?", (Text("Ann"),))
    assert text_row(CLAIM).source == "pairs"


def test_an_evidence_row_has_one_passage_and_no_token() -> None:
    row = evidence_row(PAIR, PASSAGE)
    assert row.target == (Evidence(Passage("p", "Ann wrote the book.", "Book")), Text("Ann"))
    assert evidence_row(PAIR, None) == text_row(PAIR)
    assert evidence_row(PAIR, Passage("p", " ")) == text_row(PAIR)


def test_the_question_is_searched_without_the_task_s_wording_in_batches() -> None:
    batches: list[list[str]] = []

    def search(queries: Sequence[str], k: int) -> list[list[Passage]]:
        batches.append(list(queries))
        assert k == 1
        return [[PASSAGE] if "Ann" in query else [] for query in queries]

    rows = list(evidence_rows([PAIR, CLAIM, PAIR], search, batch=2))
    assert batches == [["who wrote it?", "Ann wrote it."], ["who wrote it?"]]
    assert [len(row.target) for row in rows] == [1, 2, 1]
    assert question_of("Say x.\n\n## Input:\n\n ") == "Say x.\n\n## Input:\n\n "
    assert list(text_rows([])) == []


def test_the_trainer_learns_output_and_end_and_no_passage_body(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level_tokenizer()
    prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    layout = TargetLayout(prompting, learn_markers=False)
    write_rows(tmp_path / "rows.jsonl", [text_row(PAIR), evidence_row(CLAIM, PASSAGE)])
    plain, grounded = (layout.example(row) for row in read_rows(tmp_path / "rows.jsonl"))
    eos = prompting.vocabulary.eos_id
    learned = [label for label in plain.labels if label != MASKED]
    assert learned == [*prompting.codec.encode("Ann"), eos]
    assert plain.ids == (*prompting.prompt(PAIR.instruction), *learned)
    assert [label for label in grounded.labels if label != MASKED] == [*prompting.codec.encode("true"), eos]
    # The very ids that the fine-tuned systems put before an answer.
    assert grounded.ids[: -len(prompting.codec.encode("true")) - 1] == (
        *prompting.prompt(CLAIM.instruction),
        *prompting.evidence(PASSAGE, 256).ids,
    )


def test_rows_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    pairs, corpus = tmp_path / "pairs.jsonl", tmp_path / "corpus.jsonl"
    pairs.write_text("".join(json.dumps(pair.as_dict()) + "\n" for pair in (PAIR, CLAIM)))
    texts = {"p1": "Ann wrote the book in 1900.", "p2": "A river in the north.", "p3": "Music and dance."}
    corpus.write_text("".join(json.dumps({"id": i, "title": "", "text": text}) + "\n" for i, text in texts.items()))
    command = [sys.executable, str(SCRIPT)]
    out = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [*command, "sail", "--pairs", str(pairs), "--corpus", str(corpus), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SCRIPT.parents[1]), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"2 rows in {out}\n"
    assert [row.target[0] for row in read_rows(out)] == [Evidence(Passage("p1", texts["p1"]))] * 2
    refused = subprocess.run(
        [*command, "sail", "--pairs", str(pairs), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SCRIPT.parents[1]), "PATH": ""},
    )
    assert (refused.returncode, refused.stderr) == (2, "sail needs passages: give --index DIR or --corpus FILE\n")
