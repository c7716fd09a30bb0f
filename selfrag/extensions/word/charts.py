"""The values of a chart, which Word keeps beside the drawing, as a table: a column a series, a row a category."""

from __future__ import annotations

from dataclasses import dataclass, field

from selfrag.extensions.word.blocks import (
    TableBlock,
    TableCell,
    TableRow,
    TextBlock,
    WordBlock,
)
from selfrag.extensions.word.package import Attributes, XmlHandler, number

_PLACES = ("c:tx", "c:cat", "c:val", "c:xVal", "c:yVal")


@dataclass(slots=True)
class Series:
    """One line, or one colour of bars."""

    name: str = ""
    categories: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)


class ChartReader(XmlHandler):
    """Receives the elements of a chart part."""

    def __init__(self) -> None:
        super().__init__()
        self._titles: list[str] = []
        self._series: list[Series] = []
        self._place = ""  # what the values that are being read belong to
        self._point = 0

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element."""
        if name == "c:ser":
            self._series.append(Series())
        elif name in _PLACES:
            self._place = name
        elif name == "c:pt":
            self._point = number(attributes.get("idx"))

    def end(self, name: str) -> None:
        """End an element."""
        if name in _PLACES:
            self._place = ""

    def text(self, text: str) -> None:
        """Receive text."""
        name = self.path[-1] if self.path else ""
        if name == "a:t":
            self._titles.append(text)
        if name != "c:v" or not self._series:
            return
        series = self._series[-1]
        match self._place:
            case "c:tx":
                series.name += text
            case "c:cat" | "c:xVal":
                series.categories[self._point] = (
                    series.categories.get(self._point, "") + text
                )
            case "c:val" | "c:yVal":
                series.values[self._point] = series.values.get(self._point, "") + text

    def blocks(self) -> list[WordBlock]:
        """Return the titles and the table of the values."""
        blocks: list[WordBlock] = [TextBlock(title) for title in self._titles]
        series = [item for item in self._series if item.values]
        if not series:
            return blocks
        header = TableRow([_cell(""), *(_cell(item.name) for item in series)])
        rows = [header]
        for point in sorted({point for item in series for point in item.values}):
            category = next(
                (item.categories[point] for item in series if point in item.categories),
                "",
            )
            rows.append(
                TableRow(
                    [
                        _cell(category),
                        *(_cell(item.values.get(point, "")) for item in series),
                    ]
                )
            )
        return [*blocks, TableBlock(rows)]


def _cell(text: str) -> TableCell:
    return TableCell([TextBlock(text)] if text else ())
