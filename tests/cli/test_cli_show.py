"""How an answer is shown: numbers that match, nothing from a text taken for mark-up or terminal control."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from retrieval.passage import Passage
from selfrag.cli.ask import plain, render
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, Role

TITLE = "[bold]Not mark-up[/bold] \x1b[31mnot red"
FIRST = Passage("a", "Text of the [first] passage.", TITLE, 0.5)
SECOND = Passage("b", "Text of the second.", "Second")


def answer() -> Answer:
    relevant = Judgment(ISREL, "segment 1", (0.75, 0.25), 1.0)
    segments = (
        Segment("One.", 0, 4, FIRST, {Role.RELEVANCE: relevant}, 1.5, 0),
        Segment("Two.", 5, 9, None, {}, 0.25, 1),
        Segment("Three.", 10, 16, SECOND, {}, 0.125, 2),
        Segment("Four.", 17, 22, FIRST, {}, 0.0, 3),
    )
    trace = Trace("q", Decoding(), (), (), None)
    return Answer("q", "One. Two. Three. Four.", segments, Usage(3, 1200, 128, 40, 1, 2.5), trace)


def shown(value: Answer) -> str:
    file = StringIO()
    Console(file=file, width=120, force_terminal=False).print(render(value))
    return file.getvalue()


def test_citations_have_the_numbers_of_the_passages() -> None:
    text = shown(answer())
    assert "One. [1] Two. Three. [2] Four. [1]" in text
    first, second = text.index("[1] [bold]Not mark-up[/bold]"), text.index("[2] Second")
    assert first < text.index("Text of the [first] passage.") < second < text.index("Text of the second.")


def test_judgments_and_cost_are_there() -> None:
    text = shown(answer())
    assert "Relevant 0.75" in text
    assert "3 requests, 1,200 prompt tokens (128 cached), 40 generated, 1 searches, 2.5 s" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("2 "))
    assert row.split() == ["2", "-", "-", "-", "-", "-", "0.250"]


def test_no_control_character_reaches_the_terminal() -> None:
    assert "\x1b" not in shown(answer())
    hostile = "".join(map(chr, range(0x20))) + "\x7f\x9b\u202e\u2066"
    assert set(plain(hostile).plain) == {"\t", "\n", "\ufffd"}
