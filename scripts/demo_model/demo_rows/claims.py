"""Claims against evidence: true/false fact checks, and statements with a person's IsSup label."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from critic.pairs import Pair
from retrieval.passage import Passage
from scripts.demo_model.demo_rows.drafts import (
    FULLY,
    Cutter,
    Draft,
    abstaining,
    detokenize,
    grounded,
    sample,
)
from scripts.demo_model.demo_rows.sources import Sources
from selfrag.evaluation.normalisation import normalise

TASK = "Is the following statement correct or not? Say true if it's correct; otherwise say false.\n\n## Input:\n\n"
UTILITY = {FULLY: 5, "Partially supported": 3, "No support / Contradictory": 2}
_SET_ASIDE = frozenset(
    {"answer_vs_bm25_negative", "oracle_chunk", "short_answer_in_gold_passage"}
)
"""Rules left out: a passage without the answer is Irrelevant here, chunks of 240 words lose their label when cut, and
short answers are among the short-form rows already."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Rows of each kind at most; the defaults are the published demo mixture."""

    fact_checks: int = 560
    wrong_verdicts: int = 90
    other_evidence: int = 150
    per_label: int = 420
    labelled: int = 0  # claims of the critic's labels that no pair has, as fact checks


def drafts(
    sources: Sources, quota: Quota, cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield all rows on claims."""
    checks = [
        pair
        for pair in sources.pairs
        if pair.kind == "fact_check" and len(pair.passages) == 1
    ]
    rng.shuffle(checks)
    yield from (_verdict(pair, cut) for pair in checks[: quota.fact_checks])
    further = checks[quota.fact_checks :]
    yield from (_wrong_verdict(pair, cut) for pair in further[: quota.wrong_verdicts])
    # When few pairs are left, claims that have a verdict come again, with evidence that has no word in common.
    others = [*further[quota.wrong_verdicts :], *checks][: quota.other_evidence]
    for pair in others:
        stranger = rng.choice(others)
        claim, passage = pair.instruction.rpartition("\n")[2], stranger.passages[0]
        if stranger is not pair and not _share_words(claim, passage):
            yield Draft(
                f"{pair.dataset}/other_evidence",
                pair.instruction,
                abstaining(cut(passage)),
            )
    yield from sample(_labelled(sources), quota.labelled, rng)
    for label in UTILITY:
        yield from sample(_statements(sources, label, rng), quota.per_label, rng)


def _verdict(pair: Pair, cut: Cutter) -> Draft:
    return Draft(
        f"{pair.dataset}/verdict",
        pair.instruction,
        grounded(cut(pair.passages[0]), pair.output),
    )


def _labelled(sources: Sources) -> Iterator[Draft]:
    """Yield claims that annotators of fact-checking data called supported or refuted by their evidence."""
    verdicts = {FULLY: "true", "No support / Contradictory": "false"}
    taken = {pair.instruction.rpartition("\n")[2].casefold() for pair in sources.pairs}
    for row in sources.critiques:
        known = (
            row.group == "IsSup"
            and row.rule == "gold_evidence"
            and row.label in verdicts
        )
        if (
            known
            and row.evidence is not None
            and row.output.strip().casefold() not in taken
        ):
            target = grounded(row.evidence, verdicts[row.label])
            yield Draft(
                f"{row.dataset}/labelled_verdict", TASK + row.output.strip(), target
            )


def _wrong_verdict(pair: Pair, cut: Cutter) -> Draft:
    wrong = {"true": "false", "false": "true"}[pair.output]
    target = grounded(
        cut(pair.passages[0]), wrong, support="No support / Contradictory", utility=1
    )
    return Draft(f"{pair.dataset}/wrong_verdict", pair.instruction, target, 0.4)


def _statements(sources: Sources, label: str, rng: random.Random) -> Iterator[Draft]:
    for row in sources.critiques:
        if (
            row.group != "IsSup"
            or row.label != label
            or row.rule in _SET_ASIDE
            or row.evidence is None
        ):
            continue
        # Evidence is kept whole: a cut could take away exactly what supports the statement.
        if len(row.evidence.text.split()) <= 125 and 3 <= len(row.output.split()) <= 60:
            target = grounded(
                row.evidence,
                detokenize(row.output),
                support=label,
                utility=UTILITY[label],
            )
            yield Draft(
                f"{row.dataset}/issup",
                row.instruction,
                target,
                1.0 if label == FULLY else 0.7,
            )


def _share_words(claim: str, passage: Passage) -> bool:
    """Return whether a rare-looking word of the claim (capitalised, four letters or more) occurs in the passage."""
    text = set(normalise(f"{passage.title} {passage.text}").split())
    return any(
        normalise(word) in text
        for word in claim.split()
        if len(word) > 3 and word[0].isupper()
    )
