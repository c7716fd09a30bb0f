"""Measure what libraries keep of documents: `bench_formats.py FOLDER [LIBRARY ..]`, a Markdown table.

FOLDER holds documents, such as those in source distributions. Run it in an environment with the libraries, and with
`beautifulsoup4` and `striprtf`; a library that is missing is left out. The reference of `FILE` is `FILE.txt` where that
exists, as LibreOffice and `pdftotext` make it of Word and PDF files. Else it is the text in the XML of the
file, its parts as `email` gives them, or the file itself; of `.rtf` it is what striprtf gives.

A share is that of the reference's words, with their numbers. Seconds are processor time, the better of two runs. Files
below .97 are named on stderr, with the share of the letters that is kept: where that is 1, only spaces differ.
"""

from __future__ import annotations

import email
import json
import re
import sys
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable
from email.policy import default
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

PARTS = {
    ".pptx": r"ppt/slides/slide\d+\.xml",
    ".xlsx": r"xl/(sharedStrings|worksheets/sheet\d+)\.xml",
    ".ods": r"content\.xml",
    ".odt": r"content\.xml",
    ".epub": r".*\.x?html?",
}
"""Parts of packed files with their text."""


LOW_SHARE = 0.97
CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"


def count_words(text: str) -> Counter[str]:
    """Return the words of a text with their numbers.

    A raised digit is a digit, and a Chinese or Japanese character a word. Hyphens inside words do not count, nor the
    decimals of whole numbers of sheets.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"\b(\d+)\.0\b", r"\1", text)
    text = re.sub("(?<=\\w)[-\u00ad\u2010\u2011]\\s*(?=\\w)|\u00ad", "", text)
    return Counter(re.findall(rf"[{CJK}]|[^\W_{CJK}]+", text))


def share_of_letters(expected: Counter[str], words: Counter[str]) -> float:
    """Return the share of the letters of some words that others hold."""
    expected, words = (
        Counter("".join(expected.elements())),
        Counter("".join(words.elements())),
    )
    return 1 - (expected - words).total() / expected.total()


def reference(path: Path) -> str:
    """Return the text that a file holds."""
    beside = path.with_name(f"{path.name}.txt")
    if beside.exists():
        return beside.read_text("utf-8-sig", "replace")
    kind = path.suffix.lower()
    if kind in (".docx", ".pdf"):
        return ""
    if kind in PARTS:
        texts = []
        with ZipFile(path) as packed:
            for name in packed.namelist():
                if re.fullmatch(PARTS[kind], name):
                    soup = import_module("bs4").BeautifulSoup(packed.read(name), "xml")
                    cells = soup.find_all(["t", "v"]) if kind == ".xlsx" else [soup]
                    for cell in cells:
                        # the number of a shared text is no text
                        shared = cell.name == "v" and cell.parent.get("t") == "s"
                        texts.append("" if shared else cell.get_text(" "))
        return " ".join(texts)
    if kind == ".eml":
        body = email.message_from_bytes(path.read_bytes(), policy=default).get_body(
            ("plain",)
        )
        return "" if body is None else str(body.get_content())
    if kind == ".ipynb":
        cells = json.loads(path.read_text("utf-8")).get("cells", [])
        return " ".join("".join(cell["source"]) for cell in cells)
    if kind == ".rtf":
        return str(
            import_module("striprtf.striprtf").rtf_to_text(path.read_text("latin-1"))
        )
    return path.read_text("utf-8", "replace")


def with_selfrag(path: Path) -> str:
    """Return what our reader reads, with the titles of sections."""
    documents = import_module("retrieval.documents")
    options = import_module("retrieval.documents.document").ReadingOptions()
    kind = documents.document_format(path.suffix.lower())
    document = kind.read(path, path.stem, options, lambda: None)
    titles = [section.title.split(" > ") for section in document.sections]
    return " ".join([document.text, *{title for path in titles for title in path}])


def with_docling(path: Path) -> str:
    """Return what docling reads."""
    converter = import_module("docling.document_converter").DocumentConverter()
    return str(converter.convert(path).document.export_to_markdown())


def with_pymupdf4llm(path: Path) -> str:
    """Return what pymupdf4llm reads."""
    return str(import_module("pymupdf4llm").to_markdown(str(path)))


def with_kreuzberg(path: Path) -> str:
    """Return what kreuzberg reads."""
    library: Any = import_module("kreuzberg")
    return str(
        library.extract_file_sync(
            str(path), config=library.ExtractionConfig(use_cache=False)
        ).content
    )


def with_markitdown(path: Path) -> str:
    """Return what markitdown reads."""
    return str(import_module("markitdown").MarkItDown().convert(str(path)).text_content)


def with_own_library(path: Path) -> str:
    """Return what the library of a format reads."""
    kind = path.suffix.lower()
    texts: list[str] = []
    if kind == ".pptx":
        for slide in import_module("pptx").Presentation(str(path)).slides:
            for shape in slide.shapes:
                if shape.has_text_frame:
                    texts.append(shape.text_frame.text)
                if getattr(shape, "has_table", False):
                    texts += [cell.text for cell in shape.table.iter_cells()]
    elif kind == ".xlsx":
        for sheet in import_module("openpyxl").load_workbook(path, data_only=True):
            for row in sheet.iter_rows(values_only=True):
                texts += [str(value) for value in row if value is not None]
    elif kind in (".ods", ".odt"):
        document = import_module("odf.opendocument").load(str(path))
        extract = import_module("odf.teletype").extractText
        for kind_of_text in (import_module("odf.text").P, import_module("odf.text").H):
            texts += map(extract, document.getElementsByType(kind_of_text))
    else:
        raise ValueError(f"no library for {kind}")
    return " ".join(texts)


LIBRARIES: dict[str, Callable[[Path], str]] = {
    "selfrag": with_selfrag,
    "kreuzberg": with_kreuzberg,
    "markitdown": with_markitdown,
    "docling": with_docling,
    "pymupdf4llm": with_pymupdf4llm,
    "a library for each": with_own_library,
}


def read_twice(read: Callable[[Path], str], path: Path) -> tuple[str, float]:
    """Return the text of a file and the seconds of the better of two runs."""
    seconds: list[float] = []
    text = ""
    for _ in range(2):
        start = time.process_time()
        text = read(path)
        seconds.append(time.process_time() - start)
    return text, min(seconds)


def main() -> int:
    """Print a row for each library: shares of words of each kind, files below .97, files not read, and seconds."""
    folder, *names = sys.argv[1:]
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    paths = [path for path in paths if not path.with_suffix("").is_file()]
    references = {path: count_words(reference(path)) for path in paths}
    paths = [path for path in paths if references[path].total() >= 10]
    kinds = sorted({path.suffix.lower() for path in paths})
    counts = Counter(path.suffix.lower() for path in paths)
    titles = " | ".join(f"{kind} ({counts[kind]})" for kind in kinds)
    print(f"| library | {titles} | below {LOW_SHARE} | not read | seconds |")
    print("|---" * (len(kinds) + 4) + "|")
    for name in names or LIBRARIES:
        shares = defaultdict[str, list[float]](list)
        failed, low, seconds = 0, 0, 0.0
        for path in paths:
            try:
                text, taken = read_twice(LIBRARIES[name], path)
            except Exception as error:  # a failure is a result here
                print(f"{name}: {path.name}: {error!r:.100}", file=sys.stderr)
                failed += 1
                continue
            seconds += taken
            words, expected = count_words(text), references[path]
            missing = expected - words
            share = 1 - missing.total() / expected.total()
            shares[path.suffix.lower()].append(share)
            if share < LOW_SHARE:
                low += 1
                letters = share_of_letters(expected, words)
                lost = " ".join(missing)[:100]
                print(
                    f"{name}: {path.name}: {share:.3f}, letters {letters:.3f}: {lost}",
                    file=sys.stderr,
                )
        cells = [
            f"{sum(shares[kind]) / len(shares[kind]):.3f}" if shares[kind] else "-"
            for kind in kinds
        ]
        print(f"| {name} | {' | '.join(cells)} | {low} | {failed} | {seconds:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
