"""Tables of Markdown are cut between rows; the text stays as it is written, and hostile files cost no more."""

import time

import pytest

from retrieval.documents.markdown import parse_markdown
from retrieval.readers import read_files
from retrieval.splitting import Splitting

PIPES = "| a | b |\n|---|---|"


@pytest.mark.parametrize(
    "text, tables",
    [
        (
            f"# T\n\n{PIPES}\n| 1 |  |\n|  | 2 |\n\nend",
            [(PIPES, ["| 1 |  |", "|  | 2 |"])],
        ),
        ("a|b\n:-|-:\nx \\| y|z\n# H", [("a|b\n:-|-:", ["x \\| y|z"])]),
        (
            f"- item\n\n  {PIPES[:9]}\n  |---|---|\n  | 1 | 2 |",
            [("| a | b |\n  |---|---|", ["| 1 | 2 |"])],
        ),
        (f"---\nx: 1\n---\n\n{PIPES}\n| 1 | 2 |", [(PIPES, ["| 1 | 2 |"])]),
        (f"```\n{PIPES}\n| 1 | 2 |\n```", []),
        (PIPES, []),
        ("| no | table |", []),
        (
            "<table>\n<tr><th>a</th></tr>\n\n<tr><td>1</td></tr>\n<tr><td>2</td></tr>\n</table>",
            [
                (
                    "<table>\n<tr><th>a</th></tr>",
                    ["<tr><td>1</td></tr>", "<tr><td>2</td></tr>"],
                )
            ],
        ),
        (
            "<table><tr><td>1<tr><td>2</table>",
            [(None, ["<table><tr><td>1", "<tr><td>2"])],
        ),
        ("<table><tr><td>1\n\n# H\n\n<tr><td>2</table>", []),
    ],
)
def test_tables_are_spans_of_the_text(text, tables):
    document = parse_markdown(text, "doc")
    assert document.text == text
    written = [
        (
            table.header and text[slice(*table.header)],
            [text[slice(*row)] for row in table.rows],
        )
        for table in document.tables
    ]
    assert written == tables


def test_audit_d5_a_long_table_is_cut_between_rows_below_its_header(tmp_path):
    rows = [f"| B{n} | {n} m | {n}00 crowns |" for n in range(60)]
    header = "| Berth | Depth | Fee |\n|---|---|---|\n"
    table = header + "\n".join(rows)
    file = tmp_path / "a.md"
    file.write_text(f"# Harbour\n\nFees.\n\n{table}\n\nEnd.\n")
    read_rows = []
    for row in read_files([file], Splitting(60, 0)):
        _, found, below = row.passage.text.partition(header)
        if "| B" in row.passage.text:
            assert found
            read_rows += below.partition("\n\n")[0].split("\n")
    assert read_rows == rows


SIZE = 50_000
PIECES = '[|# *a_ |> a\n|- a\n|- > a\n|[a]: "\n|[a\n|# a\n|,a,\n,-,\n,b,\n|,-,\n|<table><tr><td>\n|<a\n'
HOSTILE = {
    piece: piece.replace(",", "|") * (SIZE // len(piece)) for piece in PIECES.split("|")
}
HOSTILE |= {
    "wide": f"|{'a|' * (SIZE // 8)}\n|{'-|' * (SIZE // 8)}\n" + "|\n" * (SIZE // 4),
    "nested lists": "\n".join(" " * depth + "- a" for depth in range(400)),
    "definition": '[a]: b "' + "x\n" * (SIZE // 2),
}
HONEST = "# Tea\n\nGreen tea is *brewed* at `80` degrees.\n\n- one\n\n| a |\n|---|\n| 1 |\n\n"


def seconds(text):
    started = time.process_time()
    parse_markdown(text, "doc")
    return time.process_time() - started


@pytest.fixture(scope="module")
def honest():
    """The seconds that an honest file takes."""
    return seconds(HONEST * (SIZE // len(HONEST)))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_takes_at_most_ten_times_the_time_of_an_honest_one(name, honest):
    # a busy machine; quadratic work would take longer
    assert seconds(HOSTILE[name]) < 10 * honest + 2.0


FRONT = """---
title: "Night ferry: rules"
tags: [ferry, night]
date: 2026-03-01
night: no
page: 7
parts: {a: 1}
empty:
---
# Dogs

Dogs travel free.
"""


@pytest.mark.parametrize(
    "text",
    [
        FRONT,
        FRONT.replace("tags: [ferry, night]", "tags:\n- ferry\n- night"),
        '+++\ntitle = "Night ferry: rules"\ntags = ["ferry", "night"]\ndate = 2026-03-01\nnight = "no"\n'
        "[parts]\na = 1\n+++\n# Dogs\n\nDogs travel free.\n",
    ],
)
def test_front_matter_is_metadata(text):
    document = parse_markdown("intro".join(text.split("# Dogs\n")), "a")
    (section,) = document.sections
    assert section.title == "Night ferry: rules"
    document = parse_markdown(text, "a")
    (section,) = document.sections
    assert section.title == "Dogs"
    assert section.metadata == {
        "tags": "ferry, night",
        "date": "2026-03-01",
        "night": "no",
    }
    assert document.text[section.start : section.end].strip() == "Dogs travel free."
    assert [part.what for part in document.skipped] == ["front matter: parts"]


@pytest.mark.parametrize(
    "text",
    [
        "---\nOne line.\n---\n\nTwo.",
        "---\na: [\n---\nTwo.",
        "---\na: 1\n",
        "+++\na\n+++\n",
    ],
)
def test_what_is_no_front_matter_is_text(text):
    document = parse_markdown(text, "a")
    assert text.strip() in document.text
    assert document.sections[0].start == 0


@pytest.mark.parametrize(
    "text", ["---\ntitle: Tea: a guide\n---\n\nTwo.", "+++\na\n+++\n"]
)
def test_front_matter_that_cannot_be_parsed_is_named(text):
    (part,) = parse_markdown(text, "a").skipped
    assert part.what == "front matter"
    assert part.why.startswith("it is read as text: ")


def test_comments_are_no_text_but_in_code():
    text = (
        "a <!-- gone\ntoo --> b `<!-- x -->`\n\n```\n<!-- y -->\n```\n\n<!-- # no heading\n\n-->\n# Tea <!-- z -->\n\n"
        "| a |\n|---|\n| 1<!-- 2 --> |\n\nc <!-- open"
    )
    document = parse_markdown(text, "a")
    assert [section.title for section in document.sections] == ["a", "Tea"]
    assert "".join(document.text.split()) == (
        "ab`<!--x-->````<!--y-->```#Tea|a||---||1|c<!--open"
    )
    assert document.text.count("\n") == text.count("\n")
    (table,) = document.tables
    assert document.text[slice(*table.span)].endswith("| 1 |")
