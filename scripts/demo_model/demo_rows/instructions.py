"""Instructions that need no look-up: writing, transforming, computing, small talk, and multiple choice by letter."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from critic.pairs import Pair
from scripts.demo_model.demo_rows.drafts import (
    Cutter,
    Draft,
    detokenize,
    grounded,
    sample,
    search,
    unaided,
)
from scripts.demo_model.demo_rows.sources import Sources
from selfrag.evaluation.normalisation import contains_any

_ASKS_FACT = re.compile(
    r"^(what|who|whose|whom|where|when|which|how (many|much|long|far|old|tall|high|fast)"
    r"|name the|name an?|define|describe|explain|identify the)\b",
    re.I,
)
_ABOUT_LANGUAGE_OR_NUMBERS = re.compile(
    r"['\"\u2018\u201c]|\d|\b(opposite|synonym|antonym|plural|tense|rhym|sentence|word|adjective|verb|noun|derivative|integral"
    r"|square|root|spelling|prefix|suffix|simile|metaphor|idiom)",
    re.I,
)
_MOST_WORDS = 130


@dataclass(frozen=True, slots=True)
class Quota:
    """Rows of each kind at most; the defaults are the published demo mixture."""

    arithmetic: int = 330
    choices: int = 230
    choices_with_passage: int = 90
    small_talk: int = 140
    poor: int = 260
    copies: int = 2
    written: int | None = None


def looks_up(instruction: str) -> bool:
    """Return whether an instruction without input asks for a fact, so that neither Retrieve label is clearly right."""
    if "## Input:" in instruction:
        return False
    return bool(
        _ASKS_FACT.match(instruction)
    ) and not _ABOUT_LANGUAGE_OR_NUMBERS.search(instruction)


def drafts(
    sources: Sources, quota: Quota, cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield all rows that answer without a passage, and the multiple-choice rows."""
    written = dict(_reference_outputs(sources))
    # These are few against thousands of rows that retrieve; copies keep p(Retrieval) informative.
    texts = [
        Draft(f"{dataset}/instruction", i, unaided(o), 1.5, quota.copies)
        for i, (dataset, o) in written.items()
        if dataset != "gsm8k"
    ]
    yield from texts if quota.written is None else sample(texts, quota.written, rng)
    sums = (
        Draft("gsm8k/instruction", i, unaided(o))
        for i, (dataset, o) in written.items()
        if dataset == "gsm8k"
    )
    yield from sample(sums, quota.arithmetic, rng)
    yield from sample(_small_talk(sources), quota.small_talk, rng)
    yield from sample(_poor(sources), quota.poor, rng)
    yield from _choices(sources, quota, cut, rng)


def _reference_outputs(sources: Sources) -> Iterator[tuple[str, tuple[str, str]]]:
    for pair in sources.pairs:
        if pair.kind == "instruction" and _usable(pair.instruction, pair.output):
            yield pair.instruction, (pair.dataset, pair.output)
    for row in sources.critiques:
        if row.rule == "instruction_without_lookup" and _usable(
            row.instruction, row.output
        ):
            yield row.instruction, (row.dataset, row.output)


def _usable(instruction: str, output: str) -> bool:
    words = len(instruction.split()) + len(output.split())
    return (
        0 < len(output.split()) <= _MOST_WORDS
        and words <= 2 * _MOST_WORDS
        and not looks_up(instruction)
    )


def _small_talk(sources: Sources) -> Iterator[Draft]:
    for row in sources.critiques:
        if (
            row.rule == "generic_response"
            and row.output.strip()
            and row.instruction.strip()
        ):
            yield Draft(
                f"{row.dataset}/small_talk",
                detokenize(row.instruction),
                unaided(detokenize(row.output)),
            )


def _poor(sources: Sources) -> Iterator[Draft]:
    """Yield outputs that help little: another instruction's output (1) and a solution that stops half way (2)."""
    for row in sources.critiques:
        poor = row.rule in (
            "output_of_another_instruction",
            "solution_cut_before_the_end",
        )
        if (
            poor
            and row.output.strip()
            and len(row.output.split()) <= 60
            and not looks_up(row.instruction)
        ):
            # A low weight: the utility is to be learned, the text is not.
            target = unaided(row.output, utility=int(row.label))
            yield Draft(
                f"{row.dataset}/utility_{row.label}", row.instruction, target, 0.4
            )


def _choices(
    sources: Sources, quota: Quota, cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    pairs = [pair for pair in sources.pairs if pair.kind == "multiple_choice"]
    rng.shuffle(pairs)
    with_passage = list(_with_passage(sources, pairs, cut))[
        : quota.choices_with_passage
    ]
    yield from with_passage
    taken = {draft.instruction for draft in with_passage}
    without = [pair for pair in pairs if pair.instruction not in taken]
    for pair in without[: quota.choices]:
        yield Draft(f"{pair.dataset}/choice", pair.instruction, unaided(pair.output))


def _with_passage(sources: Sources, pairs: list[Pair], cut: Cutter) -> Iterator[Draft]:
    """Yield questions for which a retrieved passage names the right option and none of the others."""
    questions = [pair.instruction.partition("## Input:")[2].strip() for pair in pairs]
    for pair, text, passages in zip(
        pairs, questions, search(sources.corpus, questions, 5), strict=True
    ):
        options = dict(re.findall(r"^([A-E1-5]): (.+)$", text, re.M))
        right = options.pop(pair.output, "")
        for passage in passages:
            if (
                len(right) > 3
                and contains_any(passage.text, [right])
                and not contains_any(passage.text, options.values())
            ):
                yield Draft(
                    f"{pair.dataset}/choice_with_passage",
                    pair.instruction,
                    grounded(
                        cut(passage, right if right in passage.text else ""),
                        pair.output,
                    ),
                )
                break
