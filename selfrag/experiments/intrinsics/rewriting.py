"""Query rewrite: against human rewrites, and by what a search finds with it (tables 2 to 4 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from selfrag.evaluation.intervals import Estimate, mean
from selfrag.evaluation.metrics.answers import exact_match, token_f1
from selfrag.evaluation.metrics.retrieval import ndcg_at, recall_at
from selfrag.experiments.intrinsics.followups import Turn
from selfrag.experiments.intrinsics.published import RECALL
from selfrag.experiments.intrinsics.section import Section, Table, given, percent, share
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.query_rewrite import same_question
from selfrag.intrinsics.state import State
from selfrag.intrinsics.training.rows import Labelled

NAME = "query_rewrite"
DEPTHS = (5, 10, 20)
Search: TypeAlias = Callable[[Sequence[str], int], Sequence[Sequence[str]]]
"""Ids of the best passages for each query."""


def evaluate(
    rows: Sequence[Labelled], followups: Sequence[Turn], search: Search | None, subjects: Sequence[Subject], seed: int
) -> Section:
    """Measure every subject, the original question and the gold rewrite.

    Args:
        rows: conversations with human rewrites.
        followups: questions with known passages; none for no search.
        search: over the corpus of the follow-ups.
        subjects: what rewrites.
        seed: of the intervals.
    """
    written = {"no rewrite": [row.state.query or "" for row in rows]}
    defined = {"no rewrite": len(rows)}
    for subject in subjects:
        results = _ask(subject, [row.state for row in rows])
        written[subject.name] = [one.text for one in results]
        defined[subject.name] = sum(one.defined for one in results)
    lines = []
    figures: dict[str, dict[str, Any]] = {}
    for system, texts in written.items():
        found = _against_people(rows, texts, seed)
        undefined = {"undefined": len(rows) - defined[system]}
        figures[system] = undefined | {name: one.as_dict() for name, one in found.items()}
        lines.append((system, *map(percent, found.values()), str(len(rows) - defined[system])))
    head = ("system", "exact match", "word F1", "left alone as people did", "rewritten as people did", "undefined")
    alone = sum(same_question(row.state.query or "", row.text or "") for row in rows)
    tables = [
        Table(
            f"Rewrites against people's ({len(rows)}, of which people left {alone} alone)",
            head,
            tuple(lines),
            ("Where a model wrote no rewrite, the original question stands and is counted as such",),
        )
    ]
    items: list[dict[str, Any]] = [
        {"id": row.id, "gold": row.text, **{system: texts[at] for system, texts in written.items()}}
        for at, row in enumerate(rows)
    ]
    if followups and search is not None:
        more, values, records = _retrieval(followups, search, subjects, seed)
        tables += more
        for system, found_by_part in values.items():
            figures.setdefault(system, {})["retrieval"] = found_by_part
        items += records
    tables += [
        Table(
            f"Published: tables 2 to 4, MT-RAG, {part}",
            ("system", *(f"R@{k}" for k in DEPTHS)),
            tuple((system, *given(*found, digits=2)) for system, found in systems.items()),
        )
        for part, systems in RECALL.items()
    ]
    return Section(NAME, tuple(tables), figures, tuple(items))


def _ask(subject: Subject, states: Sequence[State]) -> list[Any]:
    return [subject.result(NAME, found) for found in subject.ask(NAME, states)]


def _against_people(rows: Sequence[Labelled], texts: Sequence[str], seed: int) -> dict[str, Estimate]:
    gold = [row.text or "" for row in rows]
    original = [row.state.query or "" for row in rows]
    alone = [same_question(one, other) for one, other in zip(original, gold, strict=True)]
    kept = [same_question(one, other) for one, other in zip(original, texts, strict=True)]
    return {
        "exact_match": mean([exact_match(t, [g]) for t, g in zip(texts, gold, strict=True)], seed=seed),
        "word_f1": mean([token_f1(t, [g]) for t, g in zip(texts, gold, strict=True)], seed=seed),
        "left_alone": mean([float(k) for k, a in zip(kept, alone, strict=True) if a], seed=seed),
        "rewritten": mean([float(not k) for k, a in zip(kept, alone, strict=True) if not a], seed=seed),
    }


def _retrieval(
    followups: Sequence[Turn], search: Search, subjects: Sequence[Subject], seed: int
) -> tuple[list[Table], dict[str, Any], list[dict[str, Any]]]:
    queries: dict[str, list[str]] = {"no rewrite": [one.state.query or "" for one in followups]}
    for subject in subjects:
        queries[subject.name] = [one.text for one in _ask(subject, [turn.state for turn in followups])]
    queries["gold rewrite"] = [one.gold for one in followups]
    rankings = {system: search(texts, max(DEPTHS)) for system, texts in queries.items()}
    parts = {
        "full": list(range(len(followups))),
        "non-standalone": [at for at, one in enumerate(followups) if not one.standalone],
        "standalone": [at for at, one in enumerate(followups) if one.standalone],
    }
    tables, figures = [], dict[str, Any]()
    for part, members in parts.items():
        lines = []
        for system, ranked in rankings.items():
            found = _figures([followups[at] for at in members], [ranked[at] for at in members], seed)
            figures.setdefault(system, {})[part] = {name: one.as_dict() for name, one in found.items()}
            lines.append((system, *map(share, found.values())))
        head = ("system", *(f"R@{k}" for k in DEPTHS), "nDCG@10")
        tables.append(Table(f"Retrieval with the rewrite, {part} ({len(members)})", head, tuple(lines)))
    note = "Follow-ups made from questions that name their passage's title; the question as it was is the gold rewrite"
    tables[0] = Table(tables[0].title, tables[0].head, tables[0].rows, (note,))
    records = [
        {"id": one.id, "gold": one.gold, "relevant": sorted(one.relevant), **{s: q[at] for s, q in queries.items()}}
        for at, one in enumerate(followups)
    ]
    return tables, figures, records


def _figures(followups: Sequence[Turn], ranked: Sequence[Sequence[str]], seed: int) -> Mapping[str, Estimate]:
    def over(score: Callable[[Turn, Sequence[str]], float | None]) -> Estimate:
        values = [score(one, ranking) for one, ranking in zip(followups, ranked, strict=True)]
        return mean([value for value in values if value is not None], seed=seed)

    found = {
        f"recall@{k}": over(lambda one, ranking, k=k: recall_at(ranking, one.relevant, k))  # type: ignore[misc]
        for k in DEPTHS
    }
    return found | {"ndcg@10": over(lambda one, ranking: ndcg_at(ranking, dict.fromkeys(one.relevant, 1.0), 10))}
