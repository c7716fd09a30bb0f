"""The page on the papers: its counts are those of its rows, and every file and test that it names is there."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/papers.md").read_text()
ROW = re.compile(r"^\| (.+?) \| (right|partly|missing) \| (.*?) \| (.*?) \|$", re.M)
FILE = re.compile(r"`([\w./-]+(?:\.(?:py|toml)|/))`")


def test_the_page_counts_its_own_rows():
    counts = Counter()
    for item, status, _, _ in ROW.findall(PAGE):
        number = re.search(r"\((\d+)\)$", item)
        counts[status] += int(number[1]) if number else 1
    stated = re.search(
        r"counted (\d+) items. Of these (\d+) are right, (\d+) partly there and (\d+) missing",
        PAGE,
    )
    assert stated is not None
    assert [*map(int, stated.groups())] == [
        counts.total(),
        *(counts[status] for status in ("right", "partly", "missing")),
    ]


def test_every_file_and_test_that_the_page_names_is_there():
    files = {path.relative_to(ROOT).as_posix() for path in _sources()}
    names = set()
    for path in (ROOT / "tests").rglob("*.py"):
        names |= set(re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.M))
    unknown = []
    for item, status, where, tests in ROW.findall(PAGE):
        if status == "right" and not re.search(r"`[\w./]*(?:test_\w+|\.toml)", tests):
            unknown.append(f"{item}: no test")
        of_row = set(re.findall(r"`(test_\w+)`", tests)) - names
        for name in FILE.findall(f"{where} {tests}"):
            if not any(_names(file, name) for file in files):
                of_row.add(name)
        unknown += [f"{item}: {name}" for name in sorted(of_row)]
    assert not unknown


def _sources():
    places = ("selfrag", "critic", "retrieval", "scripts", "tests")
    return [
        path for place in places for path in (ROOT / place).rglob("*") if path.is_file()
    ]


def _names(file, name):
    """Return whether a file is the one, or is in the folder, that a name on the page stands for."""
    return (
        f"/{name}" in f"/{file}"
        if name.endswith("/")
        else f"/{file}".endswith(f"/{name}")
    )
