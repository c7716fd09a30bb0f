"""The registry: what a command line calls each format, and the rows the paper took of it (Table 3)."""

from __future__ import annotations

from dataclasses import dataclass

from critic.sources import (
    alpaca,
    asqa,
    choices,
    fever,
    flan,
    natural_questions,
    oasst_messages,
    oasst_trees,
    open_instruct,
    sharegpt,
    wizard,
)
from critic.sources.raw import Loader
from retrieval.errors import UserError


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of source.

    Attributes:
        name: what a command line calls it.
        dataset: name of the data set in the pairs, unless told otherwise or said by the row.
        about: one line for people.
        read: the loader.
        paper_rows: instances of it in the paper's mix; 0 for a format the paper's counts do not name.
        says_language: whether its rows say which language they are in.
    """

    name: str
    dataset: str
    about: str
    read: Loader
    paper_rows: int = 0
    says_language: bool = False


FORMATS: tuple[Format, ...] = (
    Format("gpt4_alpaca", "gpt4_alpaca", "GPT-4 Alpaca: instruction, input, output", alpaca.read, 26_168),
    Format("stanford_alpaca", "stanford_alpaca", "Stanford Alpaca: instruction, input, output", alpaca.read, 25_153),
    Format("flan_v2", "flan_v2", "FLAN v2: inputs, targets", flan.read, 17_817),
    Format("sharegpt", "sharegpt", "ShareGPT: conversations of from, value", sharegpt.read, 13_406),
    Format("oasst1", "oasst1", "Open Assistant 1, a tree a line", oasst_trees.read, 9_464, says_language=True),
    Format(
        "oasst1_messages", "oasst1", "Open Assistant 1, a message a row", oasst_messages.read, 9_464, says_language=True
    ),
    Format("open_instruct", "open_instruct", "Open-Instruct: dataset, id, messages", open_instruct.read),
    Format("kilt_wow", "wow", "Wizard of Wikipedia from KILT or its DPR file", wizard.read, 17_367),
    Format("kilt_nq", "nq", "Natural Questions from KILT or its DPR file", natural_questions.read, 15_535),
    Format("kilt_fever", "fever", "FEVER from KILT or its DPR file", fever.read, 9_966),
    Format("openbookqa", "openbookqa", "OpenBookQA", choices.read, 4_699),
    Format("asqa", "asqa", "ASQA", asqa.read, 3_897),
    Format("arc_easy", "arc_easy", "ARC-Easy; ARC-Challenge has the same schema", choices.read, 2_147),
)


def named(name: str) -> Format:
    """The format of this name.

    Raises:
        UserError: no such format; the message lists the known ones.
    """
    for form in FORMATS:
        if form.name == name.strip():
            return form
    raise UserError(f"unknown format {name!r}; known: {', '.join(form.name for form in FORMATS)}")
