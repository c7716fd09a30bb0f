"""Development files from public originals: rows by hand, checksums, missing files, the download."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loopback import Answering, loopback

from selfrag.cli.main import main
from selfrag.evaluation import public_data
from selfrag.evaluation.public_data import ROWS, Original, make, public_sets
from selfrag.evaluation.task_files import read_task

ARC = {
    "instruction": "Please choose the correct answer to the question: How will it roll?"
    "\n\nAnswer1: slower Answer2: faster Answer3: as fast\n\nAnswer format: answer1/answer2/answer3",
    "answer": "answer2",
}
CLAIM = {"id": "7", "claim": "It is French .", "evidence": "It is a French film .", "label": "REFUTES"}
TRUTH = {
    "question": "Will it?",
    "mc1_targets": {"No.": 1, "Yes.": 0, "Maybe.": 0},
    "mc2_targets": {"No.": 1, "Yes.": 0},
}
LONG = {
    "id": "-3",
    "input": "why is it so",
    "passages": [{"title": "T", "text": "Because . It is .", "sentences": ["Because .", "It is ."]}],
    "output": [{"answer": "Because it is.", "selected_sentences": ["Because ."]}],
}
NOTHING = {**LONG, "id": "4", "output": [{"answer": " ", "selected_sentences": []}]}
NQ = {"question": "who", "answers": ["Ann"], "ctxs": [{"title": "A", "text": "It was Ann.", "isgold": True}]}


def rows(name, raws, selection=""):
    return list(ROWS[name](raws, selection.split()))


def test_rows_are_made_as_measured():
    (choice,) = rows("arc_c", [ARC])
    head = "Given three answer candidates, A, B and C, choose the best answer choice.\n\n## Input:\n\n"
    assert choice["instruction"] == head + "How will it roll?\nA: slower\nB: faster\nC: as fast"
    assert (choice["label"], choice["answers"]) == ("B", ["B", "faster"])
    assert choice["options"] == ["slower", "faster", "as fast"]
    (truth,) = rows("truthfulqa_mc", [TRUTH, TRUTH], "- cab")  # one is left out, the options of one are shuffled
    assert (truth["id"], truth["options"], truth["label"]) == ("truthfulqa-1", ["Maybe.", "No.", "Yes."], "B")
    assert truth["mc2"] == TRUTH["mc2_targets"]
    (claim,) = rows("fever_symmetric", [CLAIM])
    assert claim["label"] == "false"
    assert claim["instruction"].endswith("## Input:\n\nIt is French .")
    assert claim["passages"] == [{"id": "feversym-7-e", "title": "", "text": "It is a French film ."}]
    nothing, long = rows("clapnq_dev", [LONG, NOTHING], "4 -3")  # in the selected order
    assert (nothing["label"], nothing["answers"], nothing["gold_passage_ids"]) == ("unanswerable", [], [])
    assert (long["label"], long["answers"]) == ("answerable", ["Because it is."])
    assert long["support"] == [{"passage_id": "clapnq-p-3", "sentences": ["Because ."]}]
    (gold,) = rows("nq_gold", [{}, NQ], "1")
    assert (gold["id"], gold["answers"], gold["gold_passage_ids"]) == ("nq-1", ["Ann"], ["nq-1-gold"])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """`nq_gold` of one question, whose original lies in a folder."""
    content = gzip.compress(json.dumps(NQ).encode(), mtime=0)
    original = Original("owner/name", "abc", "qa/nq.jsonl.gz", hashlib.sha256(content).hexdigest())
    made = "".join(map(public_data.json_line, rows("nq_gold", [NQ], "0")))
    checksum = hashlib.sha256(made.encode()).hexdigest()
    one = replace(public_sets()["nq_gold"], originals=(original,), sha256=checksum, selection="0")
    monkeypatch.setattr(public_data, "public_sets", lambda: {"nq_gold": one})
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "originals"
    folder.mkdir()
    (folder / "nq.jsonl.gz").write_bytes(content)
    return folder


def test_a_file_is_made_from_a_folder(small, tmp_path, capsys):
    assert main(["data", "make", "nq_gold", "--from", str(small), "-o", str(tmp_path / "dev")]) == 0
    file = read_task(Path(capsys.readouterr().out.strip()))
    assert (file.task.kind, file.items[0].answers) == ("short", ("Ann",))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "holds no nq.jsonl.gz; get it from https://raw"), (b"\xff\x00 another", "has SHA-256 ")],
)
def test_a_missing_or_other_original_is_one_line(small, tmp_path, capsys, content, said):
    file = small / "nq.jsonl.gz"
    file.unlink() if content is None else file.write_bytes(content)
    assert main(["data", "make", "nq_gold", "--from", str(small), "-o", str(tmp_path / "dev")]) != 0
    assert said in (line := capsys.readouterr().err)
    assert line.count("\n") == 1
    assert not (tmp_path / "dev").exists()


def test_originals_are_downloaded_once_and_checked(small, tmp_path, monkeypatch):
    served = {"/owner/name/abc/qa/nq.jsonl.gz": b"another file"}
    asked = []

    class Original(Answering):
        def do_GET(self):
            asked.append(self.path)
            self.answer(200, served[self.path])

    server = loopback(Original)
    monkeypatch.setattr(public_data, "HOST", server.url)
    with pytest.raises(public_data.UserError, match="gave another file"):
        make("nq_gold", tmp_path / "dev")
    served[asked[0]] = (small / "nq.jsonl.gz").read_bytes()
    first = make("nq_gold", tmp_path / "dev").read_bytes()
    assert make("nq_gold", tmp_path / "dev").read_bytes() == first
    assert len(asked) == 2
    server.stop()
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "empty"))
    with pytest.raises(public_data.UserError, match=r"cannot download http://127.*name its folder with --from"):
        make("nq_gold", tmp_path / "dev")
