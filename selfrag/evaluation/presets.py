"""Published tasks: Self-RAG's six and QAMPARI, each with its metrics, protocols and published figures."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.items import TASK_INPUT, Item
from selfrag.evaluation.metrics.registry import metrics
from selfrag.evaluation.public_files import SCHEMAS, Schema
from selfrag.evaluation.task import BIOGRAPHY, CLOSED, LIST, LONG, SET_BY_TASK, SHORT, Kind, Task

TRAINING_JOIN = TASK_INPUT
"""Between instruction and question in the rows that this project trains on."""
ARC_JOIN = "\n\n### Input:\n"
"""The official code's for ARC-Challenge, and for all baselines."""
ASQA_JOIN = "## Input:\n\n"
"""The official code's for ASQA: no line break before it."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What stands around a question."""

    instruction: str = ""  # words before the question; empty asks the question alone
    join: str = TRAINING_JOIN  # between them
    # `query` puts the question into the wording; `given` leaves what the file says as it is
    ask: Literal["query", "given"] = "query"
    letters: int = 0  # fewest options that are shown; the official code shows an empty `D: ` where ARC has three

    def worded(self, item: Item) -> Item:
        """The item, asked in these words."""
        return item if self.ask == "given" else replace(item, instruction=self.text(item))

    def text(self, item: Item) -> str:
        """Instruction, question, and lettered options if the item has any that are not its words themselves."""
        lead = f"{self.instruction}{self.join}" if self.instruction else ""
        lettered = bool(item.options) and item.label not in item.options
        shown = [*item.options, *[""] * (self.letters - len(item.options))] if lettered else []
        options = [f"\n{letter}: {text}" for letter, text in zip(string.ascii_uppercase, shown, strict=False)]
        return f"{lead}{item.query}{''.join(options)}"


PAPER = "paper"
"""The protocol where none is named."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of running a task."""

    wording: Wording  # around the question
    passages: int  # the first so many of the file are evidence
    new_tokens: int  # of an answer, all segments together
    segments: int  # of an answer
    decoding: Decoding | None = None  # policy of a model with reflection tokens; None for systems without
    marked: bool = False  # the wording asks for citations as numbers in brackets, and they are read


@dataclass(frozen=True, slots=True)
class Preset:
    """A published task."""

    name: str  # what a command line and a run call it
    title: str  # for the reader
    schema: Schema  # of its public file
    kind: Kind  # of answers
    metrics: tuple[str, ...]  # names, the published one first
    judged: tuple[str, ...]  # names of published metrics that a second model computes on the finished run
    hint: str  # what a model that was not trained on such questions is told
    protocols: Mapping[str, Protocol]  # by name; `paper` among them
    # metric to Self-RAG's figure in percent (Table 2), by size of the model, `7b` and `13b`
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def protocol(self, name: str = PAPER) -> Protocol:
        """How the task is run.

        Raises:
            UserError: there is no such protocol; names the known ones.
        """
        if name not in self.protocols:
            raise UserError(f"{self.name} has no protocol {name!r}; it has {', '.join(self.protocols)}")
        return self.protocols[name]

    def task(self, protocol: str = PAPER) -> Task:
        """Kind, metrics and budget, marked with preset and protocol."""
        how = self.protocol(protocol)
        name = f"{self.name}/{protocol}"
        return Task(self.kind, metrics(self.metrics), how.new_tokens, how.segments, self.hint, name, how.marked)

    def settings(self, protocol: str = PAPER) -> dict[str, Any]:
        """Fields of `Decoding` in which the policy differs from the defaults, without what the task's budget sets.

        They are what `selfrag.evaluation.systems` takes as settings; empty for a protocol of systems
        without reflection tokens.
        """
        chosen = self.protocol(protocol).decoding
        if chosen is None:
            return {}
        plain = Decoding()
        names = [one.name for one in fields(Decoding) if one.name not in SET_BY_TASK]
        return {name: value for name in names if (value := getattr(chosen, name)) != getattr(plain, name)}

    def with_passages(self, passages: int) -> Preset:
        """The same task with another number of passages; figures are then no longer the published ones."""
        changed = {
            name: replace(how, passages=passages, decoding=how.decoding and replace(how.decoding, passages=passages))
            for name, how in self.protocols.items()
        }
        return replace(self, protocols=changed)


_CLAIM = "Is the following statement correct or not? Say true if it's correct; otherwise say false."
_CLAIM_TABLE_5 = (
    "Is the following statement correct or not? Say true if it's correct; otherwise, say false. Don't capitalize or"
    ' add periods, just say "true" or "false".'
)
_CHOICE = "Given four answer candidates, A, B, C and D, choose the best answer choice."
_CHOICE_TABLE_5 = (
    f"{_CHOICE} Please answer with the capitalized alphabet only, without adding any extra phrase or period."
)
_AMBIGUOUS = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that case,"
    " you have to provide a long-form answer including all correct answers."
)
_AMBIGUOUS_BASELINE = (
    "Instruction: Write an accurate, engaging, and concise answer for the given question using only the provided search"
    " results (some of which might be irrelevant) and cite them properly. Use an unbiased and journalistic tone. Always"
    " cite for any factual claim. When citing several search results, use [1][2][3]. Cite at least one document and at"
    " most three documents in each sentence. If multiple documents support the sentence, only cite a minimum sufficient"
    " subset of the documents."
)
_LISTING = "Answer the following question with a list of all correct answers, separated by commas."

_EFFORT = ("retrieval_rate", "prompt_tokens", "generated_tokens", "requests", "searches")
_CITED = ("citation_precision", "citation_precision_alce", "citation_recall")
_OPEN = ("official_match", "contains", "exact_match", "f1", *_CITED, "citation_bears_answer", *_EFFORT)
_SETS = ("accuracy", "option_match", "option_unread", *_CITED, *_EFFORT)
_SEGMENTS = 7
"""Segments of a long answer (T); the official loop with `max_depth` 7 writes up to 6."""
_LONG_TOKENS = 1024
"""Of a long answer over all segments; no published run has such a limit, and answers end long before."""


def _short(passages: int, tokens: int, table_5: Wording, wording: Wording, official: Wording) -> dict[str, Protocol]:
    paper = Decoding(passages=passages, segment_tokens=tokens, max_segments=1)
    code = Decoding.official(passages=passages, segment_tokens=tokens, max_segments=1)
    return {
        "paper": Protocol(wording, passages, tokens, 1, paper),
        "table-5": Protocol(table_5, passages, tokens, 1, paper),
        "official": Protocol(official, passages, tokens, 1, code),
        "baseline": Protocol(Wording(table_5.instruction, ARC_JOIN), passages, tokens, 1),
    }


def _open(name: str, title: str, size_7b: float, size_13b: float) -> Preset:
    alone = Wording()
    published = {"official_match": {"7b": size_7b, "13b": size_13b}}
    return Preset(
        name, title, SCHEMAS["questions"], "short", _OPEN, (), SHORT.hint, _short(10, 100, alone, alone, alone),
        published,
    )  # fmt: skip


def _closed(name: str, title: str, schema: str, protocols: dict[str, Protocol], sizes: tuple[float, float]) -> Preset:
    published = {"accuracy": {"7b": sizes[0], "13b": sizes[1]}}
    return Preset(name, title, SCHEMAS[schema], "closed", _SETS, (), CLOSED.hint, protocols, published)


_BIOGRAPHIES = Preset(
    "biographies",
    "Biographies, FactScore (Min et al., 2023)",
    SCHEMAS["biographies"],
    "long",
    ("words", *_EFFORT),
    ("factscore",),
    BIOGRAPHY.hint,
    {
        # Five passages of the index and five of a web search (section 4.3); the code reads the first five.
        "paper": Protocol(Wording("Tell me a bio about", " "), 10, _LONG_TOKENS, _SEGMENTS,
                          Decoding(passages=10, segment_tokens=200)),
        "official": Protocol(Wording(ask="given"), 5, 300 * (_SEGMENTS - 1), _SEGMENTS - 1,
                             Decoding.official(passages=5, segment_tokens=300)),
        "baseline": Protocol(Wording("Tell me a bio about", " "), 10, 500, 1),
    },
    {"factscore": {"7b": 81.2, "13b": 80.2}},
)  # fmt: skip

_ASQA = Preset(
    "asqa",
    "ASQA after ALCE (Gao et al., 2023), GTR top 5",
    SCHEMAS["ambiguous"],
    "long",
    ("str_em", "str_hit", "rouge_lsum", "words", *_EFFORT),
    ("citation_recall_nli", "citation_precision_nli", "mauve"),
    LONG.hint,
    {
        # Threshold 0: citations are wanted everywhere (section 4.3).
        "paper": Protocol(Wording(_AMBIGUOUS), 5, _LONG_TOKENS, _SEGMENTS,
                          Decoding(passages=5, segment_tokens=300, threshold=0.0)),
        "official": Protocol(Wording(_AMBIGUOUS, ASQA_JOIN), 5, 300 * (_SEGMENTS - 1), _SEGMENTS - 1,
                             Decoding.official(passages=5, segment_tokens=300, mode="always")),
        "baseline": Protocol(Wording(_AMBIGUOUS_BASELINE, ARC_JOIN), 5, 100, 1, marked=True),
    },
    {
        "str_em": {"7b": 30.0, "13b": 31.7},
        "rouge_lsum": {"7b": 35.7, "13b": 37.0},
        "mauve": {"7b": 74.3, "13b": 71.6},
        "citation_precision_nli": {"7b": 66.9, "13b": 70.3},
        "citation_recall_nli": {"7b": 67.8, "13b": 71.3},
    },
)  # fmt: skip

_QAMPARI = Preset(
    "qampari",
    "QAMPARI (Amouyal et al., 2023), after ALCE",
    SCHEMAS["lists"],
    "list",
    ("list_f1_5", "list_precision", "list_recall_5", "list_recall", "list_f1", "list_length", "answer_recall",
     "answer_recall_words", *_EFFORT),
    ("citation_recall_nli", "citation_precision_nli"),
    LIST.hint,
    {
        "paper": Protocol(Wording(_LISTING), 5, 300, _SEGMENTS, Decoding(passages=5, threshold=0.0)),
        "baseline": Protocol(Wording(_LISTING, ARC_JOIN), 5, 300, 1),
    },
)  # fmt: skip

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        one.name: one
        for one in (
            _open("popqa", "PopQA, long tail (Mallen et al., 2023)", 54.9, 55.8),
            _open("triviaqa", "TriviaQA-unfiltered (Joshi et al., 2017)", 66.4, 69.3),
            _closed(
                "pubhealth", "PubHealth claims (Zhang et al., 2023)", "claims",
                _short(5, 50, Wording(_CLAIM_TABLE_5), Wording(_CLAIM), Wording(_CLAIM)), (72.4, 74.5),
            ),
            _closed(
                "arc-challenge", "ARC-Challenge (Clark et al., 2018)", "choices",
                _short(5, 50, Wording(_CHOICE_TABLE_5), Wording(_CHOICE), Wording(_CHOICE, ARC_JOIN, letters=4)),
                (67.3, 73.1),
            ),
            _BIOGRAPHIES,
            _ASQA,
            _QAMPARI,
        )
    }
)  # fmt: skip
"""By name."""


def preset(name: str) -> Preset:
    """A published task by its name.

    Raises:
        UserError: there is none; names the known ones.
    """
    if name not in PRESETS:
        raise UserError(f"unknown task {name[:60]!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


_TASK = re.compile(r"([a-z][a-z0-9-]*)(?:/([a-z0-9-]+))?=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """A file, and what it is a file of."""

    path: Path  # the file
    preset: Preset | None = None  # the published task; None for a file in the schema of user files
    protocol: str = PAPER  # how the published task is run

    @classmethod
    def parse(cls, text: str) -> Given:
        """`FILE`, `TASK=FILE` or `TASK/PROTOCOL=FILE`, such as `arc-challenge/official=arc.jsonl`.

        A file whose own name has this form is taken as that file.

        Raises:
            UserError: unknown task or protocol.
        """
        match = None if Path(text).exists() else _TASK.fullmatch(text)
        if match is None:
            return cls(Path(text))
        return cls.marked(Path(match[3]), match[1] if match[2] is None else f"{match[1]}/{match[2]}")

    @classmethod
    def marked(cls, path: Path, mark: str) -> Given:
        """A file read as a run's manifest says: `mark` is the `preset` of its task, or empty.

        Raises:
            UserError: unknown task or protocol.
        """
        if not mark:
            return cls(path)
        name, _, protocol = mark.partition("/")
        found = cls(path, preset(name), protocol or PAPER)
        preset(name).protocol(found.protocol)
        return found

    @property
    def name(self) -> str:
        """What a run and a table call it: the task, or the file's name without its endings."""
        return self.preset.name if self.preset else self.path.name.removesuffix(".gz").removesuffix(".jsonl")


COLUMNS = ("task", "answers", "headline", "judged afterwards", "protocols", "a row of its public file has")


def rows() -> list[tuple[str, ...]]:
    """One row of text a task, under `COLUMNS`."""
    return [
        (
            one.name,
            one.kind,
            one.metrics[0],
            ", ".join(one.judged) or "-",
            ", ".join(one.protocols),
            one.schema.fields,
        )
        for one in PRESETS.values()
    ]


def overview() -> Any:
    """The table of all tasks, for rich."""
    from rich.table import Table

    table = Table()
    for column in COLUMNS[:-1]:
        table.add_column(column, no_wrap=column == COLUMNS[0], overflow="fold")
    for row in rows():
        table.add_row(*row[:-1])
    return table


def in_full(preset: Preset) -> str:
    """One task: metrics, published figures, and each protocol with its wording, budget and settings."""
    published = [
        f"  {metric}: " + ", ".join(f"{value} ({size})" for size, value in sizes.items())
        for metric, sizes in preset.published.items()
    ]
    lines = [
        f"{preset.name}: {preset.title}",
        f"a row of its file has: {preset.schema.fields}",
        f"metrics: {', '.join(preset.metrics)}",
        f"judged afterwards: {', '.join(preset.judged) or 'none'}",
        *(["published for Self-RAG, in percent:", *published] if published else []),
    ]
    for name, how in preset.protocols.items():
        lead = f"{how.wording.instruction}{how.wording.join}" if how.wording.instruction else ""
        asked = "as the file has it" if how.wording.ask == "given" else repr(f"{lead}QUESTION")
        policy = ", ".join(f"{key}={value}" for key, value in preset.settings(name).items()) or "the defaults"
        lines += [
            f"{preset.name}/{name}:",
            f"  asks {asked}",
            f"  {how.new_tokens} tokens in up to {how.segments} segments, {how.passages} passages",
            f"  decoding: {policy if how.decoding else 'none; for systems without reflection tokens'}",
        ]
    return "\n".join(lines)
