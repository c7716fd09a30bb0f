"""Answer recall and citation precision, recall and F of one reply; a table's figure is the mean over questions. Pure.

Answer and explanation are scored apart: every figure is of the answer, and those named `whole_` are of the whole
generation, as the paper seems to have scored it. Nothing cited is precision 0; a wrong citation counts as one more.
A question without a relevant passage among those shown has no citation figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import answer_recall, answer_recall_words, sets_of
from selfrag.evaluation.metrics.registry import Part, harmonic
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.interpretation.replies import Reply, citations
from selfrag.experiments.interpretation.trials import Trial

MEASURES = ("answer_recall", "citation_precision", "citation_recall", "citation_f")
"""Figures of the paper's tables, in their order."""
WHOLE = tuple(f"whole_{name}" for name in MEASURES)
FURTHER = ("answer_recall_words", "cites", "wrong_citations", "explains")
NAMES = (*MEASURES, *WHOLE, *FURTHER)

Scores = dict[str, Part | None]


def scored(trial: Trial, reply: Reply | None, relevant: Collection[str], text: str = "") -> Scores:
    """All figures of one reply.

    Args:
        trial: what was asked.
        reply: None where nothing came back; that counts as a wrong answer.
        relevant: passage ids that are relevant among those shown.
        text: the whole generation.
    """
    got = Reply("") if reply is None else reply
    ids = trial.passage_ids
    whole = citations(text, ids)
    sets = sets_of(trial.item)
    found: Scores = {
        **_figures(trial.item, got.answer, [ids[one] for one in got.cited], len(got.wrong), relevant),
        **_figures(trial.item, text, [ids[one] for one in whole[0]], len(whole[1]), relevant, "whole_"),
        "answer_recall_words": None if sets is None else (answer_recall_words(got.answer, sets), 1.0),
        "cites": (float(bool(got.cited)), 1.0),
        "wrong_citations": (float(len(got.wrong)), float(len(got.wrong) + len(got.cited))),
        "explains": (float(got.explanation is not None), 1.0) if trial.asked.explains else None,
    }
    if reply is None:
        found |= {"cites": None, "wrong_citations": None, "explains": None}
    return found


def answers_found(item: Item, text: str) -> tuple[int, ...]:
    """Numbers of the right answers that a text contains as whole words."""
    return tuple(i for i, aliases in enumerate(sets_of(item) or ()) if contains_any(text, aliases))


def citation_figures(cited: Collection[str], wrong: int, relevant: Collection[str]) -> Mapping[str, float] | None:
    """Precision, recall and F of one question; None where no passage shown is relevant.

    Args:
        cited: passage ids, each once.
        wrong: citations of something that was not given.
        relevant: passage ids.
    """
    if not relevant:
        return None
    hits, said = len(set(cited) & set(relevant)), len(set(cited)) + wrong
    precision, recall = hits / said if said else 0.0, hits / len(set(relevant))
    return dict(zip(MEASURES[1:], (precision, recall, harmonic(precision, recall)), strict=True))


def _figures(
    item: Item, text: str, cited: Collection[str], wrong: int, relevant: Collection[str], prefix: str = ""
) -> Scores:
    sets = sets_of(item)
    figures = citation_figures(cited, wrong, relevant)
    parts: Scores = {f"{prefix}{MEASURES[0]}": None if sets is None else (answer_recall(text, sets), 1.0)}
    return parts | {f"{prefix}{name}": None if figures is None else (figures[name], 1.0) for name in MEASURES[1:]}
