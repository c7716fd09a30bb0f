"""Reads HTML pages: the text that a reader of the page sees, without navigation, page furniture and controls.

The parser reports tags and text one after another. No tree is built, so deep nesting and many attributes cost nothing
that grows faster than the page. What is left out is decided by the markup alone (`html_visibility`): a page loses less
text this way than with a guess at its main content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from retrieval.documents.charset import page_to_utf8
from retrieval.documents.document import (
    MAX_BYTES,
    MAX_HEADING,
    Document,
    DocumentBuilder,
)
from retrieval.documents.formulas import MATHML, FormulaWriter, write_script
from retrieval.documents.html_tables import (
    MAX_SPAN,
    ROW_GROUPS,
    Cell,
    DataTable,
    Heading,
    HtmlBlock,
    Preformatted,
    TableFrame,
)
from retrieval.documents.html_visibility import (
    HtmlAttributes,
    Omission,
    is_content,
    is_struck,
    omission_of,
)
from retrieval.documents.list_numbers import format_number
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.reading import opened

_CHUNK = 1 << 14  # bytes that the parser gets at once
_MAX_STEPS = 200  # steps of the parser a byte: end tags that match no start tag are compared with all open elements
_MAX_OMITTED = {Omission.ARIA_HIDDEN: 1, Omission.FURNITURE: 10, Omission.NOSCRIPT: 10}
"""Times that what is left out may be longer than what is read; more is content."""
_MAX_BLOCKS = 2_000_000  # paragraphs and cells of a page
_INLINE_NAMES = (
    "a abbr acronym b bdi bdo big button cite code data del dfn em font i img input ins kbd label mark "
    "math meter nobr output progress q rp rt ruby s samp script select small span strike strong style br "
    "sub sup svg text time tt u var wbr noscript "
)
_INLINE = frozenset(_INLINE_NAMES.split())
"""Elements that do not end a paragraph."""
_PLAIN_NAMES = "a abbr b cite code dfn em font i ins kbd label mark samp small span strong time tt u var"
_PLAIN = frozenset(_PLAIN_NAMES.split())
"""Inline elements that are text and nothing else, where they have no attributes."""
_ENDS_PARAGRAPH_NAMES = (
    "main article section nav aside header footer figure details dialog search hgroup"
)
_ENDS_PARAGRAPH = frozenset(_ENDS_PARAGRAPH_NAMES.split())
"""Newer elements, before which the parser does not end a paragraph as browsers do."""
_PREFORMATTED = frozenset(("pre", "listing", "xmp", "plaintext"))
_SCRIPTS = ("sup", "sub")
_FORMULA_IMAGE = re.compile(r"math|latex|\btex\b|equation|formula", re.IGNORECASE)
_HEADING_MARK = re.compile(r"\s*[¶§#\U0001f517]\s*$")
_INVISIBLE = re.compile(
    "[\u00ad\u2060\ufeff\U000e0000-\U000e007f]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b"
)
"""Soft hyphens, joiners and tag characters. A space of no width separates words in Thai, Lao, Burmese and Khmer."""
_CHINESE = "\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
_CHINESE_GAP = re.compile(rf"(?<=[{_CHINESE}])\s++(?=[{_CHINESE}])")
_BLANK_LINES = re.compile(r"\n{3,}")
_MATHJAX = re.compile("MathJax-Element-")  # scripts whose formulas MathJax has written
_JOINT = "\x1f"  # stands before and after a formula until white space is collapsed
_JOINT_OF_NUMBERS = re.compile(r"(?<=\d)\x1f(?=\d)")
_COUNTED_DOWN = re.compile(r"\x1d(-?\d+)")  # number of an item whose list has not ended
_LIST_STYLE = re.compile(r"list-style(?:-type)?\s{0,9}:\s{0,9}([a-z-]{1,20})")
_NUMBER_KINDS = {
    "a": "lowerAlpha",
    "A": "upperAlpha",
    "i": "lowerRoman",
    "I": "upperRoman",
    "lower-alpha": "lowerAlpha",
    "lower-latin": "lowerAlpha",
    "upper-alpha": "upperAlpha",
    "upper-latin": "upperAlpha",
    "lower-roman": "lowerRoman",
    "upper-roman": "upperRoman",
}
_BREAK = "\x1e"  # stands for `<br>` until white space is collapsed
_OPENING = {"br": _BREAK, "q": '"', "rt": "(", "text": " "}
_CLOSING = {"q": '"', "rt": ")"}
_STRIKE = "\x1c"  # stands where struck text begins and ends until then
_STRUCK_TEXT = re.compile("\x1c([^\x1c]*+)\x1c")


def read_html(path: Path, name: str) -> Document:
    """Read an HTML page: headings, paragraphs, tables row by row, and the lines of preformatted text."""
    with opened(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; split it")
    markup, replaced = page_to_utf8(path, content)
    del content
    page = _read_page(path, markup, name, frozenset())
    ignored = page.mistaken_omissions()
    if ignored:
        page = _read_page(path, markup, name, ignored)
    if replaced:
        page.builder.skip(
            f"{count_of(replaced, 'characters')}",
            "damaged in the encoding of the page; they stand as U+FFFD",
        )
    hidden = page.omitted[Omission.HIDDEN]
    if hidden > page.kept:
        page.builder.skip(
            f"{count_of(hidden, 'characters', form=',')} of hidden text",
            "more than the page shows; see `hidden`, `display`",
        )
    if page.drawn:
        page.builder.skip(
            count_of(page.drawn, "formulas"), "drawn by KaTeX without MathML"
        )
    document = page.builder.build()
    if not document.text and markup.strip():
        raise UserError(
            f"{path}: no text in the page; scripts are not run, so save the page from a browser"
        )
    return document


def _read_page(
    path: Path, markup: bytes, name: str, ignored: frozenset[Omission]
) -> _Page:
    """Return the page as read without the omissions in `ignored`."""
    page = _Page(path, name, ignored)
    _feed(markup, page)
    return page


def _feed(markup: bytes, page: _Page) -> None:
    """Give markup to a page in parts, and refuse what would take the parser quadratic time.

    Raises:
        UserError: for end tags without start tags below very deep nesting.
    """
    etree = require("lxml.etree", extra="documents")
    parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True)
    steps = 0
    for start in range(0, len(markup), _CHUNK):
        chunk = markup[start : start + _CHUNK]
        steps += chunk.count(b"</") * page.depth
        if steps > _MAX_STEPS * (start + _CHUNK):
            raise UserError(
                f"{page.path}: elements are nested {page.depth:,} deep; save the page as text"
            )
        parser.feed(chunk)
    if markup:
        parser.close()


@dataclass(slots=True)
class _OpenList:
    """A list that has not ended, and the number of its last item."""

    kind: str  # of `format_number`
    step: int
    number: int
    # whether its numbers are known when it ends: they run down to one
    is_counted: bool
    items: int = 0
    is_named: bool = False  # whether an item named its number

    def next_label(self, number: int | None, attributes: HtmlAttributes) -> str:
        """Return what stands before the next item, given the number that it names itself."""
        self.items += 1
        self.number += self.step
        if number is not None:
            self.number, self.is_named = number, True
        kind = _number_kind(attributes, self.kind)
        if kind == "none":
            return ""
        if self.is_counted and not self.is_named:
            return f"\x1d{self.number}. "
        return f"{format_number(self.number, kind)}. "

    def count_down(self, block: HtmlBlock) -> HtmlBlock:
        """Return a block of the list with its number, now that the items are counted."""
        match = _COUNTED_DOWN.match(block) if isinstance(block, str) else None
        if match is None or not isinstance(block, str):
            return block
        number = int(match[1]) + self.items - 1
        return f"{format_number(number, self.kind)}{block[match.end() :]}"


class _Page:
    """Receives the tags and texts of a page and builds a document.

    Args:
        path: the file, for messages.
        name: title of a page without one.
        ignored: reasons for omission that do not hold on this page.
    """

    def __init__(self, path: Path, name: str, ignored: frozenset[Omission]) -> None:
        self.path = path
        self.builder = DocumentBuilder(name)
        self.kept = 0  # characters that were read
        # characters that were left out, by reason
        self.omitted = dict.fromkeys(Omission, 0)
        self.depth = 0  # open elements
        self._ignored = ignored
        # open elements that hold the content of the page, such as `main`
        self._content = 0
        self._content_tags: list[
            bool
        ] = []  # of each open element that is read, whether it is one of them
        self._omission = Omission.NO_TEXT  # why the open element is left out
        self._omitted_tag = ""  # tag of the element that is left out
        self._omitted_depth = 0  # open elements from the one that is left out
        self._words: list[str] = []  # of the open paragraph
        self._in_title = self._in_svg = False
        self._headers: list[
            int | None
        ] = []  # characters read before each open header that is held back, else None
        self._script_starts: list[
            int
        ] = []  # places in the paragraph where a `sup` or `sub` began
        self._preformatted = 0  # open preformatted elements
        self._heading_level = 0  # of the open heading, or 0
        self._heading_depth = 0  # elements around it
        self._lists: list[_OpenList] = []
        self._formula: FormulaWriter | None = None  # the open one
        self._formula_depth = 0  # open elements in it
        self._formulas = 0  # that were read and that KaTeX has not drawn again
        self.drawn = 0  # formulas that KaTeX drew and that have no other text
        self._struck: list[int] = []  # elements around each that strikes its text
        self._formula_text = ""  # what stands for it where it has no text
        self._prefix = ""  # number of a list item, before its first paragraph
        self._tables: list[TableFrame] = []
        self._blocks = 0

    # What the parser calls

    def start(self, tag: str, attributes: HtmlAttributes) -> None:
        """Open an element."""
        self.depth += 1
        if (
            self._omitted_depth == 1
            and self._omitted_tag == "p"
            and tag in _ENDS_PARAGRAPH
        ):
            self._omitted_depth = 0
            self._content_tags.append(False)
        if self._omitted_depth:
            self._omitted_depth += 1
            return
        if self._formula is not None:
            self._formula_depth += 1
            self._formula.start(tag, attributes)
            return
        if not attributes and tag in _PLAIN:
            self._content_tags.append(False)
            return
        is_block = _is_block(tag)
        labels = self._heading_level > 0 or tag == "summary"
        omission = omission_of(
            tag, attributes, in_content=self._content > 0, labels=labels
        )
        is_written = self._formulas and _MATHJAX.match(attributes.get("id", ""))
        if (tag == "title" and self._in_svg) or (tag == "script" and is_written):
            omission = Omission.NO_TEXT
        if is_block:
            self._end_block()
        if omission is not None and omission not in self._ignored:
            self._omission, self._omitted_depth, self._omitted_tag = omission, 1, tag
            self._count_drawing(attributes)
            return
        holds_content = is_content(tag, attributes)
        self._content_tags.append(holds_content)
        self._content += holds_content
        opener = _OPENERS.get(tag)
        if opener is not None:
            opener(self, tag, attributes)
        elif tag in _OPENING:
            self._words.append(_OPENING[tag])
        elif attributes.get("role") == "heading":
            self._open_heading(f"h{attributes.get('aria-level', '2')[:1]}", attributes)
        if is_struck(tag, attributes):
            self._words += [] if self._struck else [_STRIKE]
            self._struck.append(len(self._content_tags))

    def _count_drawing(self, attributes: HtmlAttributes) -> None:
        """Count the formula that an element draws, unless its text was read before."""
        if attributes.get("class") == "katex-html":
            self.drawn += self._formulas == 0
            self._formulas -= self._formulas > 0

    def end(self, tag: str) -> None:
        """Close an element."""
        self.depth -= 1
        if self._omitted_depth:
            self._omitted_depth -= 1
            return
        if self._formula is not None and self._formula_depth:
            self._formula_depth -= 1
            self._formula.end(tag)
            return
        if self._struck and self._struck[-1] == len(self._content_tags):
            self._struck.pop()
            if not self._struck:
                self._words.append(_STRIKE)
        if _is_block(tag):
            self._end_block()
        self._content -= self._content_tags.pop()
        closer = _CLOSERS.get(tag)
        if closer is not None:
            closer(self, tag)
        elif tag in _CLOSING:
            self._words.append(_CLOSING[tag])
        if self._heading_level and len(self._content_tags) <= self._heading_depth:
            self._close_heading()

    def data(self, text: str) -> None:
        """Take in text."""
        if self._formula is not None:
            self._formula.add(text)
        elif not self._omitted_depth:
            if "\n" in text and not self._preformatted:
                text = _CHINESE_GAP.sub(_without_line_end, text)
            self._words.append(text)
        elif not text.isspace():
            self.omitted[self._omission] += len(text)

    def close(self) -> None:
        """End the open paragraph."""
        self._end_block()

    # Paragraphs

    def mistaken_omissions(self) -> frozenset[Omission]:
        """Return the reasons for omission that took most of the page, which then is no furniture."""
        return frozenset(
            omission
            for omission, times in _MAX_OMITTED.items()
            if self.omitted[omission] > times * self.kept
        )

    def _end_block(self) -> None:
        """End the open paragraph at the boundary of a block; in a heading or preformatted text, only its line."""
        if not self._words:
            return
        if self._heading_level or self._in_title:
            self._words.append(" ")
        elif self._preformatted:
            if not self._words[-1].endswith("\n"):
                self._words.append("\n")
        else:
            text = _collapse(self._take_words())
            if text:
                self._add(self._prefix + text)
                self._prefix = ""

    def _take_words(self) -> str:
        """Return the text of the open paragraph and begin another, struck where that is."""
        strike = [_STRIKE] if self._struck else []
        text = "".join(self._words + strike)
        self._words = strike
        self._script_starts.clear()
        return _STRUCK_TEXT.sub(_mark_struck, text)

    def _add(self, block: HtmlBlock) -> None:
        """Add a block to the open cell or table, or to the document."""
        self._blocks += 1
        if self._blocks > _MAX_BLOCKS:
            raise UserError(
                f"{self.path}: more than {_MAX_BLOCKS:,} paragraphs and cells; split it"
            )
        if isinstance(block, str):
            self.kept += len(block)
        if not self._tables:
            self._build(block)
        elif self._tables[-1].cell is not None:
            self._tables[-1].cell.blocks.append(block)
        else:
            self._tables[-1].before.append(block)

    def _build(self, block: HtmlBlock) -> None:
        """Add a block to the document; the blocks of layout tables one by one."""
        waiting: list[HtmlBlock] = [block]
        while waiting:
            block = waiting.pop()
            if isinstance(block, list):
                waiting.extend(reversed(block))
            elif isinstance(block, Heading):
                self.builder.add_heading(block.level, block.text)
            elif isinstance(block, DataTable):
                self.builder.add_table(block.rows, header=block.header)
            elif isinstance(block, Preformatted):
                self.builder.add_paragraph(block.text)
            else:
                self.builder.add_paragraph(block)

    # Elements

    def _open_title(self, tag: str, attributes: HtmlAttributes) -> None:
        self._in_title = True

    def _close_title(self, tag: str) -> None:
        title = _collapse(self._take_words()).replace("\n", " ")[:MAX_HEADING]
        self._in_title = False
        if title and not self._blocks:
            self.builder = DocumentBuilder(title)

    def _open_svg(self, tag: str, attributes: HtmlAttributes) -> None:
        self._in_svg = True

    def _close_svg(self, tag: str) -> None:
        self._in_svg = False

    def _open_header(self, tag: str, attributes: HtmlAttributes) -> None:
        """Hold back the header of the page until its end tells whether it has a title of the first level."""
        is_kept = self._content > 0 or Omission.FURNITURE in self._ignored
        self._headers.append(None if is_kept else self.kept)
        if not is_kept:
            self._tables.append(TableFrame(is_layout=True))

    def _close_header(self, tag: str) -> None:
        """Read the header of the page if it has a title, and else leave it out as furniture."""
        kept_before = self._headers.pop()
        if kept_before is None or not self._tables:
            return
        blocks = self._tables.pop().finish()
        if any(isinstance(block, Heading) and block.level == 1 for block in blocks):
            self._add(blocks)
        else:
            self.omitted[Omission.FURNITURE] += self.kept - kept_before
            self.kept = kept_before

    def _open_heading(self, tag: str, attributes: HtmlAttributes) -> None:
        self._close_heading()
        self._heading_level = int(tag[1]) if tag[1:] in "123456" and tag[1:] else 2
        self._heading_depth = len(self._content_tags) - 1

    def _close_heading(self) -> None:
        if not self._heading_level:
            return
        level, self._heading_level = self._heading_level, 0
        text = _HEADING_MARK.sub("", _collapse(self._take_words()).replace("\n", " "))
        if text:
            self.kept += len(text)
            self._add(Heading(level, text))

    def _open_preformatted(self, tag: str, attributes: HtmlAttributes) -> None:
        self._preformatted += 1

    def _close_preformatted(self, tag: str) -> None:
        self._preformatted -= 1
        if self._preformatted or self._heading_level:
            return
        text = (
            _INVISIBLE.sub("", self._take_words())
            .replace(_JOINT, "")
            .replace(_BREAK, "\n")
            .replace("\xa0", " ")
            .strip("\n")
            .rstrip()
        )
        if text.strip():
            self.kept += len(text)
            self._add(Preformatted(text))

    def _open_image(self, tag: str, attributes: HtmlAttributes) -> None:
        """Read the alternative text of an image of a formula, which is the only text of it."""
        text = attributes.get("alt", "")
        if text and _FORMULA_IMAGE.search(
            f"{attributes.get('class', '')} {attributes.get('src', '')}"[:1000]
        ):
            self._words.append(text)

    def _open_script(self, tag: str, attributes: HtmlAttributes) -> None:
        self._script_starts.append(len(self._words))

    def _close_script(self, tag: str) -> None:
        if not self._script_starts:
            return
        start = self._script_starts.pop()
        text = "".join(self._words[start:])
        self._words[start:] = [write_script(text, raised=tag == "sup")]

    def _open_math(self, tag: str, attributes: HtmlAttributes) -> None:
        self._formula, self._formula_depth = FormulaWriter(MATHML), 0
        self._formulas += 1
        self._formula_text = attributes.get("alttext", "")

    def _close_math(self, tag: str) -> None:
        if self._formula is not None:
            text = self._formula.finish() or self._formula_text
            self._words += [_JOINT, text, _JOINT]
            self._formula = None

    def _open_list(self, tag: str, attributes: HtmlAttributes) -> None:
        kind = _number_kind(attributes, "decimal") if tag == "ol" else "none"
        step = -1 if "reversed" in attributes else 1
        start = _number(attributes.get("start", ""))
        counts_down = step < 0 and start is None and kind != "none"
        if counts_down:  # the first number is the number of items
            self._tables.append(TableFrame(is_layout=True))
        first = 1 if start is None else start
        self._lists.append(_OpenList(kind, step, first - step, counts_down))

    def _close_list(self, tag: str) -> None:
        if not self._lists:
            return
        closed = self._lists.pop()
        if closed.is_counted and self._tables:
            blocks = self._tables.pop().finish()
            self._add([closed.count_down(block) for block in blocks])

    def _open_item(self, tag: str, attributes: HtmlAttributes) -> None:
        self._prefix = ""
        if self._lists:
            number = _number(attributes.get("value", ""))
            self._prefix = self._lists[-1].next_label(number, attributes)

    def _close_item(self, tag: str) -> None:
        self._prefix = ""

    def _open_table(self, tag: str, attributes: HtmlAttributes) -> None:
        self._prefix = ""
        self._tables.append(
            TableFrame(attributes.get("role") in ("presentation", "none"))
        )

    def _close_table(self, tag: str) -> None:
        if self._tables:
            blocks = self._tables.pop().finish()
            self._add(blocks[0] if len(blocks) == 1 else blocks)

    def _open_row(self, tag: str, attributes: HtmlAttributes) -> None:
        if self._tables:
            self._tables[-1].add_row()

    def _open_row_group(self, tag: str, attributes: HtmlAttributes) -> None:
        if self._tables:
            self._tables[-1].open_group(tag)

    def _close_row_group(self, tag: str) -> None:
        if self._tables:
            self._tables[-1].open_group("tbody")

    def _open_cell(self, tag: str, attributes: HtmlAttributes) -> None:
        if not self._tables:
            return
        cell = Cell(
            tag == "th",
            _span(attributes.get("colspan", "1")),
            _span(attributes.get("rowspan", "1")),
        )
        self._tables[-1].add_cell(cell)
        self._blocks += 1

    def _close_cell(self, tag: str) -> None:
        if self._tables:
            self._tables[-1].cell = None


_Opener: TypeAlias = Callable[[_Page, str, HtmlAttributes], None]
_Closer: TypeAlias = Callable[[_Page, str], None]
_OPENERS: dict[str, _Opener] = {
    "title": _Page._open_title,
    "svg": _Page._open_svg,
    "header": _Page._open_header,
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), _Page._open_heading),
    **dict.fromkeys(_PREFORMATTED, _Page._open_preformatted),
    "img": _Page._open_image,
    **dict.fromkeys(_SCRIPTS, _Page._open_script),
    "math": _Page._open_math,
    **dict.fromkeys(("ol", "ul", "menu", "dir"), _Page._open_list),
    "li": _Page._open_item,
    "table": _Page._open_table,
    **dict.fromkeys(ROW_GROUPS, _Page._open_row_group),
    "tr": _Page._open_row,
    **dict.fromkeys(("td", "th"), _Page._open_cell),
}
_CLOSERS: dict[str, _Closer] = {
    "title": _Page._close_title,
    "svg": _Page._close_svg,
    "header": _Page._close_header,
    **dict.fromkeys(_PREFORMATTED, _Page._close_preformatted),
    **dict.fromkeys(_SCRIPTS, _Page._close_script),
    "math": _Page._close_math,
    **dict.fromkeys(("ol", "ul", "menu", "dir"), _Page._close_list),
    "li": _Page._close_item,
    "table": _Page._close_table,
    **dict.fromkeys(ROW_GROUPS, _Page._close_row_group),
    "tr": _Page._close_cell,
    **dict.fromkeys(("td", "th"), _Page._close_cell),
}


def _collapse(text: str) -> str:
    """Return text with white space as a browser shows it; `<br>` is the end of a line, two are that of a paragraph."""
    text = _INVISIBLE.sub("", text)
    if _JOINT in text:
        text = _JOINT_OF_NUMBERS.sub(" ", text).replace(_JOINT, "")
    if _BREAK not in text:
        return " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.split(_BREAK)]
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _mark_struck(struck: re.Match[str]) -> str:
    """Return struck text between `~~`, and what is blank as it is."""
    text = struck[1].strip()
    return struck[1].replace(text, f"~~{text}~~") if text else struck[1]


def _without_line_end(gap: re.Match[str]) -> str:
    """Return nothing for a line end between Chinese or Japanese characters, which is no space there."""
    return "" if "\n" in gap[0] else gap[0]


def _is_block(tag: str) -> bool:
    """Return whether an element ends a paragraph. Those of MathJax stand in a line."""
    return tag not in _INLINE and not tag.startswith("mjx-")


def _number(text: str) -> int | None:
    """Return the number that an attribute of a list names, None where there is none."""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def _number_kind(attributes: HtmlAttributes, default: str) -> str:
    """Return how the items of a list are numbered: `decimal`, `none`, or as the element says."""
    style = _LIST_STYLE.search(attributes.get("style", "")[:1000].lower())
    name = style[1] if style else attributes.get("type", "")
    if name == "none":
        return "none"
    return _NUMBER_KINDS.get(name, default)


def _span(text: str) -> int:
    """Return how many rows or columns a cell spans. 0 means all further ones."""
    match = re.match(r"\s*\d{1,20}", text)
    number = int(match[0]) if match else 1
    return min(number or MAX_SPAN, MAX_SPAN)
