"""Answers for people: plain text for a terminal, HTML for a notebook, in which all text of others is escaped."""

from __future__ import annotations

from html import escape

from selfrag.decoding.answer import Answer, Segment
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS

LEFT = "style='text-align:left'"


def judged(judgment: Judgment | None) -> str:
    """`Relevant 0.93`, or a dash for a critique that was not made."""
    return "-" if judgment is None else f"{judgment.label} {max(judgment.distribution):.2f}"


def reflections(segment: Segment) -> str:
    """All judgments of a segment in one line."""
    return ", ".join(f"{labels.role}: {judged(segment.judgments.get(labels.role))}" for labels in GROUPS)


def plain(answer: Answer) -> str:
    """Text with numbered citations, then the cited passages."""
    if answer.error is not None:
        return f"error: {answer.error}"
    cited = [f"[{i}] {passage.title or passage.id}" for i, passage in enumerate(answer.citations, 1)]
    return "\n".join([answer.cited_text() or "(no answer)", *cited])


def html(answer: Answer) -> str:
    """A small table: each segment with its citation and judgments; passages unfold. Needs no style sheet or script."""
    if answer.error is not None:
        return f"<p><b>error</b>: {escape(answer.error)}</p>"
    numbers = {passage.id: i for i, passage in enumerate(answer.citations, 1)}
    rows = []
    for s in answer.segments:
        mark = f" <sup>[{numbers[s.citation.id]}]</sup>" if s.citation else ""
        cells = f"<td {LEFT}>{escape(s.text)}{mark}</td><td {LEFT}>{escape(reflections(s))}</td><td>{s.score:.3f}</td>"
        rows.append(f"<tr>{cells}</tr>")
    passages = []
    for passage in answer.citations:
        heading = f"[{numbers[passage.id]}] {escape(passage.title or passage.id)}"
        passages.append(f"<details><summary>{heading}</summary><p>{escape(passage.text)}</p></details>")
    head = "<tr><th>segment</th><th>reflections</th><th>score</th></tr>"
    return f"<p><b>{escape(answer.question)}</b></p><table>{head}{''.join(rows)}</table>{''.join(passages)}"
