"""`Item`, one row of an evaluation file; `Output`, what a system made of it; and `Choices`, its options as written.

What a row does not say is None, and figures that would need it leave the row out.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from retrieval.passage import Passage
from retrieval.tables import separated_fields
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import read_jsonl
from selfrag.common.kinds import Filled
from selfrag.common.reading import parse_json, read_lines, read_whole
from selfrag.common.validation import validate
from selfrag.decoding.answer import Answer
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.normalisation import marks
from selfrag.prompting import SELFRAG

TASK_INPUT = SELFRAG.task_input
"""Stands between a task's wording and its question in the instruction."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question, claim or instruction to evaluate on."""

    id: str  # as in the file
    instruction: str  # what the model is asked
    passages: tuple[
        Passage, ...
    ] = ()  # evidence to answer from, in the order of the file
    # ids of the passages that answer; None if the file does not say
    gold: frozenset[str] | None = None
    # short answers of which one should be contained; None where that is no measure
    answers: tuple[str, ...] | None = None
    label: str | None = None  # right answer of a closed task
    # whether the passages answer the question; None if the file does not say
    answerable: bool | None = None
    task: str = ""  # kind of task as the file names it; empty outside of `eval` files
    options: tuple[
        str, ...
    ] = ()  # options of a multiple-choice item, in the order of the file
    references: tuple[
        str, ...
    ] = ()  # every reference answer of the file, long ones too
    # the question without the task's wording, where the two can be told apart
    query: str = ""
    # of a question with several right answers, the ways of writing each of them; empty where the file does not
    # say
    answer_sets: tuple[tuple[str, ...], ...] = ()
    # statements that a complete answer makes (ALCE's ELI5); empty where the file does not say
    claims: tuple[str, ...] = ()
    topic: str = ""  # name of what the answer is about (biographies); empty where the file does not say
    # names of the metrics that the file wants to be scored by; empty leaves it to the kind of task
    metrics: tuple[str, ...] = ()


_WHOLE = re.compile(r'\s*(?:\[|\{\s*"data"\s*:|\{\s*$)')
"""How the first line of a file begins that is one JSON value, and not a row a line."""


def read_items(
    path: Path, parse: Callable[[dict[str, Any]], Item | None]
) -> list[Item]:
    """Return all items of a file: JSON Lines, an array, or an object with an array under `data`; `.gz` unpacked.

    Args:
        path: the file.
        parse: makes an item of a row, such as `item_of`; raises `UserError` for a bad one, and leaves out None.

    Raises:
        UserError: a row is bad (names `file:line`, or the row of an array), or no row is left.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in SEPARATORS:
        rows = separated_fields(path, SEPARATORS[suffix], _check_columns)
        parsed = [_row(path, number, record, parse, "line") for number, record in rows]
    elif _WHOLE.match(next(read_lines(path), "")):
        records = parse_json(read_whole(path), str(path), nan=True, mended=True)
        if isinstance(records, dict):
            records = records.get("data")
        if not isinstance(records, list):
            raise UserError(f"{path}: no array of rows, and none under 'data'")
        parsed = [
            _row(path, number, record, parse)
            for number, record in enumerate(records, 1)
        ]
    else:
        parsed = list(read_jsonl(path, parse, mended=True))
    items = [item for item in parsed if item is not None]
    if not items:
        raise UserError(f"{path}: no rows; check that this is the right file")
    return items


SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""Between the fields of files of questions and answers, by their endings."""


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    names = {name.lower() for name in columns}
    if "question" not in names or not names & {"answer", "answers"}:
        shown = ", ".join(name[:40] for name in columns[:20]) or "none"
        raise UserError(
            f"{path}: the header must name the columns question and answer; found: {shown}"
        )


def _row(
    path: Path,
    number: int,
    record: Any,
    parse: Callable[[dict[str, Any]], Item | None],
    unit: str = "row",
) -> Item | None:
    try:
        if not isinstance(record, dict):
            raise UserError(f"a row must be an object, not {type(record).__name__}")
        return parse(record)
    except UserError as error:
        raise UserError(f"{path}: {unit} {number}: {error}; fix this row") from error


class ItemPassage(TypedDict):
    """A passage in a row of a file."""

    id: Filled
    title: NotRequired[str | None]
    text: Filled


class ItemRecord(TypedDict):
    """A row in the schema of `eval/dev`."""

    id: Filled
    task: Filled
    instruction: Filled
    question: NotRequired[Filled]
    answers: NotRequired[list[Any]]
    label: NotRequired[Filled]
    options: NotRequired[list[str]]
    passages: NotRequired[list[ItemPassage]]
    gold_passage_ids: NotRequired[list[str]]
    support: NotRequired[Any]
    claims: NotRequired[list[str]]
    topic: NotRequired[Filled]
    metrics: NotRequired[list[str]]


def full_record(record: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return a row of a question and its answer in the schema of files; rows with an `instruction` as they are.

    Its `task` is `short_qa` unless it says another.

    `answer` or `answers` may be a text, a list of texts, or what public data sets have: an object with the list `text`
    (SQuAD), or with `value` and `aliases` (TriviaQA). A text under `context` is its passage, and a molecule under
    `smiles` stands before the question.

    Args:
        record: the row.
        number: of the row, which names it where it has no `id`.

    Raises:
        UserError: the row has a question and no answer.
    """
    columns = {
        name.strip().lower(): value
        for name, value in record.items()
        if isinstance(name, str)
    }
    if "instruction" in columns or "question" not in columns:
        return record
    answers = columns.get("answers")
    if answers is None:
        answers = columns.get("answer")
    if isinstance(answers, Mapping):
        aliases = answers.get("aliases") or ()
        answers = answers.get("text") or [
            *filter(None, [answers.get("value")]),
            *aliases,
        ]
    if isinstance(answers, str):
        answers = list(filter(str.strip, [answers]))
    if not answers:
        raise UserError(
            "no answer; a row of a question has the column answer, or a list of answers"
        )
    kept: dict[str, Any] = {
        key: columns[key]
        for key in ("passages", "gold_passage_ids", "metrics")
        if key in columns
    }
    context = columns.get("context")
    if "passages" not in kept and isinstance(context, str) and context.strip():
        kept["passages"] = [{"id": "context", "text": context}]
    question = columns["question"]
    if columns.get("smiles"):
        question = f"{columns['smiles']}\n{question}"
    name = columns.get("id")
    if name in (None, ""):
        name = f"row-{number}"
    return {
        **kept,
        "id": str(name),
        "task": columns.get("task") or "short_qa",
        "instruction": question,
        "question": question,
        "answers": answers,
    }


def item_of(record: Mapping[str, Any]) -> Item:
    """Return the item of a row in the schema of `eval/dev`: `task`, `id`, `instruction`, what is right, `passages`.

    Raises:
        UserError: the row has no such keys, or other values in them.
    """
    if "task" not in record:
        raise UserError(
            "unknown kind of row: it has neither 'question' and 'answer' nor 'task'; a file of a published task is"
            " given as TASK=FILE (selfrag eval tasks)"
        )
    row = validate(ItemRecord, record, others="ignore")
    passages = tuple(
        Passage(p["id"], p["text"], p.get("title") or "")
        for p in row.get("passages", ())
    )
    label, options = row.get("label"), row.get("options")
    answerable = None
    if options is None and label is not None:
        answerable, label = is_answerable(label), None
    sets = _answer_sets(row.get("answers", []))
    references = tuple(chain.from_iterable(sets))
    is_short = row["task"].startswith("short_qa")
    if not references and ("answers" in row or is_short):
        references = _texts(row)
    return Item(
        row["id"],
        row["instruction"],
        passages=passages,
        gold=_gold(row, passages),
        # A long human answer is not contained in a model's answer; closed tasks are scored by their label.
        answers=references if is_short else None,
        label=label,
        answerable=answerable,
        task=row["task"],
        options=tuple(options or ()),
        references=references,
        answer_sets=sets,
        query=row.get("question", row["instruction"].partition(TASK_INPUT)[2]),
        claims=tuple(row.get("claims", ())),
        topic=row.get("topic", ""),
        metrics=tuple(row.get("metrics", ())),
    )


def _answer_sets(answers: list[Any]) -> tuple[tuple[str, ...], ...]:
    """Return several right answers, each with its ways of being written; none of a list of texts."""
    if not any(isinstance(forms, list) for forms in answers):
        return ()
    for forms in answers:
        texts = isinstance(forms, list) and all(
            isinstance(form, str) and form.strip() for form in forms
        )
        if not texts or not forms:
            raise UserError(
                "'answers' must be a list of texts, or of lists of at least one text each"
            )
    return tuple(map(tuple, answers))


def _texts(record: ItemRecord) -> tuple[str, ...]:
    texts = record.get("answers")
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise UserError("'answers' must be a list of texts")
    return tuple(texts)


def _gold(record: ItemRecord, passages: tuple[Passage, ...]) -> frozenset[str] | None:
    """Return ids of the gold passages, or of those whose title the file names as support; None if it says neither."""
    if "gold_passage_ids" in record:
        return frozenset(record["gold_passage_ids"])
    support = record.get("support")
    if (
        isinstance(support, list)
        and support
        and all(isinstance(title, str) for title in support)
    ):
        return frozenset(passage.id for passage in passages if passage.title in support)
    return None


def is_answerable(label: str) -> bool:
    """Return what a label says; raises `UserError` for any other text."""
    if label not in ("answerable", "unanswerable"):
        raise UserError(f"'label' must be answerable or unanswerable, not {label!r}")
    return label == "answerable"


OUTPUT = (
    "text",
    "cited",
    "read",
    "retrieved",
    "segments",
    "usage",
    "abstained",
    "reason",
    "note",
)
"""Keys of an answer in a record."""
USAGE = ("requests", "prompt_tokens", "generated_tokens", "searches")
"""Counts that do not depend on what else was in the batch; seconds and cached tokens do."""


@dataclass(frozen=True, slots=True)
class Output:
    """One answer."""

    text: str  # the answer; for multiple choice the option as it was scored
    cited: tuple[
        str, ...
    ] = ()  # ids of the cited passages in order of first citation, each once
    # ids of the passages the model was shown, each once; empty if it answered without evidence
    read: tuple[str, ...] = ()
    retrieved: bool = False  # whether evidence was asked for
    segments: tuple[
        tuple[str, str | None], ...
    ] = ()  # of a long answer, text and cited passage id of each piece
    # requests, prompt and generated tokens, searches
    usage: Mapping[str, int] = field(default_factory=dict)
    # as in `Answer`; None in records of earlier versions
    abstained: bool | None = None
    reason: str | None = None
    # as in `Answer`: such as that no judge could judge a segment; in a record only where there is one
    note: str | None = None

    @property
    def declined(self) -> bool:
        """Return whether it gives no answer: it abstained, or has no word. The text tells of earlier records."""
        return bool(self.abstained) or abstains(self.text)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        values = asdict(self) | {"usage": dict(self.usage)}
        if self.note is None:
            values.pop("note")
        return values

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Output | None:
        """Return the output in a record of a run; None if the item failed."""
        if record.get("error"):
            return None
        values = {key: record.get(key) for key in OUTPUT}
        return validate(
            cls,
            values,
            f"item {record.get('id')!r:.60} is no record of an answer",
            mended=True,
        )


def output_of(
    answer: Answer, *, cite_all: bool = False, marked: bool = False
) -> Output:
    """Return what an answer says.

    What was read and retrieved is what led to the answer: decisions of other candidates depend on how many are written.
    A system without citations of its own cites every passage that it was shown (`cite_all`). A system that was told
    to cite by numbers in brackets, or an answer without segments, cites what the numbers name (`marked`).
    """
    decisions = answer.trace.leading()
    passages = chain.from_iterable(decision.passages for decision in decisions)
    numbered = [name for name, *_ in dict.fromkeys(passage.key for passage in passages)]
    by_number = marked and (cite_all or not answer.segments)
    cited: Iterable[str] = numbered
    if by_number:
        cited = [
            numbered[number - 1]
            for number in marks(answer.text)
            if 1 <= number <= len(numbered)
        ]
    elif not cite_all:
        cited = [passage.id for passage in answer.citations]
    segments: list[tuple[str, str | None]] = []
    for segment in answer.segments:
        if by_number or segment.citation is None:
            segments.append((segment.text, None))
        else:
            segments.append((segment.text, segment.citation.id))
    return Output(
        text=answer.text.strip(),
        cited=tuple(dict.fromkeys(cited)),
        read=tuple(dict.fromkeys(numbered)),
        retrieved=any(decision.action == "retrieve" for decision in decisions),
        segments=tuple(segments),
        usage={name: getattr(answer.usage, name) for name in USAGE},
        abstained=answer.abstained,
        reason=answer.reason,
        note=answer.note,
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of one item."""

    surfaces: tuple[str, ...]  # what can be written, one for each option
    right: str  # the surface of the right option


def choices(item: Item) -> Choices:
    """Return the options of an item as they are written."""
    options, label = item.options, item.label
    if label is None or len(options) < 2:
        raise UserError("a multiple-choice item needs a label and at least two options")
    if len(set(options)) != len(options) or not all(map(str.strip, options)):
        raise UserError("two options are equal, or one is blank")
    surfaces = _surfaces(label, options)
    if len(surfaces) < len(options):
        raise UserError(
            f"{count_of(len(options), 'options')}, and letters name {len(surfaces)}; give the label as a number or text"
        )
    if label not in surfaces:
        raise UserError(f"label {label!r} is none of {', '.join(surfaces[:26])}")
    return Choices(surfaces, label)


def _surfaces(label: str, options: tuple[str, ...]) -> tuple[str, ...]:
    if label in options:
        if label != label.strip():
            return options
        return tuple(map(str.strip, options))
    if label.isdecimal():
        return tuple(map(str, range(1, len(options) + 1)))
    return tuple(string.ascii_uppercase[: len(options)])
