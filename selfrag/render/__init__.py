"""An answer as text, as HTML and for a terminal, with citations, judgments, and what a reader must know beside them.

Answers are known by the attributes that are shown, so that `selfrag.decoding.answer` can use this package. `documents`
has pages, `figures` and `colours` pictures.
"""

# ruff: noqa: D102 - the attributes of the protocols are those of answers and segments

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retrieval.passage import Passage
from selfrag.common.errors import count_of
from selfrag.common.untrusted import NAME, cut, inert, printable
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS, Role

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from selfrag.reflection.requests import Usage


class ShownSegment(Protocol):
    """What is shown of a `selfrag.decoding.answer.Segment`."""

    @property
    def text(self) -> str: ...
    @property
    def citation(self) -> Passage | None: ...
    @property
    def judgments(self) -> Mapping[Role, Judgment | None]: ...
    @property
    def judges(self) -> Mapping[str, Judgment | None]: ...
    @property
    def score(self) -> float: ...


class ShownAnswer(Protocol):
    """What is shown of a `selfrag.decoding.answer.Answer`."""

    @property
    def question(self) -> str: ...
    @property
    def segments(self) -> Sequence[ShownSegment]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def citations(self) -> Sequence[Passage]: ...
    @property
    def numbers(self) -> Mapping[tuple[str, str, str], int]: ...
    @property
    def abstained(self) -> bool: ...
    @property
    def without_evidence(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def partial(self) -> str | None: ...
    @property
    def note(self) -> str | None: ...
    @property
    def finish(self) -> str: ...
    @property
    def usage(self) -> Usage: ...
    def cited_text(self, mark: Callable[[Passage], str] | None = None) -> str: ...


LEFT = "style='text-align:left'"


def passage_name(passage: Passage, most: int = NAME) -> str:
    """Return a passage's title, or its id where it has none, and the page of its document where that is known."""
    page = passage.metadata.get("page")
    where = (
        f", p. {page}" if isinstance(page, int) and not isinstance(page, bool) else ""
    )
    return cut(passage.title or passage.id, most) + where


def file_of(passage: Passage) -> str:
    """Return the path of the file that a passage came from, shown from the working directory on; "" without one."""
    file = passage.metadata.get("file")
    if not isinstance(file, str):
        return ""
    here = f"{Path.cwd()}{os.sep}"
    return cut(file.removeprefix(here), NAME)


def judged(judgment: Judgment | None) -> str:
    """Return `Relevant 0.93`, or a dash for a critique that was not made."""
    return (
        "-"
        if judgment is None
        else f"{judgment.label} {max(judgment.distribution):.2f}"
    )


def reflections(segment: ShownSegment) -> str:
    """Return all judgments of a segment in one line."""
    judgments = {
        str(labels.role): segment.judgments.get(labels.role) for labels in GROUPS
    } | dict(segment.judges)
    return ", ".join(
        f"{name}: {judged(judgment)}" for name, judgment in judgments.items()
    )


def spoken(answer: ShownAnswer) -> str:
    """Return the text with its citations."""
    return answer.cited_text() or "(no answer)"


def notes(answer: ShownAnswer) -> list[str]:
    """Return what a reader must know of an answer beside its text, a line each."""
    lines = []
    if answer.abstained:
        lines.append(f"abstained: {answer.reason}")
    elif answer.without_evidence:
        lines.append(f"written without evidence: {answer.reason}")
    if answer.partial is not None:
        lines.append(f"partial: {answer.partial}")
    if answer.note is not None:
        lines.append(f"note: {answer.note}")
    if answer.finish == "length":
        lines.append("cut: the token budget or the context is used up")
    return lines


def plain(answer: ShownAnswer) -> str:
    """Return text with numbered citations, why it ends early if it does, then the cited passages."""
    if answer.error is not None:
        return cut(f"error: {answer.error}")
    cited = []
    for number, passage in enumerate(answer.citations, 1):
        line, file = f"[{number}] {passage_name(passage)}", file_of(passage)
        cited.append(f"{line} ({file})" if file else line)
    return "\n".join([printable(spoken(answer)), *map(cut, notes(answer)), *cited])


def html(answer: ShownAnswer) -> str:
    """Return a small table: each segment with its citation and judgments; passages unfold. It needs no script."""
    if answer.error is not None:
        return f"<p><b>error</b>: {inert(answer.error)}</p>"
    numbers = answer.numbers
    rows = []
    for segment in answer.segments:
        text = inert(segment.text)
        if segment.citation:
            text += f" <sup>[{numbers[segment.citation.key]}]</sup>"
        judgments = inert(reflections(segment))
        cells = f"<td {LEFT}>{text}</td><td {LEFT}>{judgments}</td><td>{segment.score:.3f}</td>"
        rows.append(f"<tr>{cells}</tr>")
    passages = []
    for passage in answer.citations:
        heading = f"[{numbers[passage.key]}] {escape(passage_name(passage))}"
        text = f"<p>{inert(passage.text)}</p><p><small>{escape(file_of(passage))}</small></p>"
        passages.append(f"<details><summary>{heading}</summary>{text}</details>")
    head = "<tr><th>segment</th><th>reflections</th><th>score</th></tr>"
    paragraph = "" if rows else f"<p>{inert(spoken(answer))}</p>"
    for note in notes(answer):
        label, _, text = note.partition(": ")
        paragraph += f"<p><b>{label}</b>: {inert(text)}</p>"
    question = f"<p><b>{inert(answer.question)}</b></p>"
    table = f"<table>{head}{''.join(rows)}</table>"
    return f"{question}{paragraph}{table}{''.join(passages)}"


def terminal_text(text: str, style: str = "") -> Text:
    """Return text for a terminal as it is: no mark-up, no control characters, no reversal of the writing direction."""
    from rich.text import Text

    return Text(printable(text), style)


def terminal_answer(answer: ShownAnswer) -> RenderableType:
    """Return an answer for a terminal: text, notes on it, cited passages, judgments, usage."""
    from rich.console import Group

    parts: list[RenderableType] = [terminal_text(spoken(answer), "bold")]
    parts += [terminal_text(cut(note), "yellow") for note in notes(answer)]
    if answer.citations:
        parts += ["", *_passages(answer)]
    if answer.segments:
        parts += ["", _judgments(answer)]
    return Group(*parts, "", terminal_text(_usage_line(answer.usage), "dim"))


def _usage_line(usage: Usage) -> str:
    """Return what the answer cost, in one line."""
    return (
        f"{count_of(usage.requests, 'requests')},"
        f" {count_of(usage.prompt_tokens, 'prompt tokens', form=',')} ({usage.cached_tokens:,} cached),"
        f" {usage.generated_tokens:,} generated, {count_of(usage.searches, 'searches')}, {usage.seconds:.1f} s"
    )


_EXCERPT = 2000
"""Characters of a cited passage that are shown."""


def _passages(answer: ShownAnswer) -> Iterator[RenderableType]:
    """Yield the heading and the text of each cited passage."""
    from rich.padding import Padding

    for number, passage in enumerate(answer.citations, 1):
        heading = terminal_text(f"[{number}] ", "cyan")
        if passage.title:
            heading.append_text(terminal_text(passage_name(passage), "cyan"))
        source = file_of(passage) or cut(passage.id, NAME)
        if passage.score is not None:
            source += f", score {passage.score:.3f}"
        yield heading.append_text(terminal_text(f"  ({source})", "dim"))
        yield Padding(terminal_text(cut(passage.text, _EXCERPT)), (0, 0, 0, 4))


def _judgments(answer: ShownAnswer) -> Table:
    """Return a table of the segments with their citations, judgments and scores."""
    from rich import box
    from rich.table import Table

    numbers = answer.numbers
    # Narrow enough for 80 columns with the usual labels.
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True
    )
    roles = [labels.role for labels in GROUPS]
    judges = dict.fromkeys(chain.from_iterable(part.judges for part in answer.segments))
    for heading in ("#", "cites", *map(str, roles), *judges, "score"):
        table.add_column(heading)
    for number, segment in enumerate(answer.segments, 1):
        judgments = [segment.judgments.get(role) for role in roles]
        judgments += map(segment.judges.get, judges)
        cells = [terminal_text(judged(judgment)) for judgment in judgments]
        cited = "-"
        if segment.citation:
            cited = f"[{numbers[segment.citation.key]}]"
        table.add_row(str(number), terminal_text(cited), *cells, f"{segment.score:.3f}")
    return table
