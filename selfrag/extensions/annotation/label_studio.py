"""Human evaluation of a run in Label Studio (Self-RAG, C.2): tasks to import, and what people said in its export.

People judge whether an answer is plausible and supported by what it cites (S&P, Menick et al.), and whether IsRel and
IsSup of each of its segments are right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from selfrag.interface import (
    Estimate,
    Role,
    UserError,
    item_id,
    kappa,
    mean,
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


class TaskData(TypedDict):
    """An answer that people judge: the `data` of a task in Label Studio."""

    file: str  # of the run
    id: str  # of the item
    question: str
    answer: str
    # text and passage of those written from a passage, with the model's most probable labels as `isrel` and `issup`
    segments: list[dict[str, str]]


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
    tasks: list[dict[str, TaskData]] = []
    for name in run.files:
        answers = _answers(folder, name)
        order = random.Random(seed).sample(sorted(answers), len(answers))  # noqa: S311
        tasks += [{"data": answers[key]} for key in order[:count]]
    if not tasks:
        raise UserError(f"{folder} has no answer to judge")
    interface = files(__package__).joinpath("interface.xml")
    paths = [out / "tasks.json", out / "interface.xml"]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_json(paths[0], tasks)
    write_text(paths[1], interface.read_text(encoding="utf-8"))
    return paths


def _answers(folder: Path, file: str) -> dict[str, TaskData]:
    """Return the answers of a run's file, by item."""
    tasks = read_jsonl(folder / f"{file}.jsonl", partial(_task, file))
    return {task["id"]: task for task in tasks if task is not None}


def _task(file: str, record: Mapping[str, Any]) -> TaskData | None:
    """Return the answer of a record, or None where it failed."""
    key = item_id(record)
    if record.get("error"):
        return None
    if record.get("trace") is None:
        raise UserError(f"item {key!r:.60} has no trace; run it again with --traces")
    trace = trace_of(record["trace"])
    answer, segments = segments_of(trace, trace.best)
    shown = []
    for segment in segments:
        passage = trace.nodes[segment.node].passage
        if passage is None:
            continue
        evidence = f"{passage.title}\n{passage.text}".strip()
        part = {"text": segment.text, "passage": evidence}
        for name, role in (("isrel", Role.RELEVANCE), ("issup", Role.SUPPORT)):
            judgment = segment.judgments.get(role)
            part[name] = NO_LABEL if judgment is None else str(judgment.label)
        shown.append(part)
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


Verdicts: TypeAlias = dict[str, dict[int, bool]]
"""What one person said of one answer, by figure and segment."""


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
    try:
        tasks = validate(list[AnnotatedTask], read_json(export), others="ignore")
    except UserError as error:
        raise UserError(
            f"{export} is no JSON export of Label Studio with the tasks of selfrag eval annotate: {error}"
        ) from error
    (run,) = read_runs([folder])
    answers = {name: _answers(folder, name) for name in run.files}
    people = set[str]()
    by_file: dict[str, list[dict[str, Verdicts]]] = {}
    for task in tasks:
        data = task["data"]
        if answers.get(data["file"], {}).get(data["id"]) != data:
            raise UserError(
                f"{export}: item {data['id']!r:.60} of {data['file']!r:.60} is not that of {folder};"
                " the export is of another run, or the run has changed since"
            )
        by_person = {}
        for annotation in task["annotations"]:
            said = _said(annotation)
            if said:  # the last word counts
                person = json.dumps(annotation.get("completed_by"))
                by_person[person] = _verdicts(data, said)
        people |= by_person.keys()
        by_file.setdefault(data["file"], []).append(by_person)
    if not people:
        raise UserError(f"{export}: nothing was answered")
    figures = []
    for file, items in by_file.items():
        figures += [_figure(file, name, items, seed) for name in FIGURES]
    return figures, len(people)


def _said(annotation: Annotation) -> dict[str, bool]:
    """Return the answers to questions such as `plausible` or `isrel_0`; none of a skipped task."""
    said: dict[str, bool] = {}
    if not annotation.get("was_cancelled", False):
        for item in annotation.get("result", []):
            choices = item["value"].get("choices")
            if choices in (["yes"], ["no"]):
                said[item["from_name"]] = choices == ["yes"]
    return said


_UNSUPPORTED = (NO_LABEL, "No support / Contradictory")


def _verdicts(data: TaskData, said: Mapping[str, bool]) -> Verdicts:
    """Return what counts of the answers of one person."""
    verdicts: Verdicts = {name: {} for name in FIGURES}
    # S&P counts answers of which some segment is predicted relevant and at least partially supported (C.2)
    considered = False
    for place, segment in enumerate(data["segments"]):
        for name in ("isrel", "issup"):
            question = f"{name}_{place}"
            if segment[name] != NO_LABEL and question in said:
                verdicts[name][place] = said[question]
        relevant = segment["isrel"] == "Relevant"
        considered |= relevant and segment["issup"] not in _UNSUPPORTED
    if "plausible" in said:
        verdicts["plausible"][0] = said["plausible"]
        if considered and "supported" in said:
            verdicts["s&p"][0] = said["plausible"] and said["supported"]
    return verdicts


def _figure(
    file: str, name: str, items: Sequence[Mapping[str, Verdicts]], seed: int
) -> Figure:
    """Return a figure of a file, from what each person said of each answer."""
    shares = []
    pairs: list[list[tuple[bool, bool]]] = []
    for by_person in items:
        said = [by_person[person][name] for person in sorted(by_person)]
        values = list(chain.from_iterable(places.values() for places in said))
        if values:
            shares.append(sum(values) / len(values))
        both = []
        for first, second in combinations(said, 2):
            both += [
                (first[place], second[place]) for place in first if place in second
            ]
        if both:
            pairs.append(both)
    share = mean(shares, seed=seed)
    if not pairs:
        return Figure(file, name, share, None, None)
    equal = [sum(a == b for a, b in both) / len(both) for both in pairs]
    return Figure(file, name, share, mean(equal, seed=seed), kappa(pairs, seed=seed))
