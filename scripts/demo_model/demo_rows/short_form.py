"""Short questions with a passage that answers them, and with passages that do not.

The same question comes with its gold passage and with hard negatives, so only reading the passage tells them apart.
Negatives: BM25 neighbours without an answer string, the gold passage without the sentences that answer, unanswerable
on-topic paragraphs, passages judged non-relevant by people, and a few random ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from critic.cases import Case
from retrieval.passage import Passage
from scripts.demo_model.demo_rows.drafts import (
    Cutter,
    Draft,
    abstaining,
    grounded,
    sample,
    search,
    without,
)
from scripts.demo_model.demo_rows.sources import Sources
from selfrag.evaluation.normalisation import contains_any


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the answers that count, and the passage that holds the first of them."""

    dataset: str
    text: str
    answers: tuple[str, ...]
    gold: Passage


@dataclass(frozen=True, slots=True)
class Quota:
    """Rows of each kind at most; the defaults are the published demo mixture."""

    squad: int = 1600
    neighbours: int = 2900
    answer_removed: int = 850
    unanswerable: int = 1350
    judged: int = 420
    stance: int = 180
    random: int = 100
    wrong: int = 200
    same_article: int = 0
    retitled: int = 0
    gold: int | None = None


def questions(sources: Sources, quota: Quota, rng: random.Random) -> list[Question]:
    """Return distinct answerable questions whose answer stands in their gold passage, SQuAD thinned to its quota."""
    distinct: dict[str, Question] = {}
    for query in sources.queries:
        dataset = "nq" if query.id.startswith("nq") else "squad2"
        for gold in query.gold[:1]:
            distinct.setdefault(
                query.text, Question(dataset, query.text, query.answers, gold)
            )
    for pair in sources.pairs:
        if pair.kind == "short_qa" and pair.passages:
            dataset = "nq" if pair.dataset == "nq_open" else pair.dataset
            distinct.setdefault(
                pair.instruction,
                Question(dataset, pair.instruction, (pair.output,), pair.passages[0]),
            )
    usable = [q for q in distinct.values() if _stated(q) is not None]
    squad = [q for q in usable if q.dataset == "squad2"]
    kept = {q.text for q in rng.sample(squad, min(quota.squad, len(squad)))}
    return [q for q in usable if q.dataset != "squad2" or q.text in kept]


def drafts(
    sources: Sources, quota: Quota, cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield all short-form rows."""
    answerable = questions(sources, quota, rng)
    with_gold = answerable
    if quota.gold is not None:
        with_gold = sample(answerable, quota.gold, rng)
    for question in with_gold:
        answer = _stated(question) or ""
        passage = cut(question.gold, answer)
        yield Draft(
            f"{question.dataset}/gold", question.text, grounded(passage, answer)
        )
    yield from sample(_neighbours(sources, answerable, cut, rng), quota.neighbours, rng)
    yield from sample(_answer_removed(answerable, cut, rng), quota.answer_removed, rng)
    yield from sample(_unanswerable(sources, cut), quota.unanswerable, rng)
    yield from sample(_judged(sources, cut, rng), quota.judged, rng)
    yield from sample(_stance(sources, cut), quota.stance, rng)
    passages = list(sources.corpus.values())
    for question in sample(answerable, quota.random, rng):
        passage = rng.choice(passages)
        if not contains_any(passage.text, question.answers):
            yield _negative("random", question, passage, cut)
    yield from sample(_wrong_answers(answerable, cut), quota.wrong, rng)
    if quota.same_article:
        others = _same_article(sources, answerable, cut, rng)
        yield from sample(others, quota.same_article, rng)
    if quota.retitled:
        chosen = sample(answerable, 2 * quota.retitled, rng)
        yield from sample(_retitled(sources, chosen, cut, rng), quota.retitled, rng)


def _stated(question: Question) -> str | None:
    """Return the first answer that the gold passage holds verbatim, as written there."""
    for answer in question.answers:
        at = question.gold.text.casefold().find(answer.casefold())
        if answer and at >= 0:
            return question.gold.text[at : at + len(answer)]
    return None


def _irrelevant(source: str, question: str, passage: Passage, cut: Cutter) -> Draft:
    return Draft(source, question, abstaining(cut(passage)))


def _negative(kind: str, question: Question, passage: Passage, cut: Cutter) -> Draft:
    return _irrelevant(f"{question.dataset}/{kind}", question.text, passage, cut)


def _neighbours(
    sources: Sources, questions: Sequence[Question], cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    ranked = search(sources.corpus, [q.text for q in questions], 14)
    for question, passages in zip(questions, ranked, strict=True):
        hard = [
            p
            for p in _others(question, passages)
            if not contains_any(f"{p.title} {p.text}", question.answers)
        ]
        is_nq = question.dataset == "nq"
        count = int(is_nq) + int(rng.random() < (0.6 if is_nq else 0.4))
        for _ in range(min(count, len(hard))):
            # Early ranks are the hard ones: half of the picks come from the first four.
            ranks = min(4, len(hard)) if rng.random() < 0.5 else len(hard)
            passage = hard.pop(rng.randrange(ranks))
            yield _negative("bm25", question, passage, cut)


def _others(question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """Return those that are not the gold passage and whose text names no answer."""
    return [
        p
        for p in passages
        if p.id != question.gold.id
        and p.text[:200] != question.gold.text[:200]
        and not contains_any(p.text, question.answers)
    ]


def _retitled(
    sources: Sources, questions: Sequence[Question], cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield a neighbour's text under the title of the article that answers, so that the title alone decides nothing."""
    for question, passages in zip(
        questions, search(sources.corpus, [q.text for q in questions], 14), strict=True
    ):
        hard = _others(question, passages)
        if hard and not contains_any(question.gold.title, question.answers):
            passage = replace(rng.choice(hard), title=question.gold.title)
            yield _negative("retitled", question, passage, cut)


def _same_article(
    sources: Sources, questions: Sequence[Question], cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield another paragraph of the article that answers: on the topic, with the right title, and of no use."""
    by_title: dict[str, list[Passage]] = {}
    for passage in sources.corpus.values():
        by_title.setdefault(passage.title, []).append(passage)
    for question in questions:
        others = _others(question, by_title.get(question.gold.title, []))
        # Natural Questions has few articles with two paragraphs, and every one is taken.
        if others and (question.dataset == "nq" or rng.random() < 0.5):
            yield _negative("same_article", question, rng.choice(others), cut)


def _answer_removed(
    questions: Sequence[Question], cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    for question in questions:
        # SQuAD brings unanswerable questions on its own paragraphs; NQ has none, so most of these come from NQ.
        if (
            rng.random() < (0.25 if question.dataset == "squad2" else 0.8)
            and len(question.gold.text.split()) > 60
        ):
            text = without(question.gold.text, question.answers)
            if len(text.split()) >= 35 and not contains_any(
                f"{question.gold.title} {text}", question.answers
            ):
                passage = replace(
                    question.gold, id=f"{question.gold.id}-without-answer", text=text
                )
                yield _negative("answer_removed", question, passage, cut)


def _unanswerable(sources: Sources, cut: Cutter) -> Iterator[Draft]:
    seen: set[str] = set()
    for row in sources.answerability:
        if row.source == "squad2/unanswerable":
            question = row.state.query or ""
            seen.add(question)
            passage = row.state.passages[0]
            yield _irrelevant("squad2/unanswerable", question, passage, cut)
    for case, passage in _by_rule(sources, "unanswerable_on_topic"):
        if case.instruction not in seen:
            yield _irrelevant("squad2/unanswerable", case.instruction, passage, cut)


def _judged(sources: Sources, cut: Cutter, rng: random.Random) -> Iterator[Draft]:
    for case, passage in _by_rule(sources, "judged_non_relevant"):
        yield _irrelevant("nomiracl/judged", case.instruction, passage, cut)
    for row in sources.answerability:
        if row.source == "nomiracl/unanswerable":
            passage = rng.choice(row.state.passages)
            yield _irrelevant("nomiracl/judged", row.state.query or "", passage, cut)


def _stance(sources: Sources, cut: Cutter) -> Iterator[Draft]:
    for case, passage in _by_rule(sources, "stance_irrelevant"):
        yield _irrelevant("factcheck_gpt/stance", case.instruction, passage, cut)


def _by_rule(sources: Sources, rule: str) -> Iterator[tuple[Case, Passage]]:
    """Yield the critic's cases that a rule made, with their evidence."""
    for case in sources.critiques:
        if case.rule == rule and case.evidence is not None:
            yield case, case.evidence


def _wrong_answers(questions: Sequence[Question], cut: Cutter) -> Iterator[Draft]:
    """Yield the answer to another question on the same passage: what IsSup and IsUse have to catch in short answers."""
    by_passage: dict[str, list[Question]] = {}
    for question in questions:
        by_passage.setdefault(question.gold.id, []).append(question)
    for group in by_passage.values():
        for question, neighbour in zip(group, (*group[1:], group[0]), strict=True):
            wrong, right = _stated(neighbour) or "", _stated(question) or ""
            if not contains_any(wrong, question.answers) and not contains_any(
                right, [wrong]
            ):
                target = grounded(
                    cut(question.gold, right),
                    wrong,
                    support="No support / Contradictory",
                    utility=2,
                )
                # A low weight: the labels are to be learned, the wrong text is not.
                yield Draft(
                    f"{question.dataset}/wrong_answer", question.text, target, 0.4
                )
