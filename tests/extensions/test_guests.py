"""Extensions do not need each other, and the core needs none: each runs with the others hidden."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from selfrag.cli.doctor import check_extensions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = """
adaptive test_adaptive.py::test_a_loaded_model_answers_and_streams
annotation test_annotation.py::test_figures_and_agreement_by_hand
export test_export.py::test_inspect_reads_the_log
frameworks frameworks/test_langchain.py::test_chains_settings_and_conversations
granite granite/test_granite.py::test_what_an_adapter_writes_as_a_typed_result
mcp test_mcp.py::test_an_answer_has_its_citations_with_file_and_page
milvus test_milvus.py::test_a_removed_passage_is_never_found
onnx test_onnx.py::test_a_prompt_is_computed_in_parts
office test_office.py::test_mails_notebooks_and_restructured_text
pdf test_pdf.py::test_pages_are_numbered_and_titled_by_bookmarks
search_tags test_search_tags.py::test_turns_searches_and_the_answer
vectors test_vectors_guest.py::test_an_index_of_published_vectors_is_that_of_the_encoder
word test_word.py::test_d1_quarters_of_a_table_are_not_exchanged
web test_web.py::test_pages_that_searxng_finds_become_passages
"""
GUESTS = dict(line.split() for line in TESTS.strip().split("\n"))
"""A test of each that does what it is for."""

CORE = """
from hidden_guests import ROOM, hide, import_all
hide(ROOM)
for package in ("selfrag", "critic", "retrieval"):
    assert import_all(package, (ROOM,))
from selfrag.cli.main import main
for words in (["--help"], ["index", "--help"], ["eval", "--help"], ["judge"], ["judge", "published"]):
    assert main(words) == 0, words
assert main(["judge", "answerability", "Q?", "--passage", "x", "--dialect", "mellea"]) == 2
from selfrag.cli.doctor import check_extensions
assert {finding.status for finding in check_extensions()} == {"note"}
from selfrag.intrinsics.catalog import PAPER, intrinsics
assert intrinsics()[:5] == PAPER
from selfrag.intrinsics import Answerability, QueryRewrite
from answering import scoring, writing
assert round(Answerability.on(scoring(answerable=0.75, unanswerable=0.25))("Q?", ["P."]).answerable, 9) == 0.75
assert QueryRewrite.on(writing('{"rewritten_question": "R?"}'))("Q?").text == "R?"
"""


def run(*command, **environment):
    """What a child process prints."""
    path = os.pathsep.join(
        map(str, (ROOT, HERE, HERE.parent / "intrinsics", HERE.parent / "decoding"))
    )
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=settings,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # the import contracts of `make check` forbid the same
@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_works_with_the_others_hidden(guest):
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-p", "hidden_guests")
    shown = run("-m", "pytest", *options, str(HERE / GUESTS[guest]), ONLY_GUEST=guest)
    assert "passed" in shown or "skipped" in shown


def test_every_guest_is_tried_and_registered():
    folders = {
        folder.name
        for folder in (ROOT / "selfrag" / "extensions").iterdir()
        if (folder / "__init__.py").exists()
    }
    assert folders == set(GUESTS)
    modules = [point.module for point in distribution("selfrag").entry_points]
    registered = {
        module.split(".")[2]
        for module in modules
        if module.startswith("selfrag.extensions.")
    }
    assert folders == registered
    findings = {finding.subject: finding for finding in check_extensions()}
    assert set(findings) == {f"extension {name}" for name in registered}
    assert {finding.status for finding in findings.values()} == {"ok"}
    page = "docs/guides/extensions.md#milvus"
    assert findings["extension milvus"].detail == page
    page = (ROOT / "docs" / "guides" / "extensions.md").read_text(encoding="utf-8")
    assert re.findall("^## (.+)", page, re.MULTILINE) == sorted(folders)


def test_the_core_and_its_commands_need_no_guest():
    shown = run("-c", CORE)
    assert "push" not in shown
    assert "dialects: chat" in shown
