"""A run over a real `vllm serve` writes the answers of one in this process, with a system of ours and a plain one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_vllm import ServedVLLM

from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import Model, Source, run_systems


@pytest.mark.engine
def test_an_endpoint_and_a_process_give_the_same_answers(
    vllm_server: ServedVLLM, tiny_llama: Path, tmp_path: Path
) -> None:
    passages = [{"id": f"p{i}", "title": "Book", "text": f"Ann wrote {i}."} for i in range(2)]
    rows = [
        {"id": f"q{i}", "task": "short_qa", "instruction": f"Who wrote {i}?", "answers": ["Ann"], "passages": passages}
        for i in range(4)
    ]
    data = tmp_path / "short.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {"selfrag-always": "selfrag-always"}
    for folder, engine in (("here", "transformers"), ("there", vllm_server.url)):
        settings = {"segment_tokens": 12, "passages": 2}
        run_systems(names, Model(str(tiny_llama), engine), Source([data]).load(), tmp_path / folder, settings=settings)
    here, there = (read_records(tmp_path / one / "selfrag-always" / "short.jsonl") for one in ("here", "there"))
    kept = ("id", "text", "cited", "read", "segments", "error", "scores")
    assert [{key: one[key] for key in kept} for one in there] == [{key: one[key] for key in kept} for one in here]
    assert all(one["error"] is None and one["usage"]["requests"] for one in there)
