"""The paper's four flows over conversations with known passages (tables 11 and 14 to 16 of the intrinsics paper)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from statistics import fmean
from typing import Any

from selfrag.common.jsonl import JsonObject
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.failures import Failures, count_reasons
from selfrag.evaluation.intervals import DIFFERENCE, NONE, json_values, mean
from selfrag.evaluation.metrics.alce import as_sentences
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    FlowOutcome,
    JointFigures,
    joint_figures,
)
from selfrag.evaluation.metrics.grading import Grader
from selfrag.experiments.intrinsics.conversations import (
    JudgedTurn,
    Searches,
    places_by_collection,
)
from selfrag.experiments.intrinsics.part_tables import (
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
from selfrag.experiments.report_tables import MeasuredSection, ReportTable, percent
from selfrag.interface import Answer, JudgeInput, Message, Passage, UserError, count_of
from selfrag.intrinsics.flows.flow import NAMES, named_flow, run
from selfrag.intrinsics.flows.progress import AnswerWriter
from selfrag.intrinsics.questions import Answerability, QueryRewrite
from selfrag.judges.entailment import premise

FLOWS_PART = "flows"
PASSAGES = 5
_CLASSES = ("F1 unans.", "F1 ans.", "R unans.", "R ans.")
FLOWS_HEAD = (
    "flow",
    *_CLASSES,
    "responses",
    "faithfulness",
    "of responses",
    "JAFS",
    "unknown",
    f"JAFS less {NAMES[0]}",
    "tokens",
    "computed",
    "failed",
)


def evaluate_flows(
    followups: Sequence[JudgedTurn],
    searches: Searches,
    writer: AnswerWriter,
    subject: Subject,
    engine: Any,
    seed: int,
    beside: Beside = ALONE,
) -> MeasuredSection:
    """Run the paper's flows.

    A question is answerable if the flow retrieved one of its passages, and answered if the text does not say that it
    does not know. Faithfulness is the mean over sentences by the subject's own hallucination detection; with a judge it
    is the share of sentences that the passages entail, and with a grader beside it that of statements (RAGAS).
    """
    rewrite = subject.judge(QueryRewrite.name)
    answerable = subject.judge(Answerability.name)
    lines, figures, items = [], JsonObject(), list[JsonObject]()
    failures: list[Failures] = []
    first: list[FlowOutcome | None] = []
    for name in NAMES:
        # 1. answers, and what became of each question
        flow = named_flow(
            name, writer, rewrite=rewrite, answerability=answerable, k=PASSAGES
        )
        answers = _write_answers(flow, followups, engine, searches)
        outcomes = _outcomes(followups, answers, subject, beside)
        first = first or outcomes
        for turn, answer, outcome in zip(followups, answers, outcomes, strict=True):
            item: JsonObject = {"id": turn.id, "flow": name}
            item |= {"answer": None, "error": str(answer)}
            if isinstance(answer, Answer):
                item |= {"answer": answer.text, "error": None}
            for figure in ("answerable", "answered", "faithfulness"):
                item[figure] = getattr(outcome, figure, None)
            items.append(item)
        # 2. figures, and the paired difference to the first flow
        known = [outcome for outcome in outcomes if outcome is not None]
        failed = len(outcomes) - len(known)
        if failed:
            failures.append(failed_answers(name, FLOWS_PART, answers))
        gains = []
        for outcome, reference in zip(outcomes, first, strict=True):
            difference = _joint(outcome) - _joint(reference)
            if not isnan(difference):
                gains.append(difference)
        gain = mean(gains, seed=seed, bounds=DIFFERENCE)
        values: JsonObject = {}
        cells: Sequence[str] = [NONE] * (len(FLOWS_HEAD) - 5)
        if known:
            joint = joint_figures(known, seed=seed)
            values, cells = json_values(joint), _flow_cells(joint)
        # 3. tokens
        prompted, cached = list[int](), list[int]()
        for answer in answers:
            if isinstance(answer, Answer):
                usage = answer.usage
                prompted.append(usage.prompt_tokens + usage.generated_tokens)
                cached.append(usage.cached_tokens)
        tokens, computed, spent = None, None, (NONE, NONE)
        if prompted:
            tokens = fmean(prompted)
            computed = tokens - fmean(cached)
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
    by = "this" if beside.entails is None else "a judge of entailment, not by this"
    decider = "a grader" if beside.grader else "its words"
    measured = ReportTable(
        f"Flows ({count_of(len(followups), 'questions')}, {PASSAGES} passages)",
        FLOWS_HEAD,
        tuple(lines),
        (
            "Answerable: one of the question's passages was retrieved",
            "Faithfulness: an abstention on an answerable question counts 0, as in the paper; of responses: without",
            f"Faithfulness by {by} library's hallucination detection; unknown where it could not say",
            f"That an answer says it does not know is decided by {decider}",
            f"JAFS less {NAMES[0]}: the paired difference, over questions of which both are known",
            "Tokens a question, of prompts and what was written, for rewrites and judgments too; computed: not cached",
            "Failed: nothing was written; such a question is in no other figure of the flow",
        ),
    )
    tables = (measured, *_published_tables(followups, beside))
    section = MeasuredSection(FLOWS_PART, tables, figures, tuple(items))
    return section.with_failures(failures)


def _write_answers(
    flow: Any, turns: Sequence[JudgedTurn], engine: Any, searches: Searches
) -> list[Answer | UserError]:
    """Return the answer to each turn from its own collection, or why there is none."""
    by_place: dict[int, Answer | UserError] = {}
    for collection, places in places_by_collection(turns).items():
        states = [turns[place].state for place in places]
        answers = run(flow, states, engine, searches[collection])
        by_place |= dict(zip(places, answers, strict=True))
    return [by_place[place] for place in range(len(turns))]


def _published_tables(
    followups: Sequence[JudgedTurn], beside: Beside
) -> list[ReportTable]:
    metric = "this library's hallucination detection"
    if beside.entails is not None and beside.grader is not None:
        metric = "RAGAS and JAFS"
    left_out = why_table_left_out("intrinsics-11-16", followups, "mtrag", metric)
    judged = ("RAGAS-F", "JAFS")
    head = (*_CLASSES[:2], "responses", *judged)
    title, flows = "tables 14 to 16, MT-RAG", PUBLISHED["flows"]
    tables = [published_table(title, head, flows, 0, left_out=left_out)]
    if not left_out:
        title, gating = "table 11, MT-RAG", PUBLISHED["gating"]
        columns = (*_CLASSES, *judged)
        tables.append(published_table(title, columns, gating, 0, left_out=""))
    return tables


def failed_answers(
    system: str, of: str, answers: Sequence[Answer | UserError]
) -> Failures:
    """Return how many answers were not written, and why."""
    errors = [answer for answer in answers if not isinstance(answer, Answer)]
    return Failures(system, of, len(answers), count_reasons(errors))


def _joint(outcome: FlowOutcome | None) -> float:
    return nan if outcome is None or outcome.jafs is None else outcome.jafs


def _outcomes(
    followups: Sequence[JudgedTurn],
    answers: Sequence[Answer | UserError],
    subject: Subject,
    beside: Beside,
) -> list[FlowOutcome | None]:
    """Return what became of each question; None where the flow failed: who writes nothing has not abstained."""
    states = answered_inputs(followups, answers)
    written = [state for state in states if state is not None]
    abstentions = _abstained(written, beside.grader)
    responses = []
    for response, abstained in zip(written, abstentions, strict=True):
        if not abstained:
            responses.append(response)
    values = iter(faithfulness(responses, subject, beside))
    silent = iter(abstentions)
    outcomes: list[FlowOutcome | None] = []
    for turn, state in zip(followups, states, strict=True):
        if state is None:
            outcomes.append(None)
            continue
        retrieved = {passage.id for passage in state.passages}
        answerable = not turn.relevant.isdisjoint(retrieved)
        if next(silent):
            outcome = FlowOutcome(answerable, answered=False)
        else:
            outcome = FlowOutcome(answerable, answered=True, faithfulness=next(values))
        outcomes.append(outcome)
    return outcomes


def answered_inputs(
    turns: Sequence[JudgedTurn], answers: Sequence[Answer | UserError]
) -> list[JudgeInput | None]:
    """Return each conversation with its answer and the passages behind it; None where nothing was written."""
    states: list[JudgeInput | None] = []
    for turn, answer in zip(turns, answers, strict=True):
        if not isinstance(answer, Answer):
            states.append(None)
            continue
        shown: dict[object, Passage] = {}
        for decision in answer.trace.decisions:
            shown |= {passage.key: passage for passage in decision.passages}
        messages = (*turn.state.messages, Message("assistant", answer.text))
        states.append(JudgeInput(messages, tuple(shown.values())))
    return states


def _abstained(states: Sequence[JudgeInput], grader: Grader | None) -> list[bool]:
    """Return whether each answer says that it does not know: by a grader, and by its words where that did not say."""
    grades = [None] * len(states) if grader is None else grader.abstained(states)
    abstained = []
    for state, grade in zip(states, grades, strict=True):
        abstained.append(abstains(state.response or "") if grade is None else grade)
    return abstained


def faithfulness(
    states: Sequence[JudgeInput], subject: Subject, beside: Beside
) -> list[float | None]:
    """Return the faithfulness of each last turn to its passages (0 to 1), by a judge of entailment or the subject.

    A judge decides on each statement that a grader finds in the turn, as RAGAS does; without a grader on each sentence.
    """
    values: list[Sequence[float | None]] = []  # of the claims of each turn
    if beside.entails is None:
        results = ask(subject, "hallucination_detection", states)
        values += [
            [item.faithfulness for item in result.sentences] for result in results
        ]
    else:
        claims_of_turns = [as_sentences(state.messages[-1].content) for state in states]
        if beside.grader is not None:
            claims_of_turns = beside.grader.statements(states)
        for state, claims in zip(states, claims_of_turns, strict=True):
            known = "\n".join(map(premise, state.passages))
            values.append(beside.entails([(known, claim) for claim in claims]))
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
