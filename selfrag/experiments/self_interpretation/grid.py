"""The grid of cut-off x passage order x examples x prompt, its prompts, and the questions that every cell is asked.

A cell is one method; the paper has 81. Prompts are the paper's Table 1 as a template (`table1.j2`), whose tags of
examples are a parameter: the table has come down as text in which they read `(example)`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import jinja2

from retrieval.build import index_passages
from retrieval.encoders import Encoder
from retrieval.local_encoders import load_encoder
from retrieval.passage import Passage
from selfrag.common.atomic import writing
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import sets_of
from selfrag.evaluation.normalisation import contains_any
from selfrag.evaluation.presets import Given
from selfrag.evaluation.runner import Source
from selfrag.judges.layout import one_line
from selfrag.loading import resolve_encoder


@dataclass(frozen=True, slots=True)
class Asking:
    """A prompting strategy: what is asked about the answer."""

    name: str
    question: str = ""  # [XAI Q.] of Table 1; empty for the basic prompt
    needs_examples: bool = False
    table: int | None = None  # number of the paper's table of results

    @property
    def explains(self) -> bool:
        """Return whether an explanation is asked for."""
        return bool(self.question)


BASIC = Asking("basic", table=2)
DIRECT = Asking(
    "direct", "Why do you think that this is the answer to the question?", table=3
)
COUNTERFACTUAL = Asking(
    "counterfactual",
    "What would you have answered to the same question if the order of the passages in the prompt was different?",
    table=4,
)
EXAMPLES = Asking(  # named by the paper as future work, worded here
    "examples",
    "Which of the examples, the first or the second, did you follow most to find this answer to the question, and how?",
    needs_examples=True,
)
ASKINGS = {
    strategy.name: strategy for strategy in (BASIC, DIRECT, COUNTERFACTUAL, EXAMPLES)
}


def asking(name: str) -> Asking:
    """Return a strategy by its name."""
    if name not in ASKINGS:
        raise UserError(f"unknown prompt {name!r}; known: {', '.join(ASKINGS)}")
    return ASKINGS[name]


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A passage as the prompt shows it: the id that is to be cited, and the text."""

    id: str
    text: str


_PLAIN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,38}[A-Za-z0-9])?")


def contexts_of(
    passages: Sequence[Passage], words: int | None = None
) -> tuple[PromptContext, ...]:
    """Return passages with distinct ids as contexts, in the same order, each cut after so many words (None: whole)."""
    return tuple(
        PromptContext(shown_id(passage.id), " ".join(passage.text.split()[:words]))
        for passage in passages
    )


def shown_id(passage_id: str) -> str:
    """Return what a prompt calls a passage: its id if that is letters, digits and `_.:-`, else a part of its hash.

    Any other id could close its bracket, begin a line or be mistaken for another.
    """
    if _PLAIN_ID.fullmatch(passage_id):
        return passage_id
    return hashlib.sha256(passage_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A demonstration: another question, its contexts, and the right answer with context ids in square brackets."""

    question: str
    contexts: tuple[PromptContext, ...]
    answer: str


LABELS = ("QUESTION:", "CONTEXTS:", "Context ID:", "Context:", "ANSWER:")
"""How lines of the prompt begin."""


@dataclass(frozen=True, slots=True)
class GridTemplate:
    """Table 1 with its tags around examples."""

    opening: str = "(example)"
    closing: str = "(/example)"
    always_mentions_examples: bool = (
        False  # also in a prompt that has none, as the table prints it
    )

    @classmethod
    def tagged(
        cls, opening: str, *, always_mentions_examples: bool = False
    ) -> GridTemplate:
        """Return the template with other tags, such as `<example>`; the closing one gets a slash."""
        if len(opening) < 2 or opening.split() != [opening]:
            raise UserError(f"--tag {opening!r}: give one word, such as <example>")
        return cls(opening, f"{opening[0]}/{opening[1:]}", always_mentions_examples)

    def render(
        self,
        strategy: Asking,
        question: str,
        contexts: Sequence[PromptContext],
        examples: Sequence[Demonstration],
    ) -> str:
        """Return the prompt; its first paragraph is the instruction, and texts of others stand on one line each."""
        shown = {"question": question, "contexts": contexts, "examples": examples}
        return _table1().render(template=self, asked=strategy.question, **shown)


@cache
def _table1() -> jinja2.Template:
    text = files(__package__).joinpath("table1.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - prompts, no HTML
    environment.filters["one_line"] = one_line
    return environment.from_string(text)


ORDERS = ("ranked", "top-last", "random", "reversed")
CUTOFFS, PAPER_ORDERS, PAPER_PROMPTS = (
    (3, 5, 10),
    ORDERS[:3],
    ("basic", "direct", "counterfactual"),
)
MOST_EXAMPLES, TOP = 2, 3
MOST_PUBLISHED = 100
"""Passages of a question in the file that ALCE publishes."""
FILE = "questions.jsonl"

T = TypeVar("T")
Relevance = Literal["gold", "answers"]


@dataclass(frozen=True, slots=True)
class GridCell:
    """One method of the grid."""

    cutoff: int  # passages in the prompt: the best so many
    order: str  # best first; `top-last`: the best one after all others; `random`; `reversed`: best last
    examples: int  # demonstrations before the question, 0 to 2
    prompt: str  # name of the strategy

    def __post_init__(self) -> None:
        if self.cutoff < 1 or not 0 <= self.examples <= MOST_EXAMPLES:
            raise UserError(
                f"cut-off {self.cutoff}, {self.examples} examples: give at least 1, and 0 to 2"
            )
        if self.order not in ORDERS:
            raise UserError(f"unknown order {self.order!r}; known: {', '.join(ORDERS)}")
        if self.strategy.needs_examples and not self.examples:
            raise UserError(
                f"the prompt {self.prompt} asks about examples; give --examples 1 or 2 with it"
            )

    @property
    def strategy(self) -> Asking:
        """Return the strategy."""
        return asking(self.prompt)

    @property
    def name(self) -> str:
        """Return the name in files and options, such as `k3-ranked-0-basic`."""
        return f"k{self.cutoff}-{self.order}-{self.examples}-{self.prompt}"

    @classmethod
    def from_dict(cls, values: Any) -> GridCell:
        """Return a cell of plain values."""
        try:
            return cls(
                int(values["cutoff"]),
                str(values["order"]),
                int(values["examples"]),
                str(values["prompt"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"no cell of a grid: {values!r:.80}") from error


def grid(
    cutoffs: Sequence[int] = CUTOFFS,
    orders: Sequence[str] = PAPER_ORDERS,
    examples: Sequence[int] = (0, 1, 2),
    prompts: Sequence[str] = PAPER_PROMPTS,
) -> tuple[GridCell, ...]:
    """Return all combinations, the paper's 81 by default; prompts which begin alike follow each other."""
    strategies = [asking(name) for name in dict.fromkeys(prompts)]
    combined = product(
        strategies,
        dict.fromkeys(examples),
        dict.fromkeys(cutoffs),
        dict.fromkeys(orders),
    )
    cells = tuple(
        GridCell(cutoff, order, shots, strategy.name)
        for strategy, shots, cutoff, order in combined
        if shots or not strategy.needs_examples
    )
    if not cells:
        raise UserError(
            "nothing is left of the grid: the prompt examples needs --examples 1 or 2"
        )
    return cells


def arranged(ranking: Sequence[T], cutoff: int, order: str, seed: str) -> tuple[T, ...]:
    """Return the best `cutoff` of a ranking in the order of a cell; the seed of `random` has the item's id within."""
    kept = list(ranking[:cutoff])
    if order == "top-last":
        kept = [*kept[1:], *kept[:1]]
    elif order == "reversed":
        kept.reverse()
    elif order == "random":
        random.Random(seed).shuffle(kept)  # noqa: S311 - no cryptography
    return tuple(kept)


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
        used = self.demonstrations[: cell.examples]
        examples = tuple(
            example(key, self.example_contexts, self.words) for key in used
        )

        def trial(item: Item) -> Trial:
            shown = arranged(
                item.passages, cell.cutoff, cell.order, f"{self.seed}:{item.id}"
            )
            return Trial(item, cell.strategy, shown, examples, self.words)

        return [trial(items[key]) for key in ids]

    def identity(self) -> dict[str, Any]:
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

    def _rows(self) -> list[dict[str, Any]]:
        roles = {"asked": self.items, "example": self.demonstrations}
        return [
            _row(item, role, self.kinds[item.id])
            for role, items in roles.items()
            for item in items
        ]


_SETTINGS = ("answerable", "relevance", "seed", "example_contexts", "words")


def read_questions(folder: Path, path: Path, identity: Mapping[str, Any]) -> Questions:
    """Return the questions of a run, so that later tests ask about the very same ones; `path` is that of the data."""
    file, made = folder / FILE, identity["questions"]
    rows = list(read_jsonl(file, lambda row: row))
    try:
        items, examples = (
            tuple(_item(row) for row in rows if row["role"] == role)
            for role in ("asked", "example")
        )
        kinds = {row["id"]: row["kind"] for row in rows}
        settings = {name: made[name] for name in _SETTINGS}
        questions = Questions(
            path, identity["data"], items, examples, kinds=kinds, **settings
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


def draw(
    file: Given,
    passages: int,
    *,
    index: str | None = None,
    pool: str | None = None,
    limit: int | None = 60,
    relevance: Relevance = "gold",
    seed: int = 0,
    example_contexts: int = 3,
    words: int | None = 200,
) -> Questions:
    """Read a file of user rows or of a published task, and draw the questions and demonstrations from it.

    `index` is searched for questions without passages. With the encoder `pool` each question is then searched for in
    the passages of all that were drawn, as the paper does. `passages` is the largest cut-off.
    """
    encoder = None if pool is None else load_encoder(resolve_encoder(pool))
    if (
        file.preset is not None
    ):  # whose protocols read fewer passages than a grid may show
        file = replace(
            file,
            preset=file.preset.with_passages(
                passages if encoder is None else MOST_PUBLISHED
            ),
        )
    source = Source([file], index=index, found=passages)
    (tasks,) = source.load()
    most = max((len(item.passages) for item in tasks.items), default=0)
    if most < passages and encoder is None:
        said = f"no question has {passages} passages, the most is {most}"
        raise UserError(f"{file.path}: {said}; give --cutoff or --index")
    rows = (
        {}
        if file.preset
        else dict(read_jsonl(file.path, lambda row: (str(row.get("id")), row)))
    )
    aside = {name for name, row in rows.items() if row.get("split") == "train"}
    items, examples, answerable = choose(
        tasks.items, limit=limit, seed=seed, set_aside=aside
    )
    kinds = {
        item.id: question_type(item, rows.get(item.id, {}))
        for item in (*items, *examples)
    }
    published = {"preset": tasks.task.preset} if tasks.task.preset else {}
    data = {
        "sha256": tasks.sha256,
        "rows": tasks.rows,
        "top": TOP,
        **published,
        **source.settings(),
    }
    if encoder is not None:
        data["pool"] = encoder.card.identity() | {"name": encoder.card.name}
        items, examples = (
            pooled(items, encoder, passages),
            tuple(
                replace(example, passages=example.passages[:example_contexts])
                for example in examples
            ),
        )
    by = relevance if any(item.gold is not None for item in items) else "answers"
    return Questions(
        file.path,
        data,
        items,
        examples,
        answerable,
        kinds,
        by,
        seed,
        example_contexts,
        words,
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
    pool = sorted(
        (aside if len(aside) >= MOST_EXAMPLES else drawn)[:10],
        key=lambda i: -len(_contained(fit[i], TOP)),
    )
    examples = pool[:MOST_EXAMPLES]
    chosen = sorted([i for i in drawn if i not in examples and i not in aside][:limit])
    if not chosen:
        raise UserError(
            f"{len(fit)} answerable questions, {len(examples)} of them examples: none is left to ask"
        )
    return (
        tuple(fit[i] for i in chosen),
        tuple(fit[i] for i in examples),
        len(fit) - len(aside),
    )


def relevant(item: Item, passages: Sequence[Passage], by: Relevance) -> frozenset[str]:
    """Return ids of the gold passages, or of those that contain an answer; the latter also where no passage is gold."""
    if by == "gold" and item.gold is not None:
        return frozenset(passage.id for passage in passages if passage.id in item.gold)
    sets = sets_of(item) or ()
    return frozenset(
        p.id for p in passages if any(contains_any(p.text, aliases) for aliases in sets)
    )


def example(item: Item, contexts: int, words: int | None) -> Demonstration:
    """Return an item as a demonstration: its top passages, and the answers in them, each with its reference."""
    made = contexts_of(item.passages[:contexts], words)
    said = ", ".join(
        f"{alias} [{made[at].id}]" for alias, at in _contained(item, contexts)
    )
    return Demonstration(item.query or item.instruction, made, f"{said}.")


def _contained(item: Item, top: int) -> list[tuple[str, int]]:
    """Return for each right answer that a top passage contains, how it is written there, and the passage's place."""
    contained = []
    for aliases in sets_of(item) or ():
        pairs = product(enumerate(item.passages[:top]), aliases)
        places = [
            (alias, place)
            for (place, passage), alias in pairs
            if contains_any(passage.text, (alias,))
        ]
        contained += places[:1]
    return contained


_INTERROGATIVE = re.compile(
    r"\b(how (?:many|much|long|old|often)|who|whom|whose|which|what|when|where|why|how)\b"
)


def question_type(item: Item, row: Mapping[str, Any]) -> str:
    """Return what the row (`type`, `question_type`) or its id says, else the first interrogative: `how many`."""
    for key in ("type", "question_type"):
        if isinstance(row.get(key), str) and row[key].strip():
            return str(row[key])
    first, _, suffix = item.id.partition(
        "__"
    )  # as in QAMPARI's `799__wikidata_simple__dev`
    kind, _, part = suffix.rpartition("__")
    if part in ("train", "dev", "test") and first and kind:
        return kind
    match = _INTERROGATIVE.search((item.query or item.instruction).lower())
    return match[1] if match else "other"


def _row(item: Item, role: str, kind: str) -> dict[str, Any]:
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
        needs_retrieval=None,
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
            f"the questions have {len(owners)} different passages, fewer than {k}; give --cutoff"
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
