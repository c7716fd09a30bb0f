"""Where we differ on purpose: each name stands for a fault of the public libraries. A table, nothing else."""

from __future__ import annotations

from enum import StrEnum


class Deviation(StrEnum):
    """Names of the deviations."""

    DECILE = "decile"
    UNDEFINED = "undefined"
    BOOLEAN = "boolean-label"
    OFFSETS = "original-offsets"
    DUPLICATES = "duplicates"
    SPLITTER = "splitter"
    RECOVERED = "recovered"
    LOOKALIKE = "tag-lookalike"
    WHITESPACE = "white-space"
    NEGATIVE = "negative-number"
    FIRST_LABEL = "first-label"


REASONS: dict[Deviation, str] = {
    Deviation.DECILE: "digit d means 0.05 + 0.1 d (paper, section 3.2); upstream returns 0.1 d",
    Deviation.UNDEFINED: "unreadable output is undefined with a diagnostic; upstream returns it as a value",
    Deviation.BOOLEAN: "the label's true probability; upstream compares 'False' with 'false' and gets 0 or 1",
    Deviation.OFFSETS: "offsets into the caller's text; upstream's are into sentences joined by one space",
    Deviation.DUPLICATES: "duplicate records are dropped; upstream's rule for it does nothing",
    Deviation.SPLITTER: "sentences as recorded; the splitter here cuts this text elsewhere",
    Deviation.RECOVERED: "the good records and a diagnostic; upstream raises on the whole reply",
    Deviation.LOOKALIKE: "what looks like a sentence tag in a text is text; upstream cuts there when it reads",
    Deviation.WHITESPACE: "white space around a sentence is no part of it; upstream's first one has it",
    Deviation.NEGATIVE: "a negative number names no sentence and costs its record; upstream counts it from the end",
    Deviation.FIRST_LABEL: "a token counts for the one label it fits; upstream takes the first label or certainty",
}
