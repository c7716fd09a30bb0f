"""Text, Markdown and HTML files become passages with headings and pages; damaged ones one line."""

from retrieval.readers import read_files
from retrieval.splitting import Splitting

MARKDOWN = """Before any heading.

# Guide *to* `it`

Intro.

```sh
# not a heading
```

## Install

Run it.

## Empty

### Deep [link](http://x)

Deep text.

Other
=====

Last.

# Alone
"""


def test_markdown_headings_are_titles(tmp_path):
    file = tmp_path / "doc.md"
    file.write_text(MARKDOWN)
    rows = [row.passage for row in read_files([file])]
    assert {row.title: row.text for row in rows} == {
        "doc": "Before any heading.",
        "Guide to it": "Intro.\n\n```sh\n# not a heading\n```",
        "Guide to it > Install": "Run it.",
        "Guide to it > Empty > Deep link": "Deep text.",
        "Other": "Last.",
        "Alone": "# Alone",
    }
    assert [row.id for row in rows] == [f"doc-{n}" for n in range(1, 7)]


def test_a_long_heading_is_not_repeated_with_every_passage(tmp_path):
    (tmp_path / "a.md").write_text(
        "# " + "heading " * 20_000 + "\n\n" + "A short sentence. " * 5000
    )
    rows = [row.passage for row in read_files([tmp_path / "a.md"])]
    assert sum(len(row.text) + len(row.title) for row in rows) < 600_000
    assert sum(row.text.count("heading") for row in rows) >= 20_000


def test_passages_of_a_text_know_their_lines(tmp_path):
    file = tmp_path / "guide.txt"
    file.write_text("One two three. Four five six.\nSeven eight nine.")
    rows = list(read_files([file], Splitting(3, 0)))
    assert [(row.passage.id, row.passage.text, row.place.number) for row in rows] == [
        ("guide-1", "One two three.", 1),
        ("guide-2", "Four five six.", 1),
        ("guide-3", "Seven eight nine.", 2),
    ]
