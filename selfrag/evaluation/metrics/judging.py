"""Metrics that need a second model, over the records of a finished file: citations, claims, facts, MAUVE.

Loads no model and reads no run: judges come from the caller. What a judge leaves open is counted, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage, Retriever
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce import Cites, cites
from selfrag.evaluation.metrics.alce_text import evaluated
from selfrag.evaluation.metrics.cited import Claims, as_answer_to, as_list_for, as_sentences, cited_sentences
from selfrag.evaluation.metrics.claims import claim_recall
from selfrag.evaluation.metrics.entailment.protocol import Entailment
from selfrag.evaluation.metrics.factscore.checking import check
from selfrag.evaluation.metrics.factscore.official import topic_of
from selfrag.evaluation.metrics.factscore.score import NAMES, Facts, parts
from selfrag.evaluation.metrics.factscore.splitting import Splitter
from selfrag.evaluation.metrics.judged_files import Judged
from selfrag.evaluation.metrics.mauve import Features, as_alce, mauve
from selfrag.evaluation.metrics.metric import Part
from selfrag.evaluation.metrics.output import Output

FAILURE: Part = (0.0, 1.0)
"""A failed item counts as a wrong answer."""


@dataclass(frozen=True, slots=True)
class Record:
    """An item with what a system answered.

    Attributes:
        item: as it was asked.
        output: None if it failed.
        passages: by id, all that the answer may cite.
    """

    item: Item
    output: Output | None
    passages: Mapping[str, Passage]

    @property
    def question(self) -> str:
        """Without the task's wording, where that is known."""
        return self.item.query or self.item.instruction


def judge_citations(records: Sequence[Record], judge: Entailment, *, kind: str, marked: bool = False) -> Judged:
    """ALCE's citation recall, precision and F1 of each answer. Closed sets make no claim, and are left out.

    Args:
        records: of one file.
        judge: decides.
        kind: of the task: a `short` answer is judged with its question, a `list` piece by piece with it.
        marked: the task asks for citations as numbers in brackets.
    """
    asked = [one for one in records if not one.item.options]
    written = [(one, one.output) for one in asked if one.output is not None]
    responses = [cited_sentences(said, one.passages, claims=_claims(one, kind), marked=marked) for one, said in written]
    found = cites(responses, judge.entails)
    known = {one.item.id: quality for (one, _), quality in zip(written, found, strict=True)}
    empty = {one.item.id for (one, _), response in zip(written, responses, strict=True) if not response}
    figures = {
        "citation_precision_nli": lambda quality: quality.precision,
        "citation_recall_nli": lambda quality: quality.recall,
        "citation_f1_nli": lambda quality: quality.f1,
    }
    undecided = sum(quality is None and key not in empty for key, quality in known.items())

    def part(one: Record, value: Any) -> Part | None:
        # An empty answer claims nothing and cites nothing: 0, as an abstention.
        if one.output is None or one.item.id in empty:
            return FAILURE
        quality: Cites | None = known[one.item.id]
        return None if quality is None else (value(quality), 1.0)

    columns = {
        name: {one.item.id: None if one.item.options else part(one, value) for one in records}
        for name, value in figures.items()
    }
    return Judged(judge.name, judge.identity(), columns, dict.fromkeys(figures, undecided))


def judge_claims(records: Sequence[Record], judge: Entailment) -> Judged:
    """ALCE's claim recall of each answer; items without claims are left out."""
    written = [one for one in records if one.output is not None and one.item.claims]
    texts = [one.output.text for one in written if one.output is not None]
    found = claim_recall(texts, [one.item.claims for one in written], judge.entails)
    known = {one.item.id: value for one, value in zip(written, found, strict=True)}

    def part(one: Record) -> Part | None:
        if not one.item.claims:
            return None
        value = known.get(one.item.id, 0.0)
        return None if value is None else (value, 1.0)

    column = {one.item.id: part(one) for one in records}
    return Judged(
        judge.name, judge.identity(), {"claim_recall": column}, {"claim_recall": sum(v is None for v in found)}
    )


def judge_facts(
    records: Sequence[Record], splitter: Splitter, retriever: Retriever, judge: Entailment, about: Mapping[str, Any]
) -> Judged:
    """FactScore of each answer by our own judges.

    Args:
        records: of one file; every item has a topic.
        splitter: finds the facts.
        retriever: of the knowledge source.
        judge: decides.
        about: what tells the knowledge source from another.

    Raises:
        UserError: an item has no topic.
    """
    written = [(one, one.output) for one in records if one.output is not None]
    topics = [topic_of(one.item) for one, _ in written]
    found = check([said.text for _, said in written], topics, splitter, retriever, judge)
    facts = {one.item.id: checked for (one, _), checked in zip(written, found, strict=True)}
    identity = {"splitter": splitter.identity(), "judge": judge.identity(), "knowledge": dict(about)}
    return facts_judged(records, facts, f"{splitter.name}, {judge.name}", identity)


def facts_judged(
    records: Sequence[Record], facts: Mapping[str, Facts], judge: str, identity: Mapping[str, Any]
) -> Judged:
    """FactScore of each answer from verdicts that are there, such as those of the official tool.

    Args:
        records: of one file.
        facts: by id of the item; an item without is a failed one.
        judge: what reports call who decided.
        identity: what decided the verdicts.
    """
    found = {one.item.id: parts(facts.get(one.item.id)) for one in records}
    columns = {name: {key: own[name] for key, own in found.items()} for name in NAMES}
    undecided = sum(not one.decided for one in facts.values())
    return Judged(judge, identity, columns, dict.fromkeys(NAMES, undecided))


def judge_likeness(records: Sequence[Record], features: Features) -> Judged:
    """MAUVE of all answers against the first reference of each item; items without either are left out."""
    pairs = [
        (as_alce(one.question, one.item.references[0]), as_alce(one.question, said))
        for one in records
        if one.item.references and one.output is not None and (said := evaluated(one.output.text))
    ]
    found = mauve([human for human, _ in pairs], [said for _, said in pairs], features)
    whole = {"mauve": None if found is None else found.as_dict()}
    return Judged(features.name, features.identity(), whole=whole)


def _claims(record: Record, kind: str) -> Claims:
    if kind == "short":
        return as_answer_to(record.question)
    return as_list_for(record.question) if kind == "list" else as_sentences
