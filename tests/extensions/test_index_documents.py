"""Indexes of PDF files: those that cannot be read, and recognition."""

import json
from pathlib import Path

from index_files import files as files
from index_files import ix as ix

from retrieval.sync import index_splitting


def test_d16_a_build_goes_on_past_unreadable_files_and_says_so(ix, files):
    """A second build reads the files again, as something was left out; without the option it fails."""
    Path("scan.pdf").write_bytes(b"no PDF")
    build = f"build {files} scan.pdf -o index --encoder none"
    for _ in range(2):
        out, _ = ix(f"{build} --skip-unreadable --json", code=3)
        read = json.loads(out)["read"]
        assert read["files"] == 2
        assert [file["file"] for file in read["unreadable"]] == ["scan.pdf"]
    ix(build, code=2)
    Path("more.txt").write_text("Cats purr.")
    out, err = ix("add index more.txt scan.pdf --skip-unreadable", code=3)
    assert out == "1 passage added to index\n"
    assert err.startswith(
        "read 1 file, 1 passage\nunreadable scan.pdf: cannot be read as PDF"
    )


def test_recognition_that_an_index_was_built_with_can_be_switched_off(
    ix, files, monkeypatch
):
    monkeypatch.setattr("selfrag.extensions.pdf.ocr.check_languages", lambda _: None)
    ix("build facts.jsonl -o index --encoder none --ocr eng")
    assert index_splitting("index").ocr == "eng"
    ix("sync index facts.jsonl --ocr none")
    assert index_splitting("index").ocr is None
