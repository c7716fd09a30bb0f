"""Word files become passages with headings; damaged and hostile ones one line."""

import zipfile

import docx
import pytest
from refusals import refused

from retrieval import UserError
from retrieval.readers import read_files


def word():
    made = docx.Document()
    made.add_heading("Report", 0)
    made.add_heading("Tea", 1)
    made.add_paragraph("Green tea is brewed at 80 degrees.")
    table = made.add_table(2, 2)
    for row, column, text in (
        (0, 0, "kind"),
        (0, 1, "degrees"),
        (1, 0, "black"),
        (1, 1, "100"),
    ):
        table.cell(row, column).text = text
    made.add_heading("Coffee", 1)
    made.add_paragraph("Filter coffee is brewed at 94 degrees.")
    return made


def test_headings_and_tables_of_a_word_file(tmp_path):
    file = tmp_path / "report.docx"
    word().save(str(file))
    assert [(row.passage.title, row.passage.text) for row in read_files([file])] == [
        (
            "Report > Tea",
            "Green tea is brewed at 80 degrees.\n\nkind | degrees\nblack | 100",
        ),
        ("Report > Coffee", "Filter coffee is brewed at 94 degrees."),
    ]


def unzipped_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("word/document.xml", b"\0" * (300 << 20))


def other_zip(path):
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("a.txt", "x")


DAMAGED = {
    "text.docx": (b"hello", "cannot be read as Word file"),
    "bomb.docx": (unzipped_bomb, "unpacks to more than"),
    "other.docx": (other_zip, "cannot be read as Word file"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_one_line_that_names_the_file(tmp_path, name):
    content, said = DAMAGED[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        content(tmp_path / name)
    with refused(said) as caught:
        list(read_files([tmp_path / name]))
    assert str(caught.value).startswith(str(tmp_path / name))


def test_entities_of_a_word_file_are_not_fetched(tmp_path):
    secret, clean, evil = (
        tmp_path / "secret.txt",
        tmp_path / "plain.docx",
        tmp_path / "evil.docx",
    )
    secret.write_text("secret words")
    word().save(str(clean))
    with zipfile.ZipFile(clean) as source, zipfile.ZipFile(evil, "w") as target:
        for part in source.infolist():
            content = source.read(part)
            if part.filename == "word/document.xml":
                head, _, body = content.partition(b"?>")
                entity = (
                    f'<!DOCTYPE d [<!ENTITY x SYSTEM "{secret.as_uri()}">]>'.encode()
                )
                content = head + b"?>" + entity + body.replace(b"Green tea", b"&x; tea")
            target.writestr(part, content)
    try:
        texts = " ".join(row.passage.text for row in read_files([evil]))
    except UserError:
        return
    assert "secret" not in texts
