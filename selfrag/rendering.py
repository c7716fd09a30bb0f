"""Answers for people: plain text for a terminal, HTML for a notebook."""

from __future__ import annotations

import html as markup

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS
from selfrag.untrusted import printable

TEXT, NAME = 20_000, 200
"""Characters that are shown of a text, and of a title or an id."""
LEFT = "style='text-align:left'"


def named(passage: Passage, most: int = NAME) -> str:
    """A passage's title, or its id where it has none, and the page of its document where that is known."""
    page = passage.metadata.get("page")
    where = f", p. {page}" if isinstance(page, int) and not isinstance(page, bool) else ""
    return cut(passage.title or passage.id, most) + where


def judged(judgment: Judgment | None) -> str:
    """`Relevant 0.93`, or a dash for a critique that was not made."""
    return "-" if judgment is None else f"{judgment.label} {max(judgment.distribution):.2f}"


def reflections(segment: Segment) -> str:
    """All judgments of a segment in one line."""
    own = [f"{labels.role}: {judged(segment.judgments.get(labels.role))}" for labels in GROUPS]
    return ", ".join([*own, *(f"{name}: {judged(judgment)}" for name, judgment in segment.joined.items())])


def spoken(answer: Answer) -> str:
    """The text with its citations."""
    return answer.cited_text() or "(no answer)"


def plain(answer: Answer) -> str:
    """Text with numbered citations, why it ends early if it does, then the cited passages."""
    if answer.error is not None:
        return cut(f"error: {answer.error}")
    cited = [f"[{i}] {named(passage)}" for i, passage in enumerate(answer.citations, 1)]
    partial = [] if answer.partial is None else [cut(f"partial: {answer.partial}")]
    return "\n".join([printable(spoken(answer)), *partial, *cited])


def html(answer: Answer) -> str:
    """A small table: each segment with its citation and judgments; passages unfold. Needs no style sheet or script."""
    if answer.error is not None:
        return f"<p><b>error</b>: {escape(answer.error)}</p>"
    numbers = answer.numbers
    rows = []
    for s in answer.segments:
        mark = f" <sup>[{numbers[s.citation.key]}]</sup>" if s.citation else ""
        cells = f"<td {LEFT}>{escape(s.text)}{mark}</td><td {LEFT}>{escape(reflections(s))}</td><td>{s.score:.3f}</td>"
        rows.append(f"<tr>{cells}</tr>")
    passages = []
    for passage in answer.citations:
        heading = f"[{numbers[passage.key]}] {markup.escape(named(passage))}"
        passages.append(f"<details><summary>{heading}</summary><p>{escape(passage.text)}</p></details>")
    head = "<tr><th>segment</th><th>reflections</th><th>score</th></tr>"
    said = "" if rows else f"<p>{escape(spoken(answer))}</p>"
    if answer.partial is not None:
        said += f"<p><b>partial</b>: {escape(answer.partial)}</p>"
    return f"<p><b>{escape(answer.question)}</b></p>{said}<table>{head}{''.join(rows)}</table>{''.join(passages)}"


def escape(text: str, most: int = TEXT) -> str:
    """Text of others for a page, cut where it is long."""
    return markup.escape(cut(text, most))


def cut(text: str, most: int = TEXT) -> str:
    """Text of others for people: nothing in it that cannot be shown, and where it is long, how much is left out."""
    left_out = len(text) - most
    return printable(text if left_out <= 0 else f"{text[:most]} ... ({left_out:,} characters more)")
