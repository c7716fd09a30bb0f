"""Second models asked about finished runs: entailment of citations and claims, FactScore, MAUVE.

What a judge says about a file of a run is kept beside its records (`FILE.judged.JUDGE.json`); figures join those of the
run under their own name with the judge's. Verdicts are kept while they come (`entailment.Remembered`), so a killed pass
continues where it was. What a judge leaves open is counted, never guessed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.passage import Passage, Retriever
from selfrag.common.atomic import locked_directory, write_json
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.provenance import commit, sha256, versions
from selfrag.common.reading import read_json
from selfrag.evaluation.items import OUTPUT, Item, Output
from selfrag.evaluation.metrics.alce import (
    CitedClaim,
    Cites,
    Claims,
    as_answer_to,
    as_list_for,
    as_sentences,
    cited_sentences,
    cites,
    claim_recall,
)
from selfrag.evaluation.metrics.entailment import Remembered, remembered
from selfrag.evaluation.metrics.factscore import (
    NAMES,
    Facts,
    SentenceSplitter,
    Splitter,
    check,
    parts,
    read_output,
    topic_of,
    write_input,
)
from selfrag.evaluation.metrics.mauve import HiddenStates, as_alce, mauve
from selfrag.evaluation.metrics.registry import JUDGED, Part
from selfrag.evaluation.normalisation import evaluated
from selfrag.evaluation.records import PACKAGES, file_entry, read_manifest, read_records
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import NEEDS_PASSAGE, Judge, Scope
from selfrag.reflection.labels import Role
from selfrag.runtime import finish

_LOG = logging.getLogger("selfrag.evaluation")
CITATIONS = ("citation_precision_nli", "citation_recall_nli", "citation_f1_nli")
DEFAULT = ("citations",)
FAMILIES = ("citations", "claims", "facts", "mauve", "judgments")
"""What can be asked for: figures that are computed together."""
_FAMILY = {
    **dict.fromkeys(CITATIONS, "citations"),
    "claim_recall": "claims",
    "factscore": "facts",
    "mauve": "mauve",
}

FIGURES: Mapping[Role, str] = {
    Role.SUPPORT: "faithfulness",
    Role.ANSWERABLE: "answerability",
    Role.RELEVANCE: "passage_relevance",
    Role.CITATION: "cited_sentences",
    Role.UTILITY: "utility",
    Role.COMPLIANCE: "compliance",
    Role.CERTAINTY: "certainty",
}
"""What the mean score of a judge is called, by what it judges."""

FAILURE: Part = (0.0, 1.0)
"""A failed item counts as a wrong answer."""
OFFICIAL = "factscore.factscorer"
"""What reports call the official FactScore tool."""

Load: TypeAlias = Callable[[Path, str], Mapping[str, Item]]
"""Items by id, of a run's folder and the name of a file in it."""
_MIDDLE = ".judged."
_KEYS = ("id", "scores", "error", *OUTPUT)
"""What is read of a record: its trace may be large."""


@dataclass(frozen=True, slots=True)
class Record:
    """An item with what a system answered (None if it failed), and all passages that the answer may cite, by id."""

    item: Item
    output: Output | None
    passages: Mapping[str, Passage]

    @property
    def question(self) -> str:
        """Return the question without the task's wording, where that is known."""
        return self.item.query or self.item.instruction


@dataclass(frozen=True, slots=True)
class Judged:
    """Figures of one judge on one file of a run."""

    judge: str  # what reports call it
    identity: Mapping[str, Any]  # everything that decides its verdicts
    # metric to id of the item to its part; None where the metric says nothing about the item
    parts: Mapping[str, Mapping[str, Part | None]] = field(default_factory=dict)
    # metric to the number of items that lack a verdict
    undecided: Mapping[str, int] = field(default_factory=dict)
    # figures of all items together, such as MAUVE; None if undefined
    corpus_figures: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """Return a short mark of who judged; what came out (`output`) is no part of it."""
        judge_identity = {
            key: value for key, value in self.identity.items() if key != "output"
        }
        return hashlib.sha256(
            json.dumps(judge_identity, sort_keys=True).encode()
        ).hexdigest()[:12]

    def column(self, metric: str) -> str:
        """Return the name of a figure in a table."""
        return f"{metric} ({self.judge})"


@dataclass(frozen=True)
class Judges:
    """Who decides what; None for what is not asked for.

    Facts are found by `splitter` and looked up in `knowledge`; `source` is what tells that from another index.
    """

    judge: Judge | None = None
    features: HiddenStates | None = None
    splitter: Splitter = field(default_factory=SentenceSplitter)
    knowledge: Retriever | None = None
    source: Mapping[str, Any] | None = None


# Figures over the records of a file


def judge_citations(
    records: Sequence[Record], judge: Remembered, *, kind: str, marked: bool = False
) -> Judged:
    """Judge ALCE's citation recall, precision and F1 of each answer. Closed sets make no claim, and are left out.

    By `kind` of the task a `short` answer is judged with its question, and a `list` piece by piece with it. A task is
    `marked` if it asks for citations as numbers in brackets.
    """
    responses: dict[
        str, Sequence[CitedClaim]
    ] = {}  # of the items with a written answer
    for record in records:
        if record.output is not None and not record.item.options:
            claims = _claims(record, kind)
            responses[record.item.id] = cited_sentences(
                record.output, record.passages, claims=claims, marked=marked
            )
    figures = dict(
        zip(responses, cites(list(responses.values()), judge.entails), strict=True)
    )
    columns: dict[str, dict[str, Part | None]] = {name: {} for name in CITATIONS}
    undecided = 0
    for record in records:
        name = record.item.id
        # A failed item, and an empty answer, which claims and cites nothing, count as 0.
        quality: Cites | None = Cites(0.0, 0.0)
        if record.item.options:
            quality = None
        elif responses.get(name):
            quality = figures[name]
            undecided += quality is None
        for column in columns.values():
            column[name] = None
        if quality is not None:
            for column, value in zip(
                columns.values(),
                (quality.precision, quality.recall, quality.f1),
                strict=True,
            ):
                column[name] = (value, 1.0)
    return Judged(
        judge.name, judge.identity(), columns, dict.fromkeys(CITATIONS, undecided)
    )


def _claims(record: Record, kind: str) -> Claims:
    if kind == "short":
        return as_answer_to(record.question)
    if kind == "list":
        return as_list_for(record.question)
    return as_sentences


def judge_claims(records: Sequence[Record], judge: Remembered) -> Judged:
    """Judge ALCE's claim recall of each answer; items without claims are left out."""
    column: dict[str, Part | None] = {}
    texts: dict[str, str] = {}
    claims: list[Sequence[str]] = []
    for record in records:
        item = record.item
        column[item.id] = FAILURE if item.claims else None
        if item.claims and record.output is not None:
            texts[item.id] = record.output.text
            claims.append(item.claims)
    shares = claim_recall(list(texts.values()), claims, judge.entails)
    for name, value in zip(texts, shares, strict=True):
        column[name] = None if value is None else (value, 1.0)
    return Judged(
        judge.name,
        judge.identity(),
        {"claim_recall": column},
        {"claim_recall": shares.count(None)},
    )


def judge_facts(
    records: Sequence[Record],
    splitter: Splitter,
    retriever: Retriever,
    judge: Remembered,
    about: Mapping[str, Any],
) -> Judged:
    """Judge the FactScore of each answer ourselves; `about` is what tells the knowledge source from another."""
    texts: dict[str, str] = {}
    topics: list[str] = []
    for record in records:
        if record.output is not None:
            declined = record.output.declined
            texts[record.item.id] = "" if declined else record.output.text
            topics.append(topic_of(record.item))
    facts = dict(
        zip(
            texts,
            check(list(texts.values()), topics, splitter, retriever, judge),
            strict=True,
        )
    )
    identity = {
        "splitter": splitter.identity(),
        "judge": judge.identity(),
        "knowledge": dict(about),
    }
    return facts_judged(records, facts, f"{splitter.name}, {judge.name}", identity)


def facts_judged(
    records: Sequence[Record],
    facts: Mapping[str, Facts],
    judge: str,
    identity: Mapping[str, Any],
) -> Judged:
    """Return the FactScore of each answer from verdicts that are there, such as those of the official tool.

    `facts` are by id of the item; an item without is a failed one.
    """
    columns: dict[str, dict[str, Part | None]] = {name: {} for name in NAMES}
    for record in records:
        for name, part in parts(facts.get(record.item.id)).items():
            columns[name][record.item.id] = part
    undecided = sum(not checked.decided for checked in facts.values())
    return Judged(judge, identity, columns, dict.fromkeys(NAMES, undecided))


def judge_judgments(records: Sequence[Record], judge: Judge) -> Judged:
    """Return the mean score of any judge on each answer, with the passages that the model read."""
    if judge.role not in FIGURES or judge.scope is Scope.FINISHED:
        raise UserError(
            f"{judge.name} judges {judge.role}, which is no figure of an answer; name another judge"
        )
    column: dict[str, Part | None] = {record.item.id: FAILURE for record in records}
    states: dict[str, JudgeInput] = {}
    for record in records:
        if record.output is not None:
            passages = tuple(
                record.passages[name]
                for name in record.output.read
                if name in record.passages
            )
            turns = [
                Message("user", record.question),
                Message("assistant", record.output.text),
            ]
            if judge.scope in (Scope.QUESTION, Scope.PASSAGE):
                turns.pop()
            column[record.item.id] = None
            if passages or judge.role not in NEEDS_PASSAGE:
                states[record.item.id] = JudgeInput(tuple(turns), passages)
    reflections = (
        finish(judge.judge(list(states.values())), judge.engine) if states else []
    )
    for name, reflection in zip(states, reflections, strict=True):
        judgment = reflection.mean("answer", None)
        column[name] = None if judgment is None else (judgment.score, 1.0)
    figure = FIGURES[judge.role]
    undecided = sum(value is None for value in column.values())
    return Judged(judge.name, judge.identity(), {figure: column}, {figure: undecided})


def judge_likeness(records: Sequence[Record], features: HiddenStates) -> Judged:
    """Judge MAUVE of all answers against the first reference of each item; items without either are left out."""
    human, written = [], []
    for record in records:
        text = record.output and evaluated(record.output.text)
        if record.item.references and text:
            human.append(as_alce(record.question, record.item.references[0]))
            written.append(as_alce(record.question, text))
    figure = mauve(human, written, features)
    return Judged(
        features.name,
        features.identity(),
        corpus_figures={"mauve": None if figure is None else asdict(figure)},
    )


# Run directories


def families(names: Sequence[str]) -> tuple[str, ...]:
    """Return the families that have to be computed for figures, or families, of these names."""
    chosen = dict.fromkeys(_FAMILY.get(name, name) for name in names)
    for name in chosen:
        if name not in FAMILIES:
            raise UserError(
                f"no judge is needed for {name[:60]!r}, or it is unknown; known: {', '.join(JUDGED)}"
            )
    return tuple(chosen) or DEFAULT


def judge_run(
    folder: Path,
    load: Load,
    judges: Judges,
    families: Sequence[str] = DEFAULT,
    *,
    only: Sequence[str] | None = None,
) -> dict[str, list[Judged]]:
    """Ask judges about the finished files of a run, and write what they say beside the records.

    `load` gives items by id, of a run and the name of a file in it; `families` are some of `FAMILIES`, `only` names
    of files.

    Raises:
        UserError: no run, one that is being written or judged, an unfinished file, other items than those of the run, a
            judge that is missing, or passages that nobody knows.
    """
    results: dict[str, list[Judged]] = {}
    names = read_manifest(folder)["files"] if only is None else only
    with locked_directory(folder):
        for name in names:
            task, records = judgeable(folder, name, load)
            results[name] = [
                _judge_family(family, records, judges, task, folder)
                for family in families
            ]
            for judged in _merge_judges(results[name]):
                write_judged(folder, name, judged)
    return results


def _judge_family(
    family: str,
    records: Sequence[Record],
    judges: Judges,
    task: Mapping[str, Any],
    folder: Path,
) -> Judged:
    if family == "mauve":
        if judges.features is None:
            raise UserError(
                "mauve needs a model that gives features of texts; name one with --features"
            )
        return judge_likeness(records, judges.features)
    if family == "judgments" and judges.judge is not None:
        return judge_judgments(records, judges.judge)
    if judges.judge is None:
        raise UserError(
            f"{family} need a judge of entailment; name one with --load-judge, such as true or nli:MODEL"
        )
    judge = remembered(judges.judge, folder)
    if family == "citations":
        return judge_citations(
            records, judge, kind=str(task["kind"]), marked=bool(task.get("marked"))
        )
    if family == "claims":
        return judge_claims(records, judge)
    if judges.knowledge is None:
        raise UserError(
            "facts need a knowledge source to be looked up in; give its index with --knowledge"
        )
    return judge_facts(
        records, judges.splitter, judges.knowledge, judge, judges.source or {}
    )


def _merge_judges(results: Sequence[Judged]) -> list[Judged]:
    """Return one value a judge, as one judge has one file."""
    merged: dict[str, Judged] = {}
    for judged in results:
        before = merged.get(judged.judge, judged)
        merged[judged.judge] = replace(
            judged,
            parts={**before.parts, **judged.parts},
            undecided={**before.undecided, **judged.undecided},
            corpus_figures={**before.corpus_figures, **judged.corpus_figures},
        )
    return list(merged.values())


def judgeable(
    folder: Path, name: str, load: Load
) -> tuple[Mapping[str, Any], list[Record]]:
    """Return the task of a finished file of a run, as its manifest has it, and its records with items, in order."""
    entry = file_entry(read_manifest(folder), folder, name, finished=True)
    path, items = folder / f"{name}.jsonl", load(folder, name)
    records: dict[str, Record] = {}
    # items that cite or read passages which the data file does not bring
    lacking = set()
    for record in read_records(path, _KEYS):
        key = record["id"]
        if key not in items:
            raise UserError(
                f"{path} has item {key!r}, and the data file has not; give the file of the run"
            )
        passages = {passage.id: passage for passage in items[key].passages}
        records[key] = Record(items[key], Output.from_record(record), passages)
        if (
            not {*(record.get("cited") or ()), *(record.get("read") or ())}
            <= passages.keys()
        ):
            lacking.add(key)
    for key, passages in _traced(path, lacking) if lacking else ():
        records[key] = replace(
            records[key], passages={**passages, **records[key].passages}
        )
    return entry["settings"]["task"], list(records.values())


def _traced(path: Path, keys: Set[str]) -> Iterator[tuple[str, dict[str, Passage]]]:
    """Yield the passages in the traces of some records, where they have any; one trace is held at a time."""

    def parse(record: Mapping[str, Any]) -> tuple[str, dict[str, Passage]]:
        passages: dict[str, Passage] = {}
        trace = (record["id"] in keys and record.get("trace")) or {}
        try:
            for decision in trace.get("decisions", ()):
                for values in decision["passages"]:
                    passage = Passage(**values)
                    passages[passage.id] = passage
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"the trace of item {record['id']!r} is damaged: {error!r:.100}"
            ) from error
        return record["id"], passages

    return read_jsonl(path, parse)


def official_input(folder: Path, name: str, load: Load, path: Path) -> int:
    """Write a file of a run as the official FactScore tool reads it; returns the number of lines."""
    _, records = judgeable(folder, name, load)
    return write_input(
        path,
        [record.item for record in records],
        {r.item.id: r.output for r in records},
    )


def official_output(folder: Path, name: str, load: Load, path: Path) -> Judged:
    """Read what the official FactScore tool says about a file of a run, and write it beside the records."""
    _, records = judgeable(folder, name, load)
    facts = read_output(path, [record.item for record in records])
    judged = facts_judged(
        records, facts, OFFICIAL, {"kind": OFFICIAL, "output": sha256(path)}
    )
    write_judged(folder, name, judged)
    return judged


def judged_path(folder: Path, file: str, judge: str) -> Path:
    """Return where stands what a judge said about a file of a run."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", judge).strip("-.")[:80] or "judge"
    return folder / f"{file}{_MIDDLE}{slug}.json"


def write_judged(folder: Path, file: str, judged: Judged) -> None:
    """Write what a judge said about a finished file of a run, beside what it said of other metrics.

    What another judge of its name said, or what is of other records, is replaced with a warning.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    path = judged_path(folder, file, judged.judge)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    values: dict[str, Any] = {
        "judge": judged.judge,
        "identity": dict(judged.identity),
        "records": sha256(folder / f"{file}.jsonl"),
        "undecided": dict(judged.undecided),
        "whole": dict(judged.corpus_figures),
        "about": {
            "time": now,
            "commit": commit(),
            "versions": versions((*PACKAGES, "mauve-text")),
        },
        "parts": dict(judged.parts),
    }
    if path.is_file():
        earlier = {}
        with suppress(UserError):  # damaged: reading it advises to judge again
            earlier = read_json(path, nan=True)
        decisive = json.loads(json.dumps([values["identity"], values["records"]]))
        if decisive == [earlier.get("identity"), earlier.get("records")]:
            for name in ("undecided", "whole", "parts"):
                values[name] = {**earlier[name], **values[name]}
        else:
            _LOG.warning("replaced %s, of other records or another judge", path)
    write_json(path, values)


def read_judged(folder: Path, file: str) -> list[Judged]:
    """Return what judges said about a file, in the order of their names; nothing if none was asked."""
    judgments = []
    records = folder / f"{file}.jsonl"
    literal = re.sub(r"([*?[])", r"[\1]", file)
    for path in sorted(folder.glob(f"{literal}{_MIDDLE}*.json")):
        try:
            values = read_json(path, nan=True)
            columns = {}
            for name, column in values["parts"].items():
                columns[name] = {key: _part(value) for key, value in column.items()}
            undecided, corpus_figures = dict(values["undecided"]), dict(values["whole"])
            judgments.append(
                Judged(
                    str(values["judge"]),
                    values["identity"],
                    columns,
                    undecided,
                    corpus_figures,
                )
            )
            checksum = values["records"]
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} cannot be read ({error!r:.80}); judge the run again"
            ) from error
        if checksum != sha256(records):
            raise UserError(
                f"{path} is about other records than {records}; judge the run again, or delete this file"
            )
    return judgments


def _part(value: Any) -> Part | None:
    if value is None:
        return None
    top, bottom = value
    return float(top), float(bottom)
