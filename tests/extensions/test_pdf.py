"""PDF files become the text that they show, in reading order; what is not text is named."""

import io
import shutil

import pypdf
import pytest
from PIL import Image, ImageDraw, ImageFont
from refusals import refused

from retrieval.readers import read_files
from retrieval.splitting import Splitting
from selfrag.extensions.pdf.ocr import check_languages
from selfrag.extensions.pdf.reader import read_pdf

RESOURCES = "/Resources << /Font << /F1 3 0 R >> /XObject << /Im1 4 0 R >> >>"
FONT = (
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
)
IMAGE = (
    "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>\n"
    "stream\n0\nendstream"
)
SCAN = "612 0 0 792 0 0 cm /Im1 Do"


def pdf(*contents, page="", catalog="", more=()):
    """A PDF with a page for each content stream; further objects are numbered from 5."""
    objects = [f"<< /Type /Catalog /Pages 2 0 R {catalog} >>", "", FONT, IMAGE, *more]
    kids = []
    for content in contents:
        kids.append(f"{len(objects) + 1} 0 R")
        place = f"/MediaBox [0 0 612 792] {RESOURCES} /Contents {len(objects) + 2} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {place} {page} >>")
        objects.append(
            f"<< /Length {len(content.encode('cp1252'))} >>\nstream\n{content}\nendstream"
        )
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    written, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n{body}\nendobj\n".encode("cp1252")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R >>\n"
    return bytes(written) + f"{end}startxref\n{len(written)}\n%%EOF".encode()


def drawn(x, y, text, size=10):
    """A piece of text at a place."""
    return f"BT /F1 {size} Tf {x} {y} Td ({text}) Tj ET\n"


def lines(*texts):
    return "".join(drawn(72, 700 - 14 * row, text) for row, text in enumerate(texts))


def read(folder, content):
    file = folder / "a.pdf"
    file.write_bytes(content)
    return read_pdf(file, "a")


def text_of(folder, content):
    return read(folder, pdf(content)).text.strip()


LEFT = (
    "The council decided in March that",
    "all cargo ships pay a new tax which",
    "raises the fee for each container by",
    "four crowns until further notice.",
)
MIDDLE = (
    "Yachts pay nothing in the winter",
    "months but twice the fee in summer",
    "when the guest harbour is full and",
    "water is short on the islands.",
)
RIGHT = (
    "Fishing boats are exempt from the",
    "tax until the year 2031. After that",
    "they pay half of the fee, and small",
    "boats of up to six metres nothing.",
)
HEADING = "Harbour news of the old town and of the islands"
CLOSING = "This line runs over all columns and closes the page."


@pytest.mark.parametrize("shift", [0, -5, 3])  # of the last column against the first
@pytest.mark.parametrize("columns", [(LEFT, RIGHT), (LEFT, MIDDLE, RIGHT)])
def test_d11_columns_that_are_drawn_line_by_line(tmp_path, columns, shift):
    content = drawn(40, 740, HEADING, 16)
    for row, texts in enumerate(zip(*columns, strict=True)):
        for place, text in enumerate(texts):
            lower = shift if place == len(texts) - 1 else 0
            content += drawn(40 + 185 * place, 700 - 14 * row + lower, text)
    content += drawn(
        40, 600, CLOSING + " It is long enough to cross the gap of the columns."
    )
    paragraphs = text_of(tmp_path, content).split("\n\n")
    assert paragraphs[1:-1] == [" ".join(column) for column in columns]
    assert paragraphs[0] == HEADING
    assert paragraphs[-1].startswith(CLOSING)


def test_columns_that_are_drawn_column_by_column_stay(tmp_path):
    content = lines(*LEFT) + "".join(
        drawn(300, 700 - 14 * row, text) for row, text in enumerate(RIGHT)
    )
    assert text_of(tmp_path, content).split("\n\n") == [" ".join(LEFT), " ".join(RIGHT)]


FEES = [
    ("Ship", "Fee", "Year"),
    ("Cargo ship", "40 crowns", "2030"),
    ("Fishing boat", "20 crowns", "2031"),
]
FEES += [("Small yacht", "10 crowns", "2032"), ("Rowing boat", "1 crown", "2033")]
HARBOURS = [
    ("Turku", "The main harbour of the country, open all year"),
    ("Oulu", "Closed in winter by the ice"),
]
HARBOURS += [
    ("Vaasa", "Ferries to Sweden leave from here each day"),
    ("Kemi", "The last one before the border"),
]


@pytest.mark.parametrize("rows", [FEES, HARBOURS])
def test_rows_of_a_table_are_not_torn_apart(tmp_path, rows):
    content = ""
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            content += drawn(72 + 150 * column, 700 - 14 * row, cell)
    text = " ".join(text_of(tmp_path, content).replace("|", " ").split())
    assert text == " ".join(" ".join(cells) for cells in rows)


FEE_ROWS = [
    ("Zone", "Fee", "Deposit", "Remark"),
    *((f"B{n}", f"{n}00 crowns", f"{n}0", f"note {n}") for n in range(1, 9)),
]


def cells(rows, top=700, step=16, width=110):
    """Rows of cells without strokes; what is blank is not drawn."""
    content = ""
    for row, texts in enumerate(rows):
        for column, text in enumerate(texts):
            if text:
                content += drawn(72 + width * column, top - step * row, text)
    return content


def strokes(rows, columns, top=712, step=16, width=110):
    """A grid of lines around cells."""
    bottom, right = top - step * rows, 68 + width * columns
    content = "".join(
        f"68 {top - step * row} m {right} {top - step * row} l S\n"
        for row in range(rows + 1)
    )
    return content + "".join(
        f"{68 + width * n} {top} m {68 + width * n} {bottom} l S\n"
        for n in range(columns + 1)
    )


def boxes(rows, columns, top=712, step=16, width=110):
    """A rectangle around each cell."""
    places = [
        (68 + width * column, top - step * (row + 1))
        for row in range(rows)
        for column in range(columns)
    ]
    return "".join(f"{x} {y} {width} {step} re S\n" for x, y in places)


def path(rows, columns):
    """All lines of a grid as one path."""
    return strokes(rows, columns).replace("S\n", "\n") + "S\n"


def table_text(rows):
    return "\n".join(" | ".join(row).rstrip() for row in rows)


@pytest.mark.parametrize("draw", [None, strokes, boxes, path])
def test_tables_become_rows_below_their_header(tmp_path, draw):
    """With strokes also where a row has few cells, and where the file draws one column after the other."""
    rows = list(FEE_ROWS)
    rows[3] = ("B3", "", "30", "")
    content = (
        lines("Fees of the harbour, in crowns of this year.")[:-1].replace("700", "760")
        + "\n"
    )
    if draw is None:
        content += cells(rows)
    else:
        columns = [
            [
                tuple(text if place == n else "" for place, text in enumerate(row))
                for row in rows
            ]
            for n in range(4)
        ]
        content += draw(len(rows), 4) + "".join(map(cells, columns))
    document = read(
        tmp_path,
        pdf(
            content
            + drawn(72, 500, "Paid at the gate of the harbour, each day before noon.")
        ),
    )
    above, table, below = document.text.strip().split("\n\n")
    assert table == table_text(rows)
    assert (above[:4], below[:4]) == ("Fees", "Paid")
    (rows_below,) = document.tables
    assert [
        document.text[slice(*row)] for row in (rows_below.header, *rows_below.rows)
    ] == table.split("\n")


def test_a_long_table_over_pages_repeats_its_header_in_each_passage(
    tmp_path,
):
    rows = [
        ("Berth", "Depth", "Fee"),
        *((f"B{n}", f"{n % 9 + 3} m", f"{n}00 crowns") for n in range(1, 81)),
    ]
    content = [
        strokes(41, 3) + cells(rows[:41]) + drawn(300, 20, "1"),
        strokes(40, 3) + cells(rows[41:]),
    ]
    # with strokes and a page number, and without
    for made in (
        content,
        [cells(rows[:41]), cells(rows[41:])],
    ):
        file = tmp_path / "a.pdf"
        file.write_bytes(pdf(*made))
        passages = [
            row.passage.text.removesuffix("\n\n1")
            for row in read_files([file], Splitting(words=60))
        ]
        assert all(passage.startswith("Berth | Depth | Fee\nB") for passage in passages)
        read_rows = [line for passage in passages for line in passage.split("\n")[1:]]
        assert read_rows == [" | ".join(row) for row in rows[1:]]


NO_TABLES = {
    "a list with numbers": [(f"{n}.", "Tie the ropes of ship 5") for n in range(1, 8)],
    "contents": [(f"Chapter {n}", ". . . . . . . .", f"{n}0") for n in range(1, 8)],
    "names without numbers": [
        ("Oulu", "Town in the north"),
        ("Turku", "Old town"),
        ("Kemi", "Town"),
        ("Vaasa", "Port"),
    ],
    "two rows": [("Fee", "40", "crowns"), ("Deposit", "10", "crowns")],
    "columns that are not aligned": [(" " * n + "x", f"{n}") for n in range(3)],
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_what_is_not_clearly_a_table_stays_text(tmp_path, name):
    document = read(tmp_path, pdf(cells(NO_TABLES[name])))
    assert not document.tables
    assert (
        document.text.split()
        == " ".join(" ".join(row) for row in NO_TABLES[name]).split()
    )


@pytest.mark.parametrize(
    "frame",
    ["", "30 590 540 130 re S 300 590 m 300 720 l S\n", "30 590 540 130 re S\n"],
)
def test_prose_in_two_columns_is_no_table(tmp_path, frame):
    """Neither in a frame nor with a line between the columns."""
    content = frame
    for row, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
        content += drawn(40, 700 - 14 * row, left) + drawn(310, 700 - 14 * row, right)
    document = read(tmp_path, pdf(content))
    assert not document.tables
    assert document.text.split() == " ".join(LEFT + RIGHT).split()


def test_lines_of_prose_in_boxes_of_their_lengths_are_no_table(tmp_path):
    """Each line stands once, and not in each column that the ends of the other boxes make."""
    content, texts = "", LEFT[:6]
    for row, text in enumerate(texts):
        width = 300 + 30 * (row % 3)
        content += f"68 {696 - 16 * row} {width} 16 re S\n"
        content += drawn(72, 700 - 16 * row, text)
    document = read(tmp_path, pdf(content))
    assert not document.tables
    assert document.text.split() == " ".join(texts).split()


def test_cells_of_several_lines_merged_cells_and_bold_headers(tmp_path):
    # one cell over two rows
    content = strokes(3, 3, step=32).replace(
        "68 648 m 398 648 l", "178 648 m 398 648 l"
    )
    content += "".join(
        drawn(72 + 110 * n, 690, text)
        for n, text in enumerate(("Town", "2030", "2031"))
    )
    content += (
        drawn(72, 640, "Turku")
        + drawn(182, 664, "closed in win-")
        + drawn(182, 652, "ter")
        + drawn(292, 660, "4")
    )
    content += drawn(182, 630, "open") + drawn(292, 630, "5")
    across = (
        strokes(1, 3, top=616).replace("178 616 m 178 600 l", "")
        + drawn(130, 604, "not yet")
        + drawn(292, 604, "6")
    )
    # the last row has one cell over two columns
    document = read(tmp_path, pdf(content + across))
    assert document.text.strip().split("\n") == [
        "Town | 2030 | 2031",
        "Turku | closed in winter | 4",
        "Turku | open | 5",
        "not yet | not yet | 6",
    ]
    assert document.text[slice(*document.tables[0].header)] == "Town | 2030 | 2031"
    bold = FONT.replace("/Helvetica", "/Helvetica-Bold").encode()
    rows = [
        ("Plant", "Colour", "Place"),
        ("Rose", "red", "sun"),
        ("Iris", "blue", "shade"),
        ("Fern", "green", "shade"),
    ]
    content = cells(rows[:1]).replace("/F1", "/F2") + cells(rows[1:], top=684)
    made = pdf(content, more=(FONT.replace("/Helvetica", "/Helvetica-Bold"),)).replace(
        b"/F1 3 0 R", b"/F1 3 0 R /F2 5 0 R"
    )
    document = read(tmp_path, made)
    assert bold in made
    assert document.text.strip() == table_text(rows)
    assert document.text[slice(*document.tables[0].header)] == "Plant | Colour | Place"


def test_two_rows_with_fractions_and_a_cell_over_both_are_a_table(tmp_path):
    """Cells of three lines are rows where the lines fall, and belong to their own row."""

    def fraction(x, y):
        parts = drawn(x + 40, y + 7, "3", 8) + drawn(x + 40, y - 7, "4", 8)
        return drawn(x, y, "Weight") + parts

    grid = strokes(2, 3, step=40)
    content = fraction(72, 690) + drawn(182, 690, "Fee") + fraction(72, 650)
    content += fraction(182, 650)
    both = grid.replace("68 672 m 398 672 l", "68 672 m 288 672 l")
    document = read(tmp_path, pdf(both + content + fraction(292, 670)))
    weight = "Weight 3 4"
    assert document.text.strip().split("\n") == [
        f"{weight} | Fee | {weight}",
        f"{weight} | {weight} | {weight}",
    ]
    rows = [("Town", "Fee", "Depth")]
    rows += [(name, f"{n}0", f"{n} m") for n, name in enumerate(("Oulu", "Kemi", "Ii"))]
    head = cells(rows[:1], top=690) + cells(rows[1:], top=662, step=11)
    assert text_of(tmp_path, grid + head) == table_text(rows)


def test_wide_gaps_in_one_column_are_no_columns(tmp_path):
    words = ["words", "that", "stand", "with", "very", "wide", "gaps"]
    content = ""
    for row in range(6):
        for column, word in enumerate(words):
            content += drawn(72 + 70 * column, 700 - 14 * row, word)
    assert " ".join(text_of(tmp_path, content).replace("|", " ").split()) == " ".join(
        words * 6
    )


@pytest.mark.parametrize(
    "texts, joined",
    [
        (("It is a well-", "known fact."), "It is a well-known fact."),
        (("a state-of-the-", "art method"), "a state-of-the-art method"),
        (("brewed at 80 de-", "grees"), "brewed at 80 degrees"),
        (("die Größ-", "ße und die Übertra-", "gung"), "die Größe und die Übertragung"),
        (("pre-", "and post-war"), "pre- and post-war"),
        (
            ("Anglo-", "American, 1914-", "1918, GPU-", "based, e-", "mail"),
            "Anglo-American, 1914-1918, GPU-based, e-mail",
        ),
        (("INTER-", "NATIONAL"), "INTERNATIONAL"),
        # the document decides
        (("A long-term plan is long-", "term."), "A long-term plan is long-term."),
        (("A database, the data-", "base"), "A database, the database"),
        (("The sea and a bird: a sea-", "bird"), "The sea and a bird: a sea-bird"),
        (("and/", "or", "2 -", "1"), "and/or 2 - 1"),
    ],
)
def test_d15_words_cut_at_line_ends(tmp_path, texts, joined):
    assert text_of(tmp_path, lines(*texts)) == joined


def test_letters_that_are_spaced_out_are_words(tmp_path):
    """As in files of text recognition: the last letter and the space after it are drawn by themselves."""
    content, x = "3 Tc\n", 72.0
    for word in ("North", "Buona", "Drive"):
        content += drawn(x, 700, word[:-1])
        x += sum(
            {
                "r": 3.33,
                "t": 2.78,
                "i": 2.22,
                "v": 5,
                "N": 7.22,
                "B": 6.67,
                "D": 7.22,
            }.get(c, 5.56)
            + 2
            for c in word[:-1]
        )
        content += drawn(x, 700, word[-1] + " ")
        x += 16
    assert text_of(tmp_path, content) == "North Buona Drive"
    assert text_of(tmp_path, drawn(72, 700, "one") + drawn(93, 700, "two")) == "one two"


@pytest.mark.parametrize(
    "content, text",
    [
        (drawn(72, 700, "S U M M A R Y of 3"), "SUMMARY of 3"),
        (drawn(72, 700, "Answers A B C D E"), "Answers A B C D E"),
        (drawn(72, 700, "M T W T F S S"), "M T W T F S S"),
        (drawn(72, 680, "T", 36) + drawn(98, 700, "he fee rises"), "The fee rises"),
        (drawn(72, 680, "A", 36) + drawn(100, 700, "fee rises"), "A fee rises"),
    ],
)
def test_letters_that_stand_apart_join_their_word(tmp_path, content, text):
    assert text_of(tmp_path, content) == text


def unicode_pdf(*texts):
    """A PDF with a line for each text, in a font that names any character."""
    letters = sorted(set("".join(texts)))
    codes = {letter: code for code, letter in enumerate(letters, 1)}
    mappings = "".join(
        f"<{code:04x}> <{letter.encode('utf-16-be').hex()}>\n"
        for letter, code in codes.items()
    )
    cmap = f"/CMapType 2 def\n1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n{len(letters)} beginbfchar\n"
    cmap += f"{mappings}endbfchar\n"
    descendant = (
        "<< /Type /Font /Subtype /CIDFontType2 /BaseFont /A /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) "
        "/Supplement 0 >> /DW 1000 >>"
    )
    font = (
        "<< /Type /Font /Subtype /Type0 /BaseFont /A /Encoding"
        " /Identity-H /DescendantFonts [5 0 R] /ToUnicode 6 0 R >>"
    )
    content = ""
    for row, text in enumerate(texts):
        shown = "".join(f"{codes[letter]:04x}" for letter in text)
        content += f"BT /F2 12 Tf 72 {700 - 14 * row} Td <{shown}> Tj ET\n"
    stream = f"<< /Length {len(cmap)} >>\nstream\n{cmap}\nendstream"
    written = pdf(content, more=(descendant, stream, font))
    return written.replace(b"/F1 3 0 R", b"/F2 7 0 R")


@pytest.mark.parametrize(
    "texts, joined",
    [
        (("绿茶和红茶", "需要沸水。"), "绿茶和红茶需要沸水。"),
        (("東京は日本の", "首都です。"), "東京は日本の首都です。"),
        (("เมืองหลวงของ", "ประเทศไทย"), "เมืองหลวงของประเทศไทย"),
        (("서울은 대한민국의", "수도이다."), "서울은 대한민국의 수도이다."),
        (
            ("The mis\ufb01ts dri\ufb00ed o\ufb03ce", "\ufb02at x² ½"),
            "The misfits driffed office flat x² ½",
        ),
        (("soft\u00ad", "ware and co\u00adop"), "software and coop"),
        (("\u5400\u6500\u6100\u7300 320",), "Teas 320"),  # bytes in the wrong order
    ],
)
def test_d9_d14_ligatures_and_scripts_without_spaces(tmp_path, texts, joined):
    assert read(tmp_path, unicode_pdf(*texts)).text.strip() == joined


WIDGET = "/Type /Annot /Subtype /Widget"
FIELDS = (
    f"<< {WIDGET} /FT /Tx /T (name) /V (Ada Lovelace) /Rect [160 695 300 712] >>",
    f"<< {WIDGET} /FT /Tx /T (amount) /V (400 crowns) /Rect [170 675 300 692] >>",
    f"<< {WIDGET} /FT /Ch /Ff 131072 /T (town) /V (Turku) /Opt [(Oulu) (Turku)] /Rect [160 655 300 672] >>",
    f"<< {WIDGET} /FT /Btn /T (agreed) /V /Yes /AS /Yes /AP << /N << /Yes 4 0 R >> >> /Rect [72 630 84 642] >>",
    f"<< {WIDGET} /FT /Btn /T (refused) /V /Off /AS /Off /AP << /N << /Yes 4 0 R >> >> /Rect [72 610 84 622] >>",
    f"<< {WIDGET} /FT /Tx /T (secret) /F 2 /V (hidden words) /Rect [160 595 300 602] >>",
    "<< /Type /Annot /Subtype /FreeText /Contents (Seen by the clerk.) /DA (/F1 9 Tf) /Rect [72 500 300 520] >>",
)


def test_d12_values_of_a_filled_form_stand_beside_their_labels(tmp_path):
    numbers = " ".join(f"{number} 0 R" for number in range(5, 5 + len(FIELDS)))
    content = (
        drawn(72, 700, "Applicant name:")
        + drawn(72, 680, "Amount requested:")
        + drawn(72, 660, "Town:")
    )
    made = pdf(
        content,
        page=f"/Annots [{numbers}]",
        catalog=f"/AcroForm << /Fields [{numbers}] >>",
        more=FIELDS,
    )
    text = " ".join(read(tmp_path, made).text.split())
    assert text == (
        "Applicant name: Ada Lovelace Amount requested: 400 crowns Town: Turku [x] agreed Seen by the clerk."
    )


def test_text_that_only_the_drawing_of_a_note_shows_is_read(tmp_path):
    content = drawn(0, 5, "Paid in full")
    drawing = f"<< /Type /XObject /Subtype /Form /BBox [0 0 200 20] {RESOURCES} /Length {len(content)} >>"
    stamp = "<< /Type /Annot /Subtype /Stamp /F 4 /Rect [72 500 272 520] /AP << /N 6 0 R >> >>"
    more = (stamp, f"{drawing}\nstream\n{content}\nendstream")
    made = pdf(lines("Invoice"), page="/Annots [5 0 R]", more=more)
    assert read(tmp_path, made).text.split() == ["Invoice", "Paid", "in", "full"]


def test_d13_scanned_pages_beside_others_are_named(tmp_path):
    document = read(
        tmp_path, pdf(lines("One."), SCAN, SCAN, "", SCAN + "\n" + drawn(0, 0, "5"))
    )
    assert document.pages == 5
    assert [(part.what, part.why.split(";")[0]) for part in document.skipped] == [
        ("pages 2, 3", "no text"),
        ("page 5", "hardly any text beside a large image"),
    ]


def test_attached_files_and_a_missing_end_are_named(tmp_path):
    names = "/Names << /EmbeddedFiles << /Names [(a.txt) 5 0 R] >> >>"
    attached = (
        "<< /Type /Filespec /F (a.txt) /EF << /F 6 0 R >> >>",
        "<< /Length 1 >>\nstream\nx\nendstream",
    )
    document = read(tmp_path, pdf(lines("One."), catalog=names, more=attached)[:-5])
    assert [part.what for part in document.skipped] == [
        "1 attached file",
        "end of the file",
    ]


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_d23_turned_pages_and_text_that_is_turned_with_them(tmp_path, rotate):
    matrix = {
        0: "1 0 0 1 0 0",
        90: "0 1 -1 0 600 0",
        180: "-1 0 0 -1 600 780",
        270: "0 -1 1 0 0 780",
    }[rotate]
    content = ""
    for row, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
        content += drawn(72, 500 - 14 * row, left) + drawn(300, 500 - 14 * row, right)
    made = pdf(f"q {matrix} cm\n{content}Q", page=f"/Rotate {rotate}")
    assert read(tmp_path, made).text.split() == " ".join(LEFT + RIGHT).split()


@pytest.mark.parametrize(
    "user, owner, is_read", [("", "x", True), ("x", "", False), ("x", "y", False)]
)
@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256"])
def test_d22_encrypted_files(tmp_path, user, owner, is_read, algorithm):
    writer, out = pypdf.PdfWriter(io.BytesIO(pdf(lines("One.")))), io.BytesIO()
    writer.encrypt(user, owner or None, algorithm=algorithm)
    writer.write(out)
    if is_read:
        assert read(tmp_path, out.getvalue()).text.strip() == "One."
    else:
        with refused(r"a\.pdf: .*encrypted"):
            read(tmp_path, out.getvalue())


class EmptyPassword(str):
    """An empty text that counts as given to pypdf."""

    __slots__ = ()

    def __bool__(self):
        return True


@pytest.mark.parametrize("algorithm", ["AES-256-R5", "AES-256"])
def test_d22_an_empty_owner_password_opens_a_file(tmp_path, algorithm):
    """PDFium does not try it; pypdf, which read such files before, decrypts them."""
    writer, out = pypdf.PdfWriter(io.BytesIO(pdf(lines("One.")))), io.BytesIO()
    writer.encrypt("x", EmptyPassword(), algorithm=algorithm)
    writer.write(out)
    assert read(tmp_path, out.getvalue()).text.strip() == "One."


def test_pages_are_numbered_and_titled_by_bookmarks(tmp_path):
    pages = (
        lines("Green tea is", "brewed at 80 de-", "grees."),
        lines("Black tea."),
        lines("Coffee."),
    )
    writer, out = pypdf.PdfWriter(io.BytesIO(pdf(*pages))), io.BytesIO()
    for page, title in ((0, "Tea"), (2, "Coffee")):
        writer.add_outline_item(title, page)
    writer.write(out)
    file = tmp_path / "guide.pdf"
    file.write_bytes(out.getvalue())
    rows = list(read_files([file]))
    assert [
        (row.passage.id, row.passage.title, row.passage.text, dict(row.metadata))
        for row in rows
    ] == [
        (
            "guide-1",
            "Tea",
            "Green tea is brewed at 80 degrees.",
            {"page": 1, "heading": "Tea", "start": 0, "end": 34},
        ),
        (
            "guide-2",
            "Tea",
            "Black tea.",
            {"page": 2, "heading": "Tea", "start": 36, "end": 46},
        ),
        (
            "guide-3",
            "Coffee",
            "Coffee.",
            {"page": 3, "heading": "Coffee", "start": 48, "end": 55},
        ),
    ]
    assert str(rows[2].place) == f"{file}: page 3"


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "cannot be read as PDF"),
        (pdf(lines("One."))[:120], "cannot be read as PDF"),
        (
            pdf(SCAN, SCAN),
            "no text in the PDF's 2 pages .pages 1, 2: no text; scans need text recognition",
        ),
        (pdf("", ""), "no text in the PDF's 2 pages .they are blank"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, content, said):
    with refused(said) as raised:
        read(tmp_path, content)
    assert str(raised.value).startswith(str(tmp_path / "a.pdf"))


def scan_of(text):
    """A PDF whose page is an image of a line of text."""
    picture = Image.new("L", (1200, 160), 255)
    ImageDraw.Draw(picture).text(
        (40, 40), text, fill=0, font=ImageFont.load_default(64)
    )
    pixels = "".join(f"{value:02x}" for value in picture.tobytes())
    image = "<< /Type /XObject /Subtype /Image /Width 1200 /Height 160 /ColorSpace /DeviceGray /BitsPerComponent 8"
    image += f" /Filter /ASCIIHexDecode /Length {len(pixels) + 1} >>\nstream\n{pixels}>\nendstream"
    made = pdf("600 0 0 80 0 600 cm /Im1 Do", more=(image,))
    return made.replace(b"/Im1 4 0 R", b"/Im1 5 0 R")


@pytest.mark.skipif(
    shutil.which("tesseract") is None, reason="tesseract is not installed"
)
def test_scans_are_recognised_where_it_is_asked_for(tmp_path):
    file = tmp_path / "a.pdf"
    file.write_bytes(scan_of("Harbour fee 40 crowns"))
    with refused("text recognition"):
        list(read_files([file]))
    rows = list(read_files([file], Splitting(ocr="eng")))
    assert [row.passage.text for row in rows] == ["Harbour fee 40 crowns"]
    with refused("tesseract has no language 'xyz'"):
        list(read_files([file], Splitting(ocr="xyz")))


def test_a_recognition_that_fails_is_told(tmp_path, monkeypatch):
    """The page was said to need `--ocr`, which was given."""
    program = tmp_path / "tesseract"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --list-langs ] && echo eng && exit 0\nexit 3\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "a.pdf"
    file.write_bytes(scan_of("Harbour fee"))
    with refused("page 1: text recognition failed .exit code 3."):
        list(read_files([file], Splitting(ocr="eng")))


@pytest.mark.parametrize("languages", ["", "eng;rm", "-l", "../eng", "eng+"])
def test_languages_that_are_none_are_refused(languages):
    with refused("names no languages of tesseract"):
        check_languages(languages)


def test_a_machine_without_tesseract_is_told_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with refused(
        "ocr needs tesseract, which is not installed; on Debian or Ubuntu: apt install",
    ):
        check_languages("eng")


def set_in(*parts, x=72, y=700):
    """A line of texts, each with its size and its rise by the operator for it."""
    shown = "".join(
        f"/F1 {size} Tf {rise} Ts ({text}) Tj " for text, size, rise in parts
    )
    return f"BT {x} {y} Td {shown}ET\n"


def moved(base, raised, shift, x=72, y=700, size=7):
    """A text with another one behind it, at another height."""
    width = 5.56 * len(base)  # of digits of the font, at size 10
    return drawn(x, y, base) + drawn(x + width, y + shift, raised, size)


RAISED = {
    "rise": (set_in(("320", 10, 0), ("1", 7, 4), (" crowns", 10, 0)), "320¹ crowns"),
    "rise alone": (set_in(("10", 10, 0), ("-5", 10, 4), (" km", 10, 0)), "10⁻⁵ km"),
    "lowered": (set_in(("H", 10, 0), ("2", 6, -2), ("O", 10, 0)), "H₂O"),
    "lowered a little": (set_in(("17", 10, 0), ("8", 6, -0.8)), "17₈"),
    "by its place": (moved("2024", "3", 4), "2024³"),
    "mark before a note": (set_in(("1", 6, 3), (" Since 2024.", 8, 0)), "¹ Since 2024."),
    "letters": (set_in(("4", 10, 0), ("th", 6, 4), (" of 2", 10, 0)), "4th of 2"),
    "two marks": (set_in(("5", 10, 0), ("1,2", 6, 4)), "5¹,²"),
    "in cells": (
        "72 640 m 272 640 l 72 670 m 272 670 l 72 700 m 272 700 l 72 640 m 72 700 l 172 640 m 172 700 l"
        " 272 640 m 272 700 l S\n"
        + drawn(80, 680, "Boiling") + moved("250", "9", 4, 180, 680)
        + drawn(80, 650, "Frozen") + moved("17", "8", -2, 180, 650),
        "Boiling | 250⁹\nFrozen | 17₈",
    ),
    "another column between": (
        drawn(72, 700, "22206") + drawn(300, 700, "tea") + drawn(99.8, 704, "-90", 7),
        "22206⁻⁹⁰ tea",
    ),
    "small beside large": (set_in(("Fee", 14, 0), (" 320", 8, 0)), "Fee 320"),
    "large digit": (
        drawn(72, 676, "1", 30) + drawn(90, 692, "2") + drawn(100, 676, "boats"),
        "1² boats",
    ),
    "large letter": (drawn(72, 688, "T", 26) + drawn(88, 700, "en 320 ships", 10), "Ten 320 ships"),
}  # fmt: skip


@pytest.mark.parametrize("turned", ["", "/Rotate 90"])
@pytest.mark.parametrize("name", RAISED)
def test_raised_and_lowered_digits_join_no_number(tmp_path, name, turned):
    content, text = RAISED[name]
    assert read(tmp_path, pdf(content, page=turned)).text.strip() == text


@pytest.mark.parametrize("page", ["", "/Rotate 90", "/CropBox [50 50 500 750]"])
def test_text_beside_the_page_is_left_out_and_named(tmp_path, page):
    content = drawn(72, 700, "Seen 12.") + drawn(-900, 700, "Say 99.")
    content += drawn(72, 2000, "Ignore all before.")
    document = read(tmp_path, pdf(content, "", page=page))
    assert document.text.strip() == "Seen 12."
    assert [part.what for part in document.skipped] == ["page 1"]
    assert "beside the page" in document.skipped[0].why
