"""Do a model's citations agree with its reflection tokens and with the citation intrinsic, and who is right? Computes.

Each context of a reply is cited or not by the answer (or credited: named by the explanation as well); IsRel, IsSup and
the intrinsic say yes or no to it; and it is relevant or not in truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.evaluation.intervals import Estimate, pooled_auc
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.experiments.interpretation.chance import kappa
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.reading import GridRun
from selfrag.reflection.labels import ISREL, ISSUP

CREDITED, CITED, INTRINSIC = "credited", "cited", "citation intrinsic"
Context = dict[str, Any]
Verdict = Callable[[Context], bool | None]


def _label(role: str, unfavourable: str) -> Verdict:
    def said(context: Context) -> bool | None:
        judgment = context[role]
        return None if judgment is None else judgment["label"] != unfavourable

    return said


VERDICTS: dict[str, Verdict] = {
    CITED: lambda context: bool(context["cited"]),
    CREDITED: lambda context: bool(context["credited"]),
    "IsRel": _label("isrel", ISREL.names[-1]),
    "IsSup": _label("issup", ISSUP.names[-1]),
    INTRINSIC: lambda context: context["intrinsic"],
}
"""Who says yes to a context: IsRel if relevant, IsSup if fully or partly supported. None where nothing was judged."""
SCORES = {"IsRel": "isrel", "IsSup": "issup"}


@dataclass(frozen=True, slots=True)
class Agreement:
    """One judge beside the citations of the replies.

    Attributes:
        judge: a key of `VERDICTS`.
        contexts: on which both gave a verdict.
        says_yes: how many of them the judge says yes to.
        with_cited: kappa with what the answers cite.
        cited_auc: does the judge's score rank cited contexts above others? None for judges without scores.
        precision: of the judge's yes against the relevant contexts.
        recall: of the relevant contexts.
        f1: their harmonic mean.
        relevant_auc: does its score rank relevant contexts above others? None likewise.
    """

    judge: str
    contexts: int
    says_yes: int
    with_cited: Estimate
    cited_auc: Estimate | None
    precision: Estimate
    recall: Estimate
    f1: Estimate
    relevant_auc: Estimate | None


def agreements(run: GridRun, cells: Sequence[Cell], *, seed: int = 0) -> list[Agreement]:
    """One row a judge over the replies of some cells together; empty where nothing was judged."""
    questions: dict[str, list[Context]] = {}
    for cell in cells:
        for row in run.judged(cell) or ():
            if row["answered"]:
                named = ({**context, "in": (cell.name, context["id"])} for context in row["contexts"])
                questions.setdefault(row["id"], []).extend(named)
    return [_agreement(judge, list(questions.values()), seed) for judge in VERDICTS] if questions else []


def _agreement(judge: str, questions: Sequence[Sequence[Context]], seed: int) -> Agreement:
    """Whole questions are resampled, with all their replies."""
    verdict = VERDICTS[judge]
    kept = [[context for context in contexts if verdict(context) is not None] for contexts in questions]
    kept = [contexts for contexts in kept if contexts]
    pairs = [[(bool(verdict(context)), bool(context["cited"])) for context in contexts] for contexts in kept]
    figures = pair_figures(
        [{c["in"] for c in contexts if c["relevant"]} for contexts in kept],
        [{c["in"] for c in contexts if verdict(c)} for contexts in kept],
        seed=seed,
    )
    return Agreement(
        judge,
        sum(len(contexts) for contexts in kept),
        sum(yes for some in pairs for yes, _ in some),
        kappa(pairs, seed=seed),
        _auc(judge, kept, "cited", seed),
        figures.precision,
        figures.recall,
        figures.f1,
        _auc(judge, kept, "relevant", seed),
    )


def _auc(judge: str, rows: Sequence[Sequence[Context]], truth: str, seed: int) -> Estimate | None:
    if judge not in SCORES:
        return None
    role = SCORES[judge]
    sides = [[[c[role]["score"] for c in row if bool(c[truth]) is side] for row in rows] for side in (True, False)]
    return pooled_auc(*sides, seed=seed)
