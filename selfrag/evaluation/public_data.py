"""Development files made from what their authors publish: fetched by commit, checked, written in our schema.

Originals, checksums, and which rows are in a file in which order, are in `public_data.json`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.common.atomic import write_text
from selfrag.common.cache import publish
from selfrag.common.errors import UserError
from selfrag.common.jsonl import json_line
from selfrag.common.reading import cache_home

HOST = "https://raw.githubusercontent.com"
_SECONDS = 60  # without a byte after which a download is given up
_MOST = 16 * 2**20  # bytes of an original
_LETTERS = "ABCDEFGHIJKLMNOP"
_NUMBERS = {3: "three", 4: "four", 5: "five"}
_FACT = "Is the following statement correct or not? Say true if it's correct; otherwise say false."

OriginalRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Original:
    """A file of a public repository."""

    repository: str  # owner/name on GitHub
    commit: str
    path: str  # in the repository
    sha256: str

    @property
    def url(self) -> str:
        """Return where to get it."""
        return f"{HOST}/{self.repository}/{self.commit}/{self.path}"

    @property
    def name(self) -> str:
        """Return the file's own name."""
        return Path(self.path).name

    def rows(self, content: bytes) -> list[OriginalRow]:
        """Return the objects in it: JSON Lines or one JSON array, plain or gzipped."""
        if self.name.endswith(".gz"):
            content = gzip.decompress(content)
        text = content.decode("utf-8")
        if text.startswith("["):
            return list(json.loads(text))
        return list(map(json.loads, text.splitlines()))


@dataclass(frozen=True, slots=True)
class PublicSet:
    """A development file that anybody can make."""

    about: str  # one line
    licence: str  # of the originals
    originals: tuple[Original, ...]
    sha256: str  # of the file that comes out
    selection: str = ""  # which rows are in the file, or how options are shuffled, in order and with spaces between


def _choice(instruction: str, options: Sequence[str], right: int) -> OriginalRow:
    for letter, option in zip(_LETTERS, options, strict=False):
        instruction += f"\n{letter}: {option}"
    label = _LETTERS[right]
    return {
        "task": "multiple_choice",
        "instruction": instruction,
        "answers": [label, options[right]],
        "label": label,
        "options": list(options),
    }


def _arc(raws: list[OriginalRow], selection: Sequence[str]) -> Iterator[OriginalRow]:
    for number, raw in enumerate(raws[:600]):
        stem = raw["instruction"].removeprefix(
            "Please choose the correct answer to the question: "
        )
        question, written = stem.rpartition("\n\nAnswer format")[0].split(
            "\n\nAnswer1: ", 1
        )
        options = re.split(r" Answer\d: ", written)
        letters = f"{', '.join(_LETTERS[: len(options) - 1])} and {_LETTERS[len(options) - 1]}"
        candidates = f"Given {_NUMBERS[len(options)]} answer candidates, {letters}, choose the best answer choice."
        right = int(raw["answer"].removeprefix("answer")) - 1
        yield {"id": f"arcc-{number}"} | _choice(
            f"{candidates}\n\n## Input:\n\n{question}", options, right
        )


def _fever(raws: list[OriginalRow], selection: Sequence[str]) -> Iterator[OriginalRow]:
    for raw in raws:
        name = f"feversym-{raw['id']}"
        label = "true" if raw["label"] == "SUPPORTS" else "false"
        yield {
            "id": name,
            "task": "fact_check",
            "instruction": f"{_FACT}\n\n## Input:\n\n{raw['claim']}",
            "answers": [label],
            "label": label,
            "options": ["true", "false"],
            "passages": [{"id": f"{name}-e", "title": "", "text": raw["evidence"]}],
            "gold_passage_ids": [f"{name}-e"],
        }


def _truthful(
    raws: list[OriginalRow], selection: Sequence[str]
) -> Iterator[OriginalRow]:
    for number, (raw, order) in enumerate(zip(raws, selection, strict=True)):
        if order == "-":
            continue
        targets = list(raw["mc1_targets"])
        options = [targets[ord(letter) - ord("a")] for letter in order]
        truths = [bool(raw["mc1_targets"][option]) for option in options]
        last = _LETTERS[len(options) - 1]
        lead = (
            f"Choose the best answer to the question from the candidates A to {last}."
        )
        row = _choice(
            f"{lead}\n\n## Input:\n\n{raw['question']}", options, truths.index(True)
        )
        yield (
            {"id": f"truthfulqa-{number}"}
            | row
            | {"question": raw["question"], "mc2": raw["mc2_targets"]}
        )


def _clapnq(raws: list[OriginalRow], selection: Sequence[str]) -> Iterator[OriginalRow]:
    by_id = {raw["id"]: raw for raw in raws}
    for raw in map(by_id.__getitem__, selection):
        passage, place = raw["passages"][0], f"clapnq-p{raw['id']}"
        row = {
            "id": f"clapnq-{raw['id']}",
            "task": "long_form",
            "instruction": raw["input"],
            "answers": [],
            "label": "unanswerable",
            "passages": [
                {"id": place, "title": passage["title"], "text": passage["text"]}
            ],
            "gold_passage_ids": [],
        }
        for output in raw["output"]:
            if output["answer"].strip():
                row["answers"].append(output["answer"])
                row |= {"label": "answerable", "gold_passage_ids": [place]}
                sentences = {
                    "passage_id": place,
                    "sentences": output["selected_sentences"],
                }
                row.setdefault("support", []).append(sentences)
        yield row


def _nq(raws: list[OriginalRow], selection: Sequence[str]) -> Iterator[OriginalRow]:
    for number in map(int, selection):
        raw = raws[number]
        gold = {
            "id": f"nq-{number}-gold",
            "title": raw["ctxs"][0]["title"],
            "text": raw["ctxs"][0]["text"],
        }
        row = {
            "id": f"nq-{number}",
            "task": "short_qa",
            "instruction": raw["question"],
            "answers": raw["answers"],
        }
        yield row | {"passages": [gold], "gold_passage_ids": [gold["id"]]}


ROWS: Mapping[
    str, Callable[[list[OriginalRow], Sequence[str]], Iterator[OriginalRow]]
] = {
    "arc_c": _arc,
    "clapnq_dev": _clapnq,
    "fever_symmetric": _fever,
    "nq_gold": _nq,
    "truthfulqa_mc": _truthful,
}
"""Name of each file to what makes its rows of the originals, one after the other, and of what is selected."""


@cache
def public_sets() -> Mapping[str, PublicSet]:
    """Return what can be made, by name."""
    sets = {}
    for name, values in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items():
        originals = tuple(Original(**original) for original in values.pop("originals"))
        sets[name] = PublicSet(originals=originals, **values)
    return sets


def make(name: str, folder: Path, originals: Path | None = None) -> Path:
    """Write a development file.

    Args:
        name: one of `ROWS`.
        folder: the file is `folder/name.jsonl`; made if missing.
        originals: folder that holds the originals under their own names; None downloads them once into the cache.

    Returns:
        The file.

    Raises:
        UserError: unknown name; an original is missing, cannot be fetched or is another file; the disk is full.
    """
    if name not in ROWS:
        raise UserError(
            f"no development file {name!r} can be made; known: {', '.join(ROWS)}"
        )
    public = public_sets()[name]
    raws = [
        raw
        for original in public.originals
        for raw in original.rows(_content(original, originals))
    ]
    text = "".join(map(json_line, ROWS[name](raws, public.selection.split())))
    if hashlib.sha256(text.encode()).hexdigest() != public.sha256:
        raise UserError(
            f"{name} came out other than it was measured with; report this with the version of selfrag"
        )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.jsonl"
    write_text(target, text)
    return target


def _content(original: Original, folder: Path | None) -> bytes:
    """Return the bytes of an original, checked."""
    if folder is None:
        place = cache_home() / "originals" / original.sha256
        folder = publish(
            place, lambda draft: _download(original, draft / original.name)
        )
    path = folder / original.name
    if not path.is_file():
        raise UserError(
            f"{folder} holds no {original.name}; get it from {original.url}"
        )
    content = path.read_bytes()
    if (checksum := hashlib.sha256(content).hexdigest()) != original.sha256:
        raise UserError(
            f"{path} has SHA-256 {checksum[:12]}.., not {original.sha256[:12]}..; get it from {original.url}"
        )
    return content


def _download(original: Original, target: Path) -> None:
    try:
        with urllib.request.urlopen(original.url, timeout=_SECONDS) as reply:  # noqa: S310 - a pinned https address
            content = reply.read(_MOST)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"cannot download {original.url} ({reason}); get the file elsewhere and name its folder with --from"
        ) from error
    if (checksum := hashlib.sha256(content).hexdigest()) != original.sha256:
        raise UserError(
            f"{original.url} gave another file (SHA-256 {checksum[:12]}.., not {original.sha256[:12]}..)"
        )
    target.write_bytes(content)
