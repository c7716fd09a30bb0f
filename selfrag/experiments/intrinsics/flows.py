"""Conversations with known passages: query rewrites, what they find, answers from that, and the paper's four flows.

Tables 2 to 7, 11 and 14 to 16 of the intrinsics paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import isnan, nan
from statistics import fmean
from typing import Any, TypeAlias

from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.intervals import DIFFERENCE, NONE, Estimate, json_values, mean
from selfrag.evaluation.metrics.answers import exact_match, token_f1
from selfrag.evaluation.metrics.citations import (
    Entails,
    as_sentences,
    ndcg_at,
    recall_at,
)
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    FlowOutcome,
    JointFigures,
    joint_figures,
)
from selfrag.evaluation.metrics.grading import Grader
from selfrag.experiments.intrinsics.conversations import FOLLOW_UP, JudgedTurn, sample
from selfrag.experiments.intrinsics.measures import published_table
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
from selfrag.intrinsics.flows.flow import NAMES, named_flow, run
from selfrag.intrinsics.flows.progress import AnswerWriter
from selfrag.intrinsics.questions import Answerability, QueryRewrite
from selfrag.judges.conversation import same_question, search_query
from selfrag.judges.entailment import premise
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.training.intrinsics.rows import IntrinsicRow

FLOWS_PART = "flows"
PASSAGES = 5
_CLASSES = ("F1 unans.", "F1 ans.", "R unans.", "R ans.")
FLOWS_HEAD = (
    *(
        "flow",
        *_CLASSES,
        "responses",
        "faithfulness",
        "of responses",
        "JAFS",
        "unknown",
    ),
    *(f"JAFS less {NAMES[0]}", "tokens", "computed", "failed"),
)


def evaluate_flows(
    followups: Sequence[JudgedTurn],
    retriever: Retriever,
    writer: AnswerWriter,
    subject: Subject,
    engine: Any,
    seed: int,
    beside: Beside = ALONE,
) -> MeasuredSection:
    """Run the paper's flows.

    A question is answerable if the flow retrieved one of its passages, and answered if the text does not say that it
    does not know. Faithfulness is the mean over sentences by the subject's own hallucination detection; with a judge it
    is the share of sentences that the passages entail, as RAGAS counts statements.
    """
    rewrite, answerable = (
        subject.judge(kind.name) for kind in (QueryRewrite, Answerability)
    )
    lines, figures, items = [], dict[str, Any](), list[dict[str, Any]]()
    first: list[FlowOutcome | None] = []
    for name in NAMES:
        # 1. answers, and what became of each question
        flow = named_flow(
            name, writer, rewrite=rewrite, answerability=answerable, k=PASSAGES
        )
        answers = run(flow, [turn.state for turn in followups], engine, retriever)
        outcomes = _outcomes(followups, answers, subject, beside)
        first = first or outcomes
        items += list(map(partial(_flow_item, name), followups, answers, outcomes))
        # 2. figures, and the paired difference to the first flow
        known = [outcome for outcome in outcomes if outcome is not None]
        failed = len(outcomes) - len(known)
        gains = [
            _joint(outcome) - _joint(reference)
            for outcome, reference in zip(outcomes, first, strict=True)
        ]
        gain = mean(
            [value for value in gains if not isnan(value)], seed=seed, bounds=DIFFERENCE
        )
        values: dict[str, Any] = {}
        cells: Sequence[str] = [NONE] * (len(FLOWS_HEAD) - 5)
        if known:
            joint = joint_figures(known, seed=seed)
            values, cells = json_values(joint), _flow_cells(joint)
        # 3. tokens
        used = [answer.usage for answer in answers if isinstance(answer, Answer)]
        tokens, computed, spent = None, None, (NONE, NONE)
        if used:
            tokens = fmean(
                usage.prompt_tokens + usage.generated_tokens for usage in used
            )
            computed = tokens - fmean(usage.cached_tokens for usage in used)
            spent = (f"{tokens:,.0f}", f"{computed:,.0f}")
        values |= {
            "jafs_gain": gain.as_dict(),
            "tokens": tokens,
            "computed_tokens": computed,
            "failed": failed,
        }
        figures[name] = values
        less = NONE if outcomes is first else percent(gain)
        lines.append((name, *cells, less, *spent, str(failed)))
    measured = ReportTable(
        f"Flows ({len(followups)} questions, {PASSAGES} passages)",
        FLOWS_HEAD,
        tuple(lines),
        (
            "Answerable: one of the question's passages was retrieved",
            "Faithfulness: an abstention on an answerable question counts 0, as in the paper; of responses: without",
            f"Faithfulness by {'this' if beside.entails is None else 'a judge of entailment, not by this'} library's"
            " hallucination detection; unknown where it could not say",
            f"That an answer says it does not know is decided by {'a grader' if beside.grader else 'its words'}",
            f"JAFS less {NAMES[0]}: the paired difference, over questions of which both are known",
            "Tokens a question, of prompts and what was written, for rewrites and judgments too; computed: not cached",
            "Failed: nothing was written; such a question is in no other figure of the flow",
        ),
    )
    judged = ("RAGAS-F", "JAFS")
    tables = (
        measured,
        published_table(
            "tables 14 to 16, MT-RAG",
            (*_CLASSES[:2], "responses", *judged),
            PUBLISHED["flows"],
            0,
        ),
        published_table(
            "table 11, MT-RAG", (*_CLASSES, *judged), PUBLISHED["gating"], 0
        ),
    )
    return MeasuredSection(FLOWS_PART, tables, figures, tuple(items))


def _flow_item(
    flow: str, turn: JudgedTurn, answer: Answer | UserError, outcome: FlowOutcome | None
) -> dict[str, Any]:
    """Return the record of one question in one flow."""
    item: dict[str, Any] = {"id": turn.id, "flow": flow, "answer": None, "error": None}
    if isinstance(answer, Answer):
        item["answer"] = answer.text
    else:
        item["error"] = str(answer)
    for name in ("answerable", "answered", "faithfulness"):
        item[name] = getattr(outcome, name, None)
    return item


def _joint(outcome: FlowOutcome | None) -> float:
    return nan if outcome is None or outcome.jafs is None else outcome.jafs


def _outcomes(
    followups: Sequence[JudgedTurn],
    answers: Sequence[Answer | UserError],
    subject: Subject,
    beside: Beside,
) -> list[FlowOutcome | None]:
    """Return what became of each question; None where the flow failed: who writes nothing has not abstained."""
    states = answered(followups, answers)
    written = [state for state in states if state is not None]
    silent = _abstained(written, beside.grader)
    said = [
        state for state, is_silent in zip(written, silent, strict=True) if not is_silent
    ]
    values = iter(faithfulness(said, subject, beside.entails))
    abstentions = iter(silent)
    outcomes: list[FlowOutcome | None] = []
    for turn, state in zip(followups, states, strict=True):
        if state is None:
            outcomes.append(None)
            continue
        answerable = not turn.relevant.isdisjoint(
            passage.id for passage in state.passages
        )
        if next(abstentions):
            outcomes.append(FlowOutcome(answerable, answered=False))
        else:
            outcomes.append(
                FlowOutcome(answerable, answered=True, faithfulness=next(values))
            )
    return outcomes


def answered(
    turns: Sequence[JudgedTurn], answers: Sequence[Answer | UserError]
) -> list[JudgeInput | None]:
    """Return each conversation with its answer and the passages behind it; None where nothing was written."""
    states: list[JudgeInput | None] = []
    for turn, answer in zip(turns, answers, strict=True):
        if not isinstance(answer, Answer):
            states.append(None)
            continue
        passages = chain.from_iterable(
            decision.passages for decision in answer.trace.decisions
        )
        shown = {passage.key: passage for passage in passages}
        messages = (*turn.state.messages, Message("assistant", answer.text))
        states.append(JudgeInput(messages, tuple(shown.values())))
    return states


def _abstained(states: Sequence[JudgeInput], grader: Grader | None) -> list[bool]:
    """Return whether each answer says that it does not know: by a grader, and by its words where that did not say."""
    grades = [None] * len(states) if grader is None else grader.abstained(states)
    pairs = zip(states, grades, strict=True)
    return [
        abstains(state.response or "") if grade is None else grade
        for state, grade in pairs
    ]


def faithfulness(
    states: Sequence[JudgeInput], subject: Subject, entails: Entails | None
) -> list[float | None]:
    """Return the faithfulness of each last turn to its passages (0 to 1), by a judge of entailment or the subject."""
    values: list[Sequence[float | None]] = []  # of the sentences of each turn
    if entails is None:
        results = ask(subject, "hallucination_detection", states)
        values += [
            [sentence.faithfulness for sentence in result.sentences]
            for result in results
        ]
    else:
        for state in states:
            known = "\n".join(map(premise, state.passages))
            values.append(
                entails(
                    [
                        (known, claim)
                        for claim in as_sentences(state.messages[-1].content)
                    ]
                )
            )
    means: list[float | None] = []
    for of_turn in values:
        defined = [value for value in of_turn if value is not None]
        means.append(fmean(defined) if defined else None)
    return means


def _flow_cells(figures: JointFigures) -> tuple[str, ...]:
    classes = figures.answerability.classes
    unanswerable, answerable = classes[UNANSWERABLE], classes[ANSWERABLE]
    return (
        percent(unanswerable.f1),
        percent(answerable.f1),
        percent(unanswerable.recall),
        percent(answerable.recall),
        str(figures.responses),
        percent(figures.faithfulness) if answerable.support else NONE,
        percent(figures.response_faithfulness) if figures.responses else NONE,
        percent(figures.jafs),
        str(figures.unknown),
    )


REWRITE_PART = "query_rewrite"
DEPTHS = (5, 10, 20)
ANSWER_PASSAGES = 20
"""Passages of an answer, as in tables 5 to 7."""


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
    search: Retriever | None,
    subjects: Sequence[Subject],
    seed: int,
    writing: Writing | None = None,
    beside: Beside = ALONE,
) -> MeasuredSection:
    """Measure every subject, the original question and the gold rewrite.

    `rows` are conversations with human rewrites, and `followups` questions with known passages, for which `search`
    searches. With `writing`, answers are written from what each found.
    """
    written = {"no rewrite": [row.state.query or "" for row in rows]}
    defined = {"no rewrite": len(rows)}
    for subject in subjects:
        results = ask(subject, REWRITE_PART, [row.state for row in rows])
        written[subject.name] = [rewrite.text for rewrite in results]
        defined[subject.name] = sum(rewrite.defined for rewrite in results)
    lines = []
    figures: dict[str, dict[str, Any]] = {}
    for system, texts in written.items():
        agreement = _against_people(rows, texts, seed)
        undefined = len(rows) - defined[system]
        figures[system] = {"undefined": undefined, **json_values(agreement)}
        lines.append((system, *map(percent, agreement.values()), str(undefined)))
    columns = (
        "exact match",
        "word F1",
        "left alone as people did",
        "rewritten as people did",
    )
    alone = sum(same_question(row.state.query or "", row.text or "") for row in rows)
    tables = [
        ReportTable(
            f"Rewrites against people's ({len(rows)}, of which people left {alone} alone)",
            ("system", *columns, "undefined"),
            tuple(lines),
            (
                "Where a model wrote no rewrite, the original question stands and is counted as such",
            ),
        )
    ]
    items: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        items.append(
            {"id": row.id, "gold": row.text}
            | {system: texts[place] for system, texts in written.items()}
        )
    if followups and search is not None:
        queries = _queries(followups, subjects)
        measured = {"retrieval": _retrieval(followups, search, queries, seed)}
        if writing is not None:
            measured["answers"] = _answers(
                followups, search, queries, writing, beside, seed
            )
        for name, (more, by_system, records) in measured.items():
            tables += more
            items += records
            for system, by_part in by_system.items():
                figures.setdefault(system, {})[name] = by_part
    for key, title, head in (
        ("recall", "tables 2 to 4", tuple(f"R@{k}" for k in DEPTHS)),
        ("rewritten", "tables 5 to 7", ("RAGAS-F", "RAD-Bench")),
    ):
        paper = PUBLISHED[key].items()
        tables += [
            published_table(f"{title}, MT-RAG, {part}", head, systems, 2)
            for part, systems in paper
        ]
    return MeasuredSection(REWRITE_PART, tuple(tables), figures, tuple(items))


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


Measured: TypeAlias = tuple[list[ReportTable], dict[str, Any], list[dict[str, Any]]]
"""Tables, figures by system and part, and items."""


def _queries(
    followups: Sequence[JudgedTurn], subjects: Sequence[Subject]
) -> dict[str, list[str]]:
    """Return what each system searches for, for each question."""
    questions = [turn.state.query or "" for turn in followups]
    queries: dict[str, list[str]] = {"no rewrite": questions}
    for subject in subjects:
        rewrites = [
            rewrite.text
            for rewrite in ask(
                subject, REWRITE_PART, [turn.state for turn in followups]
            )
        ]
        queries[subject.name] = rewrites
        queries[f"{subject.name} after the question"] = list(
            map(search_query, questions, rewrites)
        )
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
    search: Retriever,
    queries: Mapping[str, list[str]],
    seed: int,
) -> Measured:
    values = {}  # system to the figures of each question
    for system, texts in queries.items():
        values[system] = list(
            map(_ranking_figures, followups, search(texts, max(DEPTHS)))
        )
    tables, figures = [], dict[str, Any]()
    for part, members in _by_need(followups).items():
        lines = []
        for system, every in values.items():
            means = {
                name: mean([every[place][name] for place in members], seed=seed)
                for name in RANKING
            }
            figures.setdefault(system, {})[part] = json_values(means)
            lines.append((system, *map(share, means.values())))
        head = ("system", *(f"R@{k}" for k in DEPTHS), "nDCG@10")
        tables.append(
            ReportTable(
                f"Retrieval with the rewrite, {part} ({len(members)})",
                head,
                tuple(lines),
            )
        )
    if any(turn.id.endswith(FOLLOW_UP) for turn in followups):
        note = "Follow-ups made from questions that name their passage's title; the question itself is the gold rewrite"
        tables[0] = replace(tables[0], notes=(note,))
    records = []
    for place, turn in enumerate(followups):
        record = {"id": turn.id, "gold": turn.gold, "relevant": sorted(turn.relevant)}
        records.append(
            record | {system: texts[place] for system, texts in queries.items()}
        )
    return tables, figures, records


RANKING = (*(f"recall@{k}" for k in DEPTHS), "ndcg@10")


def _ranking_figures(
    turn: JudgedTurn, hits: Sequence[Passage]
) -> dict[str, float | None]:
    ranking = [passage.id for passage in hits]
    figures = {f"recall@{k}": recall_at(ranking, turn.relevant, k) for k in DEPTHS}
    return {
        **figures,
        "ndcg@10": ndcg_at(ranking, dict.fromkeys(turn.relevant, 1.0), 10),
    }


ANSWERS_HEAD = ("system", "faithfulness", "quality", "word F1", "failed")


def _answers(
    followups: Sequence[JudgedTurn],
    search: Retriever,
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
    for system, texts in queries.items():
        passages = search([texts[place] for place in places], ANSWER_PASSAGES)
        shown = [
            JudgeInput(turn.state.messages, tuple(hits))
            for turn, hits in zip(chosen, passages, strict=True)
        ]
        answers = run(flow, shown, writing.engine)
        values[system] = _qualities(chosen, answers, writing.subject, beside)
        for turn, answer, qualities in zip(
            chosen, answers, values[system], strict=True
        ):
            text = answer.text if isinstance(answer, Answer) else None
            records.append(
                {"id": turn.id, "searched by": system, "answer": text, **qualities}
            )
    tables, figures = [], dict[str, Any]()
    for part, members in _by_need(chosen).items():
        lines = []
        for system, every in values.items():
            of_part = [every[place] for place in members]
            means = {
                name: mean([row[name] for row in of_part], seed=seed)
                for name in ANSWERS_HEAD[1:4]
            }
            failed = sum(row["failed"] == 1.0 for row in of_part)
            lines.append((system, *map(share, means.values()), str(failed)))
            figures.setdefault(system, {})[part] = json_values(means)
        tables.append(
            ReportTable(
                f"Answers after rewrites, {part} ({len(members)})",
                ANSWERS_HEAD,
                tuple(lines),
            )
        )
    judge = (
        "this library's hallucination detection"
        if beside.entails is None
        else "a judge of entailment"
    )
    notes = (
        f"{ANSWER_PASSAGES} passages; faithfulness by {judge}; word F1 against the right answers that are known",
        "Quality: a grader's rating from 1 to 10, shown as 0 to 1, as RAD-Bench's; only where a right answer is known",
    )
    tables[0] = replace(tables[0], notes=notes)
    return tables, figures, records


def _qualities(
    turns: Sequence[JudgedTurn],
    answers: Sequence[Answer | UserError],
    subject: Subject,
    beside: Beside,
) -> list[dict[str, float | None]]:
    """Return faithfulness, quality and word F1 of each answer, where they are known."""
    qualities: list[dict[str, float | None]] = []
    written, known = (
        dict[int, JudgeInput](),
        dict[int, JudgeInput](),
    )  # by place; known: with a right answer
    for place, state in enumerate(answered(turns, answers)):
        failed = float(state is None)
        qualities.append(
            {"faithfulness": None, "quality": None, "word F1": None, "failed": failed}
        )
        if state is None:
            continue
        written[place] = state
        if turns[place].answers:
            known[place] = state
            qualities[place]["word F1"] = token_f1(
                state.response or "", list(turns[place].answers)
            )
    for place, value in zip(
        written,
        faithfulness(list(written.values()), subject, beside.entails),
        strict=True,
    ):
        qualities[place]["faithfulness"] = value
    if beside.grader is not None:
        references = [" / ".join(turns[place].answers) for place in known]
        for place, value in zip(
            known, beside.grader.quality(list(known.values()), references), strict=True
        ):
            qualities[place]["quality"] = value
    return qualities
