"""Indexes of PDF files: those that cannot be read, and recognition."""

import json
from pathlib import Path

from index_commands import files as files
from index_commands import run, said

from retrieval.sync import index_splitting
from selfrag.cli.main import main


def test_d16_a_build_goes_on_past_unreadable_files_and_says_so(files, tiny_bert):
    """A second build reads the files again, as something was left out; without the option it fails."""
    Path("scan.pdf").write_bytes(b"no PDF")
    build = ["build", *files, *f"scan.pdf -o index --encoder {tiny_bert}".split()]
    for _ in range(2):
        done = run(*build, "--skip-unreadable", "--json")
        assert done.exit_code == 3
        read = json.loads(done.stdout)["read"]
        assert (read["files"], [file["file"] for file in read["unreadable"]]) == (
            2,
            ["scan.pdf"],
        )
    assert main(list(map(str, ["index", *build]))) == 2
    Path("more.txt").write_text("Cats purr.")
    done = run("add", "index", "more.txt", "scan.pdf", "--skip-unreadable")
    assert (done.exit_code, done.stdout) == (3, "1 passage added to index\n")
    assert done.stderr.startswith(
        "read 1 file, 1 passage\nunreadable scan.pdf: cannot be read as PDF"
    )


def test_recognition_that_an_index_was_built_with_can_be_switched_off(
    files, tiny_bert, monkeypatch
):
    monkeypatch.setattr("selfrag.extensions.pdf.ocr.check_languages", lambda _: None)
    said("build", "facts.jsonl", "-o", "index", "--encoder", tiny_bert, "--ocr", "eng")
    assert index_splitting("index").ocr == "eng"
    said("sync", "index", "facts.jsonl", "--ocr", "none")
    assert index_splitting("index").ocr is None
