"""Answers as clients show them: text with marks, annotations with offsets, sources with addresses. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

from retrieval.passage import Passage
from selfrag.common.untrusted import MOST_CUT, clean, cut, printable
from selfrag.decoding.answer import Answer, Segment
from selfrag.render import passage_name
from selfrag.serving.settings import CitationStyle

TITLE, SNIPPET = 300, 500
"""Characters that are sent of a title and of a snippet."""
_PLAIN_TEXT = (".txt", ".md", ".markdown")
"""Files whose characters an address can name."""
_PLACE = ("file", "page", "heading", "start", "end")
"""Columns of a passage that tell its place."""


def url_of(passage: Passage) -> str:
    """Return the address of a passage: its column `url`, or its id where that is one, or that of its file.

    Where it has none of these it is `selfrag://ID`. Only http, https and file count, so that no link of a corpus can
    run a script. The result has no character that ends a link in Markdown.
    """
    for address in (
        passage.metadata.get("url"),
        passage.metadata.get("file"),
        passage.id,
    ):
        if isinstance(address, str) and _is_web(address):
            return quote(address, safe="%/:?#[]@!$&'*+,;=~")
    return _file_url(passage.metadata) or f"selfrag://{quote(passage.id, safe='')}"


def _file_url(metadata: Mapping[str, Any]) -> str | None:
    """Return the address of the file of a passage, with its page or its characters (RFC 5147)."""
    file, page = metadata.get("file"), metadata.get("page")
    start, end = metadata.get("start"), metadata.get("end")
    if not isinstance(file, str) or not Path(file).is_absolute():
        return None
    url = Path(file).as_uri()
    if isinstance(page, int) and page is not True:
        return f"{url}#page={page}"
    if url.endswith(_PLAIN_TEXT) and isinstance(start, int) and isinstance(end, int):
        return f"{url}#char={start},{end}"
    return url


def _is_web(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.netloc)
        and text.isprintable()
        and " " not in text
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment as it is sent."""

    text: str  # what follows the text sent before
    # citations of this segment, with offsets into the whole text
    annotations: list[dict[str, Any]]
    cited: list[Passage]  # the passage of each
    sources: list[Passage]  # passages that are cited for the first time
    described: dict[str, Any]  # the segment for the `selfrag` object


@dataclass(slots=True)
class Writer:
    """Writes segments one after the other, as `Answer.cited_text` does for a whole answer."""

    style: CitationStyle  # how the text cites
    text: str = ""  # what has been written
    # cited passages in the order of their numbers
    sources: list[Passage] = field(default_factory=list)
    # citations, with offsets
    annotations: list[dict[str, Any]] = field(default_factory=list)
    cited: list[Passage] = field(default_factory=list)  # the passage of each
    # what was written, for the `selfrag` object
    segments: list[dict[str, Any]] = field(default_factory=list)
    _end: int = 0
    _numbers: dict[tuple[str, str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Answer, style: CitationStyle = "brackets") -> Writer:
        """Return a writer that has written a whole answer."""
        writer = cls(style)
        writer.rest(answer)
        return writer

    def add(self, segment: Segment) -> Piece:
        """Write a segment."""
        gap = " " * (segment.start - self._end)
        written = printable(segment.text)
        body = written.rstrip()
        start = len(self.text) + len(gap)
        annotations: list[dict[str, Any]] = []
        cited: list[Passage] = []
        fresh: list[Passage] = []
        mark, number = "", None
        if segment.citation is not None:
            number = self._numbers.setdefault(
                segment.citation.key, len(self._numbers) + 1
            )
            if number > len(self.sources):
                fresh = [segment.citation]
            mark = _mark(self.style, number, segment.citation)
            cited = [segment.citation]
            annotations = [annotation(segment.citation, start, start + len(body))]
        text = f"{gap}{body}{mark}{written[len(body) :]}"
        described = segment.as_dict() | {
            "start": start,
            "end": start + len(body),
            "citation": number,
        }
        self._end = segment.end
        self.text += text
        self.sources += fresh
        self.annotations += annotations
        self.cited += cited
        self.segments.append(described)
        return Piece(text, annotations, cited, fresh, described)

    def rest(self, answer: Answer) -> list[Piece]:
        """Write what of an answer has not been written: its last segments, or the text of an abstention."""
        pieces = [
            self.add(segment) for segment in answer.segments[len(self.segments) :]
        ]
        if not answer.segments and answer.text:
            self.text = printable(answer.text)
            pieces.append(Piece(self.text, [], [], [], {}))
        return pieces


def _mark(style: CitationStyle, number: int, passage: Passage) -> str:
    if style == "none":
        return ""
    return (
        f" [{number}]" if style == "brackets" else f" [[{number}]]({url_of(passage)})"
    )


def annotation(passage: Passage, start: int, end: int) -> dict[str, Any]:
    """Return a citation in the flat shape of the Responses API; offsets are code points, the end exclusive."""
    return {
        "type": "url_citation",
        "url": url_of(passage),
        "title": passage_name(passage, TITLE),
        "start_index": start,
        "end_index": end,
    }


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return an annotation in the shape of chat completions."""
    return {
        "type": flat["type"],
        "url_citation": {name: value for name, value in flat.items() if name != "type"},
    }


def source_dict(number: int, passage: Passage) -> dict[str, Any]:
    """Return a cited passage for the `selfrag` object."""
    return {
        "number": number,
        "id": cut(passage.id, TITLE),
        "title": passage_name(passage, TITLE),
        "url": url_of(passage),
        "text": cut(passage.text),
        "score": passage.score,
        "metadata": clean(dict(passage.metadata), MOST_CUT),
    }


def document_metadata(passage: Passage) -> dict[str, Any]:
    """Return what frameworks keep beside the text of a passage: its metadata, title and address."""
    further = {"title": passage.title, "url": url_of(passage)}
    return cast(dict[str, Any], clean({**passage.metadata, **further}, MOST_CUT))


def search_result(passage: Passage) -> dict[str, Any]:
    """Return a cited passage in the shape that Perplexity's clients read."""
    result = {
        "title": passage_name(passage, TITLE),
        "url": url_of(passage),
        "snippet": cut(passage.text, SNIPPET),
    }
    if passage.metadata.get("date") is not None:
        result["date"] = str(passage.metadata["date"])
    return result


def source_event(passage: Passage) -> dict[str, Any]:
    """Return a cited passage as an event of Open WebUI, which knows a source again by `metadata.source`."""
    url, title = url_of(passage), passage_name(passage, TITLE)
    metadata: dict[str, Any] = {"source": url, "name": title}
    if url.startswith("http"):
        metadata["source_url"] = url
    for name in _PLACE:
        if name in passage.metadata:
            metadata[name] = passage.metadata[name]
    data: dict[str, Any] = {
        "source": {"name": title, "url": url},
        "document": [cut(passage.text)],
        "metadata": [metadata],
    }
    if passage.score is not None and math.isfinite(passage.score):
        data["distances"] = [passage.score]
    return {"type": "source", "data": data}


def selfrag_object(
    answer: Answer,
    writer: Writer,
    name: str | None,
    index: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a client may show beyond the OpenAI API.

    Args:
        answer: which was written.
        writer: that wrote it.
        name: under which it is kept.
        index: the state of the index that was searched.
    """
    values = answer.as_dict()
    described = {
        "id": name,
        "text": answer.text,
        "segments": writer.segments,
        "citations": [
            source_dict(number, passage)
            for number, passage in enumerate(writer.sources, 1)
        ],
        "retrieved": values["retrieved"],
        "usage": values["usage"],
        "exact": answer.exact,
        "abstained": answer.abstained,
        "reason": values["reason"],
        "without_evidence": answer.without_evidence,
        "finish": answer.finish,
        "partial": answer.partial,
        "note": answer.note,
        "reasoning": answer.reasoning,
        "steps": values.get("steps", []),
        "index": index,
    }
    return cast(dict[str, Any], clean(described))
