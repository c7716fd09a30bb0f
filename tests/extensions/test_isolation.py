"""Files that are made to stop a reader end with one line; the next file is read all the same."""

import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
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
    return (
        f"<< /Length {len(content)} {entries} >>\nstream\n".encode()
        + content
        + b"\nendstream"
    )


def pdf(
    content=TEXT.encode(),
    entries="",
    *,
    kids="4 0 R",
    count=1,
    catalog="",
    more=(),
    trailer="",
):
    """A PDF with one page; further objects are numbered from 6."""
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< {PAGE} /Contents 5 0 R >>".encode(),
        stream(content, entries),
        *more,
    ]
    written, places = bytearray(b"%PDF-1.5\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R {trailer} >>\n"
    return bytes(written) + f"{end}startxref\n{len(written)}\n%%EOF".encode()


def packed(content, times=1):
    for _ in range(times):
        content = zlib.compress(content, 9)
    return content, f"/Filter [{'/FlateDecode ' * times}]"


def bookmarks(count):
    """Bookmarks, each inside the one before."""
    return tuple(
        b"<< /Title (t) /First %d 0 R /Dest [4 0 R /Fit] >>" % (7 + number)
        for number in range(count)
    )


HELLO = "Hello world"
HOSTILE = {
    "a stream of zeros in itself": lambda: pdf(*packed(bytes(1 << 28), 2)),
    "memory for one text": lambda: pdf(
        *packed(b"BT /F1 10 Tf (%s) Tj ET" % (b"word " * (1 << 23)))
    ),
    "a form that draws itself": lambda: pdf(
        b"/X Do " + TEXT.encode(), more=(stream(b"/X Do /X Do", FORM),)
    ),
    "a page tree in itself": lambda: pdf(kids="2 0 R 2 0 R", count=2),
    "pages that are not there": lambda: pdf(count=1_000_000_000),
    "a negative number of pages": lambda: pdf(count=-5),
    "deep bookmarks": lambda: pdf(catalog="/Outlines 6 0 R", more=bookmarks(20_000)),
    "deep operands": lambda: pdf(b"[" * 500_000 + TEXT.encode()),
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
    content = pdf()
    file = tmp_path / "a.pdf"
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
    files = [tmp_path / "slow.pdf", tmp_path / "good.pdf"]
    files[0].write_bytes(pdf(*packed(TEXT.encode() * 100_000)))
    files[1].write_bytes(pdf())
    with IsolatedReader() as reader:
        reader.start()
        with refused(r"slow\.pdf: .*10 seconds"):
            reader.read(files[0], ".pdf", "a")
        monkeypatch.undo()
        assert reader.read(files[1], ".pdf", "a").text.strip() == HELLO


def test_many_threads_share_a_reader(tmp_path, reader):
    files = []
    for number in range(24):
        files.append(tmp_path / f"{number}.pdf")
        files[-1].write_bytes(pdf(TEXT.replace("world", f"number {number}").encode()))
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda file: reader.read(file, ".pdf", "a").text.strip(), files)
        )
    assert texts == [f"Hello number {number}" for number in range(24)]


def test_the_first_pages_of_a_long_file_are_read_alone(tmp_path):
    """Issue 45, section 4: a PDF of 20,000 pages was read whole for one passage."""
    file = tmp_path / "a.pdf"
    file.write_bytes(pdf(kids="4 0 R " * 20_000, count=20_000))
    with IsolatedReader(ReadingOptions(pages=2)) as reader:
        document = reader.read(file, ".pdf", "a")
    assert (document.pages, document.text.split()) == (2, ["Hello", "world"] * 2)


def test_a_script_without_a_guard_reads_documents_relative_to_its_folder(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf())
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n"
        "from retrieval.documents.isolation import IsolatedReader\n"
        "print(IsolatedReader().read(Path('a.pdf'), '.pdf', 'a').text.strip())\n"
    )
    run = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == (f"{HELLO}\n", "")


def test_damaged_bytes_never_end_in_a_traceback(tmp_path, reader):
    content = pdf(catalog="/Outlines 6 0 R", more=bookmarks(3))
    file = tmp_path / "a.pdf"
    for place in range(0, len(content), 7):
        file.write_bytes(
            content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :]
        )
        outcome(reader, file)


def test_a_file_is_named_as_it_was_given(tmp_path, monkeypatch, reader):
    (tmp_path / "a.pdf").write_bytes(b"no PDF")
    monkeypatch.chdir(tmp_path)
    with refused(r"^a\.pdf: cannot be read as PDF"):
        reader.read(Path("a.pdf"), ".pdf", "a")
