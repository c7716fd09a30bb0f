"""The four flows on follow-up questions: answering, abstaining, faithfulness, JAFS (tables 11 and 14 to 16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.passage import Retriever
from selfrag.decoding.answer import Answer
from selfrag.evaluation.intervals import NONE
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    Classification,
    JointFigures,
    Outcome,
    joint_figures,
)
from selfrag.evaluation.normalisation import abstains
from selfrag.experiments.intrinsics.followups import Turn
from selfrag.experiments.intrinsics.published import FLOWS, GATING
from selfrag.experiments.intrinsics.section import Section, Table, given, percent
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.answerability import Answerability
from selfrag.intrinsics.flows.flow import NAMES, named, run
from selfrag.intrinsics.flows.writers import Writer
from selfrag.intrinsics.query_rewrite import QueryRewrite
from selfrag.intrinsics.reflectors.reflecting import Reflecting
from selfrag.intrinsics.state import Message, State

NAME = "flows"
PASSAGES = 5
HEAD = ("flow", "F1 unans.", "F1 ans.", "R unans.", "R ans.", "responses", "faithfulness", "JAFS", "unknown", "failed")


def evaluate(
    followups: Sequence[Turn], retriever: Retriever, writer: Writer, subject: Subject, engine: Any, seed: int
) -> Section:
    """Run the paper's flows.

    A question counts as answerable if one of its passages is among those that the flow retrieved, and as answered if
    the text does not say that it does not know. Faithfulness is the mean over sentences by the subject's own
    hallucination detection, not RAGAS.

    Args:
        followups: questions with known passages.
        retriever: of their corpus.
        writer: of the answers.
        subject: brings rewrite, answerability and hallucination detection.
        engine: of the subject's executor.
        seed: of the intervals.
    """
    rewrite, answerable = (
        Reflecting(kind(subject.executor, subject.codec(kind.name), subject.adapters.get(kind.name)))
        for kind in (QueryRewrite, Answerability)
    )
    lines, figures, items = [], dict[str, Any](), list[dict[str, Any]]()
    for name in NAMES:
        flow = named(name, writer, rewrite=rewrite, answerability=answerable, k=PASSAGES)
        answers = run(flow, [one.state for one in followups], engine, retriever)
        outcomes = _outcomes(followups, answers, subject)
        known = [one for one in outcomes if one is not None]
        failed = len(outcomes) - len(known)
        found = joint_figures(known, seed=seed) if known else None
        figures[name] = ({} if found is None else found.as_dict()) | {"failed": failed}
        lines.append((name, *(_cells(found) if found else [NONE] * (len(HEAD) - 2)), str(failed)))
        items += [
            {
                "id": one.id,
                "flow": name,
                "answer": answer.text if isinstance(answer, Answer) else None,
                "error": None if isinstance(answer, Answer) else str(answer),
                "answerable": outcome.answerable if outcome else None,
                "answered": outcome.answered if outcome else None,
                "faithfulness": outcome.faithfulness if outcome else None,
            }
            for one, answer, outcome in zip(followups, answers, outcomes, strict=True)
        ]
    own = Table(
        f"Flows ({len(followups)} questions, {PASSAGES} passages)",
        HEAD,
        tuple(lines),
        (
            "Answerable: one of the question's passages was retrieved",
            "Faithfulness by this library's hallucination detection, not RAGAS; unknown where it could not say",
            "Failed: nothing was written; such a question is in no other figure of the flow",
        ),
    )
    tables = (
        own,
        Table(
            "Published: tables 14 to 16, MT-RAG",
            ("flow", "F1 unans.", "F1 ans.", "responses", "RAGAS-F", "JAFS"),
            tuple((name, *given(*values, digits=0)) for name, values in FLOWS.items()),
        ),
        Table(
            "Published: table 11, MT-RAG",
            ("model", "F1 unans.", "F1 ans.", "R unans.", "R ans.", "RAGAS-F", "JAFS"),
            tuple((name, *given(*values, digits=0)) for name, values in GATING.items()),
        ),
    )
    return Section(NAME, tables, figures, tuple(items))


def _outcomes(followups: Sequence[Turn], answers: Sequence[Any], subject: Subject) -> list[Outcome | None]:
    """What became of each question; None where the flow failed: who writes nothing has not abstained."""
    facts: list[tuple[bool, bool] | None] = []
    asked: list[State] = []
    for one, answer in zip(followups, answers, strict=True):
        if not isinstance(answer, Answer):
            facts.append(None)
            continue
        shown = _shown(answer)
        answered = not abstains(answer.text)
        facts.append((bool(one.relevant & {passage.id for passage in shown}), answered))
        if answered:
            asked.append(State((*one.state.messages, Message("assistant", answer.text)), shown))
    found = iter(subject.ask("hallucination_detection", asked))
    return [
        None if fact is None else Outcome(*fact, _mean(subject, next(found)) if fact[1] else None) for fact in facts
    ]


def _shown(answer: Answer) -> tuple[Any, ...]:
    return tuple({p.key: p for decision in answer.trace.decisions for p in decision.passages}.values())


def _mean(subject: Subject, reflection: Any) -> float | None:
    result = subject.result("hallucination_detection", reflection)
    known = [one.faithfulness for one in result.sentences if one.faithfulness is not None]
    return sum(known) / len(known) if known else None


def _cells(found: JointFigures) -> tuple[str, ...]:
    classes: Classification = found.answerability
    un, an = classes.classes[UNANSWERABLE], classes.classes[ANSWERABLE]
    return (
        percent(un.f1),
        percent(an.f1),
        percent(un.recall),
        percent(an.recall),
        str(found.responses),
        percent(found.faithfulness) if found.responses else NONE,
        percent(found.jafs),
        str(found.unknown),
    )
