"""Rows to inspect: one as the paper's, one of each kind, and hostile ones. Importable from the tests beside it."""

from __future__ import annotations

from hostile import HOSTILE

from retrieval.passage import Passage
from selfrag.training.rows import Evidence, Row, Text, Token

HALL = Passage("wiki-1", "The ceiling was painted by Ann Example in 1720. It shows a hunt.", "Great Hall")


def short(key: str = "nq-1", source: str = "nq/short_qa") -> Row:
    """A question answered from one passage."""
    target = (
        Token("[Retrieval]"),
        Evidence(HALL),
        Token("[Relevant]"),
        Text("Ann Example"),
        Token("[Fully supported]"),
        Token("[Utility:5]"),
    )
    return Row(key, source, "who painted the ceiling of the hall", target)


def unaided(key: str = "alpaca-1", source: str = "alpaca/instruction") -> Row:
    """An instruction that needs no passage."""
    return Row(key, source, "Name two fruits.", (Token("[No Retrieval]"), Text("Apple, pear."), Token("[Utility:4]")))


def long(key: str = "asqa-1", source: str = "asqa/long_form") -> Row:
    """Two passages, one of them irrelevant, and a sentence that continues with the evidence."""
    other = Passage("wiki-2", "A hall is a large room.", "Hall")
    target = (
        Token("[Retrieval]"),
        Evidence(HALL),
        Token("[Relevant]"),
        Text("Ann Example painted it."),
        Token("[Partially supported]"),
        Token("[Continue to Use Evidence]"),
        Text(" It shows a hunt."),
        Token("[Fully supported]"),
        Token("[Retrieval]"),
        Evidence(other),
        Token("[Irrelevant]"),
        Text(" It is famous."),
        Token("[Utility:3]"),
    )
    return Row(key, source, "Tell me about the ceiling.", target, weight=2.0)


def hostile(name: str) -> Row:
    """A row that holds a hostile text wherever a row can hold text."""
    text = HOSTILE[name]
    evidence = Evidence(Passage(f"{name}{text}", text, text))
    target = (Token("[Retrieval]"), evidence, Token("[Relevant]"), Text(text), Token("[No support / Contradictory]"))
    return Row(f"{name}{text}", f"{name}{text}", text, (*target, Token("[Utility:1]")))


def provenance(row: Row, text: str = "") -> dict[str, object]:
    """A record as `critic augment` writes it, with `text` in every place for text."""
    judged = {"label": f"Relevant{text}", "p": {f"Relevant{text}": 0.9}, "coverage": 0.99, "source": "token"}
    candidate = {"rank": 1, "id": f"wiki-1{text}", "title": f"Great Hall{text}", "score": 12.5, "isrel": judged}
    segment = {
        "start": 0,
        "end": 9,
        "token": f"[Retrieval]{text}",
        "why": f"asked for{text}",
        "query": f"who painted{text}",
        "chosen": f"wiki-1{text}",
        "rule": f"relevant and fully supported{text}, best of 3",
        "candidates": [candidate, candidate | {"rank": 2, "id": f"wiki-9{text}", "issup": None}],
    }
    return {
        "id": row.id,
        "why": f"as it came{text}",
        "retrieve": {"label": "Retrieval", "p": {"Retrieval": 0.75}, "ratio": 0.8},
        "query": f"who painted the ceiling{text}",
        "segments": [segment],
        "isuse": {"label": "5", "p": {"5": 0.5}},
        "a key of tomorrow": [text],
    }
