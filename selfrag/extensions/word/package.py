"""The parts of a Word file: a zip archive of XML parts that name each other by relationships.

A file may be hostile. What a part unpacks to is checked before it is unpacked, parsing takes one pass without a tree,
and a part that declares entities is refused, so none is expanded or fetched.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TypeAlias
from xml.parsers import expat

from selfrag.interface import MAX_BYTES, UserError, check_size, count_of

Attributes = Mapping[str, str]
ElementStarts: TypeAlias = Mapping[str, Callable[[Attributes], None]]
ElementEnds: TypeAlias = Mapping[str, Callable[[], None]]
"""What to do where an element begins, or ends, by its name."""

_CHUNK = 1 << 16
_WHOLE = 1 << 25  # bytes of a part that is read at once
_ROOT = re.compile(rb"<[A-Za-z_][^>]*>")
_NAMESPACE = re.compile(r"""xmlns:([\w.-]+)\s*=\s*["']([^"']*)["']""")
_PREFIXES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w:",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w:",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m:",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m:",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc:",
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships": "r:",
    "http://purl.oclc.org/ooxml/officeDocument/relationships": "r:",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a:",
    "http://purl.oclc.org/ooxml/drawingml/main": "a:",
    "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing": "wp:",
    "http://purl.oclc.org/ooxml/drawingml/wordprocessingDrawing": "wp:",
    "http://schemas.openxmlformats.org/drawingml/2006/chart": "c:",
    "http://purl.oclc.org/ooxml/drawingml/chart": "c:",
    "http://schemas.openxmlformats.org/drawingml/2006/diagram": "dgm:",
    "http://purl.oclc.org/ooxml/drawingml/diagram": "dgm:",
    "urn:schemas-microsoft-com:vml": "v:",
    "urn:schemas-microsoft-com:office:office": "o:",
    "http://purl.org/dc/elements/1.1/": "dc:",
    "http://schemas.openxmlformats.org/package/2006/relationships": "rel:",
}
"""Prefix of each namespace. The two variants of the format, transitional and strict, have names of their own."""


_FORMATTING = (
    "abstractNumId|b|bCs|bookmarkEnd|bookmarkStart|bottom|cantSplit|color|gridCol|hideMark|i|ind|insideH|insideV|jc"
    "|kern|lang|left|lsdException|lvlJc|multiLevelType|noProof|nsid|proofErr|rFonts|right|rsid|shd|snapToGrid"
    "|spacing|sz|szCs|tab|tblLook|tblW|tcW|tmpl|top|trHeight|u|uiPriority|unhideWhenUsed|vAlign"
)
"""Elements that are frequent, mostly empty, and unread in most parts."""
_LETTER_FONTS = r"""rFonts(?: [\w:]+="(?![SWsw&])[^"<>]*")*+"""
"""Fonts that are neither Symbol nor Wingdings, the only ones that are read."""
_GROUPS = "pPr|rPr|tabs|tblBorders|tcBorders|tcPr|trPr"
"""Elements without meaning where nothing is left in them."""


class DamagedPartError(Exception):
    """A part that is missing, not XML or too large. The text is a reason to show."""


class XmlHandler:
    """Receives the elements and the text of a part in order.

    Attributes:
        path: names of the open elements.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> class Printer(XmlHandler):
        ...     def start(self, name, attributes): print("start", name)
        ...     def end(self, name): print("end", name)
        ...     def text(self, text): print("text", text)
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "notes.docx"
        ...     with zipfile.ZipFile(path, "w") as file:
        ...         file.writestr("notes.xml", "<note>Tea</note>")
        ...     package = WordPackage(path)
        ...     package.parse("notes.xml", Printer())
        ...     package.close()
        start note
        text Tea
        end note
    """

    def __init__(self) -> None:
        self.path: list[str] = []

    def reads(self, name: str) -> bool:
        """Return whether `start` is called for elements of a name."""
        return True

    def closes(self, name: str) -> bool:
        """Return whether `end` is."""
        return self.reads(name)

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element, such as `w:p`."""

    def end(self, name: str) -> None:
        """End an element."""

    def text(self, text: str) -> None:
        """Receive text between two elements."""


@dataclass(frozen=True, slots=True)
class Relationship:
    """Where a part refers to."""

    kind: str  # last word of its type, such as `footnotes`
    target: str  # name of a part; the address of an external one
    external: bool = False


class WordPackage:
    """Reads the parts of a Word file.

    Raises:
        UserError: the file is no zip archive.
    """

    # bytes that a byte of a large part may unpack to; text in XML has 5 to 30
    max_ratio = 100
    unchecked_size = 1 << 20  # bytes of a part below which the ratio does not matter
    max_elements = 5_000_000  # of all parts
    max_names = 10_000  # different names of elements and attributes in a part
    max_tag = 1 << 20  # bytes of a tag

    def __init__(self, path: Path) -> None:
        check_size(path)
        with path.open("rb") as file:
            if file.read(4) == b"\xd0\xcf\x11\xe0":
                raise UserError(
                    f"{path}: an encrypted Word file or one of Word 97; save it as .docx without a password"
                )
        try:
            self._archive = zipfile.ZipFile(path)
        # The last one: a version of the format that Python does not know.
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise UserError(f"{path}: cannot be read as Word file: {error}") from error
        self._path = path
        self._parts = {
            _part_name(info.filename): info for info in self._archive.infolist()
        }
        self._bytes_left = MAX_BYTES
        self._elements_left = self.max_elements

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def main_part(self) -> str:
        """Return the name of the part that holds the text."""
        try:
            links = self.relationships("")
        except DamagedPartError:  # the part with the usual name is tried
            links = {}
        for link in links.values():
            if (
                link.kind == "officeDocument"
                and not link.external
                and _part_name(link.target) in self._parts
            ):
                return link.target
        if "word/document.xml" in self._parts:
            return "word/document.xml"
        raise UserError(f"{self._path}: cannot be read as Word file: no document in it")

    def relationships(self, part: str) -> dict[str, Relationship]:
        """Return the relationships of a part by id; none where the part has no list of them."""
        folder, name = posixpath.split(part)
        listing = posixpath.join(folder, "_rels", f"{name}.rels")
        if _part_name(listing) not in self._parts:
            return {}
        handler = _RelationshipList(folder)
        self.parse(listing, handler)
        return handler.links

    def parse(self, part: str, handler: XmlHandler) -> None:
        """Send the elements of a part to a handler.

        Raises:
            DamagedPartError: the part is missing, damaged or too large.
        """
        info = self._parts.get(_part_name(part))
        if info is None:
            raise DamagedPartError(f"{part} is missing")
        size = info.file_size
        self._bytes_left -= size
        too_dense = (
            size > self.unchecked_size and size > self.max_ratio * info.compress_size
        )
        if too_dense or self._bytes_left < 0:
            raise DamagedPartError(
                f"{part} unpacks to more than a text would: {count_of(size, 'bytes', form=',')}"
            )
        try:
            with self._archive.open(info) as packed:
                content: IO[bytes] = packed
                is_usual = False
                if size <= _WHOLE:
                    text = packed.read()
                    is_usual = _has_usual_prefixes(text)
                    if is_usual:
                        text = _without_formatting(text, handler)
                    content = io.BytesIO(text)
                parser = self._parser(part, handler, is_usual)
                fed = 0
                while chunk := content.read(_CHUNK):
                    parser.Parse(chunk, False)
                    fed += len(chunk)
                    self._elements_left -= chunk.count(b"<") - chunk.count(b"</")
                    self._check_limits(part, parser, fed)
                parser.Parse(b"", True)
        except (
            zipfile.BadZipFile,
            zlib.error,
            expat.ExpatError,
            EOFError,
            OSError,
        ) as error:
            raise DamagedPartError(f"{part} is damaged: {error}") from error
        except (RuntimeError, NotImplementedError, ValueError, LookupError) as error:
            # a password, a compression or an encoding that Python does not know
            raise DamagedPartError(f"{part} cannot be unpacked: {error}") from error

    def _check_limits(self, part: str, parser: expat.XMLParserType, fed: int) -> None:
        """Raise DamagedPartError where a part has more than a text would, given its bytes so far."""
        excess = None
        if self._elements_left < 0:
            excess = f"{count_of(self.max_elements, 'elements', form=',')}"
        elif len(parser.intern) > self.max_names:
            excess = f"{self.max_names:,} names of elements"
        elif fed - parser.CurrentByteIndex > self.max_tag:
            excess = f"a tag of more than {count_of(self.max_tag, 'bytes', form=',')}"
        if excess:
            raise DamagedPartError(f"{part} has more than {excess}")

    def _parser(
        self, part: str, handler: XmlHandler, is_usual: bool
    ) -> expat.XMLParserType:
        """Return a parser that calls a handler. Names are only looked up where the prefixes are not the usual ones."""
        push, pop = handler.path.append, handler.path.pop
        start, end = handler.start, handler.end
        reads, closes = cache(handler.reads), cache(handler.closes)
        shorten = cache(_short_name)

        def start_element(name: str, attributes: Attributes) -> None:
            push(name)
            if reads(name):
                start(name, attributes)

        def start_unusual(full: str, attributes: Attributes) -> None:
            short = {shorten(key): value for key, value in attributes.items()}
            start_element(shorten(full), short)

        def end_element(_: str) -> None:
            name = pop()
            if closes(name):
                end(name)

        def refuse_entities(*_: object) -> None:
            raise DamagedPartError(
                f"{part} declares a document type, which Word files never do"
            )

        if is_usual:
            parser = expat.ParserCreate()
            parser.StartElementHandler = start_element
        else:
            parser = expat.ParserCreate(namespace_separator=" ")
            parser.StartElementHandler = start_unusual
        parser.buffer_text = True
        parser.EndElementHandler = end_element
        parser.CharacterDataHandler = handler.text
        parser.StartDoctypeDeclHandler = refuse_entities
        return parser


class _RelationshipList(XmlHandler):
    """Collects the relationships of a part."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self.links: dict[str, Relationship] = {}

    def start(self, name: str, attributes: Attributes) -> None:
        if name != "rel:Relationship":
            return
        kind = attributes.get("Type", "").rpartition("/")[2]
        target = attributes.get("Target", "")
        external = attributes.get("TargetMode") == "External"
        if not external:
            target = posixpath.normpath(
                posixpath.join("/", self._folder, target.replace("\\", "/"))
            ).lstrip("/")
        self.links[attributes.get("Id", "")] = Relationship(kind, target, external)


class ElementText(XmlHandler):
    """Collects the text of the first element of a name, such as the title of a document.

    Args:
        name: of the element.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._open = False
        self._parts: list[str] = []

    @property
    def value(self) -> str:
        """Return the text in one line."""
        return " ".join("".join(self._parts).split())

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element."""
        self._open = name == self._name and not self._parts

    def end(self, name: str) -> None:
        """End an element."""
        self._open = False

    def text(self, text: str) -> None:
        """Receive text."""
        if self._open:
            self._parts.append(text)


def _without_formatting(content: bytes, handler: XmlHandler) -> bytes:
    """Return a part without formatting that its handler does not read; a parser takes longer for it."""
    if b"<!" in content:  # what looks like an element may be a comment
        return content
    names = _FORMATTING.split("|")
    unread = [name for name in names if not handler.reads(f"w:{name}")]
    empty = rf"<w:(?:(?:{'|'.join(unread)})(?: [^<>]*)?|{_LETTER_FONTS})/>"
    inner = rf"<w:({_GROUPS})>(?:{empty})*+</w:\2>"
    pattern = rf"<w:({_GROUPS})>(?:{empty}|{inner})*+</w:\1>|{empty}"
    return re.sub(pattern.encode(), b"", content)


def _has_usual_prefixes(content: bytes) -> bool:
    """Return whether a part declares namespaces in its first element only, with the prefixes of `_PREFIXES`."""
    root = _ROOT.search(content)
    declared = _NAMESPACE.findall(root[0].decode("utf-8", "replace")) if root else []
    for prefix, namespace in declared:
        short = f"{prefix}:"
        known = _PREFIXES.get(namespace)
        if known != short and (known or short in _PREFIXES.values()):
            return False
    return 0 < len(declared) == content.count(b"xmlns")


def _short_name(full: str) -> str:
    namespace, _, name = full.rpartition(" ")
    return _PREFIXES.get(namespace, "?:" if namespace else "") + name


def _part_name(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()


def number(text: str | None, default: int = 0, most: int = 1_000_000) -> int:
    """Return the whole number that an attribute holds, at most `most`; the default where it holds none."""
    text = (text or "").strip()
    if re.fullmatch(r"-?[0-9]+", text) is None:
        return default
    value = int(text[:12])
    return max(-most, min(value, most))


def is_on(attributes: Attributes) -> bool:
    """Return whether a property with an optional value, such as `w:vanish`, is on."""
    return attributes.get("w:val", "true") not in ("0", "false", "off", "none")
