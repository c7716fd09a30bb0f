"""Measure what readers keep of real web pages: `bench_html.py CLONES [--readers ours trafilatura ..] [--show N]`.

CLONES is a folder with clones of up to three repositories, which hold pages and the text that people marked in them:

- mozilla/readability: the article of each page in `test/test-pages/*/expected.html`.
- scrapinghub/article-extraction-benchmark: the article of each page in `ground-truth.json`.
- adbar/trafilatura: pieces of text in the content (`with`) and outside of it (`without`), in `tests/evaldata.json`.

Recall is the share of the words of an article, with their number of times, that a reader keeps; for pieces, the share
of the pieces. Furniture is the share of the other words of the page (of the pieces outside the content) that a reader
keeps. `--show N` prints the N pages of which our reader keeps least.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import lxml.etree
import lxml.html
import numpy as np

from command import command
from retrieval.documents.html import read_html
from selfrag.common.errors import UserError

Reader: TypeAlias = Callable[[bytes], str]
_WORDS = re.compile(r"\w+")


@dataclass
class Page:
    """A page and what people marked in it."""

    name: str
    markup: bytes
    article: str = ""  # the text of the content, or
    inside: tuple[str, ...] = ()  # pieces of it
    outside: tuple[str, ...] = ()  # and pieces of the rest


def readability_pages(clone: Path) -> Iterator[Page]:
    """Yield the test pages of Mozilla's Readability."""
    for folder in sorted((clone / "test" / "test-pages").iterdir()):
        expected = (folder / "expected.html").read_text(encoding="utf-8")
        yield Page(folder.name, (folder / "source.html").read_bytes(), lxml.html.fromstring(expected).text_content())


def article_pages(clone: Path) -> Iterator[Page]:
    """Yield the pages of Scrapinghub's benchmark of article extraction."""
    articles = json.loads((clone / "ground-truth.json").read_text(encoding="utf-8"))
    for name, row in articles.items():
        yield Page(name, gzip.decompress((clone / "html" / f"{name}.html.gz").read_bytes()), row["articleBody"])


def trafilatura_pages(clone: Path) -> Iterator[Page]:
    """Yield the pages of trafilatura's evaluation that its clone holds."""
    for row in json.loads((clone / "tests" / "evaldata.json").read_text(encoding="utf-8")).values():
        file = clone / "tests" / "eval" / row["file"]
        if file.is_file():
            yield Page(row["file"], file.read_bytes(), inside=tuple(row["with"]), outside=tuple(row["without"]))


SETS = {
    "readability": readability_pages,
    "article-extraction-benchmark": article_pages,
    "trafilatura": trafilatura_pages,
}


def read_ours(markup: bytes) -> str:
    """Return the text and the titles that our reader makes of a page, or nothing where it refuses the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_bytes(markup)
        try:
            return read_html(path, "page").text
        except UserError:
            return ""


def read_trafilatura(markup: bytes) -> str:
    """Return the main content as trafilatura chooses it for recall."""
    import trafilatura

    return trafilatura.extract(markup, favor_recall=True, include_comments=False) or ""


def read_readability(markup: bytes) -> str:
    """Return the main content as readability-lxml chooses it."""
    from readability import Document

    return str(lxml.html.fromstring(Document(markup).summary()).text_content())


def read_resiliparse(markup: bytes) -> str:
    """Return the main content as resiliparse chooses it."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    return str(extract_plain_text(HTMLTree.parse_from_bytes(markup), main_content=True))


READERS: dict[str, Reader] = {
    "ours": read_ours,
    "trafilatura": read_trafilatura,
    "readability": read_readability,
    "resiliparse": read_resiliparse,
}


def count_words(text: str) -> Counter[str]:
    """Count the words of a text after NFKC and case folding."""
    return Counter(_WORDS.findall(unicodedata.normalize("NFKC", text).replace("\u00ad", "").casefold()))


def join(text: str) -> str:
    """Return the letters and digits of a text, for the search for a piece of it."""
    return "".join(_WORDS.findall(unicodedata.normalize("NFKC", text).replace("\u00ad", "").casefold()))


def page_text(markup: bytes) -> str:
    """Return all text of a page but scripts and styles."""
    root = lxml.html.fromstring(markup)
    lxml.etree.strip_elements(root, "script", "style", "noscript", "template", with_tail=False)
    return str(root.text_content())


def scores(page: Page, text: str) -> tuple[float, float]:
    """Return recall and the share of furniture that a text keeps of a page; NaN where a page has none."""
    if page.article:
        article, kept = count_words(page.article), count_words(text)
        furniture = count_words(page_text(page.markup)) - article
        recall = (article & kept).total() / max(article.total(), 1)
        return recall, (furniture & (kept - article)).total() / max(furniture.total(), 1)
    letters = join(text)
    inside = [join(piece) in letters for piece in page.inside]
    outside = [join(piece) in letters for piece in page.outside]
    return (float(np.mean(inside)) if inside else np.nan), (float(np.mean(outside)) if outside else np.nan)


@command
def main() -> int:
    """Print a line for each set and reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=["ours"])
    parser.add_argument("--show", type=int, default=0)
    arguments = parser.parse_args()
    print("set                           reader       pages  recall  pages < .9  furniture  MB/s")
    for set_name, pages_of in SETS.items():
        clones = [path for path in arguments.clones.iterdir() if path.name.split("+")[-1] == set_name]
        pages = [page for clone in clones for page in pages_of(clone)]
        if not pages:
            continue
        for reader in arguments.readers:
            started, texts = time.perf_counter(), [READERS[reader](page.markup) for page in pages]
            speed = sum(len(page.markup) for page in pages) / (time.perf_counter() - started) / 1e6
            rows = np.array([scores(page, text) for page, text in zip(pages, texts, strict=True)])
            recall, furniture = np.nanmean(rows, axis=0)
            low = int(np.sum(rows[:, 0] < 0.9))
            print(
                f"{set_name:<29} {reader:<12} {len(pages):>5}  {recall:.4f}  {low:>10}  {furniture:>9.3f}  {speed:.2f}"
            )
            if reader == "ours":
                for number in np.argsort(rows[:, 0], kind="stable")[: arguments.show]:
                    print(f"    {rows[number, 0]:.3f}  {pages[number].name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
