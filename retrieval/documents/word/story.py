"""Walks over the text of a Word file: the body, the notes, or a header.

One pass over the elements, with stacks in place of recursion, so that deep nesting costs what its bytes cost. Elements
that only wrap text (content controls, insertions, smart tags, links) need no code here: their text is read where it
stands. Deletions, hidden text and the instructions of fields are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from retrieval.documents.word.blocks import (
    Block,
    TableBlock,
    TableCell,
    TextBlock,
    cell_text,
)
from retrieval.documents.word.equations import EquationWriter
from retrieval.documents.word.fields import FieldStack, form_value
from retrieval.documents.word.numbering import Numbering
from retrieval.documents.word.package import Attributes, is_on, number
from retrieval.documents.word.state import Choice, OpenParagraph, OpenRun
from retrieval.documents.word.styles import BODY_LEVEL, Styles
from retrieval.documents.word.symbols import read_private_use, superscript, symbol_text
from retrieval.documents.word.tables import TABLE_PROPERTIES, TableStack

MAX_NESTING = 8
"""Tables within tables, and text boxes within text boxes, that keep their structure. The text of deeper ones is read as
plain paragraphs."""
_LEFT_OUT = frozenset(
    (
        *("w:del", "w:moveFrom", "w:delText", "w:delInstrText", "w:sdtPr", "w:sectPrChange", "w:pPrChange"),
        *("w:rPrChange", "w:tblPrChange", "w:trPrChange", "w:tcPrChange", "w:tblGridChange", "w:numberingChange"),
        *("w:rubyPr", "w:tblPrExChange"),
    )
)
"""Elements that are left out with all that stands in them: deletions, former properties, settings of controls."""
_TEXT = frozenset(("w:t", "m:t", "a:t"))
_NO_DESCRIPTION = re.compile(
    r"automatically generated|AI-generated|\.(png|jpe?g|gif|bmp|emf|wmf|tiff?|svg)$", re.IGNORECASE
)
"""Descriptions of pictures that no person wrote."""


class Story:
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
        add: Callable[[Block], None],
        styles: Styles,
        numbering: Numbering,
        notes: dict[tuple[str, str], list[Block]],
        left_out: Counter[str],
        linked: Callable[[str], Sequence[Block]],
        *,
        drop_page_numbers: bool = False,
    ) -> None:
        self._styles = styles
        self._numbering = numbering
        self._notes = notes
        self._left_out = left_out
        self._linked = linked
        self._fields = FieldStack(drop_page_numbers)
        self._path: list[str] = []
        self._ignored = 0  # depth inside an element that is left out
        self._sinks: list[Callable[[Block], None]] = [add]
        self._paragraphs: list[OpenParagraph] = []
        self._carried: OpenParagraph | None = None  # one whose mark is deleted, so that the next continues it
        self._runs: list[OpenRun] = []
        self._tables = TableStack(MAX_NESTING)
        self._boxes: list[list[Block] | None] = []
        self._choices: list[Choice] = []
        self._rubies: list[int] = []
        self._ruby_texts: list[str] = []
        self._equation: EquationWriter | None = None
        self._progress = 0
        self._description = ""
        self._in_object = 0
        self._form: dict[str, list[str]] = {}
        self._starts: Mapping[str, Callable[[Attributes], None]] = {
            "w:p": self._start_paragraph,
            "a:p": self._start_paragraph,
            "w:r": self._start_run,
            "w:tbl": self._start_table,
            "w:tc": self._start_cell,
            "w:txbxContent": self._start_box,
            "w:footnote": self._start_footnote,
            "w:endnote": self._start_endnote,
            "w:fldChar": self._field_mark,
            "w:fldSimple": self._start_simple_field,
            "w:tab": self._tab,
            "w:ptab": self._tab,
            "w:br": self._break,
            "w:cr": self._break,
            "w:noBreakHyphen": self._hyphen,
            "w:sym": self._symbol,
            "w:footnoteReference": self._footnote,
            "w:endnoteReference": self._endnote,
            "mc:AlternateContent": self._start_alternatives,
            "w:rt": self._start_ruby_text,
            "w:pStyle": self._paragraph_style,
            "w:outlineLvl": self._outline_level,
            "w:framePr": self._frame,
            "w:numId": self._list_id,
            "w:ilvl": self._list_level,
            "w:rStyle": self._run_style,
            "w:vanish": self._vanish,
            "w:vertAlign": self._raise,
            "w:rFonts": self._font,
            "wp:docPr": self._describe,
            "v:shape": self._describe_shape,
            "a:blip": self._picture,
            "v:imagedata": self._picture,
            "v:textpath": self._text_path,
            "w:object": self._start_object,
            "w:altChunk": self._alternative_file,
            "w:subDoc": self._alternative_file,
            "w:commentReference": self._comment,
            "dgm:relIds": self._diagram,
            "c:chart": self._chart,
            "mc:Choice": self._start_choice,
            "mc:Fallback": self._start_choice,
        }
        self._ends: Mapping[str, Callable[[], None]] = {
            "w:p": self._end_paragraph,
            "a:p": self._end_paragraph,
            "w:r": self._end_run,
            "w:tbl": self._end_table,
            "w:tc": self._end_cell,
            "w:txbxContent": self._end_box,
            "w:footnote": self._end_note,
            "w:endnote": self._end_note,
            "w:fldSimple": self._end_simple_field,
            "w:ffData": self._end_form,
            "mc:AlternateContent": self._end_alternatives,
            "mc:Choice": self._end_choice,
            "mc:Fallback": self._end_choice,
            "w:rt": self._end_ruby_text,
            "w:ruby": self._end_ruby,
            "w:object": self._end_object,
        }

    # 1. Elements and text

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element."""
        if self._ignored or self._is_left_out(name):
            self._ignored += 1
            return
        self._path.append(name)
        if name[:2] == "m:":
            self._start_equation(name, attributes)
            return
        handler = self._starts.get(name)
        if handler is not None:
            handler(attributes)
        elif name in TABLE_PROPERTIES:
            self._tables.set_property(name, self._path[-2], attributes)
        elif "w:ffData" in self._path[-3:]:
            self._form.setdefault(name, []).append(attributes.get("w:val", "1"))

    def end(self, name: str) -> None:
        """End an element."""
        if self._ignored:
            self._ignored -= 1
            return
        self._path.pop()
        if name[:2] == "m:":
            self._end_equation(name)
            return
        handler = self._ends.get(name)
        if handler is not None:
            handler()
        elif name == "w:tr":
            self._tables.end_row()

    def text(self, text: str) -> None:
        """Receive text."""
        if self._ignored or not self._path:
            return
        name = self._path[-1]
        if name in _TEXT:
            self._write(text.replace("\n", " "))
        elif name == "w:instrText":
            self._fields.add_instruction(text)

    def finish(self) -> None:
        """Hand on what is open at the end of the part."""
        self._close_fields(0)
        self._flush_carried()

    def _is_left_out(self, name: str) -> bool:
        parent = self._path[-1] if self._path else ""
        if name == "w:del":
            self._note_deletion(parent)
            return True
        if name in ("mc:Choice", "mc:Fallback"):
            return bool(self._choices) and self._choices[-1].taken
        return name in _LEFT_OUT

    def _note_deletion(self, parent: str) -> None:
        """Handle a deletion that marks what it stands in: a paragraph mark or a row."""
        if parent == "w:rPr" and self._path[-2:-1] == ["w:pPr"] and self._paragraphs:
            self._paragraphs[-1].joins_next = True
        else:
            if parent == "w:trPr":
                self._tables.delete_row()
            self._left_out["deleted texts"] += parent != "w:rPr"

    def _write(self, text: str) -> None:
        """Append text to where it stands."""
        if self._is_hidden():
            self._left_out["hidden texts"] += bool(text.strip())
            return
        if self._fields.hides:
            self._fields.withhold(text)
            return
        self._progress += bool(text.strip())
        if self._equation is not None:
            self._equation.add(text)
            return
        if self._runs:
            run = self._runs[-1]
            text = read_private_use(run.font, text)
            if run.raised:
                text = superscript(text)
        if self._paragraphs:
            self._paragraphs[-1].texts.append(text)
        elif text.strip():
            self._sinks[-1](TextBlock(text))

    def _is_hidden(self) -> bool:
        if not self._runs:
            return False
        run = self._runs[-1]
        if run.hidden is not None:
            return run.hidden
        if run.style and self._styles.is_hidden(run.style):
            return True
        return bool(self._paragraphs) and self._styles.is_hidden(self._paragraphs[-1].style)

    def _emit(self, block: Block) -> None:
        """Hand on a block, after the paragraph that it stands in."""
        outer = self._paragraphs[-1] if self._paragraphs else None
        nested = outer is not None and outer.sink_depth == len(self._sinks) and len(self._paragraphs) <= MAX_NESTING
        if outer is not None and nested:
            outer.after.append(block)
        else:
            self._sinks[-1](block)

    def _close_fields(self, depth: int) -> None:
        hidden = self._fields.close_to(depth)
        if hidden.strip():
            self._sinks[-1](TextBlock(hidden))

    # 2. Paragraphs

    def _start_paragraph(self, attributes: Attributes) -> None:
        paragraph = OpenParagraph(sink_depth=len(self._sinks))
        if self._carried is not None and self._carried.sink_depth == paragraph.sink_depth:
            paragraph.texts, paragraph.after = self._carried.texts, self._carried.after
            self._carried = None
        self._paragraphs.append(paragraph)
        self._fields.dropped_page_number = False

    def _end_paragraph(self) -> None:
        if not self._paragraphs:
            return
        paragraph = self._paragraphs.pop()
        if paragraph.joins_next:
            self._flush_carried()
            self._carried = paragraph
        else:
            self._finish_paragraph(paragraph)

    def _finish_paragraph(self, paragraph: OpenParagraph) -> None:
        text = "".join(paragraph.texts).strip()
        if self._fields.dropped_page_number and len(re.findall(r"\w+", text)) <= 2:
            text = ""
        label = self._label(paragraph)
        if text:
            if label:
                text = f"{label} {text}"
            self._emit(TextBlock(text, self._heading_level(paragraph)))
        for block in paragraph.after:
            self._emit(block)

    def _flush_carried(self) -> None:
        paragraph, self._carried = self._carried, None
        if paragraph is not None:
            self._finish_paragraph(paragraph)

    def _heading_level(self, paragraph: OpenParagraph) -> int | None:
        if self._boxes:
            return None
        if paragraph.outline_level is None:
            return self._styles.heading_level(paragraph.style)
        return paragraph.outline_level + 1 if paragraph.outline_level < BODY_LEVEL else None

    def _label(self, paragraph: OpenParagraph) -> str:
        list_id, level = self._styles.numbering(paragraph.style)
        if paragraph.numbering is not None:
            list_id = paragraph.numbering
        if paragraph.numbering_level is not None:
            level = paragraph.numbering_level
        return self._numbering.next_label(list_id, level or 0)

    def _paragraph_style(self, attributes: Attributes) -> None:
        if self._paragraphs and self._path[-2:-1] == ["w:pPr"]:
            self._paragraphs[-1].style = attributes.get("w:val", "")

    def _outline_level(self, attributes: Attributes) -> None:
        if self._paragraphs and self._path[-2:-1] == ["w:pPr"]:
            self._paragraphs[-1].outline_level = number(attributes.get("w:val"), BODY_LEVEL)

    def _frame(self, attributes: Attributes) -> None:
        if self._paragraphs and attributes.get("w:dropCap", "none") != "none":
            self._paragraphs[-1].joins_next = True

    def _list_id(self, attributes: Attributes) -> None:
        if self._paragraphs and self._path[-3:-1] == ["w:pPr", "w:numPr"]:
            self._paragraphs[-1].numbering = attributes.get("w:val", "")

    def _list_level(self, attributes: Attributes) -> None:
        if self._paragraphs and self._path[-3:-1] == ["w:pPr", "w:numPr"]:
            self._paragraphs[-1].numbering_level = number(attributes.get("w:val"))

    # 3. Runs

    def _start_run(self, attributes: Attributes) -> None:
        run = OpenRun()
        if self._runs and self._is_hidden():
            run.hidden = True
        self._runs.append(run)

    def _end_run(self) -> None:
        if self._runs:
            self._runs.pop()

    def _run_properties(self) -> OpenRun | None:
        """Return the run whose properties are being read, None where they are those of something else."""
        if self._runs and self._path[-3:-1] == ["w:r", "w:rPr"]:
            return self._runs[-1]
        return None

    def _run_style(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.style = attributes.get("w:val", "")

    def _vanish(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.hidden = run.hidden or is_on(attributes)

    def _raise(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.raised = attributes.get("w:val") == "superscript"

    def _font(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.font = attributes.get("w:ascii") or attributes.get("w:hAnsi") or ""

    def _tab(self, attributes: Attributes) -> None:
        if self._path[-2:-1] != ["w:tabs"]:
            self._write("\t")

    def _break(self, attributes: Attributes) -> None:
        self._write("\n")

    def _hyphen(self, attributes: Attributes) -> None:
        self._write("-")

    def _symbol(self, attributes: Attributes) -> None:
        code = attributes.get("w:char", "")
        letter = None
        if re.fullmatch("[0-9A-Fa-f]{1,6}", code):
            letter = symbol_text(attributes.get("w:font", ""), int(code, 16))
        if letter is None:
            self._leave_out("symbols")
        else:
            self._write(letter)

    def _start_ruby_text(self, attributes: Attributes) -> None:
        self._rubies.append(len(self._paragraphs[-1].texts) if self._paragraphs else 0)

    def _end_ruby_text(self) -> None:
        start = self._rubies.pop()
        if self._paragraphs:
            self._ruby_texts.append("".join(self._paragraphs[-1].texts[start:]))
            del self._paragraphs[-1].texts[start:]

    def _end_ruby(self) -> None:
        reading = self._ruby_texts.pop() if self._ruby_texts else ""
        if reading.strip() and self._paragraphs:
            self._paragraphs[-1].texts.append(f"({reading})")

    # 4. Fields

    def _field_mark(self, attributes: Attributes) -> None:
        self._form = {}
        match attributes.get("w:fldCharType"):
            case "begin":
                self._fields.begin()
            case "separate":
                self._fields.separate()
            case "end":
                self._fields.end()

    def _start_simple_field(self, attributes: Attributes) -> None:
        self._fields.begin()
        self._fields.add_instruction(attributes.get("w:instr", ""))
        self._fields.separate()

    def _end_simple_field(self) -> None:
        self._fields.end()

    def _end_form(self) -> None:
        value = form_value(self._form)
        if value and not self._is_hidden() and self._paragraphs:
            self._paragraphs[-1].texts.append(value)
            self._progress += 1
            self._fields.replace()

    # 5. Tables

    def _start_table(self, attributes: Attributes) -> None:
        self._flush_carried()
        self._tables.start_table()

    def _end_table(self) -> None:
        rows = self._tables.end_table()
        if rows:
            self._emit(TableBlock(rows))

    def _start_cell(self, attributes: Attributes) -> None:
        blocks = self._tables.start_cell(len(self._fields))
        if blocks is not None:
            self._sinks.append(blocks.append)

    def _end_cell(self) -> None:
        cell = self._tables.open_cell
        if cell is not None:
            self._flush_carried()
            self._close_fields(cell.field_depth)
            self._sinks.pop()
        self._tables.end_cell()

    # 6. Text boxes, notes and what else stands beside the text

    def _start_box(self, attributes: Attributes) -> None:
        if len(self._boxes) >= MAX_NESTING:
            self._boxes.append(None)
            return
        blocks: list[Block] = []
        self._boxes.append(blocks)
        self._sinks.append(blocks.append)

    def _end_box(self) -> None:
        blocks = self._boxes.pop() if self._boxes else None
        if blocks is None:
            return
        self._flush_carried()
        self._sinks.pop()
        for block in blocks:
            self._emit(block)

    def _start_footnote(self, attributes: Attributes) -> None:
        self._start_note("footnote", attributes)

    def _start_endnote(self, attributes: Attributes) -> None:
        self._start_note("endnote", attributes)

    def _start_note(self, kind: str, attributes: Attributes) -> None:
        blocks: list[Block] = []
        self._notes[kind, attributes.get("w:id", "")] = blocks
        self._sinks.append(blocks.append)

    def _end_note(self) -> None:
        self._flush_carried()
        self._close_fields(0)
        if len(self._sinks) > 1:
            self._sinks.pop()

    def _footnote(self, attributes: Attributes) -> None:
        self._add_note("footnote", attributes)

    def _endnote(self, attributes: Attributes) -> None:
        self._add_note("endnote", attributes)

    def _add_note(self, kind: str, attributes: Attributes) -> None:
        """Hand on a note after the paragraph that refers to it; in a cell, in parentheses."""
        if self._is_hidden():
            return
        blocks = self._notes.pop((kind, attributes.get("w:id", "")), [])
        if blocks and self._tables.open_cell is not None:
            blocks = [TextBlock(f"({cell_text(TableCell(blocks))})")]
        for block in blocks:
            self._emit(block)

    def _start_alternatives(self, attributes: Attributes) -> None:
        self._choices.append(Choice())

    def _start_choice(self, attributes: Attributes) -> None:
        if self._choices:
            self._choices[-1].progress = self._progress

    def _end_choice(self) -> None:
        if self._choices and self._progress > self._choices[-1].progress:
            self._choices[-1].taken = True

    def _end_alternatives(self) -> None:
        if self._choices:
            self._choices.pop()

    def _describe(self, attributes: Attributes) -> None:
        self._description = attributes.get("descr", "")

    def _describe_shape(self, attributes: Attributes) -> None:
        self._description = attributes.get("alt", "")

    def _picture(self, attributes: Attributes) -> None:
        description, self._description = self._description.strip(), ""
        if self._in_object or self._is_hidden():
            return
        if description and not _NO_DESCRIPTION.search(description):
            self._progress += 1
            self._emit(TextBlock(description))
        else:
            self._leave_out("pictures")

    def _text_path(self, attributes: Attributes) -> None:
        text = attributes.get("string", "")
        if text.strip() and not self._is_hidden():
            self._progress += 1
            self._emit(TextBlock(text))

    def _start_object(self, attributes: Attributes) -> None:
        self._in_object += 1
        self._leave_out("embedded objects")

    def _end_object(self) -> None:
        self._in_object = max(0, self._in_object - 1)

    def _alternative_file(self, attributes: Attributes) -> None:
        self._leave_out("inserted files")

    def _comment(self, attributes: Attributes) -> None:
        self._leave_out("comments")

    def _diagram(self, attributes: Attributes) -> None:
        self._read_linked(attributes.get("r:dm", ""))

    def _chart(self, attributes: Attributes) -> None:
        self._read_linked(attributes.get("r:id", ""))

    def _read_linked(self, relationship: str) -> None:
        if not relationship or self._is_hidden():
            return
        for block in self._linked(relationship):
            self._progress += 1
            self._emit(block)

    def _leave_out(self, what: str) -> None:
        if not self._is_hidden():
            self._progress += 1
            self._left_out[what] += 1

    # 7. Equations

    def _start_equation(self, name: str, attributes: Attributes) -> None:
        if self._equation is not None:
            self._equation.start(name, attributes)
        elif name == "m:oMath":
            self._equation = EquationWriter()

    def _end_equation(self, name: str) -> None:
        if self._equation is None:
            return
        if name != "m:oMath" or "m:oMath" in self._path:
            self._equation.end(name)
            return
        text = self._equation.finish()
        self._equation = None
        if self._paragraphs:
            self._paragraphs[-1].texts.append(text)
        elif text.strip():
            self._sinks[-1](TextBlock(text))
