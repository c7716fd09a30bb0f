"""Pages of random text with numbers: each number of a page is in its passages as often as on the page, and no other.

`SELFRAG_GENERATED_PAGES` sets the number of pages of each writer.
"""

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml

from retrieval.readers import read_files
from retrieval.splitting import Splitting

PAGES = int(os.environ.get("SELFRAG_GENERATED_PAGES", "6"))
BATCH = 100  # files of one call of LibreOffice, which ends in silence after some more
WORDS = "tea boat harbour crown fee ferry dog winter island permit"
RAISED, LOWERED = (
    str.maketrans("0123456789-\u2212", forms)
    for forms in ("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻", "₀₁₂₃₄₅₆₇₈₉₋₋")
)
PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
NUMBER = re.compile(r"\d+(?:\.\d+)?|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[₀₁₂₃₄₅₆₇₈₉₋]+", re.ASCII)
MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


class RandomPage:
    """Paragraphs and tables. A piece of text is (kind, text); kinds are plain, sup, sub and fraction."""

    def __init__(self, seed, minus="-"):
        self._random, self._minus = random.Random(seed), minus
        self.paragraphs = [self._line(30) for _ in range(self._random.randint(1, 4))]
        self.rows = [
            [self._line(2) for _ in range(3)] for _ in range(self._random.randint(2, 5))
        ]
        # a row whose first cell is two columns wide, and one whose last cell is two rows high
        self.wide = self._random.randrange(len(self.rows))
        self.high = self._random.randrange(len(self.rows) - 1)
        self.rows[self.wide][1] = []
        self.rows[self.high + 1][2] = []

    def _line(self, words):
        pieces = []
        for _ in range(self._random.randint(1, words)):
            pieces += [*self._piece(), ("plain", " ")]
        return pieces[:-1]

    def _piece(self):
        number = str(self._random.randint(0, 99_999))
        small = str(self._random.randint(1, 99))
        words = WORDS.split()
        kinds = [
            [("plain", number)],
            [("plain", f"{number}.{small}")],
            [("plain", number), ("sup", small)],
            [("plain", number), ("sup", self._minus + small)],
            [("plain", self._random.choice("HCx7")), ("sub", small)],
            [("plain", f"{number} "), ("fraction", (small, number))],
            [("plain", self._random.choice(words))],
            [("plain", self._random.choice(words))],
        ]
        return self._random.choice(kinds)

    def span(self, row, column):
        """The columns and rows that a cell of the table spans; 0 for one that another covers."""
        if row == self.wide and column < 2:
            return (0, 0) if column else (2, 1)
        if column == 2 and row in (self.high, self.high + 1):
            return (0, 0) if row > self.high else (1, 2)
        return 1, 1

    def lines(self):
        """Each paragraph and each cell, with the columns and rows that it spans."""
        lines = [(line, (1, 1)) for line in self.paragraphs]
        for number, row in enumerate(self.rows):
            for column, cell in enumerate(row):
                lines.append((cell, self.span(number, column)))
        return lines

    def numbers(self, slashed, across):
        """The numbers that a reader sees, those of a merged cell in each row, and in each column where `across`.

        `slashed` fractions have a raised and a lowered part.
        """
        counts = Counter()
        for line, (columns, rows) in self.lines():
            text = ""
            for kind, content in line:
                if kind == "fraction":
                    over, under = content
                    slash = f"{over.translate(RAISED)}/{under.translate(LOWERED)}"
                    text += slash if slashed else f"{over}/{under}"
                else:
                    tables = {"plain": {}, "sup": RAISED, "sub": LOWERED}
                    text += content.translate(tables[kind])
            counts.update(NUMBER.findall(text) * rows * (columns if across else 1))
        return counts


def markup(pieces, sup, sub, fraction):
    texts = {"plain": "{}", "sup": sup, "sub": sub}
    parts = []
    for kind, content in pieces:
        if kind == "fraction":
            parts.append(fraction.format(*content))
        else:
            parts.append(texts[kind].format(content))
    return "".join(parts)


def write_html(page, file):
    def text(pieces):
        fraction = "<math><mfrac><mn>{}</mn><mn>{}</mn></mfrac></math>"
        return markup(pieces, "<sup>{}</sup>", "<sub>{}</sub>", fraction)

    body = "".join(f"<p>{text(line)}</p>" for line in page.paragraphs)
    body += "<table>"
    for number, row in enumerate(page.rows):
        body += "<tr>"
        for column, cell in enumerate(row):
            columns, rows = page.span(number, column)
            if columns:
                body += f"<td colspan={columns} rowspan={rows}>{text(cell)}"
    file.write_text(f"<title>t</title>{body}</table>")


def write_docx(page, file):
    document = docx.Document()

    def fill(paragraph, pieces):
        for kind, content in pieces:
            if kind == "fraction":
                over, under = (f"<m:r><m:t>{value}</m:t></m:r>" for value in content)
                parts = f"<m:num>{over}</m:num><m:den>{under}</m:den>"
                formula = f"<m:oMath {MATH}><m:f>{parts}</m:f></m:oMath>"
                paragraph._p.append(parse_xml(formula))
            else:
                run = paragraph.add_run(content)
                run.font.superscript = kind == "sup"
                run.font.subscript = kind == "sub"

    for line in page.paragraphs:
        fill(document.add_paragraph(), line)
    table = document.add_table(len(page.rows), 3, style="Table Grid")
    for number, row in enumerate(page.rows):
        for cell, pieces in zip(table.rows[number].cells, row, strict=True):
            fill(cell.paragraphs[0], pieces)
    table.cell(page.wide, 0).merge(table.cell(page.wide, 1))
    table.cell(page.high, 2).merge(table.cell(page.high + 1, 2))
    document.save(str(file))


def write_reportlab(page, file):
    platypus = pytest.importorskip("reportlab.platypus")
    from reportlab.lib.styles import getSampleStyleSheet

    style = getSampleStyleSheet()["Normal"]

    def paragraph(pieces):
        slash = "<super>{}</super>/<sub>{}</sub>"
        text = markup(pieces, "<super>{}</super>", "<sub>{}</sub>", slash)
        return platypus.Paragraph(text, style)

    story = [paragraph(line) for line in page.paragraphs]
    rows = [[paragraph(cell) for cell in row] for row in page.rows]
    wide = ("SPAN", (0, page.wide), (1, page.wide))
    high = ("SPAN", (2, page.high), (2, page.high + 1))
    grid = ("GRID", (0, 0), (-1, -1), 1, "black")
    story += [platypus.Spacer(1, 20), platypus.Table(rows, style=[grid, wide, high])]
    platypus.SimpleDocTemplate(str(file)).build(story)


def write_fpdf2(page, file):
    fpdf = pytest.importorskip("fpdf")
    document = fpdf.FPDF()
    document.add_page()
    document.set_font("helvetica", size=10)
    places = {"plain": "LINE", "sup": "SUP", "sub": "SUB"}

    def write(pieces):
        for kind, content in pieces:
            if kind == "fraction":
                write([("sup", content[0]), ("plain", "/"), ("sub", content[1])])
            else:
                document.char_vpos = places[kind]
                document.write(8, content)

    for line in page.paragraphs:  # it would break lines inside numbers
        words = 0
        for piece in line:
            write([piece])
            words += piece == ("plain", " ")
            if piece == ("plain", " ") and words % 8 == 0:
                document.ln(8)
        document.ln(12)
    document.set_auto_page_break(False)
    if document.get_y() + 12 * len(page.rows) > 280:
        document.add_page()
    top = document.get_y()
    for number, row in enumerate(page.rows):
        for column, cell in enumerate(row):
            columns, rows = page.span(number, column)
            if columns:
                left, y = 20 + 60 * column, top + 12 * number
                document.rect(left, y, 60 * columns, 12 * rows)
                document.set_xy(left + 1, y + 2)
                write(cell)
    document.output(str(file))


WRITERS = {
    "html": (write_html, ".html", False),
    "docx": (write_docx, ".docx", False),
    "reportlab": (write_reportlab, ".pdf", True),
    "fpdf2": (write_fpdf2, ".pdf", True),
    "libreoffice": (write_docx, ".docx", True),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_numbers_of_a_page_are_those_of_its_passages(tmp_path, writer):
    write, suffix, slashed = WRITERS[writer]
    office = writer == "libreoffice"
    if office and shutil.which("soffice") is None:
        pytest.skip("no LibreOffice on this machine")
    expected, files, formulas = {}, [], []
    for seed in range(PAGES):
        # LibreOffice breaks lines at hyphens, and the font of fpdf2 has no sign
        page = RandomPage(seed, "\u2212" if suffix == ".docx" else "-")
        # it draws a formula as two lines, the lower one below that of the text
        has_formulas = office and draws_formulas() and seed % 2 == 0
        if office and not has_formulas:
            for line, _ in page.lines():
                split_fractions(line)
        name, file = str(seed), tmp_path / f"{seed}{suffix}"
        write(page, file)
        expected[name] = page.numbers(
            slashed and not has_formulas, across=suffix != ".html"
        )
        files.append(file)
        if has_formulas:
            formulas.append(name)
    if office:
        files = convert(files, tmp_path)
    read_numbers = {name: Counter() for name in expected}
    for row in read_files(files, Splitting(words=10_000, overlap=0)):
        name = row.passage.id.split("-")[0]
        read_numbers[name].update(NUMBER.findall(row.passage.text))
    for name in formulas:
        expected[name] = without_lowered(expected[name])
        read_numbers[name] = without_lowered(read_numbers[name])
    assert read_numbers == expected


def draws_formulas():
    """Whether LibreOffice Math is there: without it formulas are left out of a page."""
    office = Path(shutil.which("soffice") or "").resolve()
    return bool(list(office.parent.glob("smath*")))


def convert(files, folder):
    command = ["soffice", f"-env:UserInstallation=file://{folder}/office", "--headless"]
    command += ["--convert-to", "pdf", "--outdir", str(folder)]
    for first in range(0, len(files), BATCH):
        batch = map(str, files[first : first + BATCH])
        subprocess.run([*command, *batch], check=True, capture_output=True)
    return [file.with_suffix(".pdf") for file in files]


def without_lowered(counts):
    plain = Counter()
    for number, count in counts.items():
        plain[number.translate(PLAIN)] += count
    return plain


def split_fractions(line):
    """Write fractions of a line as a raised and a lowered number."""
    for place in reversed(range(len(line))):
        kind, content = line[place]
        if kind == "fraction":
            over, under = content
            line[place : place + 1] = [("sup", over), ("plain", "/"), ("sub", under)]
