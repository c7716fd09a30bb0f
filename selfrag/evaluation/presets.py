"""Published tasks: Self-RAG's six and QAMPARI: strictly read public files, metrics, protocols, published figures."""

from __future__ import annotations

import re
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of
from selfrag.common.plugins import names, registered
from selfrag.common.public_fields import PublicRecord, PublicRow, identifier, list_of
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.items import TASK_INPUT, Item
from selfrag.evaluation.metrics.registry import metrics
from selfrag.evaluation.task import SET_BY_TASK, Kind, Task

IDS = ("id", "qid", "q_id", "question_id", "sample_id", "claim_id")
PASSAGES = ("ctxs", "docs", "top_contexts", "passages")


def passages_of(record: PublicRecord, *, needed: bool) -> tuple[Passage, ...]:
    """Return the passages that the record brings, best first; an id that occurs again gets a number.

    Args:
        record: the row.
        needed: whether a row without passages is an error.

    Raises:
        UserError: passages are missing, or one has no text.
    """
    column = _first_key(record, PASSAGES)
    rows = list_of(record[column], column, dict, "passages") if column else []
    if needed and not rows:
        expected = " or ".join(map(repr, PASSAGES[:2]))
        raise UserError(
            f"no passages: {expected} is missing or empty; give an index to search for them"
        )
    counts: Counter[str] = Counter()
    passages = []
    for place, row in enumerate(rows, 1):
        text, title = row.get("text", row.get("paragraph_text")), row.get("title")
        if not isinstance(text, str) or not (title is None or isinstance(title, str)):
            raise UserError(
                f"passage {place} of {column!r} needs a 'text' that is text, and a 'title' that is text or null"
            )
        key = _first_key(row, ("id", "docid", "doc_id"))
        name = str(row[key]) if key else f"p{place}"
        counts[name] += 1
        if counts[name] > 1:
            name = f"{name}#{counts[name]}"
        passages.append(Passage(name, text, title or ""))
    return tuple(passages)


def _first_key(record: PublicRecord, keys: Sequence[str]) -> str:
    """Return the first of some keys that has a value; empty if none has."""
    for key in keys:
        if record.get(key) is not None:
            return key
    return ""


QUESTION = ("question", "question_text", "claim", "query")


@dataclass(frozen=True, slots=True)
class Schema:
    """How the records of a public file are read."""

    name: str  # in error lines and documentation
    fields: str  # what a record has, for the reader
    # keys of which a record has one, and records of other schemas do not
    marks: tuple[str, ...]
    read: Callable[[PublicRecord], Item]  # makes an item without passages

    def item(self, record: PublicRecord) -> Item:
        """Return the item of a record."""
        if not _first_key(record, self.marks):
            fitting = [
                schema.name for schema in SCHEMAS.values() if schema.fits(record)
            ]
            looks = ""
            if fitting:
                looks = f"; it looks like one of {' or '.join(fitting)}"
            raise UserError(f"no row of {self.name}, which has {self.fields}{looks}")
        return self.read(record)

    def fits(self, record: PublicRecord) -> bool:
        """Return whether the record can be read as this schema."""
        try:
            return bool(_first_key(record, self.marks) and self.read(record))
        except UserError:
            return False


def _questions(record: PublicRecord) -> Item:
    row = PublicRow.of("questions", record)
    answers = row["answers"]
    return _item(record, row["question"], answers=answers, references=answers)


def _claims(record: PublicRecord) -> Item:
    row = PublicRow.of("claims", record)
    return _item(record, row["question"], label=row["truth"], options=("true", "false"))


def _choices(record: PublicRecord) -> Item:
    row = PublicRow.of("choices", record)
    options, key = row["options"], row["key"]
    labels = [option["label"] for option in options]
    if key not in labels or len(set(labels)) != len(labels):
        raise UserError(
            f"'answerKey' {key!r} is none of the labels {', '.join(labels[:26])}, or a label occurs twice"
        )
    if len(labels) > len(string.ascii_uppercase):
        raise UserError(
            f"{count_of(len(labels), 'choices')}, and letters name {len(string.ascii_uppercase)} of them"
        )
    # Some rows number their options; the model sees letters, so that 3 is C.
    right = string.ascii_uppercase[labels.index(key)]
    return _item(
        record,
        row["question"],
        label=right,
        options=tuple(option["text"] for option in options),
    )


def _biographies(record: PublicRecord) -> Item:
    row = PublicRow.of("biographies", record)
    item = _item(record, row["topic"], topic=row["topic"])
    return replace(item, instruction=row["input"] or item.instruction)


def _ambiguous(record: PublicRecord) -> Item:
    row = PublicRow.of("asqa", record)
    pairs = row["pairs"]
    if not pairs:
        raise UserError("'qa_pairs' is empty")
    notes = row["annotations"] if record.get("annotations") else ()
    references = tuple(note["reference"] for note in notes) or row["answer"]
    sets = tuple(pair["answers"] for pair in pairs)
    return _item(record, row["question"], answer_sets=sets, references=references)


def _lists(record: PublicRecord) -> Item:
    row = PublicRow.of("qampari", record)
    sets = (
        row["answers"]
        if record.get("answer_list") is None
        else tuple(map(_forms, row["answer_list"]))
    )
    if not sets:
        raise UserError("'answer_list' is empty: nothing to score the answer by")
    return _item(
        record,
        row["question"],
        answer_sets=sets,
        references=tuple(chain.from_iterable(sets)),
    )


def _forms(answer: PublicRow) -> tuple[str, ...]:
    return tuple(dict.fromkeys([answer["text"], *filter(str.strip, answer["aliases"])]))


def _item(record: PublicRecord, query: str, **fields: Any) -> Item:
    key = _first_key(record, IDS)
    name = ""  # files of claims have none
    if key:
        name = identifier(record, key)
    return Item(name, query, query=query, **fields)


SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        schema.name: schema
        for schema in (
            Schema("questions", "question, answers (or possible_answers), ctxs", QUESTION, _questions),
            Schema("claims", "question or claim, answers or label true or false, ctxs", ("question", "claim"), _claims),
            Schema("choices", "question, choices {text, label}, answerKey, ctxs", ("choices",), _choices),
            Schema("biographies", "topic, input, ctxs", ("topic",), _biographies),
            Schema("ambiguous", "question, qa_pairs [short_answers], annotations [long_answer], docs", ("qa_pairs",),
                   _ambiguous),
            Schema("lists", "question, answers [[...]] (or question_text, answer_list), docs",
                   ("answers", "answer_list"), _lists),
        )
    }
)  # fmt: skip
"""By name."""


TRAINING_JOIN = TASK_INPUT
"""Between instruction and question in the rows that this project trains on."""


@dataclass(frozen=True, slots=True)
class QuestionWording:
    """What stands around a question."""

    instruction: str = ""  # words before the question; empty asks the question alone
    join: str = TRAINING_JOIN  # between them
    # `query` puts the question into the wording; `given` leaves what the file says as it is
    ask: Literal["query", "given"] = "query"
    letters: int = 0  # fewest options that are shown; the official code shows an empty `D: ` where ARC has three

    @property
    def lead(self) -> str:
        """Return what stands before the question."""
        if not self.instruction:
            return ""
        return f"{self.instruction}{self.join}"

    def worded(self, item: Item) -> Item:
        """Return the item, asked in these words, with lettered options if it has any that are not their own names."""
        if self.ask == "given":
            return item
        text = f"{self.lead}{item.query}"
        if item.options and item.label not in item.options:
            shown = [*item.options, *[""] * (self.letters - len(item.options))]
            for letter, option in zip(string.ascii_uppercase, shown, strict=False):
                text += f"\n{letter}: {option}"
        return replace(item, instruction=text)


PAPER = "paper"
"""The protocol where none is named."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of running a task."""

    wording: QuestionWording  # around the question
    passages: int  # the first so many of the file are evidence
    new_tokens: int  # of an answer, all segments together
    segments: int  # of an answer
    # policy of a model with reflection tokens; None for systems without
    decoding: Decoding | None = None
    # citations are numbers in brackets: the wording asks for them, or the official policy writes them
    marked: bool = False
    written: bool = False  # a system without reflection tokens writes its choice, and the option is read off (B.2)
    documents: int = 1  # passages that `rag` and `finetuned-rag` read


@dataclass(frozen=True, slots=True)
class Preset:
    """A published task."""

    name: str  # what a command line and a run call it
    title: str  # for the reader
    schema: Schema  # of its public file
    kind: Kind  # of answers
    metrics: tuple[str, ...]  # names, the published one first
    # names of published metrics that a second model computes on the finished run
    judged: tuple[str, ...]
    protocols: Mapping[str, Protocol]  # by name; `paper` among them
    # metric to Self-RAG's figure in percent (Table 2), by size of the model, `7b` and `13b`
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def protocol(self, name: str = PAPER) -> Protocol:
        """Return how the task is run.

        Raises:
            UserError: there is no such protocol; names the known ones.
        """
        if name not in self.protocols:
            raise UserError(
                f"{self.name} has no protocol {name!r}; it has {', '.join(self.protocols)}"
            )
        return self.protocols[name]

    def task(self, protocol: str = PAPER) -> Task:
        """Return kind, metrics and budget, marked with preset and protocol; the wording is all that is said."""
        rules_of_protocol = self.protocol(protocol)
        name, figures = f"{self.name}/{protocol}", list(self.metrics)
        # a choice that is written is read off its text first
        if rules_of_protocol.written:
            figures.sort(key="option_match".__ne__)
        return Task(
            self.kind,
            metrics(figures),
            rules_of_protocol.new_tokens,
            rules_of_protocol.segments,
            "",
            name,
            rules_of_protocol.marked,
            rules_of_protocol.written,
        )

    def settings(self, protocol: str = PAPER) -> dict[str, Any]:
        """Return the fields of `Decoding` in which the policy differs from the defaults, without the task's budget.

        They are what `selfrag.evaluation.systems` takes as settings; empty for a protocol of systems
        without reflection tokens.
        """
        chosen = self.protocol(protocol).decoding
        if chosen is None:
            return {}
        usual, settings = Decoding(), {}
        for field_ in fields(Decoding):
            value = getattr(chosen, field_.name)
            if field_.name not in SET_BY_TASK and value != getattr(usual, field_.name):
                settings[field_.name] = value
        return settings

    def with_passages(self, passages: int) -> Preset:
        """Return the same task with another number of passages; figures are then no longer the published ones."""
        changed = {}
        for name, how in self.protocols.items():
            decoding = how.decoding and replace(how.decoding, passages=passages)
            changed[name] = replace(how, passages=passages, decoding=decoding)
        return replace(self, protocols=changed)


def _read() -> Mapping[str, Preset]:
    """Read the tasks of `presets.toml`."""
    tables = tomllib.loads(
        files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
    )
    wordings, presets = tables.pop("wordings"), {}

    def protocol(values: dict[str, Any]) -> Protocol:
        wording, decoding = values.pop("wording", {}), values.pop("decoding", None)
        if "instruction" in wording:
            wording["instruction"] = wordings[wording["instruction"]]
        if decoding is not None:
            make = (
                Decoding.official
                if decoding.pop("policy", "paper") == "official"
                else Decoding
            )
            decoding = make(passages=values["passages"], **decoding)
        return Protocol(QuestionWording(**wording), decoding=decoding, **values)

    for name, table in tables.items():
        protocols = {
            key: protocol(values) for key, values in table.pop("protocols").items()
        }
        table["schema"] = SCHEMAS[table["schema"]]
        table["metrics"], table["judged"] = (
            tuple(table["metrics"]),
            tuple(table["judged"]),
        )
        presets[name] = Preset(name, protocols=protocols, **table)
    return MappingProxyType(presets)


PRESETS = _read()
"""By name."""


GROUP = "selfrag.tasks"
"""Entry points of other packages: each names a `Preset`."""


def known_tasks() -> tuple[str, ...]:
    """Return the names of all published tasks, those of other packages last."""
    return tuple(dict.fromkeys((*PRESETS, *names(GROUP))))


def preset(name: str) -> Preset:
    """Return a published task by its name.

    Raises:
        UserError: there is none, the message lists the known ones; or another package has something else there.
    """
    if name in PRESETS:
        return PRESETS[name]
    task = registered(GROUP, name)
    if task is None:
        raise UserError(
            f"unknown task {name[:60]!r}; known: {', '.join(known_tasks())}"
        )
    if not isinstance(task, Preset) or task.name != name:
        raise UserError(
            f"the entry point {name!r} of {GROUP} names no Preset of that name"
        )
    return task


_TASK = re.compile(r"([a-z][a-z0-9-]*)(?:/([a-z0-9-]+))?=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """A file, and what it is a file of."""

    path: Path  # the file
    # the published task; None for a file in the schema of user files
    preset: Preset | None = None
    protocol: str = PAPER  # how the published task is run

    @classmethod
    def parse(cls, text: str) -> Given:
        """Read `FILE`, `TASK=FILE` or `TASK/PROTOCOL=FILE`, such as `arc-challenge/official=arc.jsonl`.

        A file whose own name has this form is taken as that file.

        Raises:
            UserError: unknown task or protocol.
        """
        match = None if Path(text).exists() else _TASK.fullmatch(text)
        if match is None:
            return cls(Path(text))
        return cls.marked(Path(match[3]), f"{match[1]}/{match[2] or PAPER}")

    @classmethod
    def marked(cls, path: Path, mark: str) -> Given:
        """Return a file read as a run's manifest says: `mark` is the `preset` of its task, or empty."""
        if not mark:
            return cls(path)
        name, _, protocol = mark.partition("/")
        task, protocol = preset(name), protocol or PAPER
        task.protocol(protocol)
        return cls(path, task, protocol)

    @property
    def name(self) -> str:
        """Return what a run and a table call it: the task, or the file's name without its endings."""
        if self.preset:
            return self.preset.name
        return _stem(self.path.name)


def _stem(name: str) -> str:
    """Return the name of a file without its endings."""
    name = name.removesuffix(".gz")
    for ending in (".jsonl", ".csv", ".tsv"):
        name = name.removesuffix(ending)
    return name


COLUMNS = (
    "task",
    "answers",
    "headline",
    "judged afterwards",
    "protocols",
    "a row of its public file has",
)


def rows() -> list[tuple[str, ...]]:
    """Return one row of text a task, under `COLUMNS`."""
    table: list[tuple[str, ...]] = []
    for task in map(preset, known_tasks()):
        judged, protocols = ", ".join(task.judged) or "-", ", ".join(task.protocols)
        table.append(
            (
                task.name,
                task.kind,
                task.metrics[0],
                judged,
                protocols,
                task.schema.fields,
            )
        )
    return table


def in_full(preset: Preset) -> str:
    """Describe one task: metrics, published figures, and each protocol with its wording, budget and settings."""
    lines = [
        f"{preset.name}: {preset.title}",
        f"a row of its file has: {preset.schema.fields}",
        f"metrics: {', '.join(preset.metrics)}",
        f"judged afterwards: {', '.join(preset.judged) or 'none'}",
    ]
    if preset.published:
        lines.append("published for Self-RAG, in percent:")
    for metric, sizes in preset.published.items():
        figures = [f"{value} ({size})" for size, value in sizes.items()]
        lines.append(f"  {metric}: {', '.join(figures)}")
    for name, how in preset.protocols.items():
        wording = repr(f"{how.wording.lead}QUESTION")
        if how.wording.ask == "given":
            wording = "as the file has it"
        policy = "none; for systems without reflection tokens"
        if how.decoding is not None:
            settings = [
                f"{key}={value}" for key, value in preset.settings(name).items()
            ]
            policy = ", ".join(settings) or "the defaults"
        lines += [
            f"{preset.name}/{name}:",
            f"  asks {wording}",
            f"  {count_of(how.new_tokens, 'tokens')} in up to {count_of(how.segments, 'segments')},"
            f" {count_of(how.passages, 'passages')}",
            f"  decoding: {policy}",
        ]
    return "\n".join(lines)


def documents(task: Task) -> int:
    """Return the number of passages that retrieval baselines read: that of a published task's protocol, else one."""
    preset_file = Given.marked(Path(), task.preset)
    if preset_file.preset is None:
        return 1
    return preset_file.preset.protocol(preset_file.protocol).documents
