"""List questions: names, statements, the three types, and the rows of a file. Hand-written first sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from list_questions.questions import list_questions
from list_questions.rows import make_list_questions
from list_questions.statements import statements
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl

FILMS = (
    Passage("p1", "Jaws is a 1975 American film directed by Jane Q. Doe and starring Roy Dale.", "Jaws (film)"),
    Passage("p2", '"Duel" is a 1971 film directed by Jane Q. Doe. It stars Ann Bee.', "Duel"),
    Passage("p3", "The Sea is a film produced by Max Roe, directed by Jane Q. Doe and starring Roy Dale.", "The Sea"),
    Passage("p4", "The Moon is a film starring Roy Dale, directed by Bob Poe.", "The Moon"),
    Passage("p5", "Jane Q. Doe is a director. Her first success was Duel.", "Jane Q. Doe"),
    Passage("p6", "A list of films by Jane Q. Doe.", "List"),
)


def test_the_three_types_of_question() -> None:
    found = {(q.type, q.text): tuple(a.names[0] for a in q.answers) for q in list_questions(statements(FILMS))}
    assert found == {
        ("simple", "Which films were directed by Jane Q. Doe?"): ("Jaws", "Duel", "The Sea"),
        ("simple", "Which films star Roy Dale?"): ("Jaws", "The Sea", "The Moon"),
        ("intersection", "Which films were directed by Jane Q. Doe and star Roy Dale?"): ("Jaws", "The Sea"),
        ("composition", "Who directed the films that star Roy Dale?"): ("Jane Q. Doe", "Bob Poe"),
    }
    spelled = enumerate(("J. R. Poe", "J R Poe", "J.R. Poe"))  # one name
    dotted = [Passage(str(n), f"Film {n} is a film directed by {who}.", f"Film {n}") for n, who in spelled]
    (question,) = list_questions(statements(dotted))
    assert (question.text, len(question.answers)) == ("Which films were directed by J. R. Poe?", 3)
    only = Passage("p", "Solo is a film directed by Ann Bee and starring Roy Dale and Bob Poe.", "Solo")
    assert list_questions(statements([only])) == []  # a list in one passage


def test_a_corpus_becomes_the_same_file_twice_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    corpus, films = tmp_path / "corpus.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in FILMS]
    write_jsonl(corpus, films)
    first = make_list_questions(corpus, tmp_path / "a.jsonl")
    second = make_list_questions(corpus, tmp_path / "b.jsonl")
    assert first["sha256"] == second["sha256"]
    assert (first["rows"], first["type"]) == (4, {"simple": 2, "intersection": 1, "composition": 1})
    for lines, message in ((films[:1] * 2, r"corpus\.jsonl:2: id 'p1' occurs twice"), (films[:1], "no list question")):
        write_jsonl(corpus, lines)
        with pytest.raises(UserError, match=message):
            make_list_questions(corpus, tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()
