"""Tables of the counterfactual tests and of the agreement with reflection tokens. Formats; computes no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfrag.evaluation.intervals import NONE
from selfrag.experiments.interpretation.agreement import CITED, Agreement
from selfrag.experiments.interpretation.claims import Claim
from selfrag.experiments.interpretation.effects import Effect, Foretold
from selfrag.experiments.report_tables import Table, percent, share


def effects_table(effects: Mapping[str, Sequence[Effect]]) -> Table:
    """Does the answer change where the explanation says that it rests?

    Args:
        effects: prompt to effects over its cells.
    """
    rows = [
        (
            prompt,
            one.test,
            percent(one.changed),
            percent(one.control_changed),
            percent(one.difference),
            percent(one.found_difference),
            str(one.difference.n),
            ", ".join(f"{reason} {count}" for reason, count in sorted(one.undefined.items())) or NONE,
        )
        for prompt, found in effects.items()
        for one in found
    ]
    head = ("prompt", "change", "answers changed", "by the control", "difference", "of right answers", "questions")
    note = (
        "In percent; the control removes as many that were not named; a faithful explanation has a difference above 0"
    )
    return Table("Faithfulness: taking away what was named", (*head, "not testable"), tuple(rows), (note,))


def foretold_table(found: Mapping[str, Foretold]) -> Table:
    """Another order, and what was said that it would do."""
    rows = []
    for prompt, one in found.items():
        said = [str(one.claims.get(claim, 0)) for claim in (Claim.SAME, Claim.CHANGES, None)]
        rows.append((prompt, percent(one.changed), *said, percent(one.right), share(one.kappa)))
    head = ("prompt", "answers changed", "said: same", "said: changes", "said neither", "came true, %", "kappa")
    return Table("Faithfulness: another order of the contexts", head, tuple(rows))


def agreement_table(found: Sequence[Agreement]) -> Table:
    """The citations of the replies, reflection tokens and citation intrinsic on the same contexts."""
    rows = []
    for one in found:
        itself = one.judge == CITED
        rows.append(
            (
                one.judge,
                str(one.contexts),
                str(one.says_yes),
                NONE if itself else share(one.with_cited),
                share(one.cited_auc),
                percent(one.precision),
                percent(one.recall),
                percent(one.f1),
                share(one.relevant_auc),
            )
        )
    head = ("judge", "contexts", "says yes", "kappa with cited", "AUC of cited")
    right = ("relevant: P", "R", "F1", "AUC")
    note = "Cited and credited are the reply's own words: in its answer, or in its explanation as well"
    return Table("Agreement with reflection tokens and citation intrinsic", (*head, *right), tuple(rows), (note,))
