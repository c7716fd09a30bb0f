"""Every example of the documentation is run: here, by the test named in `ELSEWHERE`, or it says why it is not."""

import json
import re
from pathlib import Path

import pytest

from scripts.tools import refresh_examples

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = json.loads("""{"guides/intrinsics/dialects.md": "tests/extensions/granite/test_docs_granite.py",
 "guides/intrinsics/executors.md": "tests/intrinsics/test_docs_intrinsics.py",
 "guides/intrinsics/flows.md": "tests/intrinsics/test_docs_intrinsics.py",
 "guides/intrinsics/training.md": "tests/intrinsics/test_docs_intrinsics.py",
 "guides/intrinsics/using.md": "tests/intrinsics/test_docs_intrinsics.py",
 "guides/reports.md": "tests/evaluation/test_reports.py",
 "guides/running.md": "tests/evaluation/test_runner.py"}""")
"""Pages whose examples need more than an empty folder, and the test that runs them."""
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if "records" not in path.parts
}
SLOW = {
    "tutorials/train-your-own.md",
    *(
        f"guides/{name}.md"
        for name in "training scale dgen retrieval documents".split()
    ),
}
"""Pages that train models and build indexes for minutes."""
RUN = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, text in PAGES.items()
    if name not in ELSEWHERE and any(refresh_examples.runnable(text))
]


@pytest.mark.demo
@pytest.mark.parametrize("name", RUN)
def test_the_examples_of_a_page_run(name, tmp_path, programs):
    refresh_examples.run_page(PAGES[name], name, tmp_path, programs)


def test_pages_that_run_elsewhere_are_there_and_their_test_names_them():
    for name, test in ELSEWHERE.items():
        assert name in PAGES
        assert Path(name).stem in (ROOT / test).read_text(), (
            f"{test} does not run {name}"
        )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_hides_no_example_from_the_tests(name):
    assert len(PAGES[name].splitlines()) <= 260
    assert not re.search(
        r"^[ \t>]+```(?:python|console|bash|sh)\b", PAGES[name], flags=re.M
    ), "an indented example"
    for block in refresh_examples.runnable(PAGES[name]):
        assert "pip install" not in block["body"], (
            "an example that changes the environment of the tests"
        )
        if block["language"] == "console" and not block["title"]:
            assert refresh_examples.commands(block["body"]), (
                f"no `$ ` in {block['body']!r}"
            )


def test_outputs_are_put_into_the_page(tmp_path):
    page = (
        "```text title=\"a/notes.txt\"\nhello\n```\n\n```console\n$ cat a/*.txt\nold\n$ echo \\\n  'two  '\n```\n\n"
        "```python\nprint(open('a/notes.txt').read().upper())\n```\n\n```text\nold\n```\n\nSo.\n\n"
        "<!-- not run: no network -->\n```bash\nexit 1\n```\n"
    )
    shown = refresh_examples.run_page(page, "page.md", tmp_path)
    assert "$ cat a/*.txt\nhello\n$ echo \\\n  'two  '\ntwo\n```" in shown
    assert "```\n\n```text\nHELLO\n```\n\nSo.\n\n<!-- not run: no network -->" in shown
    assert "old" not in shown
    assert refresh_examples.run_page(shown, "page.md", tmp_path) == shown


def test_a_page_with_a_broken_example_is_not_written(tmp_path, monkeypatch):
    page, command = tmp_path / "page.md", "```console\n$ false\n```\n"
    for body, error in {
        "```python\n1 / 0\n```\n": ZeroDivisionError,
        command: refresh_examples.ExampleError,
    }.items():
        page.write_text(body)
        monkeypatch.setattr("sys.argv", ["refresh_examples.py", str(page)])
        with pytest.raises(error):
            refresh_examples.main()
        assert page.read_text() == body
