"""Reading of Word files: nothing lost, nothing invented, and bounded work on hostile files."""

import time
import zipfile

import docx
import pytest
from refusals import refused

from retrieval.documents.list_numbers import format_number
from retrieval.readers import read_files
from selfrag.common.errors import UserError
from selfrag.extensions.word.equations import EquationWriter
from selfrag.extensions.word.reader import read_word
from selfrag.extensions.word.symbols import symbol_text

NAMESPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
    "c": "http://schemas.openxmlformats.org/drawingml/2006/chart",
    "dgm": "http://schemas.openxmlformats.org/drawingml/2006/diagram",
    "v": "urn:schemas-microsoft-com:vml",
}
DECLARED = " ".join(
    f'xmlns:{prefix}="{address}"' for prefix, address in NAMESPACES.items()
)
RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"


def part(tag, content):
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><w:{tag} {DECLARED}>{content}</w:{tag}>'
    )


def write(path, body, **parts):
    """A Word file of a body, and of further parts by their kinds, such as `footnotes`."""
    links = "".join(
        f'<Relationship Id="{kind}" Type="x/{kind.rstrip("0123456789")}" Target="{kind}.xml"/>'
        for kind in parts
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "word/document.xml", part("document", f"<w:body>{body}</w:body>")
        )
        archive.writestr(
            "word/_rels/document.xml.rels",
            f'<Relationships xmlns="{RELATIONSHIPS}">{links}</Relationships>',
        )
        for kind, content in parts.items():
            archive.writestr(f"word/{kind}.xml", content)
    return path


def read(path):
    return read_word(path, "name")


def run(text, properties=""):
    return (
        f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'
    )


def paragraph(content, properties=""):
    content = content if content.startswith("<") else run(content)
    return f"<w:p><w:pPr>{properties}</w:pPr>{content}</w:p>"


def cell(text, properties=""):
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"


def table(*rows):
    return (
        "<w:tbl>" + "".join(f"<w:tr>{''.join(row)}</w:tr>" for row in rows) + "</w:tbl>"
    )


def field(instruction, result):
    marks = [
        f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'
        for kind in ("begin", "separate", "end")
    ]
    return f"{marks[0]}<w:r><w:instrText>{instruction}</w:instrText></w:r>{marks[1]}{result}{marks[2]}"


SDT = "<w:sdt><w:sdtPr><w:alias w:val='no'/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>"
BOX = "<w:txbxContent>{}</w:txbxContent>"
SPAN = '<w:gridSpan w:val="{}"/>'
MERGE, MERGED = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"

TEXTS = {
    # D1 to D4 are cases of the audit. Content controls, tracked changes, fields, smart tags:
    "D2 control": (SDT.format(paragraph("Ninety days.")), "Ninety days."),
    "D2 inline control": (
        paragraph(run("law of ") + SDT.format(run("Norway")) + run(", excl.")),
        "law of Norway, excl.",
    ),
    "D2 cell control": (table([SDT.format(cell("a")), cell("b")]), "a | b"),
    "D2 row control": (
        "<w:tbl>"
        + SDT.format(f"<w:tr>{cell('a')}{cell('b')}</w:tr>")
        + f"<w:tr>{cell('1')}{cell('2')}</w:tr></w:tbl>",
        "a | b\n1 | 2",
    ),
    "D3 tracked": (
        paragraph(
            run("is ")
            + "<w:del><w:r><w:delText>2</w:delText></w:r></w:del><w:ins>"
            + run("7")
            + "</w:ins>"
        ),
        "is 7",
    ),
    "moved": (
        paragraph(
            "<w:moveFrom>"
            + run("old")
            + "</w:moveFrom><w:moveTo>"
            + run("new")
            + "</w:moveTo>"
        ),
        "new",
    ),
    "deleted mark": (
        paragraph("One ", "<w:rPr><w:del/></w:rPr>") + paragraph("sentence."),
        "One sentence.",
    ),
    "deleted row": (
        "<w:tbl><w:tr>"
        + cell("a")
        + cell("b")
        + f"</w:tr><w:tr><w:trPr><w:del/></w:trPr>{cell('1')}{cell('2')}</w:tr>"
        f"<w:tr>{cell('3')}{cell('4')}</w:tr></w:tbl>",
        "a | b\n3 | 4",
    ),
    "D3 field": (
        paragraph(run("See ") + field(" REF x ", run("4.2")) + run(".")),
        "See 4.2.",
    ),
    "field in field": (
        paragraph(
            field(
                " IF "
                + "</w:instrText></w:r>"
                + field("x", run("no"))
                + "<w:r><w:instrText>",
                run("yes"),
            )
        ),
        "yes",
    ),
    "D3 simple field": (
        paragraph('<w:fldSimple w:instr="DATE">' + run("May") + "</w:fldSimple>"),
        "May",
    ),
    "unfinished field": (
        paragraph('<w:r><w:fldChar w:fldCharType="begin"/></w:r>') + paragraph("kept"),
        "kept",
    ),
    "check box": (
        paragraph(
            '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:checked/></w:checkBox></w:ffData>'
            '</w:fldChar></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>'
            + run(" paid")
        ),
        "☒ paid",
    ),
    "list of a form": (
        paragraph(
            '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:ddList><w:result w:val="1"/>'
            '<w:listEntry w:val="no"/><w:listEntry w:val="yes"/></w:ddList></w:ffData></w:fldChar></w:r>'
            '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
        ),
        "yes",
    ),
    "D3 smart tag": (
        paragraph(
            "<w:smartTag><w:customXml>" + run("Bergen") + "</w:customXml></w:smartTag>"
        ),
        "Bergen",
    ),
    "hyperlink": (paragraph("<w:hyperlink>" + run("here") + "</w:hyperlink>"), "here"),
    "hidden": (
        paragraph(
            run("seen")
            + run("unseen", "<w:vanish/>")
            + run("!", '<w:vanish w:val="0"/>')
        ),
        "seen!",
    ),
    # Nested tables and text boxes:
    "D4 nested table": (
        table(
            [
                cell("Contact"),
                f"<w:tc>{table([cell('Phone'), cell('040')])}<w:p/></w:tc>",
            ],
            [cell("a"), cell("b")],
        ),
        "Contact | (Phone | 040)\na | b",
    ),
    "layout table": (
        table(
            [
                f"<w:tc>{paragraph('One.')}{table([cell('a'), cell('b')], [cell('1'), cell('2')])}</w:tc>"
            ]
        ),
        "One.\n\na | b\n1 | 2",
    ),
    "D4 text box once": (
        paragraph(
            run("Text.")
            + "<w:r><mc:AlternateContent><mc:Choice>"
            + BOX.format(paragraph("Box."))
            + "</mc:Choice><mc:Fallback>"
            + BOX.format(paragraph("Box."))
            + "</mc:Fallback>"
            "</mc:AlternateContent></w:r>"
        ),
        "Text.\n\nBox.",
    ),
    "text box in the fallback": (
        paragraph(
            "<w:r><mc:AlternateContent><mc:Choice/><mc:Fallback>"
            + BOX.format(paragraph("Box."))
            + "</mc:Fallback></mc:AlternateContent></w:r>"
        ),
        "Box.",
    ),
    "drop cap": (
        paragraph("D", '<w:framePr w:dropCap="drop"/>') + paragraph("rop cap."),
        "Drop cap.",
    ),
    "marks": (
        paragraph(
            "<w:r><w:t>non</w:t><w:noBreakHyphen/><w:t>stop</w:t><w:tab/><w:t>a</w:t><w:softHyphen/><w:t>b</w:t>"
            "<w:br/><w:t>c</w:t></w:r>",
            '<w:tabs><w:tab w:val="left"/></w:tabs>',
        ),
        "non-stop\tab\nc",
    ),
    "symbol": (paragraph('<w:r><w:sym w:font="Symbol" w:char="F0A3"/></w:r>'), "≤"),
    "ruby": (
        paragraph(
            "<w:r><w:ruby><w:rt>"
            + run("とう")
            + "</w:rt><w:rubyBase>"
            + run("東")
            + "</w:rubyBase></w:ruby></w:r>"
        ),
        "東(とう)",
    ),
    "superscript": (
        paragraph(run("10") + run("5", '<w:vertAlign w:val="superscript"/>')),
        "10⁵",
    ),
    "subscript and position": (
        paragraph(
            run("H")
            + run("2", '<w:vertAlign w:val="subscript"/>')
            + run("O 10")
            + run("-6", '<w:position w:val="8"/>')
        ),
        "H₂O 10⁻⁶",
    ),
    "struck": (
        paragraph(
            run("price ")
            + run("5", "<w:strike/>")
            + run("0", "<w:dstrike/>")
            + run(" 30", '<w:strike w:val="0"/>')
        ),
        "price ~~50~~ 30",
    ),
    "equation": (
        paragraph(
            "<m:oMath><m:f><m:num><m:r><m:t>1</m:t></m:r></m:num><m:den><m:r><m:t>a+b</m:t></m:r></m:den></m:f>"
            "</m:oMath>"
        ),
        "1/(a+b)",
    ),
    "description": (
        paragraph(
            '<w:r><w:drawing><wp:docPr descr="A map of Oslo"/><a:blip/></w:drawing></w:r>'
        ),
        "A map of Oslo",
    ),
    # Values of tables keep their places:
    "D1 repeated and blank": (
        table(
            [cell(text) for text in ("Plant", "Q1", "Q2", "Q3")],
            [cell(text) for text in ("Turku", "", "2", "2")],
        ),
        "Plant | Q1 | Q2 | Q3\nTurku |  | 2 | 2",
    ),
    "merged down": (
        table(
            [cell("a"), cell("b")],
            [cell("x", MERGE), cell("1")],
            [cell("", MERGED), cell("2")],
        ),
        "a | b\nx | 1\nx | 2",
    ),
    "merged across": (
        table(
            [cell("a"), cell("b"), cell("c")], [cell("x", SPAN.format(2)), cell("1")]
        ),
        "a | b | c\nx | x | 1",
    ),
    "columns before": (
        table(
            [cell("a"), cell("b")],
            ['<w:trPr><w:gridBefore w:val="1"/></w:trPr>', cell("1"), cell("2")],
        ),
        "a | b\n | 1 | 2",
    ),
    "caption and two header rows": (
        table(
            [cell("Fees", SPAN.format(3))],
            [
                "<w:trPr><w:tblHeader/></w:trPr>",
                cell("Boat"),
                cell("2023", SPAN.format(2)),
            ],
            ["<w:trPr><w:tblHeader/></w:trPr>", cell(""), cell("May"), cell("June")],
            [cell("9 m"), cell("1"), cell("2")],
        ),
        "Fees\n\nBoat | 2023 May | 2023 June\n9 m | 1 | 2",
    ),
    "no value of another row": (
        table(
            [cell("a"), cell("b")],
            [cell("x", MERGE), cell("1")],
            [cell("", MERGE), cell("")],
            [cell("", MERGED), cell("2")],
        ),
        "a | b\nx | 1\n | 2",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_read_where_it_stands(tmp_path, name):
    """Field audit D2, D3 and D4: content controls, insertions, fields, smart tags, nested tables and text boxes."""
    body, text = TEXTS[name]
    assert read(write(tmp_path / "a.docx", body)).text.strip("\n") == text


def test_formatting_is_passed_over_and_text_that_looks_like_it_is_not(tmp_path):
    bold = '<w:b/><w:sz w:val="24" />'
    document = read(write(tmp_path / "a.docx", paragraph(run("Tea", bold))))
    assert document.text.strip() == "Tea"
    quoted = paragraph(run("<![CDATA[<w:b/> is bold]]>", bold))
    assert read(write(tmp_path / "b.docx", quoted)).text.strip() == "<w:b/> is bold"
    marks = [
        run("\uf0a7", f'<w:rFonts w:ascii="{font}" w:hAnsi="{font}"/>{bold}')
        for font in ("Arial", "Symbol", "wingdings", "Times New Roman")
    ]
    plain = f"<w:pPr><w:rPr>{bold}</w:rPr></w:pPr>"
    fonts = f"<w:p>{plain}{'<w:r><w:tab/></w:r>'.join(marks)}</w:p>"
    text = read(write(tmp_path / "c.docx", fonts)).text.strip()
    assert text.split("\t") == ["\uf0a7", "♣", "▪", "\uf0a7"]


def test_d1_quarters_of_a_table_are_not_exchanged(tmp_path):
    """Audit, defect 1: asked for Q1, a reader must not see the value of another quarter in its place."""
    document = docx.Document()
    grid = document.add_table(2, 5)
    for row, texts in enumerate(
        (["Plant", "Q1", "Q2", "Q3", "Q4"], ["Turku", "", "2", "", "4"])
    ):
        for column, text in enumerate(texts):
            grid.cell(row, column).text = text
    document.save(str(tmp_path / "table.docx"))
    (row,) = read_files([tmp_path / "table.docx"])
    header, values = (line.split(" | ") for line in row.passage.text.split("\n"))
    assert dict(zip(header, values, strict=True)) == {
        "Plant": "Turku",
        "Q1": "",
        "Q2": "2",
        "Q3": "",
        "Q4": "4",
    }


def test_notes_stand_at_their_references_and_headers_first(tmp_path):
    note = '<w:footnote w:id="2">{}</w:footnote>'
    page = paragraph(run("Page ") + field("PAGE", run("3")))
    file = write(
        tmp_path / "a.docx",
        paragraph(run("The fee is 45.") + '<w:r><w:footnoteReference w:id="2"/></w:r>')
        + table(
            [cell("a"), cell("b")],
            [cell("1"), cell('<w:r><w:t>2</w:t><w:endnoteReference w:id="1"/></w:r>')],
        ),
        footnotes=part("footnotes", note.format(paragraph("Without tax."))),
        endnotes=part(
            "endnotes", f'<w:endnote w:id="1">{paragraph("Estimated.")}</w:endnote>'
        ),
        header1=part("hdr", paragraph("Contract 4711") + page),
        header2=part("hdr", paragraph("Contract 4711")),
    )
    assert (
        read(file).text
        == "Contract 4711\n\nThe fee is 45.\n\nWithout tax.\n\na | b\n1 | 2 (Estimated.)\n\n"
    )


STYLES = part(
    "styles",
    '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:styleId="Kapitel"><w:name w:val="Kapitel"/><w:basedOn w:val="berschrift1"/></w:style>'
    '<w:style w:styleId="Deep"><w:name w:val="x"/><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style>'
    '<w:style w:styleId="Toc"><w:basedOn w:val="berschrift1"/><w:pPr><w:outlineLvl w:val="9"/></w:pPr></w:style>'
    '<w:style w:styleId="A"><w:basedOn w:val="B"/></w:style><w:style w:styleId="B"><w:basedOn w:val="A"/></w:style>'
    '<w:style w:styleId="Secret"><w:rPr><w:vanish/></w:rPr></w:style>',
)


def styled(style, text):
    return paragraph(text, f'<w:pStyle w:val="{style}"/>')


def test_headings_are_known_by_level_name_and_base(tmp_path):
    body = (
        styled("Kapitel", "Eins")
        + styled("Deep", "Zwei")
        + styled("A", "Text.")
        + styled("Toc", "Mehr.")
    )
    body += (
        paragraph("Drei", '<w:outlineLvl w:val="0"/>')
        + styled("Secret", "unseen")
        + paragraph("Last.")
    )
    document = read(write(tmp_path / "a.docx", body, styles=STYLES))
    titles = [
        (section.title, document.text[section.start : section.end].strip())
        for section in document.sections
    ]
    assert titles == [("Eins > Zwei", "Text.\n\nMehr."), ("Drei", "Last.")]
    assert [(item.what, item.why) for item in document.skipped] == [
        ("1 hidden text", "Word does not show them")
    ]
    without_styles = read(
        write(tmp_path / "b.docx", styled("berschrift2", "Kopf") + paragraph("Text."))
    )
    assert [section.title for section in without_styles.sections] == ["Kopf"]


def test_numbers_of_lists_are_part_of_the_text(tmp_path):
    levels = (("decimal", "%1."), ("lowerLetter", "%1.%2)"), ("bullet", "x"))
    abstract = "".join(
        f'<w:lvl w:ilvl="{depth}"><w:start w:val="1"/><w:numFmt w:val="{kind}"/><w:lvlText w:val="{pattern}"/></w:lvl>'
        for depth, (kind, pattern) in enumerate(levels)
    )
    numbering = part(
        "numbering",
        f'<w:abstractNum w:abstractNumId="0">{abstract}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="0"/>'
        '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num>',
    )
    places = [
        ("1", 0),
        ("1", 1),
        ("1", 1),
        ("1", 0),
        ("1", 1),
        ("1", 2),
        ("2", 0),
        ("9", 0),
    ]
    body = "".join(
        paragraph(
            "x",
            f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>',
        )
        for number, depth in places
    )
    text = read(write(tmp_path / "a.docx", body, numbering=numbering)).text
    assert text.split("\n\n")[:-1] == [
        "1. x",
        "1.a) x",
        "1.b) x",
        "2. x",
        "2.a) x",
        "• x",
        "1. x",
        "x",
    ]
    kinds = [
        "lowerRoman",
        "upperRoman",
        "lowerLetter",
        "upperLetter",
        "decimalZero",
        "chineseCounting",
        "unknown",
    ]
    assert [format_number(14, kind) for kind in kinds] == [
        "xiv",
        "XIV",
        "n",
        "N",
        "14",
        "十四",
        "14",
    ]
    assert [format_number(number, "lowerLetter") for number in (0, 27, 10**6)] == [
        "0",
        "aa",
        "1000000",
    ]


def test_charts_and_diagrams_are_read_once(tmp_path):
    points = "<c:pt idx='0'><c:v>{}</c:v></c:pt><c:pt idx='1'><c:v>{}</c:v></c:pt>"
    series = f"<c:ser><c:tx><c:v>Fee</c:v></c:tx><c:cat>{points.format('May', 'June')}</c:cat>"
    chart = part(
        "x", f"<a:t>Fees</a:t>{series}<c:val>{points.format(7, 9)}</c:val></c:ser>"
    )
    drawing = paragraph(
        '<w:r><w:drawing><c:chart r:id="chart"/><dgm:relIds r:dm="diagramData"/></w:drawing></w:r>'
    )
    diagram = part("x", "<a:p><a:t>Ask</a:t></a:p><a:p><a:t>Answer</a:t></a:p>")
    document = read(
        write(tmp_path / "a.docx", drawing * 2, chart=chart, diagramData=diagram)
    )
    assert document.text == "Fees\n\n | Fee\nMay | 7\nJune | 9\n\nAsk\n\nAnswer\n\n"


LEFT_OUT = {
    "picture": (
        '<w:drawing><wp:docPr descr="logo.png"/><a:blip/></w:drawing>',
        "1 picture",
    ),
    "object": (
        "<w:object><v:shape><v:imagedata/></v:shape></w:object>",
        "1 embedded object",
    ),
    "altChunk": ("<w:altChunk/><w:altChunk/>", "2 inserted files"),
    "comment": ("<w:commentReference/>", "1 comment"),
    "symbol": ('<w:sym w:font="Unknown" w:char="F061"/>', "1 symbol"),
    "deletion": (
        "<w:del><w:r><w:delText>2</w:delText></w:r></w:del>",
        "1 deleted text",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_was_not_read_is_said(tmp_path, name):
    content, what = LEFT_OUT[name]
    file = write(
        tmp_path / "a.docx", paragraph(f"<w:r>{content}</w:r>") + paragraph("Text.")
    )
    assert [item.what for item in read(file).skipped] == [what]
    with refused(f"left out: {what}"):
        read(write(tmp_path / "b.docx", paragraph(f"<w:r>{content}</w:r>")))


def test_strict_files_and_templates_are_read(tmp_path):
    body = part("document", f"<w:body>{paragraph('Text.')}</w:body>")
    strict = body.replace(
        NAMESPACES["w"], "http://purl.oclc.org/ooxml/wordprocessingml/main"
    )
    for suffix in (".docx", ".docm", ".dotx", ".dotm"):
        with zipfile.ZipFile(tmp_path / f"a{suffix}", "w") as archive:
            archive.writestr("/Word\\Main.xml", strict)
            archive.writestr(
                "_rels/.rels",
                f'<Relationships xmlns="{RELATIONSHIPS}">'
                '<Relationship Type="x/officeDocument" Target="/word/main.xml"/></Relationships>',
            )
        assert [row.passage.text for row in read_files([tmp_path / f"a{suffix}"])] == [
            "Text."
        ]


def test_damage_beside_the_text_is_said(tmp_path):
    body = paragraph(run("Text.") + '<w:r><w:footnoteReference w:id="2"/></w:r>')
    document = read(write(tmp_path / "a.docx", body, styles="<w:styles", footnotes=""))
    assert document.text == "Text.\n\n"
    assert [item.what for item in document.skipped] == [
        "word/styles.xml",
        "word/footnotes.xml",
    ]


BOMB = "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]>"
REFUSED = {
    "entities": (
        part("document", "").replace("?>", "?>" + BOMB),
        "declares a document type",
    ),
    "cut": (part("document", "")[:-20], "word/document.xml is damaged"),
    "encoding": (
        part("document", "").replace("UTF-8", "undefined"),
        "word/document.xml",
    ),
    "too dense": (
        part("document", "<w:p/>" * 500_000),
        "unpacks to more than a text would",
    ),
    "names": (
        part("document", "".join(f"<x{number}/>" for number in range(20_000))),
        "names of elements",
    ),
    "tag": (
        part(
            "document",
            "<w:p " + " ".join(f'a{n}="{n * n % 9973}"' for n in range(200_000)) + "/>",
        ),
        "a tag of more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_parts_are_refused_in_one_line(tmp_path, name):
    """Issue 45, section 3: `gridSpan` of 1e9, merged cells and rows without end."""
    content, reason = REFUSED[name]
    file = tmp_path / "a.docx"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", content)
    with refused(reason) as error:
        read(file)
    assert str(error.value).startswith(f"{file}: ")


def test_old_and_encrypted_files_are_named(tmp_path):
    (tmp_path / "a.docx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    with refused("encrypted .*Word 97"):
        read(tmp_path / "a.docx")


DEPTH = 20_000
BOUNDED = {
    "span": (table([cell("a", SPAN.format(10**9)), cell("b")]), 300),
    "merged square": (table([cell("v", MERGE)] * 150, *([cell("", MERGED)] * 150 for _ in range(149))), 2000),
    "merged rows": (table([cell("x", MERGE), cell("1")], *[[cell("", MERGED), cell("1")]] * 2999), 18_100),
    "spans": (table(*([cell("a" * 190, SPAN.format(63))] * 20 for _ in range(300))), 2_500_000),
    "nested tables": (
        "<w:tbl><w:tr><w:tc>" * DEPTH + paragraph("x") + "</w:tc></w:tr></w:tbl>" * DEPTH, 10),
    "nested controls": ("<w:sdt><w:sdtContent>" * DEPTH + paragraph("x") + "</w:sdtContent></w:sdt>" * DEPTH, 10),
    "nested boxes": (
        f"<w:p><w:r><w:txbxContent>{paragraph('x')}" * DEPTH + "</w:txbxContent></w:r></w:p>" * DEPTH, 3 * DEPTH + 10),
    "nested paragraphs": ("<w:p><w:r><w:t>x</w:t></w:r>" * DEPTH + "</w:p>" * DEPTH, 3 * DEPTH + 10),
    "equation": (
        "<w:p><m:oMath>" + "<m:sSup><m:e><m:r><m:t>x</m:t></m:r>" * DEPTH + "</m:e></m:sSup>" * DEPTH
        + "</m:oMath></w:p>", 2 * DEPTH),
    "open fields": (
        '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r></w:p>' * DEPTH + paragraph("x"), 10),
    "note": (paragraph('<w:r><w:t>x</w:t><w:footnoteReference w:id="2"/></w:r>') * DEPTH, 3 * DEPTH + 100_000),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_work_and_text_grow_with_the_input(tmp_path, monkeypatch, name):
    monkeypatch.setattr("selfrag.extensions.word.package.WordPackage.max_ratio", 10_000)
    body, longest = BOUNDED[name]
    notes = part(
        "footnotes", f'<w:footnote w:id="2">{paragraph("n" * 90_000)}</w:footnote>'
    )
    file = write(tmp_path / "a.docx", body, footnotes=notes)
    start = time.process_time()
    text = read(file).text
    assert len(text) <= longest
    assert any(letter in text for letter in "xva")
    assert time.process_time() - start < 0.5 + 1e-6 * 2 * len(body)


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path):
    document = docx.Document()
    document.add_heading("Report", 1)
    document.add_paragraph("Green tea is brewed at 80 degrees.", style="List Number")
    document.save(str(tmp_path / "good.docx"))
    good = (tmp_path / "good.docx").read_bytes()
    file = tmp_path / "bad.docx"
    messages = []
    for place in range(0, len(good), len(good) // 40):
        for content in (
            good[:place],
            good[:place] + bytes([good[place] ^ 0x5A]) + good[place + 1 :],
        ):
            file.write_bytes(content)
            try:
                read(file)
            except UserError as error:
                messages.append(str(error))
    assert len(messages) > 30
    assert all(message.startswith(f"{file}: ") for message in messages)


def test_equations_and_symbols():
    writer = EquationWriter()
    for name in ("m:rad", "m:deg", "m:e"):
        writer.start(name, {})
        if name != "m:rad":
            writer.add("3" if name == "m:deg" else "x+1")
            writer.end(name)
    writer.end("m:rad")
    assert writer.finish() == "∛(x+1)"
    assert [
        symbol_text("Symbol", 0xF0A3),
        symbol_text("Wingdings", 0xFE),
        symbol_text("Arial", 0x41),
    ] == [
        "≤",
        "☑",
        "A",
    ]


def test_an_archive_of_something_else_is_no_word_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.docx", "w") as archive:
        archive.writestr("a.txt", "x")
    with refused(r"other\.docx: cannot be read as Word file"):
        list(read_files([tmp_path / "other.docx"]))
