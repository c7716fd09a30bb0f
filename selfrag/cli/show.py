"""How an answer looks in a terminal: text with numbered citations, passages, judgments a segment, and what it cost.

Knows rich; knows no command. Everything a model or a document wrote goes through `plain`, so that neither brackets nor
escape sequences in it are taken for mark-up.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from selfrag.decoding.answer import Answer, Usage
from selfrag.reflection.labels import GROUPS
from selfrag.rendering import NAME, cut, judged, spoken
from selfrag.untrusted import printable


def plain(text: str, style: str = "") -> Text:
    """Text to be shown as it is: no mark-up, no control characters, no reversal of the writing direction."""
    return Text(printable(text), style)


def render(answer: Answer) -> RenderableType:
    """The whole answer: text, why it ends early if it does, cited passages, judgments, usage."""
    parts: list[RenderableType] = [plain(spoken(answer), "bold")]
    if answer.partial is not None:
        parts.append(plain(cut(f"partial: {answer.partial}"), "yellow"))
    if answer.citations:
        parts += [Text(), *_passages(answer)]
    if answer.segments:
        parts += [Text(), _judgments(answer)]
    return Group(*parts, Text(), usage_line(answer.usage))


def usage_line(usage: Usage) -> Text:
    """What the answer cost, in one line."""
    return Text(
        f"{usage.requests} requests, {usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached),"
        f" {usage.generated_tokens:,} generated, {usage.searches} searches, {usage.seconds:.1f} s",
        "dim",
    )


def _passages(answer: Answer) -> Iterator[RenderableType]:
    for number, passage in enumerate(answer.citations, 1):
        score = "" if passage.score is None else f", score {passage.score:.3f}"
        heading = Text.assemble((f"[{number}] ", "cyan"), plain(cut(passage.title, NAME), "cyan"))
        yield heading.append_text(plain(f"  ({cut(passage.id, NAME)}{score})", "dim"))
        yield Padding(plain(cut(passage.text)), (0, 0, 0, 4))


def _judgments(answer: Answer) -> Table:
    numbers = answer.numbers
    # Narrow enough for 80 columns with the usual labels.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    joined = list(dict.fromkeys(name for segment in answer.segments for name in segment.joined))
    for name in ("#", "cites", *(str(labels.role) for labels in GROUPS), *joined, "score"):
        table.add_column(name)
    for number, segment in enumerate(answer.segments, 1):
        cells = [Text(judged(segment.judgments.get(labels.role))) for labels in GROUPS]
        cells += [Text(judged(segment.joined.get(name))) for name in joined]
        cited = f"[{numbers[segment.citation.key]}]" if segment.citation else "-"
        table.add_row(str(number), Text(cited), *cells, f"{segment.score:.3f}")
    return table
