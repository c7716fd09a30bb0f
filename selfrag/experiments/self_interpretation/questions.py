"""The questions of a run: drawn from a file with demonstrations, shown in the order of a cell, kept with the run."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrieval.build import index_passages
from retrieval.local_encoders import load_encoder
from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.metrics.answers import sets_of
from selfrag.evaluation.normalisation import contains_any
from selfrag.evaluation.presets import Given
from selfrag.evaluation.runner import Source
from selfrag.experiments.self_interpretation.grid import (
    MOST_EXAMPLES,
    GridCell,
    arranged,
)
from selfrag.experiments.self_interpretation.prompts import (
    Asking,
    Demonstration,
    PromptContext,
    contexts_of,
)
from selfrag.experiments.self_interpretation.settings import (
    DRAW,
    DrawSettings,
    Relevance,
)
from selfrag.interface import (
    Encoder,
    Item,
    Passage,
    UserError,
    count_of,
    read_jsonl,
    write_jsonl,
    writing,
)
from selfrag.loading import resolve_encoder

TOP = 3
MOST_PUBLISHED = 100
"""Passages of a question in the file that ALCE publishes."""
FILE = "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Trial:
    """One question in one cell, ready to be asked."""

    item: Item
    strategy: Asking
    passages: tuple[Passage, ...]  # as shown, in order
    examples: tuple[Demonstration, ...] = ()
    words: int | None = None  # of a passage, which is cut after them

    @property
    def question(self) -> str:
        """Return the question without a task's wording, where the two can be told apart."""
        return self.item.query or self.item.instruction

    @property
    def contexts(self) -> tuple[PromptContext, ...]:
        """Return the passages as the prompt shows them."""
        return contexts_of(self.passages, self.words)

    @property
    def passage_ids(self) -> dict[str, str]:
        """Return context id to passage id."""
        return {c.id: p.id for c, p in zip(self.contexts, self.passages, strict=True)}


@dataclass(frozen=True, slots=True)
class Questions:
    """What a run asks, and how it shows and judges passages; the same in every cell."""

    path: Path  # the file that they were drawn from
    data: Mapping[str, Any]  # how it was read, for the manifest
    items: tuple[Item, ...]  # in the order of the file
    demonstrations: tuple[Item, ...]  # serve as examples and are not asked
    answerable: int  # items of the file, not set aside, of which an answer occurs in the top passages
    kinds: Mapping[str, str]  # item id to its type of question
    relevance: Relevance = "gold"  # a passage is relevant if the file calls it so, or if it contains an answer
    seed: int = 0  # of the random order
    example_contexts: int = 3  # passages of a demonstration; the cut-off of the cell is meant for the question
    words: int | None = 200  # a passage is cut after so many; None keeps it whole

    def trials(self, cell: GridCell, ids: Sequence[str]) -> list[Trial]:
        """Return what a cell asks of some questions."""
        items = {item.id: item for item in self.items}
        examples = tuple(
            example(item, self.example_contexts, self.words)
            for item in self.demonstrations[: cell.examples]
        )
        trials = []
        for key in ids:
            item, seed = items[key], f"{self.seed}:{key}"
            shown = arranged(item.passages, cell.cutoff, cell.order, seed)
            trials.append(Trial(item, cell.strategy, shown, examples, self.words))
        return trials

    def identity(self) -> JsonObject:
        """Return what decides every record, for the manifest."""
        text = json.dumps(self._rows(), sort_keys=True, ensure_ascii=True)
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "asked": len(self.items),
            **settings,
        }

    def write(self, folder: Path) -> None:
        """Write them into a run directory, where they are not there yet."""
        path = folder / FILE
        if not path.exists():
            with writing(path):
                write_jsonl(path, self._rows())

    def _rows(self) -> list[JsonObject]:
        rows = []
        for role, items in (("asked", self.items), ("example", self.demonstrations)):
            rows += [_row(item, role, self.kinds[item.id]) for item in items]
        return rows


_SETTINGS = ("answerable", "relevance", "seed", "example_contexts", "words")


def read_questions(folder: Path, path: Path, identity: Mapping[str, Any]) -> Questions:
    """Return the questions of a run, so that later tests ask about the very same ones; `path` is that of the data."""
    file, made = folder / FILE, identity["questions"]
    try:
        items: dict[str, list[Item]] = {"asked": [], "example": []}
        kinds = {}
        for row in read_jsonl(file, lambda row: row):
            items[row["role"]].append(_item(row))
            kinds[row["id"]] = row["kind"]
        settings = {name: made[name] for name in _SETTINGS}
        questions = Questions(
            path,
            identity["data"],
            tuple(items["asked"]),
            tuple(items["example"]),
            kinds=kinds,
            **settings,
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{file}: not the questions of a run ({error}); start it again in another directory"
        ) from error
    if questions.identity() != dict(made):
        raise UserError(
            f"{file} was changed since the run was started; put it back, or start again elsewhere"
        )
    return questions


def draw(file: Given, passages: int, settings: DrawSettings = DRAW) -> Questions:
    """Read a file of user rows or of a published task, and draw the questions and demonstrations from it.

    With `settings.pool` each question is searched for in the passages of all that were drawn, as the paper does.
    `passages` is the largest cut-off.
    """
    # 1. the items; protocols read fewer passages than a grid may show
    encoder = None
    if settings.pool is not None:
        encoder = load_encoder(resolve_encoder(settings.pool))
    if file.preset is not None:
        most = passages if encoder is None else MOST_PUBLISHED
        file = replace(file, preset=file.preset.with_passages(most))
    source = Source([file], index=settings.index, found=passages)
    (tasks,) = source.load()
    most = max((len(item.passages) for item in tasks.items), default=0)
    if most < passages and encoder is None:
        message = (
            f"no question has {count_of(passages, 'passages')}, the most is {most}"
        )
        raise UserError(f"{file.path}: {message}; give --cutoff or --index")
    rows: dict[str, JsonObject] = {}
    if not file.preset:
        rows = dict(read_jsonl(file.path, lambda row: (str(row.get("id")), row)))
    # 2. the questions and the demonstrations
    aside = {name for name, row in rows.items() if row.get("split") == "train"}
    items, examples, answerable = choose(
        tasks.items, limit=settings.limit or None, seed=settings.seed, set_aside=aside
    )
    kinds = {}
    for item in (*items, *examples):
        kinds[item.id] = question_type(item, rows.get(item.id, {}))
    # 3. the passages of all questions for each of them
    data = {
        "sha256": tasks.sha256,
        "rows": tasks.rows,
        "top": TOP,
        **({"preset": tasks.task.preset} if tasks.task.preset else {}),
        **source.settings(),
    }
    if encoder is not None:
        data["pool"] = encoder.card.identity() | {"name": encoder.card.name}
        items = pooled(items, encoder, passages)
        examples = tuple(
            replace(item, passages=item.passages[: settings.example_contexts])
            for item in examples
        )
    relevance = settings.relevance
    if all(item.gold is None for item in items):
        relevance = "answers"
    return Questions(
        file.path,
        data,
        items,
        examples,
        answerable,
        kinds,
        relevance,
        settings.seed,
        settings.example_contexts,
        settings.words or None,
    )


def choose(
    items: Sequence[Item],
    *,
    limit: int | None = 60,
    seed: int = 0,
    set_aside: Collection[str] = (),
) -> tuple[tuple[Item, ...], tuple[Item, ...], int]:
    """Return the questions, two demonstrations, and how many questions could have been asked; the same for every grid.

    Demonstrations are questions that the file sets aside, if there are enough. Otherwise they are held out: of a draw
    of ten, those whose top passages contain most answers.
    """
    fit = [item for item in items if relevant(item, item.passages[:TOP], "answers")]
    if not fit:
        raise UserError(
            f"no question of which an answer occurs in its top {TOP} passages; check 'answers', 'passages'"
        )
    drawn = random.Random(seed).sample(range(len(fit)), len(fit))  # noqa: S311 - no cryptography
    aside = [i for i in drawn if fit[i].id in set_aside]
    pool = (aside if len(aside) >= MOST_EXAMPLES else drawn)[:10]
    pool.sort(key=lambda i: -len(_contained(fit[i], TOP)))
    examples = pool[:MOST_EXAMPLES]
    chosen = sorted([i for i in drawn if i not in examples and i not in aside][:limit])
    if not chosen:
        raise UserError(
            f"{count_of(len(fit), 'answerable questions')}, {len(examples)} of them examples: none is left to ask"
        )
    questions = tuple(fit[i] for i in chosen)
    demonstrations = tuple(fit[i] for i in examples)
    return questions, demonstrations, len(fit) - len(aside)


def relevant(item: Item, passages: Sequence[Passage], by: Relevance) -> frozenset[str]:
    """Return ids of the gold passages, or of those that contain an answer; the latter also where no passage is gold."""
    if by == "gold" and item.gold is not None:
        return frozenset(passage.id for passage in passages if passage.id in item.gold)
    sets = sets_of(item) or ()
    containing = set()
    for passage in passages:
        if any(contains_any(passage.text, aliases) for aliases in sets):
            containing.add(passage.id)
    return frozenset(containing)


def example(item: Item, contexts: int, words: int | None) -> Demonstration:
    """Return an item as a demonstration: its top passages, and the answers in them, each with its reference."""
    shown = contexts_of(item.passages[:contexts], words)
    cited = [
        f"{alias} [{shown[place].id}]" for alias, place in _contained(item, contexts)
    ]
    question = item.query or item.instruction
    return Demonstration(question, shown, f"{', '.join(cited)}.")


def _contained(item: Item, top: int) -> list[tuple[str, int]]:
    """Return for each right answer that a top passage contains, how it is written there, and the passage's place."""
    contained = []
    for aliases in sets_of(item) or ():
        for place, alias in product(range(len(item.passages[:top])), aliases):
            if contains_any(item.passages[place].text, (alias,)):
                contained.append((alias, place))
                break
    return contained


_INTERROGATIVE = re.compile(
    r"\b(how (?:many|much|long|old|often)|who|whom|whose|which|what|when|where|why|how)\b"
)


def question_type(item: Item, row: Mapping[str, Any]) -> str:
    """Return what the row (`type`, `question_type`) or its id says, else the first interrogative: `how many`."""
    for key in ("type", "question_type"):
        if isinstance(row.get(key), str) and row[key].strip():
            return str(row[key])
    # as in QAMPARI's `799__wikidata_simple__dev`
    first, _, suffix = item.id.partition("__")
    kind, _, part = suffix.rpartition("__")
    if part in ("train", "dev", "test") and first and kind:
        return kind
    match = _INTERROGATIVE.search((item.query or item.instruction).lower())
    return match[1] if match else "other"


def _row(item: Item, role: str, kind: str) -> JsonObject:
    return {
        "id": item.id,
        "role": role,
        "kind": kind,
        "instruction": item.instruction,
        "query": item.query,
        "answer_sets": list(map(list, item.answer_sets)),
        "answers": list(item.answers or ()),
        "gold": None if item.gold is None else sorted(item.gold),
        "passages": [passage.as_dict() for passage in item.passages],
    }


def _item(row: Mapping[str, Any]) -> Item:
    return Item(
        row["id"],
        row["instruction"],
        passages=tuple(
            Passage(p["id"], p["text"], p["title"], p["score"]) for p in row["passages"]
        ),
        gold=None if row["gold"] is None else frozenset(row["gold"]),
        answers=tuple(row["answers"]) or None,
        query=row["query"],
        answer_sets=tuple(map(tuple, row["answer_sets"])),
    )


def pooled(items: Sequence[Item], encoder: Encoder, k: int) -> tuple[Item, ...]:
    """Return the items with the best `k` passages of all items, by exact dense search, in place of their own.

    A passage keeps the id that the item itself has for it, so that gold ids hold. Where several passages of other items
    share an id, theirs get the item's id in front.
    """
    owners: dict[str, tuple[str, Passage]] = {}
    sources: dict[str, set[str]] = {}
    for item in items:
        for passage in item.passages:
            owners.setdefault(_content(passage), (item.id, passage))
            sources.setdefault(passage.id, set()).add(_content(passage))
    if len(owners) < k:
        raise UserError(
            f"the questions have {count_of(len(owners), 'different passages')}, fewer than {k}; give --cutoff"
        )
    pool = []
    for owner, passage in owners.values():
        if len(sources[passage.id]) > 1:
            passage = replace(passage, id=f"{owner}/{passage.id}")
        pool.append(passage)
    numbered = [replace(passage, id=str(number)) for number, passage in enumerate(pool)]
    with TemporaryDirectory() as folder:
        search = index_passages(
            numbered,
            Path(folder) / "index",
            encoder=encoder,
            kind="flat",
            language="none",
        )
        rankings = search([item.query or item.instruction for item in items], k)
    filled = []
    for item, hits in zip(items, rankings, strict=True):
        passages = tuple(_as_known(item, pool[int(hit.id)], hit.score) for hit in hits)
        filled.append(replace(item, passages=passages))
    return tuple(filled)


def _as_known(item: Item, passage: Passage, score: float | None) -> Passage:
    """Return the passage under the item's own id, if it has it."""
    for known in item.passages:
        if _content(known) == _content(passage):
            return known.with_score(score)
    return passage.with_score(score)


def _content(passage: Passage) -> str:
    """Return what makes two passages the same, whatever their ids."""
    return " ".join(f"{passage.title}\n{passage.text}".split())
