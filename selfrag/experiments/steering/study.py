"""A study: many settings over one file, from as few decodes as can be. Resumes; knows no metric and loads no model.

The file is decoded once, widely, with whole traces. Every setting is answered from the record; where that is not exact
for an item, the item is decoded again under the first setting that lacks it, and all others look at that record too,
until every setting has an exact answer for every item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.runner import Execute, Run, run_all
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.steering.recording import recording
from selfrag.experiments.steering.records import Recorded, read_recorded
from selfrag.experiments.steering.replaying import Grouped, replay_all
from selfrag.experiments.steering.setting import Setting
from selfrag.prompting import Prompting

Origin = Literal["replayed", "decoded", "approximate", "missing"]
Progress = Callable[[str, int], Callable[[int], object]]
"""From what is run and its number of items to what is told how many are done."""


@dataclass(frozen=True, slots=True)
class Study:
    """How a study is run.

    Attributes:
        prompting: codec, vocabulary and layout of the model.
        identity: what decides the records apart from the policy: model and engine.
        folder: of the study; each file gets a folder in it.
        source: how the files were read, for the manifests.
        redecode: decode again where the record is not exact; else such answers are approximate and counted. What it
            says nothing about is decoded in any case.
        beam: of the recorded decode where answers have several segments; None for twice the widest asked for.
        retry_failed: run items again that failed before.
    """

    prompting: Prompting
    identity: Mapping[str, Any]
    folder: Path
    source: Mapping[str, Any] = field(default_factory=dict)
    redecode: bool = True
    beam: int | None = None
    retry_failed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one setting answers to one item.

    Attributes:
        output: None if the item failed.
        source: read from a record exactly, decoded for this setting, read from a record that lacks something; or, in
            the midst of a study, not known yet.
        share: of the decode that it was read from, what a decode of its own would have taken.
        decode: number of that decode in `FileStudy.decodes`.
    """

    output: Output | None
    source: Origin
    share: float
    decode: int


@dataclass(frozen=True, slots=True)
class Decode:
    """One run of the study.

    Attributes:
        folder: of the run.
        usage: id of the item to what it took; failed ones are missing.
        items: that were decoded.
        seconds: wall time of the run, without loading the model.
    """

    folder: Path
    usage: Mapping[str, Mapping[str, int]]
    items: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FileStudy:
    """What all settings answer to one file.

    Attributes:
        file: what was asked.
        settings: in order, the base first.
        outcomes: name of the setting to one outcome an item, in the order of the items.
        decodes: the recorded one first.
    """

    file: TaskFile
    settings: tuple[Setting, ...]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    decodes: tuple[Decode, ...]


def answers_changed(one: FileStudy, first: str, second: str) -> int:
    """Items whose answer or citations differ between two settings, by their names."""
    pairs = zip(one.outcomes[first], one.outcomes[second], strict=True)
    return sum(_said(here) != _said(there) for here, there in pairs)


def _said(outcome: Outcome) -> tuple[str, tuple[str, ...]] | None:
    return None if outcome.output is None else (outcome.output.text, outcome.output.cited)


def study(
    job: Study, file: TaskFile, settings: Sequence[Setting], execute: Execute, progress: Progress | None = None
) -> FileStudy:
    """Answer a file under every setting.

    Args:
        job: how.
        file: what is asked.
        settings: at least one; the first is the base.
        execute: answers what has to be decoded, see `selfrag.evaluation.runner`.
        progress: told what is decoded.

    Raises:
        UserError: as `selfrag.evaluation.runner.run`; what was decoded is kept.
    """
    work = _Work(job, file, tuple(settings), execute, progress or _unwatched)
    wide = recording([work.policy(setting) for setting in settings], job.beam)
    work.decode("recording", None, wide, file.items)
    while lacking := work.lacking():
        for number, items in lacking.items():
            one = settings[number]
            work.decode(f"decodes/{one.name}-{_digest(items)[:8]}", number, one.decoding, items)
    outcomes = {one.name: tuple(row[i] for row in work.table.values()) for i, one in enumerate(settings)}
    return FileStudy(file, tuple(settings), outcomes, tuple(work.decodes))


def _unwatched(name: str, items: int) -> Callable[[int], object]:
    return lambda done: None


def _digest(items: Sequence[Item]) -> str:
    """What tells one choice of items from another."""
    return hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()


class _Work:
    """The table of outcomes while it is filled."""

    def __init__(
        self, job: Study, file: TaskFile, settings: tuple[Setting, ...], execute: Execute, progress: Progress
    ) -> None:
        self.decodes: list[Decode] = []
        self.table: dict[str, list[Outcome]] = {}
        self._job, self._file, self._settings = job, file, settings
        self._execute, self._progress = execute, progress
        self._grouped = Grouped.of([self.policy(setting) for setting in settings])

    def policy(self, setting: Setting) -> Decoding:
        """What a decode of this file under a setting runs with."""
        if self._file.items[0].options:
            return replace(setting.decoding, max_segments=1)
        return Reflective(self._job.prompting, setting.decoding).policy(self._file.task)

    def lacking(self) -> dict[int, list[Item]]:
        """Setting to the items that are to be decoded under it: each item under the first setting that lacks it."""
        found: dict[int, list[Item]] = {}
        wanted = ("missing", "approximate") if self._job.redecode else ("missing",)
        for item in self._file.items:
            row = self.table[item.id]
            first = next((i for i, outcome in enumerate(row) if outcome.source in wanted), None)
            if first is not None:
                found.setdefault(first, []).append(item)
        return dict(sorted(found.items()))

    def decode(self, name: str, own: int | None, policy: Decoding, items: Sequence[Item]) -> None:
        """Run items under a policy, whose setting is `own` if it is one, and read what all settings answer from it."""
        folder = self._job.folder / self._file.name / name
        subset = replace(self._file, items=tuple(items))
        system = Reflective(self._job.prompting, policy)
        identity = {**self._job.identity, "name": name.rpartition("/")[2]}
        settings = {**self._job.source, "ids": _digest(items)}
        run = Run(system, identity, folder, settings, self._job.retry_failed, traces=True)
        watched = self._progress(f"{self._file.name} {name}", len(items))
        (results,) = run_all([run], [subset], self._execute, watched)
        usage: dict[str, Mapping[str, int]] = {}
        self.decodes.append(Decode(folder, usage, len(items), float(results[self._file.name]["seconds"])))
        for record in read_recorded(folder / f"{self._file.name}.jsonl"):
            if record.output is not None:
                usage[record.id] = record.usage
            self._read(record, own, policy)

    def _read(self, record: Recorded, own: int | None, policy: Decoding) -> None:
        number = len(self.decodes) - 1
        known = self.table.get(record.id)
        if known is None:  # the first record, of which there is one for every item
            known = [Outcome(None, "missing", 1.0, number) for _ in self._settings]
            self.table[record.id] = known
        if record.trace is None:  # no weights help where nothing could be generated
            for i in self._grouped.alike(policy):
                known[i] = Outcome(None, "decoded", 1.0, number)
        else:
            for i, found in enumerate(replay_all(record.trace, record.usage, self._grouped)):
                before = known[i].source
                if found is not None and (before == "missing" or (before == "approximate" and found.exact)):
                    source: Origin = "replayed" if found.exact else "approximate"
                    known[i] = Outcome(found.output, source, found.share, number)
        if own is not None:
            known[own] = Outcome(record.output, "decoded", 1.0, number)
