"""Measure what libraries keep of files of office programs: `bench_formats.py FOLDER`, a Markdown table.

FOLDER holds `.pptx .xlsx .ods .odt .rtf .epub .rst .eml .ipynb` files, such as those in source distributions. Run it in
an environment with `kreuzberg`, `markitdown`, `python-pptx`, `openpyxl`, `odfpy`, `striprtf` and `beautifulsoup4`; a
library that is missing is left out. The reference is the text in the XML of a file, its parts as `email` gives them, or
the file itself; of `.rtf` it is what striprtf gives. A share is that of the reference's words, with their numbers.
"""

from __future__ import annotations

import email
import json
import re
import sys
import time
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


def count_words(text: str) -> Counter[str]:
    """Return the words of a text with their numbers; whole numbers of sheets count without their decimals."""
    return Counter(re.findall(r"[^\W_]+", re.sub(r"\b(\d+)\.0\b", r"\1", text).lower()))


def reference(path: Path) -> str:
    """Return the text that a file holds."""
    kind = path.suffix.lower()
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
    "kreuzberg": with_kreuzberg,
    "markitdown": with_markitdown,
    "a library for each": with_own_library,
}


def main() -> int:
    """Print a row for each library: the mean share of words of each kind, files that it does not read, and seconds."""
    paths = sorted(path for path in Path(sys.argv[1]).rglob("*") if path.is_file())
    references = {path: count_words(reference(path)) for path in paths}
    paths = [path for path in paths if references[path].total() >= 10]
    kinds = sorted({path.suffix.lower() for path in paths})
    counts = Counter(path.suffix.lower() for path in paths)
    titles = " | ".join(f"{kind} ({counts[kind]})" for kind in kinds)
    print(f"| library | {titles} | not read | seconds |")
    print("|---" * (len(kinds) + 3) + "|")
    for name, read in LIBRARIES.items():
        shares = defaultdict[str, list[float]](list)
        failed, seconds = 0, 0.0
        for path in paths:
            start = time.perf_counter()
            try:
                words = count_words(read(path))
            except ModuleNotFoundError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed += 1
                continue
            except Exception as error:  # a failure is a result here
                print(f"{name}: {path.name}: {error!r:.100}", file=sys.stderr)
                failed += 1
                continue
            seconds += time.perf_counter() - start
            missing = (references[path] - words).total()
            shares[path.suffix.lower()].append(1 - missing / references[path].total())
        cells = [
            f"{sum(shares[kind]) / len(shares[kind]):.2f}" if shares[kind] else "-"
            for kind in kinds
        ]
        print(f"| {name} | {' | '.join(cells)} | {failed} | {seconds:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
