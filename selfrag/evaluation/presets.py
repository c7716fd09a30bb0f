"""Published tasks: Self-RAG's six and QAMPARI, each with its metrics, protocols and published figures."""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.items import TASK_INPUT, Item
from selfrag.evaluation.metrics.registry import metrics
from selfrag.evaluation.public_files import SCHEMAS, Schema
from selfrag.evaluation.task import SET_BY_TASK, Kind, Task
from selfrag.plugins import names, registered

TRAINING_JOIN = TASK_INPUT
"""Between instruction and question in the rows that this project trains on."""


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
    judged: tuple[str, ...]  # names of published metrics that a second model computes on the finished run
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
        """Kind, metrics and budget, marked with preset and protocol. The wording is all that is said: no hint."""
        how = self.protocol(protocol)
        name = f"{self.name}/{protocol}"
        # A choice that is written is read off its text first.
        first = sorted(self.metrics, key=lambda one: one != "option_match") if how.written else self.metrics
        return Task(self.kind, metrics(first), how.new_tokens, how.segments, "", name, how.marked, how.written)

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


def _read() -> Mapping[str, Preset]:
    """The tasks of `presets.toml`."""
    tables = tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    wordings, found = tables.pop("wordings"), {}

    def protocol(values: dict[str, Any]) -> Protocol:
        wording, decoding = values.pop("wording", {}), values.pop("decoding", None)
        if "instruction" in wording:
            wording["instruction"] = wordings[wording["instruction"]]
        if decoding is not None:
            make = Decoding.official if decoding.pop("policy", "paper") == "official" else Decoding
            decoding = make(passages=values["passages"], **decoding)
        return Protocol(Wording(**wording), decoding=decoding, **values)

    for name, table in tables.items():
        protocols = {key: protocol(values) for key, values in table.pop("protocols").items()}
        shared: dict[str, Any] = {**table, "schema": SCHEMAS[table["schema"]]}
        shared |= {key: tuple(table[key]) for key in ("metrics", "judged")}
        found[name] = Preset(name, protocols=protocols, **shared)
    return MappingProxyType(found)


PRESETS = _read()
"""By name."""


GROUP = "selfrag.tasks"
"""Entry points of other packages: each names a `Preset`."""


def known_tasks() -> tuple[str, ...]:
    """Names of all published tasks, those of other packages last."""
    return tuple(dict.fromkeys((*PRESETS, *names(GROUP))))


def preset(name: str) -> Preset:
    """A published task by its name.

    Raises:
        UserError: there is none, the message lists the known ones; or another package has something else there.
    """
    if name in PRESETS:
        return PRESETS[name]
    found = registered(GROUP, name)
    if found is None:
        raise UserError(f"unknown task {name[:60]!r}; known: {', '.join(known_tasks())}")
    if not isinstance(found, Preset) or found.name != name:
        raise UserError(f"the entry point {name!r} of {GROUP} names no Preset of that name")
    return found


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
        (one.name, one.kind, one.metrics[0], ", ".join(one.judged) or "-", ", ".join(one.protocols), one.schema.fields)
        for one in map(preset, known_tasks())
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


def documents(task: Task) -> int:
    """Passages that retrieval baselines read: as the protocol of a published task says, else one."""
    given = Given.marked(Path(), task.preset)
    return 1 if given.preset is None else given.preset.protocol(given.protocol).documents
