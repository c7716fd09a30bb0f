"""Slides, sheets, books, mails and notebooks, read by kreuzberg in a child process."""

from contextlib import suppress
from email.message import EmailMessage
from zipfile import ZipFile

import pytest
from refusals import refused

from retrieval import UserError, add_files, build_index, open_index, sync_index
from retrieval.documents.isolation import IsolatedReader
from retrieval.splitting import Splitting

pytest.importorskip("kreuzberg")
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
KIND = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
ROWS = [["name", "city", "since"], ["Ann", "Oslo", "2020"], ["Bob", "", "2021"]]


def packed(path, parts):
    """Write an archive of parts, and of relations by their names: each of a kind to a target."""
    with ZipFile(path, "w") as file:
        for name, content in parts.items():
            if name.endswith("rels"):
                kind, target = content
                link = f'<Relationship Id="r1" Type="{KIND}/{kind}" Target="{target}"/>'
                content = f'<Relationships xmlns="{PACKAGE}">{link}</Relationships>'
            file.writestr(name, content)
    return path


def sheet(path, rows, more=""):
    lines = ""
    for row in rows:
        cells = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in row)
        lines += f"<row>{cells}</row>"
    book = f'<workbook xmlns="{SHEET}" xmlns:r="{KIND}"><sheets>'
    book += '<sheet name="People" sheetId="1" r:id="r1"/></sheets></workbook>'
    data = (
        f'<worksheet xmlns="{SHEET}"><sheetData>{lines}{more}</sheetData></worksheet>'
    )
    parts = {
        "_rels/.rels": ("officeDocument", "xl/workbook.xml"),
        "xl/_rels/workbook.xml.rels": ("worksheet", "worksheets/sheet1.xml"),
        "xl/workbook.xml": book,
        "xl/worksheets/sheet1.xml": data,
    }
    return packed(path, parts)


def slide(path, runs):
    shape = f"<p:sp><p:nvSpPr/><p:spPr/><p:txBody><a:p>{runs}</a:p></p:txBody></p:sp>"
    names = f'xmlns:p="{SLIDES}" xmlns:a="{DRAWING}" xmlns:r="{KIND}"'
    show = f'<p:presentation {names}><p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst></p:presentation>'
    tree = f"<p:cSld><p:spTree>{shape}</p:spTree></p:cSld>"
    parts = {
        "_rels/.rels": ("officeDocument", "ppt/presentation.xml"),
        "ppt/_rels/presentation.xml.rels": ("slide", "slides/slide1.xml"),
        "ppt/presentation.xml": show,
        "ppt/slides/slide1.xml": f"<p:sld {names}>{tree}</p:sld>",
    }
    return packed(path, parts)


def read(path):
    with IsolatedReader() as reader:
        return reader.read(path, path.suffix, path.stem)


OFFICE = "urn:oasis:names:tc:opendocument:xmlns:"


def ods(path, rows):
    """Write a sheet of OpenDocument, and a second one with its first row alone."""
    tables = ""
    for name, lines in (("People", rows), ("Other", rows[:1])):
        tables += f'<table:table table:name="{name}">'
        for row in lines:
            tables += "<table:table-row>"
            for text in row:
                tables += f'<table:table-cell office:value-type="string"><text:p>{text}</text:p></table:table-cell>'
            tables += "</table:table-row>"
        tables += "</table:table>"
    spaces = "".join(
        f' xmlns:{name}="{OFFICE}{name}:1.0"' for name in ("office", "table", "text")
    )
    body = (
        f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    entry = (
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/>'
    )
    listed = f'<manifest:manifest xmlns:manifest="{OFFICE}manifest:1.0">{entry}'
    parts = {
        "mimetype": kind,
        "META-INF/manifest.xml": f"{listed}</manifest:manifest>",
        "content.xml": f"<office:document-content{spaces}>{body}</office:document-content>",
    }
    return packed(path, parts)


def rows_of(directory):
    corpus = open_index(directory).corpus
    return [
        (passage.id, passage.title, passage.text, dict(corpus.further(row)))
        for row, passage in enumerate(corpus)
    ]


@pytest.mark.parametrize("kind", ["csv", "xlsx", "ods"])
def test_rows_are_passages_and_columns_are_chosen(tmp_path, kind):
    """Issue 61, section 3: Excel sheets likewise."""
    folder, index = tmp_path / "files", tmp_path / "i"
    folder.mkdir()
    path = folder / f"people.{kind}"
    if kind == "csv":
        path.write_text("".join(f"{','.join(row)}\n" for row in ROWS))
    else:
        (sheet if kind == "xlsx" else ods)(path, ROWS)
    build_index([path], index, encoder="none")
    several = kind == "ods"
    start = "people-People" if several else "people"
    title = "" if kind == "csv" else "People"
    first, second = rows_of(index)[:2]
    assert first[:3] == (f"{start}-1", title, "name: Ann, city: Oslo, since: 2020")
    assert second[2] == "name: Bob, since: 2021"
    place = {"row": 1} if kind == "csv" else {"sheet": "People", "row": 1}
    columns = {"name": "Ann", "city": "Oslo", "since": "2020"}
    assert {**place, **columns}.items() <= first[3].items()
    if several:
        assert rows_of(index)[2][2] == "A: name, B: city, C: since"
    chosen = Splitting(text_column="name", title_column="city", id_column="since")
    report = sync_index(index, [folder], splitting=chosen)
    assert report.changed == [path.name]
    left_out = [part.what for part in report.read.skipped]
    assert left_out == ["sheet Other"] * several
    assert [row[:3] for row in rows_of(index)[-2:]] == [
        ("2020", "Oslo", "Ann"),
        ("2021", title, "Bob"),
    ]
    if kind == "xlsx":
        head, more = ROWS[0], folder / "more.xlsx"
        sheet(more, [head, ["Cid", "Rome", "2030"], ["", "Bern", "2031"]])
        with refused("sheet People: row 2: text is empty"):
            add_files(index, [more])
        sheet(more, [head, ["Cid", "Rome", "2030"], ["", "", ""], ["Dan", "", "9"]])
        assert add_files(index, [more]).passages_added == 2  # as the index has it
    lost = Splitting(text_column="town")
    with refused("no column 'town' for the text"):
        sync_index(index, [folder], splitting=lost)


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
    (tmp_path / "a.ipynb").write_text(
        '{"cells": [{"cell_type": "markdown", "metadata": {}, "source": ["# Tea\\n", "Green."]}],'
        ' "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    assert "Green." in read(tmp_path / "a.ipynb").text
    (tmp_path / "a.rst").write_text("Tea\n===\n\nGreen.\n\nHeat\n----\n\n80 degrees.\n")
    titles = [part.title for part in read(tmp_path / "a.rst").sections]
    assert titles == ["Tea", "Tea > Heat"]


def test_raised_digits_that_would_be_lost_are_refused(tmp_path):
    """A reader of citations must not write 106 for a raised 10⁶."""
    (tmp_path / "a.rtf").write_text(r"{\rtf1 10\super 6\nosupersub  units}")
    with refused("106 for 10⁶"):
        read(tmp_path / "a.rtf")
    (tmp_path / "b.rtf").write_text(r"{\rtf1 Ten units.\par}")
    assert "Ten units." in read(tmp_path / "b.rtf").text


SHIFTED = "0 10|30000 6|0  units of H|-25000 2|0 O"


def test_raised_digits_of_slides_and_restructured_text_stay_raised(tmp_path):
    role = "10\\ :sup:`6` units of H\\ :sub:`2`\\ O"
    (tmp_path / "a.rst").write_text(f"Tea\n===\n\n{role}\n")
    assert "10⁶ units of H₂O" in read(tmp_path / "a.rst").text
    runs = ""
    for run in SHIFTED.split("|"):
        shift, text = run.split(" ", 1)
        runs += f'<a:r><a:rPr baseline="{shift}"/><a:t>{text}</a:t></a:r>'
    assert "10⁶ units of H₂O" in read(slide(tmp_path / "a.pptx", runs)).text


KINDS = "pptx xlsx ods odt epub ipynb rtf"


@pytest.mark.parametrize("kind", KINDS.split())
def test_a_file_that_is_not_what_its_name_says_does_not_crash(tmp_path, kind):
    (tmp_path / f"a.{kind}").write_bytes(b"\x00\xffno such file" * 50)
    text = ""
    with suppress(UserError):
        text = read(tmp_path / f"a.{kind}").text
    assert len(text) < 2000
