"""Conversations with known passages: query rewrites, what they find, answers from that, and the paper's four flows.

Tables 2 to 7, 11 and 14 to 16 of the intrinsics paper.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError, require
from selfrag.common.jsonl import read_jsonl
from selfrag.decoding.answer import Answer
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.intervals import DIFFERENCE, NONE, Estimate, mean, plain
from selfrag.evaluation.metrics.answers import exact_match, token_f1
from selfrag.evaluation.metrics.citations import Entails, as_sentences, ndcg_at, recall_at
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    FlowOutcome,
    JointFigures,
    joint_figures,
)
from selfrag.evaluation.metrics.grading import Grader
from selfrag.experiments.intrinsics.measures import published_table
from selfrag.experiments.intrinsics.subjects import ALONE, PUBLISHED, Beside, Subject, ask
from selfrag.experiments.report_tables import MeasuredSection, ReportTable, percent, share
from selfrag.intrinsics.flows.flow import NAMES, named, run
from selfrag.intrinsics.flows.progress import AnswerWriter
from selfrag.intrinsics.questions import Answerability, QueryRewrite
from selfrag.judges.conversation import same_question, search_query
from selfrag.judges.entailment import premise
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.training.intrinsics.rows import IntrinsicRow

PRONOUN = "it"
FOLLOW_UP = "/follow-up"
_SHORT = 4  # letters; shorter titles are words of the language as often as names


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A question at the end of a conversation."""

    id: str  # of the query, with `FOLLOW_UP` where it was made dependent
    state: JudgeInput  # the conversation
    gold: str  # the question that stands alone
    relevant: frozenset[str]  # ids of its passages
    standalone: bool  # whether the last turn can be understood by itself
    answers: tuple[str, ...] = ()  # short answers, if known


@dataclass(frozen=True, slots=True)
class QueryCollection:
    """A corpus with judged queries."""

    passages: Mapping[str, Passage]  # by id
    queries: Mapping[str, tuple[str, tuple[str, ...]]]  # id -> text and short answers, of one split
    relevant: Mapping[str, frozenset[str]]  # id of a query -> ids of its passages


def read_collection(folder: Path, split: str) -> QueryCollection:
    """Read `wiki-mix.jsonl.gz` (or `corpus.jsonl`), `queries.jsonl` and `qrels.tsv`."""
    passages = read_passages(folder)
    read = read_jsonl(folder / "queries.jsonl", _query)
    queries = {name: (text, answers) for name, part, text, answers in read if part == split}
    return QueryCollection(passages, queries, read_qrels(folder / "qrels.tsv"))


def read_qrels(path: Path) -> dict[str, frozenset[str]]:
    """Query to its relevant passages, of a file of query-id, corpus-id and score under a heading."""
    relevant: dict[str, set[str]] = {}
    for number, fields in enumerate(csv_lines(path, "excel-tab")[1:], 2):
        if len(fields) != 3:
            raise UserError(f"{path}:{number}: not query, passage and score; fix this line")
        if fields[2].strip() != "0":
            relevant.setdefault(fields[0], set()).add(fields[1])
    return {key: frozenset(found) for key, found in relevant.items()}


def csv_lines(path: Path, dialect: str = "excel") -> list[list[str]]:
    """The fields of each line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file, dialect))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def read_passages(corpus: Path) -> dict[str, Passage]:
    """Passages by id: of a JSON Lines file, BEIR's among them, or of that in a folder."""
    names = ("wiki-mix.jsonl.gz", "corpus.jsonl")
    texts = corpus if corpus.is_file() else next((p for name in names if (p := corpus / name).is_file()), None)
    if texts is None:
        raise UserError(f"{corpus} has no corpus.jsonl; give a folder with corpus, queries.jsonl and qrels.tsv")
    return {one.id: one for one in read_jsonl(texts, _passage)}


def judged_turns(rows: Sequence[IntrinsicRow], passages: Mapping[str, Passage] | None) -> list[JudgedTurn]:
    """Rows of rewrites of which a relevant passage is known, and is among `passages` where those are given."""
    return [
        JudgedTurn(
            row.id, row.state, row.text or "", known, same_question(row.state.query or "", row.text or ""), row.answers
        )
        for row in rows
        if (known := row.relevant if passages is None else row.relevant & passages.keys())
    ]


def unanswerable_turns(rows: Sequence[IntrinsicRow]) -> list[JudgedTurn]:
    """Questions of MT-RAG that its whole corpus does not answer, as its rows of answerability label them."""
    return [
        JudgedTurn(row.id, replace(row.state, passages=()), row.state.query or "", frozenset(), False)
        for row in rows
        if row.source == "mtrag/unanswerable"
    ]


def turns(collection: QueryCollection) -> list[JudgedTurn]:
    """For each question that names its passage's title: the follow-up, and the question itself after another topic."""
    made: list[JudgedTurn] = []
    openings: list[str] = []
    for key, (text, answers) in sorted(collection.queries.items()):
        relevant = frozenset(one for one in collection.relevant.get(key, ()) if one in collection.passages)
        title = next(
            (found for one in sorted(relevant) if (found := title_in(text, collection.passages[one].title))), ""
        )
        if not title:
            continue
        opening = f"Tell me about {title}."
        dependent = (Message("user", opening), Message("user", with_pronoun(text, title)))
        made.append(JudgedTurn(key + FOLLOW_UP, JudgeInput(dependent), text, relevant, False, answers))
        if openings and openings[-1] != opening:
            alone = (Message("user", openings[-1]), Message("user", text))
            made.append(JudgedTurn(key, JudgeInput(alone), text, relevant, True, answers))
        openings.append(opening)
    return made


def title_in(question: str, title: str) -> str:
    """The title, without what is in brackets, if the question has it as whole words; else nothing."""
    plain = (title.partition("(")[0] if title.rstrip().endswith(")") else title).strip()
    if len(plain) < _SHORT:
        return ""
    found = re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", question, re.IGNORECASE)
    return plain if found else ""


def with_pronoun(question: str, title: str) -> str:
    """The question with its title (and an article before it) as a pronoun."""
    pattern = rf"(?<!\w)(?:the\s+)?{re.escape(title)}(?!\w)('s)?"
    return re.sub(pattern, lambda m: "its" if m.group(1) else PRONOUN, question, flags=re.IGNORECASE)


def _passage(record: dict[str, Any]) -> Passage:
    try:
        return Passage(record["_id"] if "_id" in record else record["id"], record["text"], record.get("title") or "")
    except KeyError as error:
        raise UserError(f"a passage lacks {error}") from error


def _query(record: dict[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
        raise UserError("a query has 'id' and 'text'")
    return record["id"], str(record.get("split")), record["text"], tuple(map(str, record.get("answers") or []))


def sample(found: Sequence[JudgedTurn], limit: int | None) -> list[JudgedTurn]:
    """At most `limit`, evenly over the list, dependent and standalone ones alike."""
    if limit is None or len(found) <= limit:
        return list(found)
    sides = [[one for one in found if one.standalone is side] for side in (False, True)]
    half = [limit - limit // 2, limit // 2]
    return [
        one for side, most in zip(sides, half, strict=True) for one in side[:: max(1, len(side) // max(1, most))][:most]
    ]


FLOWS_PART = "flows"
PASSAGES = 5
_CLASSES = ("F1 unans.", "F1 ans.", "R unans.", "R ans.")
FLOWS_HEAD = (
    *("flow", *_CLASSES, "responses", "faithfulness", "of responses", "JAFS", "unknown"),
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
    rewrite, answerable = (subject.judge(kind.name) for kind in (QueryRewrite, Answerability))
    lines, figures, items = [], dict[str, Any](), list[dict[str, Any]]()
    first: list[FlowOutcome | None] = []
    for name in NAMES:
        flow = named(name, writer, rewrite=rewrite, answerability=answerable, k=PASSAGES)
        answers = run(flow, [one.state for one in followups], engine, retriever)
        outcomes = _outcomes(followups, answers, subject, beside)
        known = [one for one in outcomes if one is not None]
        failed = len(outcomes) - len(known)
        found = joint_figures(known, seed=seed) if known else None
        first = first or outcomes
        gains = [one - other for one, other in zip(map(_joint, outcomes), map(_joint, first), strict=True)]
        gain = mean([one for one in gains if not isnan(one)], seed=seed, bounds=DIFFERENCE)
        used = [one.usage for one in answers if isinstance(one, Answer)]
        tokens = fmean(one.prompt_tokens + one.generated_tokens for one in used) if used else nan
        computed = tokens - fmean(one.cached_tokens for one in used) if used else nan
        figures[name] = ({} if found is None else plain(found)) | {
            "jafs_gain": gain.as_dict(),
            "tokens": tokens if used else None,
            "computed_tokens": computed if used else None,
            "failed": failed,
        }
        cells = _flow_cells(found) if found else [NONE] * (len(FLOWS_HEAD) - 5)
        less = NONE if outcomes is first else percent(gain)
        spent = (f"{one:,.0f}" if used else NONE for one in (tokens, computed))
        lines.append((name, *cells, less, *spent, str(failed)))
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
    own = ReportTable(
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
        own,
        published_table("tables 14 to 16, MT-RAG", (*_CLASSES[:2], "responses", *judged), PUBLISHED["flows"], 0),
        published_table("table 11, MT-RAG", (*_CLASSES, *judged), PUBLISHED["gating"], 0),
    )
    return MeasuredSection(FLOWS_PART, tables, figures, tuple(items))


def _joint(outcome: FlowOutcome | None) -> float:
    return nan if outcome is None or outcome.jafs is None else outcome.jafs


def _outcomes(
    followups: Sequence[JudgedTurn], answers: Sequence[Answer | UserError], subject: Subject, beside: Beside
) -> list[FlowOutcome | None]:
    """What became of each question; None where the flow failed: who writes nothing has not abstained."""
    states = answered(followups, answers)
    silent = iter(_abstained([state for state in states if state is not None], beside.grader))
    kinds = [None if state is None else next(silent) for state in states]
    asked = [state for state, kind in zip(states, kinds, strict=True) if state is not None and kind is False]
    found = iter(faithfulness(asked, subject, beside.entails))
    outcomes: list[FlowOutcome | None] = []
    for one, state, kind in zip(followups, states, kinds, strict=True):
        if state is None:
            outcomes.append(None)
            continue
        known = bool(one.relevant & {passage.id for passage in state.passages})
        outcomes.append(FlowOutcome(known, not kind, None if kind else next(found)))
    return outcomes


def answered(turns: Sequence[JudgedTurn], answers: Sequence[Answer | UserError]) -> list[JudgeInput | None]:
    """Each conversation with its answer and the passages it was written from; None where nothing was written."""

    def state(one: JudgedTurn, answer: Answer) -> JudgeInput:
        shown = {p.key: p for decision in answer.trace.decisions for p in decision.passages}
        return JudgeInput((*one.state.messages, Message("assistant", answer.text)), tuple(shown.values()))

    pairs = zip(turns, answers, strict=True)
    return [state(one, answer) if isinstance(answer, Answer) else None for one, answer in pairs]


def _abstained(states: Sequence[JudgeInput], grader: Grader | None) -> list[bool]:
    """Whether each answer says that it does not know: by a grader, and by its words where that did not say."""
    graded = [None] * len(states) if grader is None else grader.abstained(states)
    return [abstains(s.response or "") if one is None else one for s, one in zip(states, graded, strict=True)]


def faithfulness(states: Sequence[JudgeInput], subject: Subject, entails: Entails | None) -> list[float | None]:
    """Faithfulness of each last turn to its passages (0 to 1), by a judge of entailment or by the subject itself."""
    values: list[Sequence[float | None]]  # of the sentences of each turn
    if entails is None:
        found = ask(subject, "hallucination_detection", states)
        values = [[one.faithfulness for one in result.sentences] for result in found]
    else:
        values = [
            entails([("\n".join(map(premise, one.passages)), said) for said in as_sentences(one.messages[-1].content)])
            for one in states
        ]
    known = [[value for value in each if value is not None] for each in values]
    return [fmean(each) if each else None for each in known]


def _flow_cells(found: JointFigures) -> tuple[str, ...]:
    un, an = (found.answerability.classes[label] for label in (UNANSWERABLE, ANSWERABLE))
    faithful = percent(found.faithfulness) if an.support else NONE
    of_responses = percent(found.response_faithfulness) if found.responses else NONE
    shares = map(percent, (un.f1, an.f1, un.recall, an.recall))
    return (*shares, str(found.responses), faithful, of_responses, percent(found.jafs), str(found.unknown))


class PassageSearch:
    """Okapi BM25 (k1 1.2, b 0.75) over title and text, by the `bm25s` package."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        bm25s: Any = require("bm25s", extra="eval")
        self._bm25s, self._passages = bm25s, list(passages)
        self._index = bm25s.BM25(k1=1.2, b=0.75)
        texts = [f"{one.title} {one.text}" for one in self._passages]
        self._index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)

    def __call__(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to `k` passages for each query, best first."""
        if not queries:
            return []
        tokens = self._bm25s.tokenize(list(queries), stopwords="en", show_progress=False)
        most = min(k, len(self._passages))
        places, scores = self._index.retrieve(tokens, k=most, show_progress=False)
        return [
            [self._passages[int(at)].with_score(float(score)) for at, score in zip(row, values, strict=True)]
            for row, values in zip(places, scores, strict=True)
        ]


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
        ReportTable(
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
    return MeasuredSection(REWRITE_PART, tuple(tables), figures, tuple(items))


def _against_people(rows: Sequence[IntrinsicRow], texts: Sequence[str], seed: int) -> dict[str, Estimate]:
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


Measured: TypeAlias = tuple[list[ReportTable], dict[str, Any], list[dict[str, Any]]]
"""Tables, figures by system and part, and items."""


def _queries(followups: Sequence[JudgedTurn], subjects: Sequence[Subject]) -> dict[str, list[str]]:
    """What each system searches for, for each question."""
    queries: dict[str, list[str]] = {"no rewrite": [one.state.query or "" for one in followups]}
    for subject in subjects:
        written = [one.text for one in ask(subject, REWRITE_PART, [turn.state for turn in followups])]
        queries[subject.name] = written
        queries[f"{subject.name} after the question"] = [
            search_query(asked, text) for asked, text in zip(queries["no rewrite"], written, strict=True)
        ]
    return queries | {"gold rewrite": [one.gold for one in followups]}


def _by_need(followups: Sequence[JudgedTurn]) -> dict[str, list[int]]:
    """Places of all questions, and of those that need the conversation and those that do not."""
    return {
        "full": list(range(len(followups))),
        "non-standalone": [at for at, one in enumerate(followups) if not one.standalone],
        "standalone": [at for at, one in enumerate(followups) if one.standalone],
    }


def _retrieval(
    followups: Sequence[JudgedTurn], search: Retriever, queries: Mapping[str, list[str]], seed: int
) -> Measured:
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
        tables.append(ReportTable(f"Retrieval with the rewrite, {part} ({len(members)})", head, tuple(lines)))
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
    followups: Sequence[JudgedTurn],
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
    flow = named("none", writing.writer, k=ANSWER_PASSAGES)
    values: dict[str, list[dict[str, float | None]]] = {}
    records = []
    for system, texts in queries.items():
        passages = search([texts[at] for at in places], ANSWER_PASSAGES)
        shown = [JudgeInput(one.state.messages, tuple(found)) for one, found in zip(chosen, passages, strict=True)]
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
        tables.append(ReportTable(f"Answers after rewrites, {part} ({len(members)})", ANSWERS_HEAD, tuple(lines)))
    judge = "this library's hallucination detection" if beside.entails is None else "a judge of entailment"
    notes = (
        f"{ANSWER_PASSAGES} passages; faithfulness by {judge}; word F1 against the right answers that are known",
        "Quality: a grader's rating from 1 to 10, shown as 0 to 1, as RAD-Bench's; only where a right answer is known",
    )
    tables[0] = replace(tables[0], notes=notes)
    return tables, figures, records


def _qualities(
    turns: Sequence[JudgedTurn], answers: Sequence[Answer | UserError], subject: Subject, beside: Beside
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


def _figures(followups: Sequence[JudgedTurn], ranked: Sequence[Sequence[str]], seed: int) -> Mapping[str, Estimate]:
    def over(score: Callable[[JudgedTurn, Sequence[str]], float | None]) -> Estimate:
        values = [score(one, ranking) for one, ranking in zip(followups, ranked, strict=True)]
        return mean([value for value in values if value is not None], seed=seed)

    found = {
        f"recall@{k}": over(lambda one, ranking, k=k: recall_at(ranking, one.relevant, k))  # type: ignore[misc]
        for k in DEPTHS
    }
    return found | {"ndcg@10": over(lambda one, ranking: ndcg_at(ranking, dict.fromkeys(one.relevant, 1.0), 10))}
