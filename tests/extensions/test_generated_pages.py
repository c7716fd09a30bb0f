"""Pages of random text with numbers: each number of a page is in its passages as often as on the page, and no other.

`SELFRAG_GENERATED_PAGES` sets the number of pages of each writer.
"""

import os
import random
import re
import shutil
import subprocess
from collections import Counter

import docx
import pytest
from docx.oxml import parse_xml

from retrieval.readers import read_files
from retrieval.splitting import Splitting

PAGES = int(os.environ.get("SELFRAG_GENERATED_PAGES", "6"))
WORDS = (
    "tea",
    "boat",
    "harbour",
    "crown",
    "fee",
    "ferry",
    "dog",
    "winter",
    "island",
    "permit",
)
RAISED, LOWERED = (
    str.maketrans("0123456789-\u2212", forms)
    for forms in ("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻", "₀₁₂₃₄₅₆₇₈₉₋₋")
)
NUMBER = re.compile(r"\d+(?:\.\d+)?|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[₀₁₂₃₄₅₆₇₈₉₋]+", re.ASCII)
MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


class RandomPage:
    """Paragraphs and tables. A piece of text is (kind, text); kinds are plain, sup, sub and fraction."""

    def __init__(self, seed, minus="-"):
        self._random, self._minus = random.Random(seed), minus
        self.paragraphs = [self._line(30) for _ in range(self._random.randint(1, 4))]
        self.rows = []
        for _ in range(self._random.randint(2, 5)):
            self.rows.append([self._line(2) for _ in range(3)])
        self.spanned = self._random.randrange(
            len(self.rows)
        )  # a row with one wide cell
        self.rows[self.spanned][0] = [("plain", "Boats of the harbour")]
        self.rows[self.spanned][1] = []

    def _line(self, words):
        pieces = []
        for _ in range(self._random.randint(1, words)):
            pieces += [*self._piece(), ("plain", " ")]
        return pieces[:-1]

    def _piece(self):
        number = str(self._random.randint(0, 99_999))
        small = str(self._random.randint(1, 99))
        match self._random.randrange(8):
            case 0:
                return [("plain", number)]
            case 1:
                return [("plain", f"{number}.{small}")]
            case 2:
                return [("plain", number), ("sup", small)]
            case 3:
                return [("plain", number), ("sup", self._minus + small)]
            case 4:
                return [
                    ("plain", self._random.choice(["H", "CO", "x", "7"])),
                    ("sub", small),
                ]
            case 5:
                return [("plain", number + " "), ("fraction", (small, number))]
        return [("plain", self._random.choice(WORDS))]

    def numbers(self, slashed):
        """The numbers that a reader sees; `slashed` fractions have a raised and a lowered part."""
        counts = Counter()
        for line in [*self.paragraphs, *(cell for row in self.rows for cell in row)]:
            text = ""
            for kind, content in line:
                if kind == "fraction":
                    over, under = content
                    slash = f"{over.translate(RAISED)}/{under.translate(LOWERED)}"
                    text += slash if slashed else f"{over}/{under}"
                else:
                    tables = {"plain": {}, "sup": RAISED, "sub": LOWERED}
                    text += content.translate(tables[kind])
            counts.update(NUMBER.findall(text))
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
        if number == page.spanned:
            body += f"<tr><td colspan=2>{text(row[0])}<td>{text(row[2])}"
        else:
            body += "<tr>" + "".join(f"<td>{text(cell)}" for cell in row)
    file.write_text(f"<title>t</title>{body}</table>")


def write_docx(page, file):
    document = docx.Document()

    def fill(paragraph, pieces):
        for kind, content in pieces:
            if kind == "fraction":
                parts = (
                    f"<m:{name}><m:r><m:t>{value}</m:t></m:r></m:{name}>"
                    for name, value in zip(("num", "den"), content, strict=True)
                )
                paragraph._p.append(
                    parse_xml(f"<m:oMath {MATH}><m:f>{''.join(parts)}</m:f></m:oMath>")
                )
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
    table.cell(page.spanned, 0).merge(table.cell(page.spanned, 1))
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
    spanned = ("SPAN", (0, page.spanned), (1, page.spanned))
    grid = ("GRID", (0, 0), (-1, -1), 1, "black")
    story += [platypus.Spacer(1, 20), platypus.Table(rows, style=[grid, spanned])]
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
    for row in page.rows:
        for place, cell in enumerate(row):
            document.set_x(20 + 60 * place)
            write(cell)
        document.ln(12)
    document.output(str(file))


WRITERS = {
    "html": (write_html, False),
    "docx": (write_docx, False),
    "reportlab": (write_reportlab, True),
    "fpdf2": (write_fpdf2, True),
    "libreoffice": (write_docx, True),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_numbers_of_a_page_are_those_of_its_passages(tmp_path, writer):
    write, slashed = WRITERS[writer]
    office = shutil.which("soffice")
    if writer == "libreoffice" and office is None:
        pytest.skip("LibreOffice is not installed")
    suffix = {"html": ".html", "docx": ".docx", "libreoffice": ".docx"}.get(
        writer, ".pdf"
    )
    expected, files = {}, []
    for seed in range(PAGES):
        # LibreOffice breaks lines at hyphens, and the font of fpdf2 has no sign
        page = RandomPage(seed, "\u2212" if suffix == ".docx" else "-")
        if writer == "libreoffice":  # draws formulas as two lines
            for line in [
                *page.paragraphs,
                *(cell for row in page.rows for cell in row),
            ]:
                split_fractions(line)
        file = tmp_path / f"{seed}{suffix}"
        write(page, file)
        expected[str(seed)] = page.numbers(slashed)
        files.append(file)
    if writer == "libreoffice":
        command = [
            office,
            f"-env:UserInstallation=file://{tmp_path}/office",
            "--headless",
        ]
        command += ["--convert-to", "pdf", "--outdir", str(tmp_path), *map(str, files)]
        subprocess.run(command, check=True, capture_output=True, timeout=60 + 5 * PAGES)
        files = [file.with_suffix(".pdf") for file in files]
    read_numbers = {name: Counter() for name in expected}
    for row in read_files(files, Splitting(words=10_000, overlap=0)):
        name = row.passage.id.split("-")[0]
        read_numbers[name].update(NUMBER.findall(row.passage.text))
    different = {
        name: (expected[name] - read_numbers[name], read_numbers[name] - expected[name])
        for name in expected
        if expected[name] != read_numbers[name]
    }
    assert not different


def split_fractions(line):
    """Write fractions of a line as a raised and a lowered number."""
    for place in reversed(range(len(line))):
        kind, content = line[place]
        if kind == "fraction":
            over, under = content
            line[place : place + 1] = [("sup", over), ("plain", "/"), ("sub", under)]
