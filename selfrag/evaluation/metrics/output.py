"""`Output`: what a system produced for one item, as plain values that metrics read and a run writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from selfrag.decoding.answer import Answer
from selfrag.errors import UserError
from selfrag.evaluation.normalisation import marks

OUTPUT = ("text", "cited", "read", "retrieved", "segments", "usage")
"""Keys of an answer in a record."""
USAGE = ("requests", "prompt_tokens", "generated_tokens", "searches")
"""Counts that do not depend on what else was in the batch; seconds and cached tokens do."""


@dataclass(frozen=True, slots=True)
class Output:
    """One answer."""

    text: str  # the answer; for multiple choice the option as it was scored
    cited: tuple[str, ...] = ()  # ids of the cited passages in order of first citation, each once
    # ids of the passages the model was shown, each once; empty if it answered without evidence
    read: tuple[str, ...] = ()
    retrieved: bool = False  # whether evidence was asked for
    segments: tuple[tuple[str, str | None], ...] = ()  # of a long answer, text and cited passage id of each piece
    usage: Mapping[str, int] = field(default_factory=dict)  # requests, prompt and generated tokens, searches

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"usage": dict(self.usage)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Output | None:
        """The output in a record of a run; None if the item failed.

        Raises:
            UserError: the record is damaged.
        """
        if record.get("error"):
            return None
        try:
            segments = tuple((str(text), None if cited is None else str(cited)) for text, cited in record["segments"])
            return cls(
                str(record["text"]),
                tuple(map(str, record["cited"])),
                tuple(map(str, record["read"])),
                bool(record["retrieved"]),
                segments,
                {str(name): int(count) for name, count in record["usage"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"item {record.get('id')!r} is no record of an answer: {error!r:.100}") from error


def output_of(answer: Answer, *, cite_all: bool = False, marked: bool = False) -> Output:
    """What an answer says.

    A system without citations of its own cites every passage that it was shown (`cite_all`). A system that was told
    to cite by numbers in brackets cites what the numbers name (`marked`).
    """
    shown = dict.fromkeys(passage.key for decision in answer.trace.decisions for passage in decision.passages)
    numbered = [name for name, *_ in shown]
    read = tuple(dict.fromkeys(numbered))
    told = cite_all and marked
    if told:
        places = [number - 1 for number in marks(answer.text) if 1 <= number <= len(numbered)]
        cited = tuple(dict.fromkeys(numbered[place] for place in places))
    else:
        cited = read if cite_all else tuple(dict.fromkeys(passage.id for passage in answer.citations))
    return Output(
        text=answer.text.strip(),
        cited=cited,
        read=read,
        retrieved=any(decision.action == "retrieve" for decision in answer.trace.decisions),
        segments=tuple((s.text, s.citation.id if s.citation and not told else None) for s in answer.segments),
        usage={name: getattr(answer.usage, name) for name in USAGE},
    )
