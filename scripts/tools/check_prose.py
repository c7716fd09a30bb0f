"""Check the words of the Markdown files at the top and of the documentation pages, as docs/style.md has them.

    python scripts/tools/check_prose.py

Spelling is codespell's. This script knows the words that the style page replaces, and counts the words of sentences.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STYLE = ROOT / "docs" / "style.md"
MOST = 45
"""Words of a sentence. The style page asks for 25; a sentence with a list of names is longer."""
PATTERNS = (
    r"[Kk]nows? nothing (of|about)",
    r"(?<!no )such \w+ as may",
    r"\bshall\b",
    r"\bone's own\b",
    r"\bthereof\b|\bwherein\b|\bthereby\b|\bhitherto\b",
    r"\bblazing|\bseamless|\bpowerful\b|\bcutting-edge\b|\beffortless",
)
"""What no page says, beside the words of the style page."""


def replaced_words() -> list[str]:
    """Return the left column of the table *Names* of the style page."""
    names = (
        STYLE.read_text(encoding="utf-8").partition("## Names")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", names, flags=re.M)
    return [
        re.sub(r" \(.*\)", "", row)
        for row in rows
        if row != "instead of" and not row.startswith("---")
    ]


def prose(text: str) -> str:
    """Return a page without code, tables, comments and links' targets; line numbers stay."""
    for pattern in (
        r"^```.*?^```$",
        r"<!--.*?-->",
        r"`[^`\n]+`",
        r"^\|[^\n]*$",
        r"(?<=\])\([^)\s]+\)",
        r"<[^>\n]+>",
    ):
        text = re.sub(
            pattern,
            # each row of a table is a sentence of its own
            lambda match: (
                ("x." if match[0][0] == "|" else "x") + "\n" * match[0].count("\n")
            ),
            text,
            flags=re.M | re.S,
        )
    return text


def findings(name: str, text: str) -> Iterator[str]:
    """Yield one line for each word or sentence to mend."""
    words = "|".join(map(re.escape, replaced_words()))
    body = prose(text)
    for pattern in (rf"\b(?:{words})s?\b", *PATTERNS):
        for match in re.finditer(pattern, body):
            line = body.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match[0]!r} is not used here; see docs/style.md"
    for block in re.finditer(r"(?:^(?!\s*$|#).*\n?)+", body, flags=re.M):
        for sentence in re.split(r"(?<=[.:;?!])\s+|\n\s*(?:-|\d+\.) ", block[0]):
            if (count := len(sentence.split())) > MOST:
                line = body.count("\n", 0, block.start()) + 1
                yield f"{name}:{line}: a sentence of {count} words: {' '.join(sentence.split()[:8])} ..."


def main() -> int:
    """Check all pages; the exit code is 1 if there is something to mend."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [page for page in pages if page != STYLE and "records" not in page.parts]
    lines: list[str] = []
    for page in pages:
        lines += findings(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    print("\n".join(lines) or f"{len(pages)} pages: no finding")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
