"""Query rewrites beside people's, what they find, and the answers from that (tables 2 to 7 of the intrinsics paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.failures import Failures
from selfrag.evaluation.intervals import json_values, mean
from selfrag.evaluation.metrics.answers import exact_match, token_f1
from selfrag.evaluation.metrics.rankings import ndcg_at, recall_at
from selfrag.experiments.intrinsics.conversations import (
    FOLLOW_UP,
    JudgedTurn,
    Searches,
    sample,
    search_each,
)
from selfrag.experiments.intrinsics.flows import (
    answered_inputs,
    failed_answers,
    faithfulness,
)
from selfrag.experiments.intrinsics.part_tables import (
    item_records,
    measure_parts,
    published_table,
    why_table_left_out,
)
from selfrag.experiments.intrinsics.subjects import (
    ALONE,
    PUBLISHED,
    Beside,
    Subject,
    ask,
)
from selfrag.experiments.report_tables import (
    MeasuredSection,
    ReportTable,
    percent,
    share,
)
from selfrag.interface import Answer, Estimate, JudgeInput, Passage, UserError
from selfrag.intrinsics.flows.flow import named_flow, run
from selfrag.intrinsics.flows.progress import AnswerWriter
from selfrag.judges.conversation import same_question, search_query
from selfrag.training.intrinsics.rows import IntrinsicRow

REWRITE_PART = "query_rewrite"
UNTOUCHED = "no rewrite"
DEPTHS = (5, 10, 20)
RANKING = (*(f"recall@{k}" for k in DEPTHS), "ndcg@10")
ANSWER_PASSAGES = 20
"""Passages of an answer, as in tables 5 to 7."""
ANSWERS_HEAD = ("system", "faithfulness", "quality", "word F1", "failed")
REWRITES_HEAD = (
    "system",
    "exact match",
    "word F1",
    "left alone as people did",
    "rewritten as people did",
    "undefined",
)

Measured: TypeAlias = tuple[
    list[ReportTable],
    dict[str, JsonObject],
    list[JsonObject],
    list[Failures],
]
"""Tables, figures by system and part, items, and what failed."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Who writes the answers after rewrites."""

    writer: AnswerWriter  # the model that is measured
    engine: Any  # its engine
    subject: Subject  # judges how faithful they are, where no judge of entailment does
    count: int  # questions at most


def evaluate_rewrite(
    rows: Sequence[IntrinsicRow],
    followups: Sequence[JudgedTurn],
    search: Searches | None,
    subjects: Sequence[Subject],
    seed: int,
    writing: Writing | None = None,
    beside: Beside = ALONE,
) -> MeasuredSection:
    """Measure every subject, the original question and the gold rewrite.

    `rows` are conversations with human rewrites, and `followups` questions with known passages, for which `search`
    searches. With `writing`, answers are written from what each found.
    """
    # 1. rewrites against people's
    texts_of = {UNTOUCHED: [row.state.query or "" for row in rows]}
    undefined = {UNTOUCHED: 0}
    for subject in subjects:
        results = ask(subject, REWRITE_PART, [row.state for row in rows])
        texts_of[subject.name] = [rewrite.text for rewrite in results]
        undefined[subject.name] = sum(not rewrite.defined for rewrite in results)
    lines = []
    figures: dict[str, JsonObject] = {}
    for system, texts in texts_of.items():
        agreement = _against_people(rows, texts, seed)
        count = undefined[system]
        figures[system] = {"undefined": count, **json_values(agreement)}
        lines.append((system, *map(percent, agreement.values()), str(count)))
    alone = sum(same_question(row.state.query or "", row.text or "") for row in rows)
    title = (
        f"Rewrites against people's ({len(rows)}, of which people left {alone} alone)"
    )
    note = "Where a model wrote no rewrite, the original question stands and is counted as such"
    tables = [ReportTable(title, REWRITES_HEAD, tuple(lines), (note,))]
    items = item_records(rows, {"gold": [row.text for row in rows], **texts_of})
    failures: list[Failures] = []
    # 2. what the rewrites find, and the answers from that
    if followups and search is not None:
        queries = _queries(followups, subjects)
        measured = {"retrieval": _retrieval(followups, search, queries, seed)}
        if writing is not None:
            measured["answers"] = _answers(
                followups, search, queries, writing, beside, seed
            )
        for name, (further, by_system, records, failed) in measured.items():
            tables += further
            items += records
            failures += failed
            for system, by_part in by_system.items():
                figures.setdefault(system, {})[name] = by_part
    # 3. published figures
    metric_of_answers = "RAGAS and RAD-Bench"
    if writing is None:
        metric_of_answers = "nothing, as no answers were written"
    elif beside.entails is None or beside.grader is None:
        metric_of_answers = "this library's hallucination detection"
    for key, number, metric, head in (
        ("recall", "2-4", "recall", tuple(f"R@{k}" for k in DEPTHS)),
        ("rewritten", "5-7", metric_of_answers, ("RAGAS-F", "RAD-Bench")),
    ):
        measured_turns = (
            followups
            if key == "recall" or writing is None
            else sample(followups, writing.count)
        )
        left_out = why_table_left_out(
            f"intrinsics-{number}", measured_turns, "mtrag", metric
        )
        for part, systems in PUBLISHED[key].items():
            heading = f"tables {number.replace('-', ' to ')}, MT-RAG, {part}"
            tables.append(published_table(heading, head, systems, 2, left_out=left_out))
            if left_out:  # once for all parts
                break
    section = MeasuredSection(REWRITE_PART, tuple(tables), figures, tuple(items))
    return section.with_failures(failures)


def _against_people(
    rows: Sequence[IntrinsicRow], texts: Sequence[str], seed: int
) -> dict[str, Estimate]:
    values: dict[str, list[float]] = {
        "exact_match": [],
        "word_f1": [],
        "left_alone": [],
        "rewritten": [],
    }
    for row, text in zip(rows, texts, strict=True):
        gold, original = row.text or "", row.state.query or ""
        values["exact_match"].append(exact_match(text, [gold]))
        values["word_f1"].append(token_f1(text, [gold]))
        kept = same_question(original, text)
        if same_question(original, gold):
            values["left_alone"].append(float(kept))
        else:
            values["rewritten"].append(float(not kept))
    return {name: mean(column, seed=seed) for name, column in values.items()}


def _queries(
    followups: Sequence[JudgedTurn], subjects: Sequence[Subject]
) -> dict[str, list[str]]:
    """Return what each system searches for, for each question."""
    questions = [turn.state.query or "" for turn in followups]
    queries: dict[str, list[str]] = {UNTOUCHED: questions}
    for subject in subjects:
        results = ask(subject, REWRITE_PART, [turn.state for turn in followups])
        rewrites = [rewrite.text for rewrite in results]
        queries[subject.name] = rewrites
        both = list(map(search_query, questions, rewrites))
        queries[f"{subject.name} after the question"] = both
    queries["gold rewrite"] = [turn.gold for turn in followups]
    return queries


def _by_need(followups: Sequence[JudgedTurn]) -> dict[str, list[int]]:
    """Return the places of all questions, and of those that need the conversation and those that do not."""
    places: dict[str, list[int]] = {"full": [], "non-standalone": [], "standalone": []}
    for place, turn in enumerate(followups):
        places["full"].append(place)
        places["standalone" if turn.standalone else "non-standalone"].append(place)
    return places


def _retrieval(
    followups: Sequence[JudgedTurn],
    search: Searches,
    queries: Mapping[str, list[str]],
    seed: int,
) -> Measured:
    values = {}  # system to the figures of each question
    for system, texts in queries.items():
        rankings = search_each(search, followups, texts, max(DEPTHS))
        values[system] = list(map(_ranking_figures, followups, rankings))

    def measure(
        system: str, members: Sequence[int]
    ) -> tuple[Sequence[str], JsonObject]:
        return _means([values[system][place] for place in members], RANKING, seed)

    head = ("system", *(f"R@{k}" for k in DEPTHS), "nDCG@10")
    tables, figures = measure_parts(
        "Retrieval with the rewrite", head, _by_need(followups), values, measure
    )
    if any(turn.id.endswith(FOLLOW_UP) for turn in followups):
        note = "Follow-ups made from questions that name their passage's title; the question itself is the gold rewrite"
        tables[0] = replace(tables[0], notes=(note,))
    known: dict[str, Sequence[Any]] = {
        "gold": [turn.gold for turn in followups],
        "relevant": [sorted(turn.relevant) for turn in followups],
    }
    records = item_records(followups, {**known, **queries})
    return tables, figures, records, []


def _means(
    rows: Sequence[Mapping[str, float | None]], names: Sequence[str], seed: int
) -> tuple[Sequence[str], JsonObject]:
    """Return the means of some figures as cells and as values for JSON."""
    means = {}
    for name in names:
        means[name] = mean([row[name] for row in rows], seed=seed)
    return tuple(map(share, means.values())), json_values(means)


def _ranking_figures(
    turn: JudgedTurn, hits: Sequence[Passage]
) -> dict[str, float | None]:
    ranking = [passage.id for passage in hits]
    figures = {}
    for k in DEPTHS:
        figures[f"recall@{k}"] = recall_at(ranking, turn.relevant, k)
    figures["ndcg@10"] = ndcg_at(ranking, dict.fromkeys(turn.relevant, 1.0), 10)
    return figures


def _answers(
    followups: Sequence[JudgedTurn],
    search: Searches,
    queries: Mapping[str, list[str]],
    writing: Writing,
    beside: Beside,
    seed: int,
) -> Measured:
    """Measure answers from the passages that each system's queries find (section 2.2.2 of the paper)."""
    sampled = {turn.id for turn in sample(followups, writing.count)}
    places = [place for place, turn in enumerate(followups) if turn.id in sampled]
    chosen = [followups[place] for place in places]
    flow = named_flow("none", writing.writer, k=ANSWER_PASSAGES)
    values: dict[str, list[dict[str, float | None]]] = {}
    records = []
    failures: list[Failures] = []
    for system, texts in queries.items():
        of_chosen = [texts[place] for place in places]
        rankings = search_each(search, chosen, of_chosen, ANSWER_PASSAGES)
        inputs = []
        for turn, hits in zip(chosen, rankings, strict=True):
            inputs.append(JudgeInput(turn.state.messages, tuple(hits)))
        answers = run(flow, inputs, writing.engine)
        values[system] = _qualities(chosen, answers, writing.subject, beside)
        for turn, answer, figures_of in zip(
            chosen, answers, values[system], strict=True
        ):
            record = {"id": turn.id, "searched by": system}
            written: dict[str, str | None] = {"answer": None, "error": str(answer)}
            if isinstance(answer, Answer):
                written = {"answer": answer.text, "error": None}
            records.append({**record, **written, **figures_of})
        failed = failed_answers(system, "answers after rewrites", answers)
        if failed.failed:
            failures.append(failed)

    def measure(
        system: str, members: Sequence[int]
    ) -> tuple[Sequence[str], JsonObject]:
        rows = [values[system][place] for place in members]
        cells, means = _means(rows, ANSWERS_HEAD[1:4], seed)
        count = sum(row["failed"] == 1.0 for row in rows)
        return (*cells, str(count)), means

    tables, figures = measure_parts(
        "Answers after rewrites", ANSWERS_HEAD, _by_need(chosen), values, measure
    )
    judge = "a judge of entailment"
    if beside.entails is None:
        judge = "this library's hallucination detection"
    notes = (
        f"{ANSWER_PASSAGES} passages; faithfulness by {judge}; word F1 against the right answers that are known",
        "Quality: a grader's rating from 1 to 10, shown as 0 to 1, as RAD-Bench's; only where a right answer is known",
    )
    tables[0] = replace(tables[0], notes=notes)
    return tables, figures, records, failures


def _qualities(
    turns: Sequence[JudgedTurn],
    answers: Sequence[Answer | UserError],
    subject: Subject,
    beside: Beside,
) -> list[dict[str, float | None]]:
    """Return faithfulness, quality and word F1 of each answer, where they are known."""
    qualities: list[dict[str, float | None]] = []
    written: dict[int, JudgeInput] = {}  # by place
    known: dict[int, JudgeInput] = {}  # those with a right answer
    for place, state in enumerate(answered_inputs(turns, answers)):
        failed = float(state is None)
        qualities.append(
            {"faithfulness": None, "quality": None, "word F1": None, "failed": failed}
        )
        if state is None:
            continue
        written[place] = state
        if right := list(turns[place].answers):
            known[place] = state
            qualities[place]["word F1"] = token_f1(state.response or "", right)
    values = faithfulness(list(written.values()), subject, beside)
    for place, value in zip(written, values, strict=True):
        qualities[place]["faithfulness"] = value
    if beside.grader is not None:
        references = [" / ".join(turns[place].answers) for place in known]
        grades = beside.grader.quality(list(known.values()), references)
        for place, grade in zip(known, grades, strict=True):
            qualities[place]["quality"] = grade
    return qualities
