"""Files that are made to stop a reader end with one line; the next file is read all the same."""

import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pdf_objects import assembled
from refusals import refused

from retrieval import UserError
from retrieval.documents import ReadingOptions
from retrieval.documents.isolation import IsolatedReader

TEXT = "BT /F1 10 Tf 72 700 Td (Hello world) Tj ET\n"
PAGE = (
    "/Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources"
    " << /Font << /F1 3 0 R >> /XObject << /X 6 0 R >> >>"
)
FORM = "/Type /XObject /Subtype /Form /BBox [0 0 600 700] /Resources << /XObject << /X 6 0 R >> >>"


def stream(content, entries=""):
    head = f"<< /Length {len(content)} {entries} >>\nstream\n".encode()
    return head + content + b"\nendstream"


HELLO = "Hello world"
DRAWN = TEXT.encode()


def pdf(content=DRAWN, entries="", *, kids="4 0 R", count=1, more=(), trailer=""):
    """A PDF with one page; further objects, the first of them bookmarks, are numbered from 6."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< {PAGE} /Contents 5 0 R >>".encode(),
        stream(content, entries),
        *more,
    ]
    return assembled(objects, trailer)


def packed(content, times=1):
    for _ in range(times):
        content = zlib.compress(content, 9)
    return content, f"/Filter [{'/FlateDecode ' * times}]"


def bookmarks(count):
    """Bookmarks, each inside the one before."""
    entry = b"<< /Title (t) /First %d 0 R /Dest [4 0 R /Fit] >>"
    return [entry % (7 + number) for number in range(count)]


HOSTILE = {
    "a stream of zeros in itself": lambda: pdf(*packed(bytes(1 << 28), 2)),
    "memory for one text": lambda: pdf(
        *packed(b"BT /F1 10 Tf (%s) Tj ET" % (b"word " * (1 << 23)))
    ),
    "a form that draws itself": lambda: pdf(
        b"/X Do " + DRAWN, more=[stream(b"/X Do /X Do", FORM)]
    ),
    "a page tree in itself": lambda: pdf(kids="2 0 R 2 0 R", count=2),
    "pages that are not there": lambda: pdf(count=1_000_000_000),
    "a negative number of pages": lambda: pdf(count=-5),
    "deep bookmarks": lambda: pdf(more=bookmarks(20_000)),
    "deep operands": lambda: pdf(b"[" * 500_000 + DRAWN),
    "a table that follows itself": lambda: pdf(trailer="/Prev 9"),
}


def outcome(reader, file):
    """The text of a file; or an empty one where a line names the file and what is wrong."""
    try:
        return reader.read(file, ".pdf", "a").text
    except UserError as error:
        line = str(error)
    assert line.startswith(f"{file}: ")
    assert "\n" not in line
    return ""


@pytest.fixture(scope="module")
def reader():
    with IsolatedReader() as reader:
        yield reader


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pdf_files_end_within_their_limits(tmp_path, name, reader):
    file = tmp_path / "a.pdf"
    file.write_bytes(HOSTILE[name]())
    assert len(outcome(reader, file)) < 100_000
    if name in ("deep bookmarks", "a table that follows itself"):
        assert outcome(reader, file).strip() == HELLO


def test_a_cut_file_is_read_as_far_as_it_goes_and_said_to_be_cut(tmp_path, reader):
    content, file = pdf(), tmp_path / "a.pdf"
    for length in range(0, len(content), 60):
        file.write_bytes(content[:length])
        if outcome(reader, file):
            skipped = reader.read(file, ".pdf", "a").skipped
            assert "end of the file" in [part.what for part in skipped]


def test_a_file_that_ends_the_reader_is_named_and_the_next_is_read(
    tmp_path, monkeypatch
):
    # of 10 seconds
    monkeypatch.setattr("selfrag.common.child_process._WALL_TIME", 0.02)
    slow, good = tmp_path / "slow.pdf", tmp_path / "good.pdf"
    slow.write_bytes(pdf(*packed(DRAWN * 100_000)))
    good.write_bytes(pdf())
    with IsolatedReader() as reader:
        reader.start()
        with refused(r"slow\.pdf: .*10 seconds"):
            reader.read(slow, ".pdf", "a")
        monkeypatch.undo()
        assert reader.read(good, ".pdf", "a").text.strip() == HELLO


def test_many_threads_share_a_reader(tmp_path, reader):
    def read(number):
        file = tmp_path / f"{number}.pdf"
        file.write_bytes(pdf(TEXT.replace("world", f"number {number}").encode()))
        return reader.read(file, ".pdf", "a").text.strip()

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(read, range(24)))
    assert texts == [f"Hello number {number}" for number in range(24)]


def test_the_first_pages_of_a_long_file_are_read_alone(tmp_path):
    """Issue 45, section 4: a PDF of 20,000 pages was read whole for one passage."""
    file = tmp_path / "a.pdf"
    file.write_bytes(pdf(kids="4 0 R " * 20_000, count=20_000))
    with IsolatedReader(ReadingOptions(pages=2)) as reader:
        document = reader.read(file, ".pdf", "a")
    assert document.pages == 2
    assert document.text.split() == ["Hello", "world"] * 2


SCRIPT = """
from pathlib import Path
from retrieval.documents.isolation import IsolatedReader
print(IsolatedReader().read(Path('a.pdf'), '.pdf', 'a').text.strip())
"""


def test_a_script_without_a_guard_reads_documents_relative_to_its_folder(
    tmp_path, process
):
    (tmp_path / "a.pdf").write_bytes(pdf())
    (tmp_path / "script.py").write_text(SCRIPT)
    done = process(sys.executable, "script.py", cwd=tmp_path)
    assert done.stdout == f"{HELLO}\n"
    assert done.stderr == ""


def test_damaged_bytes_never_end_in_a_traceback(tmp_path, reader):
    content, file = pdf(more=bookmarks(3)), tmp_path / "a.pdf"
    for place in range(0, len(content), 7):
        changed = bytes([content[place] ^ 0x15])
        file.write_bytes(content[:place] + changed + content[place + 1 :])
        outcome(reader, file)


def test_a_file_is_named_as_it_was_given(tmp_path, monkeypatch, reader):
    (tmp_path / "a.pdf").write_bytes(b"no PDF")
    monkeypatch.chdir(tmp_path)
    with refused(r"^a\.pdf: cannot be read as PDF"):
        reader.read(Path("a.pdf"), ".pdf", "a")
