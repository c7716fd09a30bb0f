"""The words of the pages (`make check` runs the same), and that the check finds what it should."""

import re

from scripts.tools import check_prose


def test_what_the_check_finds():
    text = "A closed set `closed set`.\n\n```text\nclosed set\n```\n\n"
    text += "word " * 46 + "\n\n| closed set | x |\n\nIt shall.\n"
    assert list(check_prose.findings("page.md", text)) == [
        "page.md:1: 'closed set' is not used here; see docs/style.md",
        "page.md:11: 'shall' is not used here; see docs/style.md",
        "page.md:7: a sentence of 46 words: word word word word word word word word ...",
    ]


def test_the_words_come_from_the_style_page():
    assert {"closed set", "taken in"} <= set(check_prose.replaced_words())


def test_the_tests_that_the_security_page_names_are_there():
    page = (check_prose.ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises = page.partition("## How it is tested")[2]
    files = re.findall(r"`(tests/[\w/]+\.py)`", promises)
    assert len(files) > 20
    assert [name for name in files if not (check_prose.ROOT / name).exists()] == []
