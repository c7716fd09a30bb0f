"""Reports what was read from files: how much, what was left out, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retrieval.documents.document import Document
from selfrag.common.errors import count_of


@dataclass(frozen=True, slots=True)
class SkippedContent:
    """Content of a file that could not be turned into text, while the rest of the file was read."""

    file: str
    what: str  # for example `pages 2, 3`
    why: str  # for example `no text; scans need text recognition (OCR)`


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file of which nothing was read."""

    file: str
    why: str  # the line that a build without `skip_unreadable` ends with


@dataclass(frozen=True, slots=True)
class LongPassages:
    """Passages of which the encoder did not read the end. Search by words knows all of them."""

    count: int
    max_tokens: int  # tokens that the encoder reads


@dataclass(slots=True)
class ReadReport:
    """What was read from files. It is filled while the rows are taken, and complete after the last one."""

    files: int = 0  # files that were read
    pages: int = 0  # pages of the files that have pages
    passages: int = 0
    # rows of tables that were too long for a passage and became several
    cut_rows: int = 0
    # of those that were encoded now; None where the encoder does not tell
    long_passages: LongPassages | None = None
    skipped: list[SkippedContent] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)
    # passages of other files in the index that a build took the place of
    replaced: int = 0
    empty: list[str] = field(default_factory=list)  # files without any text
    gone: list[str] = field(default_factory=list)  # pages that are no longer there
    # files inside folders that no reader knows, by suffix
    unknown: dict[str, int] = field(default_factory=dict)
    # whether sentences were found without spaCy, which is not installed here
    simple_sentences: bool = False

    def add_document(self, path: Path, document: Document) -> None:
        """Record the pages of a document and what its reader left out."""
        self.pages += document.pages or 0
        for part in document.skipped:
            self.skipped.append(SkippedContent(str(path), part.what, part.why))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return what was read in one line, and a line for each thing that was not."""
        counts = [count_of(self.files, "files")]
        if self.pages:
            counts.append(count_of(self.pages, "pages"))
        counts.append(count_of(self.passages, "passages"))
        if self.cut_rows:
            counts.append(f"{count_of(self.cut_rows, 'long rows')} cut into passages")
        lines = [f"read {', '.join(counts)}"]
        if self.long_passages is not None and self.long_passages.count:
            count, most = self.long_passages.count, self.long_passages.max_tokens
            which = count_of(count, "passages", "are")
            lines.append(
                f"{which} longer than the encoder reads ({count_of(most, 'tokens')}); words search them whole"
            )
        if self.simple_sentences:
            lines.append("sentences by simpler rules: spaCy is not installed here")
        if self.replaced:
            passages = count_of(self.replaced, "passages")
            lines.append(f"replaced an index with {passages} of other files")
        if self.unknown:
            files = count_of(sum(self.unknown.values()), "files")
            kinds = [f"{count} {kind}" for kind, count in self.unknown.items()][:20]
            lines.append(f"passed over {files} without a reader: {', '.join(kinds)}")
        lines += [
            f"skipped {part.file}: {part.what}: {part.why}" for part in self.skipped
        ]
        lines += [
            f"empty {file}: no passages of it are in the index" for file in self.empty
        ]
        lines += [f"gone {page}: the server has no such page" for page in self.gone]
        lines += [f"unreadable {unread.why}" for unread in self.unreadable]
        return lines
