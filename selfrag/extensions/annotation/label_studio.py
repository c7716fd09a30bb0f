"""Human evaluation of a run in Label Studio (Self-RAG, C.2): tasks to import, and what people said in its export.

People judge whether an answer is plausible and supported by what it cites (S&P, Menick et al.), and whether IsRel and
IsSup of each of its segments are right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from selfrag.evaluation.intervals import kappa, mean
from selfrag.evaluation.records import item_id
from selfrag.interface import (
    Estimate,
    Role,
    UserError,
    read_json,
    read_jsonl,
    read_runs,
    segments_of,
    trace_of,
    validate,
    write_json,
    write_text,
    writing,
)

FIGURES = {
    "plausible": "plausible",
    "s&p": "supported and plausible",
    "isrel": "IsRel right",
    "issup": "IsSup right",
}
NO_LABEL = "-"
"""What stands for the label of a critique that the model did not make."""


class SegmentData(TypedDict):
    """A segment that was written from a passage, with the model's most probable labels."""

    text: str
    passage: str
    isrel: str
    issup: str


class TaskData(TypedDict):
    """An answer that people judge: the `data` of a task in Label Studio."""

    file: str  # of the run
    id: str  # of the item
    question: str
    answer: str
    segments: list[SegmentData]


class ChoiceResult(TypedDict):
    """A choice that somebody made; other kinds of results have no `choices`."""

    from_name: str
    value: dict[str, Any]


class Annotation(TypedDict, total=False):
    """What one person said of a task."""

    completed_by: int | dict[str, Any]
    was_cancelled: bool
    result: list[ChoiceResult]


class AnnotatedTask(TypedDict):
    """A task in an export of Label Studio."""

    data: TaskData
    annotations: list[Annotation]


def write_tasks(
    folder: Path, out: Path, count: int, *, seed: int = 0, only: Sequence[str] = ()
) -> list[Path]:
    """Write `tasks.json`, a seeded sample of the answers of each file, and `interface.xml`, the labelling interface.

    Raises:
        UserError: the run has no answer, or no traces.
    """
    (run,) = read_runs([folder], only or None)
    tasks: list[TaskData] = []
    for name in run.files:
        path = folder / f"{name}.jsonl"
        ids = read_jsonl(
            path, lambda record: None if record.get("error") else item_id(record)
        )
        answered = sorted(key for key in ids if key is not None)
        chosen = random.Random(seed).sample(answered, len(answered))[:count]  # noqa: S311
        by_id = _read_tasks(folder, name, chosen)
        tasks += [by_id[key] for key in chosen]
    if not tasks:
        raise UserError(f"{folder} has no answer to judge")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    paths = [out / "tasks.json", out / "interface.xml"]
    write_json(paths[0], [{"data": task} for task in tasks])
    interface = files(__package__).joinpath("interface.xml")
    write_text(paths[1], interface.read_text(encoding="utf-8"))
    return paths


def _read_tasks(folder: Path, file: str, ids: Collection[str]) -> dict[str, TaskData]:
    """Return the answers of some items of a run's file, by id."""
    parse = partial(_task, file, frozenset(ids))
    tasks = read_jsonl(folder / f"{file}.jsonl", parse)
    return {task["id"]: task for task in tasks if task is not None}


def _task(
    file: str, chosen: Collection[str], record: Mapping[str, Any]
) -> TaskData | None:
    """Return the answer of a record, or None where it is not one of those that were chosen."""
    key = item_id(record)
    if key not in chosen or record.get("error"):
        return None
    if record.get("trace") is None:
        raise UserError(f"item {key!r:.60} has no trace; run it again with --traces")
    trace = trace_of(record["trace"])
    answer, segments = segments_of(trace, trace.best)
    shown = list[SegmentData]()
    for segment in segments:
        passage = trace.nodes[segment.node].passage
        if passage is None:
            continue
        labels = []
        for role in (Role.RELEVANCE, Role.SUPPORT):
            judgment = segment.judgments.get(role)
            labels.append(NO_LABEL if judgment is None else str(judgment.label))
        evidence = f"{passage.title}\n{passage.text}".strip()
        isrel, issup = labels
        shown.append(
            SegmentData(text=segment.text, passage=evidence, isrel=isrel, issup=issup)
        )
    return TaskData(
        file=file, id=key, question=trace.question, answer=answer, segments=shown
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one file."""

    file: str
    name: str  # of `FIGURES`
    share: Estimate  # of yes; answers are resampled
    # share of equal verdicts of two annotators; None with one annotator
    agreement: Estimate | None
    kappa: Estimate | None  # Cohen's, over all pairs of annotators


Verdicts: TypeAlias = dict[str, bool]
"""Name of a question, such as `plausible` or `isrel_0`, to what one person said."""


def read_export(
    folder: Path, export: Path, *, seed: int = 0
) -> tuple[list[Figure], int]:
    """Return what people said about a run, and how many they were.

    Args:
        folder: the run.
        export: what Label Studio exports as JSON.
        seed: of the intervals.

    Raises:
        UserError: the file is no such export, is of another run, or nothing was answered.
    """
    tasks = _checked(folder, export)
    people = set[str]()
    members: dict[str, list[dict[str, dict[str, Verdicts]]]] = {}
    for task in tasks:
        by_person = _said(task["annotations"])
        people |= by_person.keys()
        figures = {
            person: _by_figure(task["data"], verdicts)
            for person, verdicts in by_person.items()
        }
        members.setdefault(task["data"]["file"], []).append(figures)
    if not people:
        raise UserError(f"{export}: nothing was answered")
    results = list[Figure]()
    for file, answers in members.items():
        results += [_figure(file, name, answers, seed) for name in FIGURES]
    return results, len(people)


def _checked(folder: Path, export: Path) -> list[AnnotatedTask]:
    """Return the tasks of an export, which must be answers of the run."""
    try:
        tasks = validate(list[AnnotatedTask], read_json(export), others="ignore")
    except UserError as error:
        raise UserError(
            f"{export} is no JSON export of Label Studio with the tasks of selfrag eval annotate: {error}"
        ) from error
    ids: dict[str, list[str]] = {}
    for task in tasks:
        ids.setdefault(task["data"]["file"], []).append(task["data"]["id"])
    (run,) = read_runs([folder])
    for file, chosen in ids.items():
        answers = _read_tasks(folder, file, chosen) if file in run.files else {}
        for task in tasks:
            data = task["data"]
            if data["file"] == file and answers.get(data["id"]) != data:
                raise UserError(
                    f"{export}: item {data['id']!r:.60} of {file!r:.60} is not that of {folder};"
                    " the export is of another run, or the run has changed since"
                )
    return tasks


def _said(annotations: Sequence[Annotation]) -> dict[str, Verdicts]:
    """Return what each person said of one task; their last word counts, and a skipped task says nothing."""
    by_person: dict[str, Verdicts] = {}
    for annotation in annotations:
        verdicts: Verdicts = {}
        for item in annotation.get("result", []):
            choices = item["value"].get("choices")
            if choices in (["yes"], ["no"]):
                verdicts[item["from_name"]] = choices == ["yes"]
        if verdicts and not annotation.get("was_cancelled", False):
            by_person[json.dumps(annotation.get("completed_by"))] = verdicts
    return by_person


def _by_figure(data: TaskData, verdicts: Verdicts) -> dict[str, Verdicts]:
    """Return what one person said of one answer, by figure."""
    by_figure: dict[str, Verdicts] = {name: {} for name in FIGURES}
    if "plausible" in verdicts:
        by_figure["plausible"]["plausible"] = verdicts["plausible"]
    # S&P counts answers of which some segment is predicted relevant and at least partially supported (C.2).
    considered = any(
        segment["isrel"] == "Relevant"
        and segment["issup"] not in (NO_LABEL, "No support / Contradictory")
        for segment in data["segments"]
    )
    if considered and {"plausible", "supported"} <= verdicts.keys():
        both = verdicts["plausible"] and verdicts["supported"]
        by_figure["s&p"]["s&p"] = both
    for place, segment in enumerate(data["segments"]):
        labels = {"isrel": segment["isrel"], "issup": segment["issup"]}
        for name, label in labels.items():
            question = f"{name}_{place}"
            if label != NO_LABEL and question in verdicts:
                by_figure[name][question] = verdicts[question]
    return by_figure


def _figure(
    file: str,
    name: str,
    answers: Sequence[Mapping[str, Mapping[str, Verdicts]]],
    seed: int,
) -> Figure:
    """Return a figure of a file, from what each person said of each answer, by figure."""
    values = []
    pairs: list[list[tuple[bool, bool]]] = []
    for by_person in answers:
        said = [by_person[person][name] for person in sorted(by_person)]
        verdicts = list(chain.from_iterable(places.values() for places in said))
        if verdicts:
            values.append(sum(verdicts) / len(verdicts))
        both = []
        for first, second in combinations(said, 2):
            shared = [place for place in first if place in second]
            both += [(first[place], second[place]) for place in shared]
        if both:
            pairs.append(both)
    share = mean(values, seed=seed)
    if not pairs:
        return Figure(file, name, share, None, None)
    equal = [sum(a == b for a, b in both) / len(both) for both in pairs]
    return Figure(file, name, share, mean(equal, seed=seed), kappa(pairs, seed=seed))
