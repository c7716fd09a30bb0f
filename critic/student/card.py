"""`critic.json` beside a checkpoint: the prompt that the critic was trained with, ours or that of the published one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from critic.cases import Case
from critic.released import FIELDS, INSTRUCTION, parse_released
from critic.student.prompt import (
    CriticLayout,
    CriticPrompt,
    Ids,
    PartLimits,
    PromptCodec,
    eos_of,
    fitted,
    split_labels,
)
from selfrag.common.public_fields import PublicRow
from selfrag.common.public_rows import raw_rows
from selfrag.interface import (
    HFTextCodec,
    TextCodec,
    UserError,
    read_json,
    validate,
    write_jsonl,
)

CARD, FORMAT, RELEASED = "critic.json", 1, "released"
CriticInstructions = TypedDict(
    "CriticInstructions",
    {
        "Retrieve": str,
        "Retrieve/evidence": str,
        "IsRel": str,
        "IsSup": str,
        "IsUse": str,
    },
)
FORMS = tuple(CriticInstructions.__annotations__)
"""What the published critic has an instruction for: each group, and Retrieve of a sentence with evidence."""


class ReleasedCard(TypedDict):
    """The card of the published critic."""

    format: Literal["released"]
    instructions: CriticInstructions


class CriticCard(TypedDict):
    """The card of a critic that was trained here."""

    format: Literal[1]
    prompt: str  # fingerprint of the codec
    layout: CriticLayout
    limits: PartLimits


def form_of(case: Case) -> str:
    """Return the name of the instruction that asks for a judgment of the case."""
    if case.group == "Retrieve" and case.evidence is not None:
        return "Retrieve/evidence"
    return case.group


@dataclass(frozen=True)
class ReleasedCodec:
    """The prompt that the published critic was trained with; it writes its labels as words.

    A sentence without evidence has no form there. It is judged by the instruction alone, without Continue.
    """

    text: TextCodec  # safe tokenisation
    eos_id: int  # ends an answer
    instructions: Mapping[str, str]  # by `FORMS`, as its training rows have them
    # longest prompt in tokens; a longer one loses words of its passage
    max_length: int = 2048

    def prompt(self, case: Case) -> CriticPrompt:
        """Lay out one case."""
        return fitted(case, self._ask, tuple(self.text.bos_ids), self.max_length)

    def _ask(self, case: Case) -> tuple[Ids, tuple[Ids, ...]]:
        form, fields = form_of(case), case.fields()
        names = () if form == "Retrieve" else FIELDS[case.group]
        # its field is there without any text
        kept = ""
        if form == "Retrieve/evidence":
            kept = "Preceding sentences"
        lines = [
            f"{name}: {fields[name]}" for name in names if fields[name] or name == kept
        ]
        content = "\n".join([f"{INSTRUCTION}{case.instruction}", *lines])
        question = f"### Instruction:\n{self.instructions[form]}\n\n### Input:\n{content}\n\n### Response:"
        ids, options = split_labels(self.text, question, case.labels.tokens)
        return ids, (*options[:2], ()) if form == "Retrieve" else options


def adopt(released: Path, directory: Path) -> Path:
    """Write the card of the published critic into its folder, with the instructions of its training rows.

    Args:
        released: the published rows that it was trained on.
        directory: the checkpoint; it must have no card yet.

    Raises:
        UserError: the folder is no checkpoint or has a card, or the rows lack an instruction.
    """
    if not (directory / "config.json").is_file() or (directory / CARD).exists():
        raise UserError(
            f"{directory} must be the folder of a checkpoint without {CARD}"
        )
    instructions: dict[str, str] = {}
    for raw in raw_rows(released):
        with raw.blamed():
            form = form_of(parse_released(raw.record, raw.key))
            instructions.setdefault(
                form, PublicRow.of("critic_labels", raw.record)["prompt"]
            )
        if len(instructions) == len(FORMS):
            break
    if missing := [form for form in FORMS if form not in instructions]:
        raise UserError(
            f"{released} has no rows of {', '.join(missing)}; give the published training file"
        )
    write_jsonl(directory / CARD, [{"format": RELEASED, "instructions": instructions}])
    return directory


def write_card(directory: Path, codec: PromptCodec) -> Path:
    """Write the codec's settings, and return the directory."""
    write_jsonl(
        directory / CARD,
        [{"format": FORMAT, "prompt": codec.fingerprint, **codec.as_dict()}],
    )
    return directory


def read_card(directory: Path, tokenizer: Any) -> PromptCodec | ReleasedCodec:
    """Return the codec that a critic was trained with, for the tokenizer beside it.

    Raises:
        UserError: there is no card, it is damaged, or it belongs to another tokenizer.
    """
    path = directory / CARD
    if not path.exists():
        raise UserError(
            f"{directory} holds no {CARD}: it is no critic, or its training did not end"
        )
    try:
        values = read_json(path)
        if isinstance(values, dict) and values.get("format") == RELEASED:
            released = validate(ReleasedCard, values)
            instructions: dict[str, Any] = dict(released["instructions"])
            return ReleasedCodec(
                HFTextCodec(tokenizer), eos_of(tokenizer), instructions
            )
        card = validate(CriticCard, values)
    except UserError as error:
        raise UserError(
            f"{path} cannot be used: {error}; train the critic again"
        ) from error
    codec = PromptCodec.from_tokenizer(tokenizer, card["layout"], card["limits"])
    if codec.fingerprint != card["prompt"]:
        raise UserError(
            f"{path} belongs to another tokenizer than the one in {directory}; copy both together"
        )
    return codec
