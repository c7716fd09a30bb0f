"""Answers for people: nothing from a model or a passage is taken for markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from written import run

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer

EVIL = "<script>alert('x')</script>&amp;\"<img src=x onerror=y>"


class Tags(HTMLParser):
    """Tags and visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert all(name == "style" for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def answered(title: str = "Plain", question: str = "Q") -> Answer:
    first = f"[Retrieval]<paragraph>{title}\n{EVIL}</paragraph>"
    tree = {
        "": "{~retrieve 1 0 0}x",
        first: f"[Relevant]{EVIL}[Fully supported]{{retrieve 0 1 0}}",
        f"{first}[Relevant]{EVIL}[Fully supported][No Retrieval]": "End.</s>",
    }
    return run(tree, question=question, evidence=[Passage("d1", EVIL, title)]).answer


def test_html_escapes_everything() -> None:
    for answer in (answered(), answered(title=EVIL)):
        page = Tags(answer._repr_html_())
        assert page.tags <= {"p", "b", "table", "tr", "th", "td", "sup", "details", "summary"}
        assert page.text.count(EVIL) >= 2


def test_long_titles_and_texts_are_cut_and_say_so() -> None:
    answer = answered()
    long = tuple(
        replace(one, citation=Passage("i" * 1_000_000, "t" * 1_000_000, "h" * 1_000_000)) for one in answer.segments[:1]
    )
    shown = replace(answer, segments=long)
    assert len(shown._repr_html_()) < 30_000
    assert "... (980,000 characters more)" in shown._repr_html_()
    assert len(str(shown)) < 1_000
    assert "... (999,800 characters more)" in str(shown)


def test_html_of_a_hostile_question_and_error() -> None:
    failed = replace(answered(), question=EVIL, error=EVIL)
    assert Tags(failed._repr_html_()).tags <= {"p", "b"}
    assert EVIL in Tags(replace(answered(), question=EVIL)._repr_html_()).text


def test_plain_text_has_numbered_citations() -> None:
    text = str(answered())
    assert text == f"{EVIL} [1] End.\n[1] Plain"


def test_what_others_wrote_is_no_command_to_a_terminal_or_a_page() -> None:
    hostile = answered(title="\x1b]0;title\x07\u202e", question="\x1b[2J")
    for text in (str(hostile), hostile._repr_html_(), str(replace(hostile, error="\x1b[2J"))):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
