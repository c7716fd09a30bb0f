"""The study of data size: shares are nested and seeded, and the whole runs on a tiny model, once and again."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

import study_data_size
from selfrag.training.rows import Row, Text, Token, write_rows

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "study_data_size.py"
ROWS = [
    Row(f"r{i}", "facts/short_qa", f"Who wrote book {i}?", (Token("[No Retrieval]"), Text("Ann"), Token("[Utility:5]")))
    for i in range(8)
]
ITEM = {"task": "short_qa", "instruction": "Who wrote book 9?", "answers": ["Ann"]}


@given(small=st.integers(1, 8), large=st.integers(1, 8), seed=st.integers(0, 9))
def test_a_share_holds_every_smaller_one(small, large, seed):
    small, large = sorted((small, large))
    nested = study_data_size.nested
    few, many = nested(ROWS, small, seed), nested(ROWS, large, seed)
    assert many[: len(few)] == few
    assert len(few) == small
    assert sorted(row.id for row in nested(ROWS, 8, seed)) == [row.id for row in ROWS]
    assert study_data_size.plain(ROWS[0]) == replace(ROWS[0], target=(Text("Ann"),))


@pytest.mark.slow
def test_two_shares_of_a_tiny_model(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "short.jsonl").write_text("".join(json.dumps({"id": f"q{i}", **ITEM}) + "\n" for i in range(2)))
    base = tiny.save_llama(tmp_path / "base", reflection=False)
    words = ["rows.jsonl", "short.jsonl", f"--base={base}", "--out=out", "--rows=4", "--rows=8", "--plain"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        command = [sys.executable, str(SCRIPT), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "plain-4" in done.stdout
    assert len((tmp_path / "out" / "train" / "4" / "rows.jsonl").read_text().splitlines()) == 4
    assert "rows-8" in (tmp_path / "out" / "table.md").read_text()
