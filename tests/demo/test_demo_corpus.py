"""The downloaded summaries as passages: stable ids, nothing lost, long articles in parts."""

from __future__ import annotations

import json
from pathlib import Path

from selfrag.demo.corpus import passages


def test_articles_become_passages(tmp_path: Path) -> None:
    sentence = "This sentence has exactly seven words here. "
    articles = {
        "Short": {"title": "Short", "extract": "A short one.", "topic": "x"},
        "Long": {"title": "Long (of many words)", "extract": (sentence * 30).strip(), "topic": "x"},
        "Last": {"title": "Last", "extract": "Ends here. 最后", "topic": "x"},
    }
    file = tmp_path / "summaries.json"
    file.write_text(json.dumps(articles), encoding="utf-8")
    found = list(passages(file))
    assert [passage.id for passage in found[:2]] == ["wiki-00000", "wiki-00001"]
    assert found[-1].id == "wiki-00002"
    long = [passage for passage in found if passage.title == "Long (of many words)"]
    assert [passage.id for passage in long] == ["wiki-00001", "wiki-00001-2", "wiki-00001-3"]
    assert all(len(passage.text.split()) <= 100 for passage in long)
    assert all(passage.text.startswith("This") and passage.text.endswith("here.") for passage in long)
    assert len({passage.id for passage in found}) == len(found)
