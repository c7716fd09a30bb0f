"""Walks over the text of a Word file: the body, the notes, or a header.

One pass over the elements, with stacks in place of recursion, so that deep nesting costs what its bytes cost. Elements
that only wrap text (content controls, insertions, smart tags, links) need no code here: their text is read where it
stands. Deletions, hidden text and the instructions of fields are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from selfrag.extensions.word.blocks import (
    TableBlock,
    TableCell,
    TextBlock,
    WordBlock,
    cell_text,
)
from selfrag.extensions.word.equations import EquationWriter
from selfrag.extensions.word.fields import FORM_SETTINGS, form_value
from selfrag.extensions.word.numbering import Numbering
from selfrag.extensions.word.package import Attributes, XmlHandler
from selfrag.extensions.word.paragraphs import ParagraphReader
from selfrag.extensions.word.pictures import PictureReader
from selfrag.extensions.word.runs import RunReader
from selfrag.extensions.word.state import Choice
from selfrag.extensions.word.styles import Styles
from selfrag.extensions.word.tables import TABLE_PROPERTIES, TableStack
from selfrag.extensions.word.text import MAX_NESTING, StoryText

_LEFT_OUT_NAMES = (
    "w:del w:moveFrom w:delText w:delInstrText w:sdtPr w:sectPrChange w:pPrChange "
    "w:rPrChange w:tblPrChange w:trPrChange w:tcPrChange w:tblGridChange "
    "w:numberingChange w:rubyPr w:tblPrExChange"
)
_LEFT_OUT = frozenset(_LEFT_OUT_NAMES.split())
"""Elements that are left out with all that stands in them: deletions, former properties, settings of controls."""
_TEXT = frozenset(("w:t", "m:t", "a:t"))


class Story(XmlHandler):
    """Receives the elements of a part and hands its blocks on.

    Args:
        add: is called with each block of the part in order.
        styles: of the file.
        numbering: of the file.
        notes: blocks of the footnotes and endnotes by `footnote` or `endnote` and id; each is handed on once.
        left_out: counts what could not be read, such as `pictures`.
        linked: reads the part of a diagram or a chart, given the id of its relationship.
        drop_page_numbers: whether the numbers of pages are left out, as in headers.
    """

    def __init__(
        self,
        add: Callable[[WordBlock], None],
        styles: Styles,
        numbering: Numbering,
        notes: dict[tuple[str, str], list[WordBlock]],
        left_out: Counter[str],
        linked: Callable[[str], Sequence[WordBlock]],
        *,
        drop_page_numbers: bool = False,
    ) -> None:
        self._text = StoryText(add, styles, left_out, drop_page_numbers)
        self.path = self._text.path
        self._paragraphs = ParagraphReader(self._text, numbering)
        self._notes = notes
        self._ignored = 0  # length of the path to an element that is left out
        self._tables = TableStack(MAX_NESTING)
        self._boxes: list[list[WordBlock] | None] = []
        self._choices: list[Choice] = []
        self._form: dict[str, list[str]] = {}
        readers = (
            self._paragraphs,
            RunReader(self._text),
            PictureReader(self._text, linked),
        )
        self._starts: dict[str, Callable[[Attributes], None]] = {
            "w:tbl": self._start_table,
            "w:tc": self._start_cell,
            "w:txbxContent": self._start_box,
            "w:footnote": partial(self._start_note, "footnote"),
            "w:endnote": partial(self._start_note, "endnote"),
            "w:fldChar": self._field_mark,
            "w:fldSimple": self._start_simple_field,
            "w:footnoteReference": partial(self._add_note, "footnote"),
            "w:endnoteReference": partial(self._add_note, "endnote"),
            "mc:AlternateContent": self._start_alternatives,
            "mc:Choice": self._start_choice,
            "mc:Fallback": self._start_choice,
        }
        self._ends: dict[str, Callable[[], None]] = {
            "w:tbl": self._end_table,
            "w:tr": self._tables.end_row,
            "w:tc": self._end_cell,
            "w:txbxContent": self._end_box,
            "w:footnote": self._end_note,
            "w:endnote": self._end_note,
            "w:fldSimple": self._text.fields.end,
            "w:ffData": self._end_form,
            "mc:AlternateContent": self._end_alternatives,
            "mc:Choice": self._end_choice,
            "mc:Fallback": self._end_choice,
        }
        self._starts.update(dict.fromkeys(_LEFT_OUT, self._leave_out))
        self._starts.update(dict.fromkeys(TABLE_PROPERTIES, self._table_property))
        self._starts.update(dict.fromkeys(FORM_SETTINGS, self._form_setting))
        for reader in readers:
            self._starts.update(reader.starts)
            self._ends.update(reader.ends)

    # 1. Elements and text

    def reads(self, name: str) -> bool:
        """Return whether an element is more than a wrapper of text."""
        return name[:2] == "m:" or name in self._starts or name in self._ends

    def closes(self, name: str) -> bool:
        """Return whether an element ends what is open."""
        return name[:2] == "m:" or name in self._ends or name in _LEFT_OUT

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element."""
        if self._ignored:
            return
        handler = self._starts.get(name)
        if handler is not None:
            handler(attributes)
        elif name[:2] == "m:":
            self._start_equation(name, attributes)

    def end(self, name: str) -> None:
        """End an element."""
        if self._ignored:
            if len(self.path) < self._ignored:
                self._ignored = 0
            return
        handler = self._ends.get(name)
        if handler is not None:
            handler()
        elif name[:2] == "m:":
            self._end_equation(name)

    def text(self, text: str) -> None:
        """Receive text."""
        if self._ignored or not self.path:
            return
        name = self.path[-1]
        if name in _TEXT:
            self._text.write(text.replace("\n", " "))
        elif name == "w:instrText":
            self._text.fields.add_instruction(text)

    def finish(self) -> None:
        """Hand on what is open at the end of the part."""
        self._text.close_fields(0)
        self._paragraphs.flush_carried()

    def _parent(self) -> str:
        return self.path[-2] if len(self.path) > 1 else ""

    def _leave_out(self, attributes: Attributes) -> None:
        self._ignored = len(self.path)
        if self.path[-1] == "w:del":
            self._note_deletion(self._parent())

    def _note_deletion(self, parent: str) -> None:
        """Handle a deletion that marks what it stands in: a paragraph mark or a row."""
        if (
            parent == "w:rPr"
            and self.path[-3:-2] == ["w:pPr"]
            and self._text.paragraphs
        ):
            self._text.paragraphs[-1].joins_next = True
        else:
            if parent == "w:trPr":
                self._tables.delete_row()
            self._text.left_out["deleted texts"] += parent != "w:rPr"

    # 2. Fields

    def _field_mark(self, attributes: Attributes) -> None:
        self._form = {}
        match attributes.get("w:fldCharType"):
            case "begin":
                self._text.fields.begin()
            case "separate":
                self._text.fields.separate()
            case "end":
                self._text.fields.end()

    def _start_simple_field(self, attributes: Attributes) -> None:
        self._text.fields.begin()
        self._text.fields.add_instruction(attributes.get("w:instr", ""))
        self._text.fields.separate()

    def _form_setting(self, attributes: Attributes) -> None:
        if "w:ffData" in self.path[-3:]:
            values = self._form.setdefault(self.path[-1], [])
            values.append(attributes.get("w:val", "1"))

    def _end_form(self) -> None:
        value = form_value(self._form)
        if value and not self._text.is_hidden() and self._text.paragraphs:
            self._text.paragraphs[-1].texts.append(value)
            self._text.progress += 1
            self._text.fields.drop_result()

    # 3. Tables

    def _table_property(self, attributes: Attributes) -> None:
        self._tables.set_property(self.path[-1], self._parent(), attributes)

    def _start_table(self, attributes: Attributes) -> None:
        self._paragraphs.flush_carried()
        self._tables.start_table()

    def _end_table(self) -> None:
        rows = self._tables.end_table()
        if rows:
            self._text.emit(TableBlock(rows))

    def _start_cell(self, attributes: Attributes) -> None:
        blocks = self._tables.start_cell(len(self._text.fields))
        if blocks is not None:
            self._text.sinks.append(blocks.append)

    def _end_cell(self) -> None:
        cell = self._tables.open_cell
        if cell is not None:
            self._paragraphs.flush_carried()
            self._text.close_fields(cell.field_depth)
            self._text.sinks.pop()
        self._tables.end_cell()

    # 4. Text boxes, notes and alternatives

    def _start_box(self, attributes: Attributes) -> None:
        if len(self._boxes) >= MAX_NESTING:
            self._boxes.append(None)
            return
        blocks: list[WordBlock] = []
        self._boxes.append(blocks)
        self._paragraphs.is_in_box = True
        self._text.sinks.append(blocks.append)

    def _end_box(self) -> None:
        blocks = self._boxes.pop() if self._boxes else None
        self._paragraphs.is_in_box = bool(self._boxes)
        if blocks is None:
            return
        self._paragraphs.flush_carried()
        self._text.sinks.pop()
        for block in blocks:
            self._text.emit(block)

    def _start_note(self, kind: str, attributes: Attributes) -> None:
        blocks: list[WordBlock] = []
        self._notes[kind, attributes.get("w:id", "")] = blocks
        self._text.sinks.append(blocks.append)

    def _end_note(self) -> None:
        self._paragraphs.flush_carried()
        self._text.close_fields(0)
        if len(self._text.sinks) > 1:
            self._text.sinks.pop()

    def _add_note(self, kind: str, attributes: Attributes) -> None:
        """Hand on a note after the paragraph that refers to it; in a cell, in parentheses."""
        if self._text.is_hidden():
            return
        blocks = self._notes.pop((kind, attributes.get("w:id", "")), [])
        if blocks and self._tables.open_cell is not None:
            blocks = [TextBlock(f"({cell_text(TableCell(blocks))})")]
        for block in blocks:
            self._text.emit(block)

    def _start_alternatives(self, attributes: Attributes) -> None:
        self._choices.append(Choice())

    def _start_choice(self, attributes: Attributes) -> None:
        if self._choices and self._choices[-1].taken:
            self._ignored = len(self.path)
        elif self._choices:
            self._choices[-1].progress = self._text.progress

    def _end_choice(self) -> None:
        if self._choices and self._text.progress > self._choices[-1].progress:
            self._choices[-1].taken = True

    def _end_alternatives(self) -> None:
        if self._choices:
            self._choices.pop()

    # 5. Equations

    def _start_equation(self, name: str, attributes: Attributes) -> None:
        if self._text.equation is not None:
            self._text.equation.start(name, attributes)
        elif name == "m:oMath":
            self._text.equation = EquationWriter()

    def _end_equation(self, name: str) -> None:
        if self._text.equation is None:
            return
        if name != "m:oMath" or "m:oMath" in self.path:
            self._text.equation.end(name)
            return
        text = self._text.equation.finish()
        self._text.equation = None
        if self._text.paragraphs:
            self._text.paragraphs[-1].texts.append(text)
        elif text.strip():
            self._text.sinks[-1](TextBlock(text))
