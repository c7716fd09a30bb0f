"""Where the text of a story goes: into the open run, paragraph, cell or box, or nowhere where it is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from selfrag.extensions.word.blocks import TextBlock, WordBlock
from selfrag.extensions.word.equations import EquationWriter
from selfrag.extensions.word.fields import FieldStack
from selfrag.extensions.word.state import OpenParagraph, OpenRun
from selfrag.extensions.word.styles import Styles
from selfrag.extensions.word.symbols import read_private_use
from selfrag.interface import write_script

MAX_NESTING = 8
"""Tables within tables, and text boxes within text boxes, that keep their structure. The text of deeper ones is read as
plain paragraphs."""


class StoryText:
    """Takes the text of a story, and knows what of it is open.

    Args:
        add: is called with each block in order.
        styles: of the file.
        left_out: counts what could not be read, such as `pictures`.
        drop_page_numbers: whether the numbers of pages are left out, as in headers.

    Attributes:
        path: names of the open elements.
        sinks: receivers of blocks; the last one is that of the innermost cell, box or note.
        paragraphs: the open ones; a text box in a paragraph has its own.
        runs: the open ones.
        equation: the open one.
        progress: grows with everything that is read.
    """

    def __init__(
        self,
        add: Callable[[WordBlock], None],
        styles: Styles,
        left_out: Counter[str],
        drop_page_numbers: bool,
    ) -> None:
        self.styles = styles
        self.left_out = left_out
        self.fields = FieldStack(drop_page_numbers)
        self.path: list[str] = []
        self.sinks: list[Callable[[WordBlock], None]] = [add]
        self.paragraphs: list[OpenParagraph] = []
        self.runs: list[OpenRun] = []
        self.equation: EquationWriter | None = None
        self.progress = 0

    def write(self, text: str) -> None:
        """Append text to where it stands."""
        if self.is_hidden():
            self.left_out["hidden texts"] += bool(text.strip())
            return
        if self.fields.hides:
            self.fields.withhold(text)
            return
        self.progress += bool(text.strip())
        if self.equation is not None:
            self.equation.add(text)
            return
        struck = False
        if self.runs:
            run = self.runs[-1]
            text = read_private_use(run.font, text)
            if run.shift:
                text = write_script(text, raised=run.shift > 0)
            struck = run.struck and bool(text.strip())
        if self.paragraphs:
            self.paragraphs[-1].add(text, struck)
        elif text.strip():
            self.sinks[-1](TextBlock(text))

    def is_hidden(self) -> bool:
        """Return whether text is hidden here, by its run or by a style."""
        if not self.runs:
            return False
        run = self.runs[-1]
        if run.hidden is not None:
            return run.hidden
        if run.style and self.styles.is_hidden(run.style):
            return True
        return bool(self.paragraphs) and self.styles.is_hidden(
            self.paragraphs[-1].style
        )

    def emit(self, block: WordBlock) -> None:
        """Hand on a block, after the paragraph that it stands in."""
        outer = self.paragraphs[-1] if self.paragraphs else None
        nested = (
            outer is not None
            and outer.sink_depth == len(self.sinks)
            and len(self.paragraphs) <= MAX_NESTING
        )
        if outer is not None and nested:
            outer.after.append(block)
        else:
            self.sinks[-1](block)

    def close_fields(self, depth: int) -> None:
        """End the fields that began inside what ends now; what they withheld is text after all."""
        hidden = self.fields.close_to(depth)
        if hidden.strip():
            self.sinks[-1](TextBlock(hidden))

    def leave_out(self, what: str) -> None:
        """Count something that cannot be read."""
        if not self.is_hidden():
            self.progress += 1
            self.left_out[what] += 1
