"""Files of cases: our JSON lines, and the published files of the authors' critic data, which are read as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from critic.cases import Case, check
from critic.released import is_released, parse_released
from selfrag.common.jsonl import JsonObject, read_identified
from selfrag.common.kinds import Filled
from selfrag.common.public_rows import raw_rows
from selfrag.interface import Passage, UserError, validate


class EvidenceRecord(TypedDict):
    """A passage in a row of a file."""

    id: NotRequired[str | int]
    title: NotRequired[str]
    text: str


class CaseRecord(TypedDict):
    """A case in a row of a file."""

    id: Filled
    group: Literal["Retrieve", "IsRel", "IsSup", "IsUse"]
    instruction: Filled
    preceding: NotRequired[str]
    output: NotRequired[str]
    evidence: NotRequired[EvidenceRecord | None]
    dataset: NotRequired[str]
    rule: NotRequired[str]


class LabelledRecord(CaseRecord):
    """A labelled case in a row of a file."""

    label: str
    label_source: NotRequired[str]


def read_labelled(
    path: str | Path, *, judgeable: bool = False, skip_unlabelled: bool = False
) -> Iterator[Case]:
    """Read labelled cases, strictly: JSON lines (`.gz` allowed), or a published file (`.json` or `.parquet` too).

    Args:
        path: the file.
        judgeable: refuse rows that lack what their group judges, too.
        skip_unlabelled: leave out published rows to which the teacher gave no label; else they are refused.

    Raises:
        UserError: a row cannot be used, by `file:line` or row.
    """

    def parse(record: JsonObject, number: int) -> Case:
        row = (
            parse_released(record, _key(path, number))
            if is_released(record)
            else parse_labelled(record)
        )
        if not row.label and not skip_unlabelled:
            raise UserError(
                "the teacher gave no label; set such rows aside: critic label FILE --gold FILE -o FOLDER"
            )
        if judgeable:
            check(row)
        return row

    return (row for row in _read(path, parse) if row.label)


def read_questions(path: str | Path) -> Iterator[Case]:
    """Read cases from the same files, as strictly. Labels in them are ignored, to label rows again."""

    def parse(record: JsonObject, number: int) -> Case:
        if is_released(record):
            released = parse_released(record, _key(path, number))
            question = replace(released, label="", label_source="")
        else:
            question = _case(validate(CaseRecord, record, others="ignore"))
        check(question)
        return question

    return _read(path, parse)


def _key(path: str | Path, number: int) -> str:
    return f"{Path(path).name.partition('.')[0]}-{number}"


def _read(path: str | Path, parse: Callable[[JsonObject, int], Case]) -> Iterator[Case]:
    numbers = count(1)
    if Path(str(path).removesuffix(".gz")).suffix not in (".json", ".parquet"):
        yield from read_identified(path, lambda record: parse(record, next(numbers)))
        return
    for raw in raw_rows(path):
        with raw.blamed():
            row = parse(dict(raw.record), next(numbers))
        yield row


def rows_file(path: Path) -> Path:
    """Return the file itself, or the training rows of a data folder."""
    if not path.is_dir():
        return path
    for name in ("critic.jsonl.gz", "critic.jsonl"):
        file = path / "train" / name
        if file.is_file():
            return file
    raise UserError(
        f"{path} holds no train/critic.jsonl or train/critic.jsonl.gz; give the file itself"
    )


def parse_labelled(record: JsonObject) -> Case:
    """Check one decoded JSON object and make it a labelled case."""
    row = validate(LabelledRecord, record, others="ignore")
    case, label = _case(row), row["label"]
    if label not in case.labels.names:
        raise UserError(
            f"{label!r} is no label of {case.group}; known: {', '.join(case.labels.names)}"
        )
    return replace(case, label=label, label_source=row.get("label_source", ""))


def _case(row: CaseRecord) -> Case:
    evidence = row.get("evidence")
    passage = (
        None if evidence is None else passage_of(evidence, f"{row['id']}/evidence")
    )
    return Case.of(
        row["group"],
        row["instruction"],
        row.get("preceding", ""),
        row.get("output", ""),
        passage,
        id=row["id"],
        dataset=row.get("dataset", ""),
        rule=row.get("rule", ""),
    )


def passage_of(record: EvidenceRecord, name: str) -> Passage:
    """Return a passage of a row, under the name if it has no id of its own."""
    return Passage(str(record.get("id", name)), record["text"], record.get("title", ""))
