"""Slides, sheets, books, mails and notebooks, read by kreuzberg in a child process."""

import json
from contextlib import suppress
from email.message import EmailMessage
from zipfile import ZipFile

import pytest

from retrieval import UserError
from retrieval.documents.isolation import IsolatedReader

pytest.importorskip("kreuzberg")
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
KIND = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
ROWS = [["name", "city", "since"], ["Ann", "Oslo", "2020"], ["Bob", "", "2021"]]


def cell(text):
    return f'<c t="inlineStr"><is><t>{text}</t></is></c>'


def sheet(path, rows, more=""):
    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    book = f'<workbook xmlns="{SHEET}" xmlns:r="{KIND}"><sheets>'
    book += '<sheet name="People" sheetId="1" r:id="r1"/></sheets></workbook>'
    relation = f'<Relationship Id="r1" Type="{KIND}/worksheet" Target="worksheets/sheet1.xml"/>'
    root = (
        f'<Relationship Id="r1" Type="{KIND}/officeDocument" Target="xl/workbook.xml"/>'
    )
    with ZipFile(path, "w") as file:
        for name, target in (
            ("_rels/.rels", root),
            ("xl/_rels/workbook.xml.rels", relation),
        ):
            file.writestr(
                name, f'<Relationships xmlns="{PACKAGE}">{target}</Relationships>'
            )
        file.writestr("xl/workbook.xml", book)
        data = f'<worksheet xmlns="{SHEET}"><sheetData>{lines}{more}</sheetData></worksheet>'
        file.writestr("xl/worksheets/sheet1.xml", data)
    return path


def read(path):
    with IsolatedReader() as reader:
        return reader.read(path, path.suffix, path.stem)


def test_a_sheet_is_read_row_by_row_with_its_place(tmp_path):
    document = read(sheet(tmp_path / "a.xlsx", ROWS))
    texts = [document.text[part.start : part.end] for part in document.sections]
    assert texts == ["name: Ann, city: Oslo, since: 2020", "name: Bob, since: 2021"]
    places = [dict(part.metadata) for part in document.sections]
    assert places == [{"sheet": "People", "row": 1}, {"sheet": "People", "row": 2}]


def test_a_formula_without_a_value_is_told(tmp_path):
    formula = "<row><c><f>1+1</f><v></v></c></row>"
    document = read(sheet(tmp_path / "a.xlsx", ROWS, formula))
    assert [part.what for part in document.skipped] == ["values of 1 formula"]


def test_mails_notebooks_and_restructured_text(tmp_path):
    mail = EmailMessage()
    mail["Subject"] = "Tea"
    mail.set_content("We meet at nine.")
    mail.add_attachment("inner", filename="n.txt")
    (tmp_path / "a.eml").write_bytes(bytes(mail))
    document = read(tmp_path / "a.eml")
    assert "We meet at nine." in document.text
    assert [part.what for part in document.skipped] == ["attachment n.txt"]
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Tea\n", "Green."]}]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "a.ipynb").write_text(json.dumps(book))
    assert "Green." in read(tmp_path / "a.ipynb").text
    (tmp_path / "a.rst").write_text("Tea\n===\n\nGreen.\n\nHeat\n----\n\n80 degrees.\n")
    titles = [part.title for part in read(tmp_path / "a.rst").sections]
    assert titles == ["Tea", "Tea > Heat"]


def test_raised_digits_that_would_be_lost_are_refused(tmp_path):
    """A reader of citations must not write 106 for a raised 10⁶."""
    (tmp_path / "a.rtf").write_text(r"{\rtf1 10\super 6\nosupersub  units}")
    with pytest.raises(UserError, match="106 for 10⁶"):
        read(tmp_path / "a.rtf")
    (tmp_path / "b.rtf").write_text(r"{\rtf1 Ten units.\par}")
    assert "Ten units." in read(tmp_path / "b.rtf").text


@pytest.mark.parametrize("kind", ["pptx", "xlsx", "ods", "odt", "epub", "ipynb", "rtf"])
def test_a_file_that_is_not_what_its_name_says_does_not_crash(tmp_path, kind):
    (tmp_path / f"a.{kind}").write_bytes(b"\x00\xffno such file" * 50)
    text = ""
    with suppress(UserError):
        text = read(tmp_path / f"a.{kind}").text
    assert len(text) < 2000
