"""Query rewrite: rewrites against people's, what they find, and answers from that (tables 2 to 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from retrieval.passage import Retriever
from selfrag.decoding.answer import Answer
from selfrag.errors import UserError
from selfrag.evaluation.intervals import Estimate, mean
from selfrag.evaluation.metrics.answers import exact_match, token_f1
from selfrag.evaluation.metrics.citations import ndcg_at, recall_at
from selfrag.experiments.intrinsics.flows import FOLLOW_UP, Turn, answered, faithfulness, sample
from selfrag.experiments.intrinsics.measures import published_table
from selfrag.experiments.intrinsics.subjects import ALONE, PUBLISHED, Beside, Subject, ask
from selfrag.experiments.report_tables import Section, Table, percent, share
from selfrag.intrinsics.flows.flow import named, run
from selfrag.intrinsics.flows.progress import Writer
from selfrag.intrinsics.state import State, same_question, search_query
from selfrag.training.intrinsics.rows import Labelled

REWRITE_PART = "query_rewrite"
DEPTHS = (5, 10, 20)
PASSAGES = 20
"""Passages of an answer, as in tables 5 to 7."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Who writes the answers after rewrites."""

    writer: Writer  # the model that is measured
    engine: Any  # its engine
    subject: Subject  # judges how faithful they are, where no judge of entailment does
    count: int  # questions at most


def evaluate_rewrite(
    rows: Sequence[Labelled],
    followups: Sequence[Turn],
    search: Retriever | None,
    subjects: Sequence[Subject],
    seed: int,
    writing: Writing | None = None,
    beside: Beside = ALONE,
) -> Section:
    """Measure every subject, the original question and the gold rewrite.

    `rows` are conversations with human rewrites, and `followups` questions with known passages, for which `search`
    searches. With `writing`, answers are written from what each found.
    """
    written = {"no rewrite": [row.state.query or "" for row in rows]}
    defined = {"no rewrite": len(rows)}
    for subject in subjects:
        results = ask(subject, REWRITE_PART, [row.state for row in rows])
        written[subject.name] = [one.text for one in results]
        defined[subject.name] = sum(one.defined for one in results)
    lines = []
    figures: dict[str, dict[str, Any]] = {}
    for system, texts in written.items():
        found = _against_people(rows, texts, seed)
        undefined = {"undefined": len(rows) - defined[system]}
        figures[system] = undefined | {name: one.as_dict() for name, one in found.items()}
        lines.append((system, *map(percent, found.values()), str(len(rows) - defined[system])))
    columns = ("exact match", "word F1", "left alone as people did", "rewritten as people did")
    alone = sum(same_question(row.state.query or "", row.text or "") for row in rows)
    tables = [
        Table(
            f"Rewrites against people's ({len(rows)}, of which people left {alone} alone)",
            ("system", *columns, "undefined"),
            tuple(lines),
            ("Where a model wrote no rewrite, the original question stands and is counted as such",),
        )
    ]
    items: list[dict[str, Any]] = [
        {"id": row.id, "gold": row.text, **{system: texts[at] for system, texts in written.items()}}
        for at, row in enumerate(rows)
    ]
    if followups and search is not None:
        queries = _queries(followups, subjects)
        measured = {"retrieval": _retrieval(followups, search, queries, seed)}
        if writing is not None:
            measured["answers"] = _answers(followups, search, queries, writing, beside, seed)
        for name, (more, values, records) in measured.items():
            tables += more
            items += records
            for system, found_by_part in values.items():
                figures.setdefault(system, {})[name] = found_by_part
    for key, title, head in (
        ("recall", "tables 2 to 4", tuple(f"R@{k}" for k in DEPTHS)),
        ("rewritten", "tables 5 to 7", ("RAGAS-F", "RAD-Bench")),
    ):
        paper = PUBLISHED[key].items()
        tables += [published_table(f"{title}, MT-RAG, {part}", head, found, 2) for part, found in paper]
    return Section(REWRITE_PART, tuple(tables), figures, tuple(items))


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


Measured: TypeAlias = tuple[list[Table], dict[str, Any], list[dict[str, Any]]]
"""Tables, figures by system and part, and items."""


def _queries(followups: Sequence[Turn], subjects: Sequence[Subject]) -> dict[str, list[str]]:
    """What each system searches for, for each question."""
    queries: dict[str, list[str]] = {"no rewrite": [one.state.query or "" for one in followups]}
    for subject in subjects:
        written = [one.text for one in ask(subject, REWRITE_PART, [turn.state for turn in followups])]
        queries[subject.name] = written
        queries[f"{subject.name} after the question"] = [
            search_query(asked, text) for asked, text in zip(queries["no rewrite"], written, strict=True)
        ]
    return queries | {"gold rewrite": [one.gold for one in followups]}


def _by_need(followups: Sequence[Turn]) -> dict[str, list[int]]:
    """Places of all questions, and of those that need the conversation and those that do not."""
    return {
        "full": list(range(len(followups))),
        "non-standalone": [at for at, one in enumerate(followups) if not one.standalone],
        "standalone": [at for at, one in enumerate(followups) if one.standalone],
    }


def _retrieval(followups: Sequence[Turn], search: Retriever, queries: Mapping[str, list[str]], seed: int) -> Measured:
    rankings = {
        system: [[one.id for one in hits] for hits in search(texts, max(DEPTHS))] for system, texts in queries.items()
    }
    tables, figures = [], dict[str, Any]()
    for part, members in _by_need(followups).items():
        lines = []
        for system, ranked in rankings.items():
            found = _figures([followups[at] for at in members], [ranked[at] for at in members], seed)
            figures.setdefault(system, {})[part] = {name: one.as_dict() for name, one in found.items()}
            lines.append((system, *map(share, found.values())))
        head = ("system", *(f"R@{k}" for k in DEPTHS), "nDCG@10")
        tables.append(Table(f"Retrieval with the rewrite, {part} ({len(members)})", head, tuple(lines)))
    if any(one.id.endswith(FOLLOW_UP) for one in followups):
        note = "Follow-ups made from questions that name their passage's title; the question itself is the gold rewrite"
        tables[0] = replace(tables[0], notes=(note,))
    records = [
        {"id": one.id, "gold": one.gold, "relevant": sorted(one.relevant), **{s: q[at] for s, q in queries.items()}}
        for at, one in enumerate(followups)
    ]
    return tables, figures, records


ANSWERS_HEAD = ("system", "faithfulness", "quality", "word F1", "failed")


def _answers(
    followups: Sequence[Turn],
    search: Retriever,
    queries: Mapping[str, list[str]],
    writing: Writing,
    beside: Beside,
    seed: int,
) -> Measured:
    """Answers from the passages that each system's queries find (section 2.2.2 of the paper)."""
    wanted = {one.id for one in sample(followups, writing.count)}
    places = [at for at, one in enumerate(followups) if one.id in wanted]
    chosen = [followups[at] for at in places]
    flow = named("none", writing.writer, k=PASSAGES)
    values: dict[str, list[dict[str, float | None]]] = {}
    records = []
    for system, texts in queries.items():
        passages = search([texts[at] for at in places], PASSAGES)
        shown = [State(one.state.messages, tuple(found)) for one, found in zip(chosen, passages, strict=True)]
        answers = run(flow, shown, writing.engine)
        values[system] = _qualities(chosen, answers, writing.subject, beside)
        records += [
            {
                "id": one.id,
                "searched by": system,
                "answer": answer.text if isinstance(answer, Answer) else None,
                **found,
            }
            for one, answer, found in zip(chosen, answers, values[system], strict=True)
        ]
    tables, figures = [], dict[str, Any]()
    for part, members in _by_need(chosen).items():
        lines = []
        for system, every in values.items():
            columns = {name: [every[at][name] for at in members] for name in ANSWERS_HEAD[1:4]}
            found = {name: mean([v for v in own if v is not None], seed=seed) for name, own in columns.items()}
            failed = sum(every[at]["failed"] == 1.0 for at in members)
            lines.append((system, *map(share, found.values()), str(failed)))
            figures.setdefault(system, {})[part] = {name: one.as_dict() for name, one in found.items()}
        tables.append(Table(f"Answers after rewrites, {part} ({len(members)})", ANSWERS_HEAD, tuple(lines)))
    judge = "this library's hallucination detection" if beside.entails is None else "a judge of entailment"
    notes = (
        f"{PASSAGES} passages; faithfulness by {judge}; word F1 against the right answers that are known",
        "Quality: a grader's rating from 1 to 10, shown as 0 to 1, as RAD-Bench's; only where a right answer is known",
    )
    tables[0] = replace(tables[0], notes=notes)
    return tables, figures, records


def _qualities(
    turns: Sequence[Turn], answers: Sequence[Answer | UserError], subject: Subject, beside: Beside
) -> list[dict[str, float | None]]:
    """Faithfulness, quality and word F1 of each answer, where they are known."""
    states = answered(turns, answers)
    found: list[dict[str, float | None]] = [
        {"faithfulness": None, "quality": None, "word F1": None, "failed": float(state is None)} for state in states
    ]
    written = [(at, state) for at, state in enumerate(states) if state is not None]
    for (at, _), value in zip(written, faithfulness([s for _, s in written], subject, beside.entails), strict=True):
        found[at]["faithfulness"] = value
    known = [(at, state) for at, state in written if turns[at].answers]
    for at, state in known:
        found[at]["word F1"] = token_f1(state.response or "", list(turns[at].answers))
    if beside.grader is not None:
        rated = beside.grader.quality([s for _, s in known], [" / ".join(turns[at].answers) for at, _ in known])
        for (at, _), value in zip(known, rated, strict=True):
            found[at]["quality"] = value
    return found


def _figures(followups: Sequence[Turn], ranked: Sequence[Sequence[str]], seed: int) -> Mapping[str, Estimate]:
    def over(score: Callable[[Turn, Sequence[str]], float | None]) -> Estimate:
        values = [score(one, ranking) for one, ranking in zip(followups, ranked, strict=True)]
        return mean([value for value in values if value is not None], seed=seed)

    found = {
        f"recall@{k}": over(lambda one, ranking, k=k: recall_at(ranking, one.relevant, k))  # type: ignore[misc]
        for k in DEPTHS
    }
    return found | {"ndcg@10": over(lambda one, ranking: ndcg_at(ranking, dict.fromkeys(one.relevant, 1.0), 10))}
