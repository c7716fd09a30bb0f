"""Agreement of what replies cite with other judges of the same contexts: reflection tokens, the citation intrinsic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.intervals import NONE, kappa, pooled_auc
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.evaluation.runner import on_demand
from selfrag.evaluation.task_files import nothing_searched
from selfrag.experiments.report_tables import ReportTable, percent, share
from selfrag.experiments.self_interpretation.grid import GridCell
from selfrag.experiments.self_interpretation.replies import (
    GridReply,
)
from selfrag.experiments.self_interpretation.run import (
    GridRun,
    Made,
    Results,
    read_grid,
    record,
)
from selfrag.interface import (
    ISREL,
    ISSUP,
    Engine,
    Judge,
    JudgeInput,
    Message,
    Reflection,
    finish,
    model_files,
)

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
    folder: Path,
    model: str,
    engine: str | None = None,
    patterns: Sequence[str] = (),
    **options: Any,
) -> Results:
    """Ask a Self-RAG model's reflection tokens and its citation intrinsic about the replies of a run.

    The intrinsic is the model's adapter where it brings one, else a prompt. `options` are of the engine.
    """
    from selfrag.engines import is_remote
    from selfrag.interface import resolve_model
    from selfrag.intrinsics.named import adapters_of

    run = read_grid(folder)
    cells = run.select(patterns)
    path, remote = resolve_model(model), is_remote(engine)
    shipped = adapters_of((CITATIONS,), model)
    with on_demand(partial(_judges, model, engine, **options)) as judges:
        # a server says what it has
        loaded = judges().engine.limits.adapters if remote else shipped
        judge: JsonObject = {
            "model": model_files(path),
            "citation": "adapter" if CITATIONS in loaded else "prompt",
        }
        if not remote and CITATIONS in shipped:
            judge["adapter"] = model_files(Path(shipped[CITATIONS]))
        files = [(cell, AGREEMENT, {"judge": judge}) for cell in cells]
        return record(run, "judge", files, partial(_verdicts, run, judges))


def _judges(model: str, engine: str | None, **options: Any) -> _Judges:
    from selfrag.decoding.token_writer import with_tokens
    from selfrag.interface import SelfRAG
    from selfrag.judges.tokens import TokenJudge

    rag = SelfRAG.from_pretrained(
        model,
        retriever=nothing_searched,
        engine=engine,
        judges=(CITATIONS,),
        **options,
    )
    prompting = with_tokens(rag.prompting)
    relevance = TokenJudge(prompting, ISREL)
    support = TokenJudge(prompting, ISSUP)
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
    answers = {}  # answer of each reply without its citations; empty where it failed
    for name, reply in replies.items():
        answers[name] = "" if reply["error"] else GridReply(reply["answer"]).answer_text
    # 1. ask the judges
    relevance, support, citation = [], [], []
    for made in trials:
        question = Message("user", made.question)
        contexts = [(passage,) for passage in made.passages]
        relevance += [JudgeInput((question,), context) for context in contexts]
        if text := answers[made.item.id]:
            turns = question, Message("assistant", text)
            support += [JudgeInput(turns, context) for context in contexts]
            citation.append(JudgeInput(turns, made.passages))
    judge = judges()
    isrel = judge.ask(judge.relevance, relevance)
    issup = judge.ask(judge.support, support)
    cited = judge.ask(judge.citation, citation)
    # 2. the verdicts on each context
    records: list[Made] = []
    for made in trials:
        verdicts: list[JsonObject] = []
        before, has_answer = replies[made.item.id], bool(answers[made.item.id])
        chosen = _cited(next(cited)) if has_answer else None
        for place, passage in enumerate(made.passages):
            context = {
                "id": passage.id,
                "cited": passage.id in before.get("cited", ()),
                "credited": passage.id in before.get("credited", ()),
                "relevant": passage.id in before["relevant"],
                "isrel": _verdict(next(isrel)),
                "issup": _verdict(next(issup)) if has_answer else None,
                "intrinsic": None if chosen is None else place in chosen,
            }
            verdicts.append(context)
        base: JsonObject = {
            "id": made.item.id,
            "error": None,
            "scores": {},
            "answered": has_answer,
        }
        records.append((base | {"contexts": verdicts}, 0))
    return records


def _verdict(reflection: Reflection) -> JsonObject | None:
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
    positions = set()
    for finding in reflection.findings:
        for citation in finding.citations:
            if citation.site.passage is not None:
                positions.add(citation.site.passage)
    return positions


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
                contexts = questions.setdefault(row["id"], [])
                for context in row["contexts"]:
                    contexts.append({**context, "in": (cell.name, context["id"])})
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
    kept: list[list[JudgedContext]] = []  # of each question, what has a verdict
    pairs: list[list[tuple[bool, bool]]] = []  # verdict and citation of each
    for contexts in questions:
        judged = [context for context in contexts if verdict(context) is not None]
        if judged:
            kept.append(judged)
            pairs.append([(bool(verdict(c)), bool(c["cited"])) for c in judged])

    def chosen(says: Callable[[JudgedContext], Any]) -> list[set[Any]]:
        return [_places(filter(says, contexts)) for contexts in kept]

    affirmed = chosen(verdict)
    figures = pair_figures(chosen(itemgetter("relevant")), affirmed, seed=seed)

    def auc(truth: str) -> str:
        if role not in ("isrel", "issup"):
            return NONE
        sides: dict[bool, list[list[float]]] = {True: [], False: []}
        for contexts in kept:
            for side, scores in sides.items():
                of_side = [c for c in contexts if bool(c[truth]) is side]
                scores.append([context[role]["score"] for context in of_side])
        return share(pooled_auc(sides[True], sides[False], seed=seed))

    return (
        judge,
        str(sum(map(len, kept))),
        str(sum(map(len, affirmed))),
        NONE if judge == "cited" else share(kappa(pairs, seed=seed)),
        auc("cited"),
        percent(figures.precision),
        percent(figures.recall),
        percent(figures.f1),
        auc("relevant"),
    )


def _places(contexts: Iterable[JudgedContext]) -> set[Any]:
    return {context["in"] for context in contexts}
