"""Training rows: an instruction and its target as reflection tokens, passages and text, as JSON lines and as token ids.

The rule of what is learned (arXiv 2310.11511, section 3.2.2): the loss covers every target token except passage bodies.
The prompt is masked whole; each passage is masked strictly up to its own `</paragraph>`; the two markers stay targets
unless asked otherwise. Prompt and target are tokenised apart, so no merge crosses the boundary between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import JsonObject, read_identified, write_jsonl
from selfrag.common.kinds import Filled
from selfrag.common.validation import validate
from selfrag.prompting import Prompting
from selfrag.reflection.labels import GROUPS, Role

REFLECTION_TOKENS: frozenset[str] = frozenset(
    token for labels in GROUPS for token in labels.tokens
)
"""The 13 tokens a target may name. The two paragraph markers come with a passage and are never written by hand."""


@dataclass(frozen=True, slots=True)
class TargetToken:
    """One reflection token of the target, such as `[Relevant]`."""

    token: str


@dataclass(frozen=True, slots=True)
class TargetEvidence:
    """One passage of the target; the renderer puts the paragraph markers around it."""

    passage: Passage


@dataclass(frozen=True, slots=True)
class TargetText:
    """Text the model learns to write."""

    text: str


TargetPart: TypeAlias = TargetToken | TargetEvidence | TargetText


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training example."""

    id: str  # unique in its file
    # where the row came from, as `data set/kind`; counts and reports go by it
    source: str
    instruction: str  # what the user asked, without prompt layout
    # what the model learns to write, in order, without EOS
    target: tuple[TargetPart, ...]
    weight: float = 1.0  # factor on this row's loss, above 0

    def as_dict(self) -> JsonObject:
        """Plain values, ready for JSON. A weight of 1 is left out."""
        record: JsonObject = {
            "id": self.id,
            "source": self.source,
            "instruction": self.instruction,
            "target": [_part_dict(part) for part in self.target],
        }
        if self.weight != 1.0:
            record["weight"] = self.weight
        return record


class TargetPassage(TypedDict):
    """A passage of a target in a file."""

    id: Filled
    title: str
    text: Filled


class PartRecord(TypedDict, total=False):
    """A part of a target in a file, which has one of these."""

    token: str
    text: Filled
    passage: TargetPassage


class RowRecord(TypedDict):
    """A row in a file."""

    id: Filled
    source: Filled
    instruction: Filled
    target: Annotated[list[PartRecord], Field(min_length=1)]
    weight: NotRequired[Annotated[float, Field(gt=0)]]


def parse_row(record: JsonObject) -> TrainingRow:
    """Check one decoded JSON object and make it a row.

    Raises:
        UserError: a key is missing, unknown or of the wrong type, a token is unknown, or the target is empty.
    """
    row = validate(RowRecord, record)
    parts = tuple(_part(part) for part in row["target"])
    return TrainingRow(
        row["id"], row["source"], row["instruction"], parts, row.get("weight", 1.0)
    )


def read_rows(path: str | Path) -> Iterator[TrainingRow]:
    """Read a JSONL file of rows (`.gz` allowed), strictly.

    Raises:
        UserError: the file cannot be read, a line is no row, or an id occurs twice; the message names `file:line`.
    """
    return read_identified(path, parse_row)


def write_rows(path: str | Path, rows: Iterable[TrainingRow]) -> int:
    """Write rows as JSONL; the file appears under its name only when it is complete. Returns the number of rows."""
    return write_jsonl(path, (row.as_dict() for row in rows))


def _part(record: PartRecord) -> TargetPart:
    match record:
        case {"token": token, **more} if not more:
            if token not in REFLECTION_TOKENS:
                raise UserError(f"unknown reflection token {token!r:.60}")
            return TargetToken(token)
        case {"text": text, **more} if not more:
            return TargetText(text)
        case {"passage": passage, **more} if not more:
            return TargetEvidence(Passage(**passage))
    raise UserError(
        f"a target part has exactly one of 'token', 'passage', 'text', not {record!r:.80}"
    )


def _part_dict(part: TargetPart) -> JsonObject:
    match part:
        case TargetToken(token):
            return {"token": token}
        case TargetText(text):
            return {"text": text}
        case TargetEvidence(passage):
            return {
                "passage": {
                    "id": passage.id,
                    "title": passage.title,
                    "text": passage.text,
                }
            }


MASKED = -100
"""Label of a position without loss, as torch's cross entropy wants it."""


class RowTooLongError(UserError):
    """A row whose prompt and target do not fit, with nothing left of its passages."""


class TargetGroup(IntEnum):
    """What a target position teaches; loss and accuracy are reported for each of these."""

    TEXT = 0
    RETRIEVE = 1
    ISREL = 2
    ISSUP = 3
    ISUSE = 4
    MARKER = 5
    EOS = 6


GROUP_OF_ROLE = {
    Role.RETRIEVE: TargetGroup.RETRIEVE,
    Role.RELEVANCE: TargetGroup.ISREL,
    Role.SUPPORT: TargetGroup.ISSUP,
    Role.UTILITY: TargetGroup.ISUSE,
}
GROUP_OF_TOKEN: dict[str, TargetGroup] = {
    token: GROUP_OF_ROLE[labels.role] for labels in GROUPS for token in labels.tokens
}


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One row as the model sees it. The four sequences have one entry for each position."""

    ids: tuple[int, ...]  # prompt and target, EOS at the end
    # the id to be predicted *at* this position (not shifted), or `MASKED`
    labels: tuple[int, ...]
    # `Group` of the position; meaningful only where there is a label
    groups: tuple[int, ...]
    weight: float = 1.0  # factor on the loss of the whole row
    dropped_tokens: int = 0  # tokens of passage bodies that were cut to fit the length

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """How rows become examples."""

    prompting: Prompting  # prompt and evidence layout for the tokenizer at hand
    max_length: int = 1024  # longest example in tokens; passages are shortened to fit, nothing else ever is
    max_passage: int = 512  # longest passage body in tokens
    learn_markers: bool = True  # whether `<paragraph>` and `</paragraph>` are targets (official code: yes)

    def example(self, row: TrainingRow) -> TrainingExample:
        """Lay out one row.

        Raises:
            RowTooLongError: prompt and target do not fit `max_length` even with every passage body empty.
        """
        vocabulary = self.prompting.vocabulary
        prompt = self.prompting.prompt(row.instruction)
        pieces, bodies, dropped = self._pieces(row)
        # 1. Short bodies stay whole, long ones share what is left.
        others = sum(map(len, pieces)) - sum(len(pieces[number]) for number in bodies)
        room = self.max_length - len(prompt) - 1 - others - 2 * len(bodies)
        if room < 0:
            raise RowTooLongError(
                f"row {row.id!r} needs {count_of(self.max_length - room, 'tokens')} without its passages;"
                f" the limit is {self.max_length}: raise max_length, shorten the row, or leave such rows out"
            )
        bodies.sort(key=lambda number: (len(pieces[number]), number))
        for rank, number in enumerate(bodies):
            body = pieces[number]
            pieces[number] = body[: room // (len(bodies) - rank)]
            dropped += len(body) - len(pieces[number])
            room -= len(pieces[number])
        # 2. What is read, and what is learned of it.
        ids, labels = list(prompt), [MASKED] * len(prompt)
        groups = [int(TargetGroup.TEXT)] * len(prompt)
        for part, piece in zip(row.target, pieces, strict=True):
            learned, group = piece, TargetGroup.TEXT
            if isinstance(part, TargetToken):
                group = GROUP_OF_TOKEN[part.token]
            elif isinstance(part, TargetEvidence):
                group = TargetGroup.MARKER
                begin, end = vocabulary.paragraph_open, vocabulary.paragraph_close
                learned = [MASKED] * (len(piece) + 2)
                if self.learn_markers:
                    learned[0], learned[-1] = begin, end
                piece = [begin, *piece, end]
            ids.extend(piece)
            labels.extend(learned)
            groups.extend([int(group)] * len(piece))
        return TrainingExample(
            (*ids, vocabulary.eos_id),
            (*labels, vocabulary.eos_id),
            (*groups, int(TargetGroup.EOS)),
            weight=row.weight,
            dropped_tokens=dropped,
        )

    def _pieces(self, row: TrainingRow) -> tuple[list[list[int]], list[int], int]:
        """Return the ids of each part, of a passage its body; the numbers of these; and tokens over `max_passage`."""
        pieces: list[list[int]] = []
        bodies: list[int] = []
        dropped = 0
        for number, part in enumerate(row.target):
            match part:
                case TargetToken(token):
                    pieces.append([self.prompting.vocabulary.ids[token]])
                case TargetText(text):
                    pieces.append(self.prompting.codec.encode(text))
                case TargetEvidence(passage):
                    evidence = self.prompting.evidence(passage, self.max_passage)
                    pieces.append(list(evidence.ids[1:-1]))
                    bodies.append(number)
                    dropped += evidence.dropped_tokens
        return pieces, bodies, dropped
