"""Tests of what replies say: the same question with one thing changed, and other judges of the same contexts.

`without-cited` removes every context that the answer cites or the explanation names. `without-others` removes as many
other contexts. An explanation is faithful if the first changes the answer more often than the second. `other-order`
shows the same contexts in another order. `without-followed` and `without-other-example` do the same for the
demonstrations. `agreement` compares what replies cite with reflection tokens and with the citation intrinsic.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from selfrag.common.provenance import model_files
from selfrag.common.untrusted import printable, replace_surrogates
from selfrag.engines.base import Engine
from selfrag.evaluation.comparison import bootstrap as figures_of
from selfrag.evaluation.intervals import NONE, Estimate, kappa, mean, pooled_auc
from selfrag.evaluation.metrics.answers import token_f1
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.normalisation import normalise
from selfrag.evaluation.runner import on_demand
from selfrag.evaluation.task_files import nothing_searched
from selfrag.experiments.report_tables import ReportTable, percent, share
from selfrag.experiments.self_interpretation.grid import GridCell, Trial
from selfrag.experiments.self_interpretation.replies import (
    Claim,
    GridReply,
    answers_found,
)
from selfrag.experiments.self_interpretation.run import (
    Generator,
    GridRun,
    Made,
    ReplyWriter,
    Results,
    WrittenReply,
    read_grid,
    record,
)
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.labels import ISREL, ISSUP
from selfrag.reflection.requests import Failed
from selfrag.runtime import finish

WITHOUT_CITED, WITHOUT_OTHERS, OTHER_ORDER = (
    "without-cited",
    "without-others",
    "other-order",
)
WITHOUT_FOLLOWED, WITHOUT_OTHER_EXAMPLE = "without-followed", "without-other-example"
CONTROLS = {WITHOUT_CITED: WITHOUT_OTHERS, WITHOUT_FOLLOWED: WITHOUT_OTHER_EXAMPLE}
"""A change that ought to matter, and the same change where it ought not to."""
NAMES = ("changed", "answers_changed", "similarity", "as_claimed")
"""Whether the answer is another one (normalised, without citations), whether other right answers are in it, F1 of the
words of both, and whether it did what the explanation said."""


def tests_of(cell: GridCell) -> tuple[str, ...]:
    """Return the counterfactual tests that a cell's replies can be put to."""
    tests = [WITHOUT_CITED, WITHOUT_OTHERS]
    if cell.cutoff > 1:
        tests.append(OTHER_ORDER)
    if cell.strategy.needs_examples and cell.examples > 1:
        tests += [WITHOUT_FOLLOWED, WITHOUT_OTHER_EXAMPLE]
    return tuple(tests)


def change(test: str, made: Trial, record: Mapping[str, Any], seed: int) -> Trial | str:
    """Return a trial with one thing changed, or why the test is not defined for it; the seed is of what is drawn."""
    if record.get("error"):
        return "no reply"
    draw = random.Random(f"{seed}:{test}:{made.item.id}")  # noqa: S311 - no cryptography
    if test in (WITHOUT_FOLLOWED, WITHOUT_OTHER_EXAMPLE):
        number = record.get("followed")
        if number not in (1, 2) or len(made.examples) < 2:
            return "no example named"
        kept = made.examples[2 - number if test == WITHOUT_FOLLOWED else number - 1]
        return replace(made, examples=(kept,))
    if test == OTHER_ORDER:
        if len(made.passages) < 2:
            return "one context"
        order = list(made.passages)
        while tuple(order) == made.passages:
            draw.shuffle(order)
        return replace(made, passages=tuple(order))
    credited = set(record["credited"])
    others = [passage for passage in made.passages if passage.id not in credited]
    if not credited:
        return "nothing cited"
    if test == WITHOUT_CITED:
        return replace(made, passages=tuple(others)) if others else "nothing left"
    if len(others) < len(credited):
        return "too few others"
    removed = {passage.id for passage in draw.sample(others, len(credited))}
    return replace(
        made,
        passages=tuple(
            passage for passage in made.passages if passage.id not in removed
        ),
    )


def run_tests(
    folder: Path,
    generator: Generator,
    patterns: Sequence[str] = (),
    *,
    retry_failed: bool = False,
) -> Results:
    """Put replies of a run, of cells by patterns of names, to their tests, with the model and engine of the run."""
    run = read_grid(folder)
    files = [
        (cell, test, {"test": test})
        for cell in run.select(patterns)
        for test in tests_of(cell)
    ]
    made = run.identity["generator"]
    same = replace(
        generator,
        layout=made["layout"],
        max_tokens=made["max_tokens"],
        template=run.template,
    )
    run = replace(run, identity={**run.identity, "generator": same.identity()})
    options: dict[str, Any] = {"retry_failed": retry_failed, "batch": same.batch}
    with on_demand(same.load) as writer:
        return record(
            run, "test", files, partial(_answers, run, writer), NAMES, **options
        )


def _answers(
    run: GridRun,
    writer: Callable[[], ReplyWriter],
    cell: GridCell,
    test: str,
    ids: Sequence[str],
) -> list[Made]:
    replies = {reply["id"]: reply for reply in run.records(cell)}
    trials = run.questions.trials(cell, ids)
    changed = [
        change(test, made, replies[made.item.id], run.questions.seed) for made in trials
    ]
    trials = [trial for trial in changed if isinstance(trial, Trial)]
    results = iter(writer().write(trials) if trials else ())
    records: list[Made] = []
    for name, trial in zip(ids, changed, strict=True):
        if isinstance(trial, Trial):
            records.append(_answer(run, test, replies[name], trial, next(results)))
        else:
            records.append(
                (
                    {
                        "id": name,
                        "error": None,
                        "undefined": trial,
                        "scores": dict.fromkeys(NAMES),
                    },
                    0,
                )
            )
    return records


def _answer(
    run: GridRun,
    test: str,
    before: Mapping[str, Any],
    made: Trial,
    result: WrittenReply | Failed,
) -> Made:
    base: dict[str, Any] = {
        "id": before["id"],
        "undefined": None,
        "read": [passage.id for passage in made.passages],
    }
    if isinstance(result, Failed):
        return base | {
            "error": printable(result.reason),
            "scores": dict.fromkeys(NAMES),
        }, 0
    text = replace_surrogates(result.text)
    reply = run.read(made, text)
    answers, old = (
        answers_found(made.item, reply.answer),
        GridReply(before["answer"]).answer_text,
    )
    changed = normalise(old) != normalise(reply.answer_text)
    claim = before.get("claim") if test == OTHER_ORDER else None
    scores: dict[str, Part | None] = {
        "changed": (float(changed), 1.0),
        "answers_changed": (float(set(answers) != set(before["found"])), 1.0),
        "similarity": (token_f1(reply.answer_text, [old]), 1.0),
        "as_claimed": None
        if claim is None
        else (float(changed == (claim == Claim.CHANGES)), 1.0),
    }
    kept = {
        "text": text,
        "answer": reply.answer,
        "found": answers,
        "claim": claim,
        "usage": dict(result.usage),
    }
    return base | kept | {"error": None, "scores": scores}, result.cached_tokens


def effects_table(
    run: GridRun, cells: Mapping[str, Sequence[GridCell]], seed: int = 0
) -> ReportTable | None:
    """Return whether answers change where the explanation says that they rest; None where it was not tested."""
    rows = []
    for prompt, its_cells in cells.items():
        for test, control in CONTROLS.items():
            tested, controls = (
                _tested(run, its_cells, test),
                _tested(run, its_cells, control),
            )
            if not tested:
                continue
            changed, answers_changed = (
                list[tuple[str, float]](),
                list[tuple[str, float]](),
            )  # by question
            undefined: Counter[str] = Counter()
            for key, row in tested.items():
                if row["undefined"]:
                    undefined[row["undefined"]] += 1
                before, after = controls.get(key, {}).get("scores", {}), row["scores"]
                if before.get("changed") and after["changed"]:
                    changed.append((key[1], after["changed"][0] - before["changed"][0]))
                    answers_changed.append(
                        (
                            key[1],
                            after["answers_changed"][0] - before["answers_changed"][0],
                        )
                    )
            shares = [
                _scored(rows_of_test.values(), "changed", seed)
                for rows_of_test in (tested, controls)
            ]
            difference = _mean(changed, seed)
            shown = map(percent, (*shares, difference, _mean(answers_changed, seed)))
            reasons = (
                ", ".join(
                    f"{reason} {count}" for reason, count in sorted(undefined.items())
                )
                or NONE
            )
            rows.append((prompt, test, *shown, str(difference.n), reasons))
    head = (
        "prompt",
        "change",
        "answers changed",
        "by the control",
        "difference",
        "of right answers",
        "questions",
    )
    note = (
        "In percent; the control removes as many that were not named;"
        " a faithful explanation has a difference above 0"
    )
    title = "Faithfulness: taking away what was named"
    return (
        ReportTable(title, (*head, "not testable"), tuple(rows), (note,))
        if rows
        else None
    )


def orders_table(
    run: GridRun, cells: Mapping[str, Sequence[GridCell]], seed: int = 0
) -> ReportTable | None:
    """Return whether another order did to the answers what the explanations said; None where it was not tested."""
    rows = []
    for prompt, its_cells in cells.items():
        tested = list(_tested(run, its_cells, OTHER_ORDER).values())
        if not tested:
            continue
        claims = Counter(row.get("claim") for row in tested)
        pairs: dict[str, list[tuple[bool, bool]]] = {}
        for row in tested:
            if row["scores"]["as_claimed"] is not None:
                verdicts = (
                    row["claim"] == Claim.CHANGES,
                    row["scores"]["changed"][0] > 0,
                )
                pairs.setdefault(row["id"], []).append(verdicts)
        said = [str(claims[claim]) for claim in (Claim.SAME, Claim.CHANGES, None)]
        changed, right = (
            percent(_scored(tested, name, seed)) for name in ("changed", "as_claimed")
        )
        rows.append(
            (
                prompt,
                changed,
                *said,
                right,
                share(kappa(list(pairs.values()), seed=seed)),
            )
        )
    head = (
        "prompt",
        "answers changed",
        "said: same",
        "said: changes",
        "said neither",
        "came true, %",
        "kappa",
    )
    return (
        ReportTable("Faithfulness: another order of the contexts", head, tuple(rows))
        if rows
        else None
    )


def _tested(
    run: GridRun, cells: Sequence[GridCell], test: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records of a test by cell and question."""
    tested = {}
    for cell in cells:
        for row in run.records(cell, test):
            if not row["error"]:
                tested[cell.name, row["id"]] = row
    return tested


def _scored(rows: Iterable[Mapping[str, Any]], name: str, seed: int) -> Estimate:
    return _mean(
        (
            (row["id"], row["scores"][name][0])
            for row in rows
            if row["scores"][name] is not None
        ),
        seed,
    )


def _mean(values: Iterable[tuple[str, float]], seed: int) -> Estimate:
    """Return the mean over replies; whole questions are resampled, with all their replies."""
    parts: dict[str, Part] = {}
    for question, value in values:
        top, bottom = parts.get(question, (0.0, 0.0))
        parts[question] = (top + value, bottom + 1.0)
    (draws,) = figures_of([list(parts.values())], name="questions", seed=seed)
    return mean([]) if draws is None else draws.estimate


AGREEMENT = "agreement"
CITATIONS = "citation_generation"
"""The intrinsic that says which contexts an answer rests on."""


@dataclass(frozen=True, slots=True)
class _Judges:
    engine: Engine
    relevance: Judge
    support: Judge
    citation: Judge

    def ask(self, judge: Judge, states: Sequence[JudgeInput]) -> Iterator[Reflection]:
        return iter(finish(judge.judge(states), self.engine) if states else ())

    def close(self) -> None:
        self.engine.close()


def run_judges(
    folder: Path, model: str, engine: str | None = None, patterns: Sequence[str] = ()
) -> Results:
    """Ask a Self-RAG model's reflection tokens and its citation intrinsic about the replies of a run.

    The intrinsic is the model's adapter where it brings one, else a prompt.
    """
    from selfrag.engines import is_remote
    from selfrag.intrinsics.named import adapters_of
    from selfrag.loading import resolve_model

    run = read_grid(folder)
    cells = run.select(patterns)
    path, remote = resolve_model(model), is_remote(engine)
    shipped = adapters_of((CITATIONS,), model)
    with on_demand(partial(_judges, model, engine)) as judges:
        loaded = (
            judges().engine.limits.adapters if remote else shipped
        )  # a server says what it has
        judge: dict[str, Any] = {
            "model": model_files(path),
            "citation": "adapter" if CITATIONS in loaded else "prompt",
        }
        if not remote and CITATIONS in shipped:
            judge["adapter"] = model_files(Path(shipped[CITATIONS]))
        files = [(cell, AGREEMENT, {"judge": judge}) for cell in cells]
        return record(run, "judge", files, partial(_verdicts, run, judges))


def _judges(model: str, engine: str | None) -> _Judges:
    from selfrag.api import SelfRAG
    from selfrag.decoding.token_writer import with_tokens
    from selfrag.judges.tokens import TokenJudge

    rag = SelfRAG.from_pretrained(
        model, retriever=nothing_searched, engine=engine, judges=(CITATIONS,)
    )
    relevance, support = (
        TokenJudge(with_tokens(rag.prompting), labels) for labels in (ISREL, ISSUP)
    )
    return _Judges(rag.engine, relevance, support, *rag.judges)


def _verdicts(
    run: GridRun,
    judges: Callable[[], _Judges],
    cell: GridCell,
    _: str,
    ids: Sequence[str],
) -> list[Made]:
    """Return all verdicts on each context of a reply; None for one that was never made."""
    replies = {reply["id"]: reply for reply in run.records(cell)}
    trials = run.questions.trials(cell, ids)
    said = {
        name: ""
        if replies[name]["error"]
        else GridReply(replies[name]["answer"]).answer_text
        for name in ids
    }
    answered = [made for made in trials if said[made.item.id]]

    def turns(made: Trial, *, with_answer: bool = True) -> tuple[Message, ...]:
        question = Message("user", made.question)
        return (
            (question, Message("assistant", said[made.item.id]))
            if with_answer
            else (question,)
        )

    judge = judges()
    bare = [
        JudgeInput(turns(made, with_answer=False), (passage,))
        for made in trials
        for passage in made.passages
    ]
    isrel = judge.ask(judge.relevance, bare)
    issup = judge.ask(
        judge.support,
        [
            JudgeInput(turns(made), (passage,))
            for made in answered
            for passage in made.passages
        ],
    )
    cited = judge.ask(
        judge.citation, [JudgeInput(turns(made), made.passages) for made in answered]
    )
    records: list[Made] = []
    for made in trials:
        before, has_answer = replies[made.item.id], bool(said[made.item.id])
        chosen = _cited(next(cited)) if has_answer else None
        contexts = [
            {
                "id": passage.id,
                "cited": passage.id in before.get("cited", ()),
                "credited": passage.id in before.get("credited", ()),
                "relevant": passage.id in before["relevant"],
                "isrel": _verdict(next(isrel)),
                "issup": _verdict(next(issup)) if has_answer else None,
                "intrinsic": None if chosen is None else at in chosen,
            }
            for at, passage in enumerate(made.passages)
        ]
        base: dict[str, Any] = {
            "id": made.item.id,
            "error": None,
            "scores": {},
            "answered": has_answer,
        }
        records.append((base | {"contexts": contexts}, 0))
    return records


def _verdict(reflection: Reflection) -> dict[str, Any] | None:
    judgment = reflection.findings[0].judgment if reflection.findings else None
    if judgment is None or not judgment.defined:
        return None
    return {
        "label": judgment.label,
        "score": judgment.score,
        "coverage": judgment.coverage,
    }


def _cited(reflection: Reflection) -> set[int] | None:
    """Return the positions of the contexts that the intrinsic cites anywhere; None where no sentence was judged."""
    if not reflection.judgments:
        return None
    citations = chain.from_iterable(
        finding.citations for finding in reflection.findings
    )
    return {
        citation.site.passage
        for citation in citations
        if citation.site.passage is not None
    }


JudgedContext = dict[str, Any]


def _label(role: str, unfavourable: str) -> Callable[[JudgedContext], bool | None]:
    return lambda context: (
        None if context[role] is None else context[role]["label"] != unfavourable
    )


VERDICTS: dict[str, Callable[[JudgedContext], bool | None]] = {
    "cited": lambda context: bool(context["cited"]),
    "credited": lambda context: bool(context["credited"]),
    "IsRel": _label("isrel", ISREL.names[-1]),
    "IsSup": _label("issup", ISSUP.names[-1]),
    "citation intrinsic": lambda context: context["intrinsic"],
}
"""Who says yes to a context: IsRel if relevant, IsSup if fully or partly supported. None where nothing was judged."""


def agreement_table(
    run: GridRun, prompt: str, cells: Sequence[GridCell], seed: int = 0
) -> ReportTable | None:
    """Return what replies cite, reflection tokens and the citation intrinsic on the same contexts; None if not judged.

    Each judge is held against the citations of the answers, and against the relevant contexts.
    """
    questions: dict[str, list[JudgedContext]] = {}
    for cell in cells:
        for row in run.records(cell, AGREEMENT):
            if row["answered"]:
                contexts = (
                    {**context, "in": (cell.name, context["id"])}
                    for context in row["contexts"]
                )
                questions.setdefault(row["id"], []).extend(contexts)
    if not questions:
        return None
    rows = tuple(
        _agreement(judge, list(questions.values()), seed) for judge in VERDICTS
    )
    head = (
        "judge",
        "contexts",
        "says yes",
        "kappa with cited",
        "AUC of cited",
        "relevant: P",
        "R",
        "F1",
        "AUC",
    )
    note = "Cited and credited are the reply's own words: in its answer, or in its explanation as well"
    title = f"Agreement with reflection tokens and citation intrinsic, prompt {prompt}"
    return ReportTable(title, head, rows, (note,))


def _agreement(
    judge: str, questions: Sequence[Sequence[JudgedContext]], seed: int
) -> tuple[str, ...]:
    verdict, role = VERDICTS[judge], judge.lower()
    kept: list[list[JudgedContext]] = []  # of each question the contexts with a verdict
    pairs: list[
        list[tuple[bool, bool]]
    ] = []  # of each question verdict and citation of each context
    relevant, said = list[set[Any]](), list[set[Any]]()
    for contexts in questions:
        judged = [context for context in contexts if verdict(context) is not None]
        if judged:
            kept.append(judged)
            pairs.append(
                [(bool(verdict(context)), bool(context["cited"])) for context in judged]
            )
            relevant.append(
                {context["in"] for context in judged if context["relevant"]}
            )
            said.append({context["in"] for context in judged if verdict(context)})
    figures = pair_figures(relevant, said, seed=seed)

    def auc(truth: str) -> str:
        if role not in ("isrel", "issup"):
            return NONE
        positives, negatives = list[list[float]](), list[list[float]]()
        for contexts in kept:
            positives.append(
                [context[role]["score"] for context in contexts if context[truth]]
            )
            negatives.append(
                [context[role]["score"] for context in contexts if not context[truth]]
            )
        return share(pooled_auc(positives, negatives, seed=seed))

    return (
        judge,
        str(sum(map(len, kept))),
        str(sum(map(len, said))),
        NONE if judge == "cited" else share(kappa(pairs, seed=seed)),
        auc("cited"),
        percent(figures.precision),
        percent(figures.recall),
        percent(figures.f1),
        auc("relevant"),
    )
