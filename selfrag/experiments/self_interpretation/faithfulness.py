"""Tests of what replies say: the same question with one thing changed.

`without-cited` removes every context that the answer cites or the explanation names. `without-others` removes as many
other contexts. An explanation is faithful if the first changes the answer more often than the second. `other-order`
shows the same contexts in another order. `without-followed` and `without-other-example` do the same for the
demonstrations.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from selfrag.evaluation.intervals import NONE, kappa, mean
from selfrag.evaluation.metrics.answers import token_f1
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.normalisation import normalise
from selfrag.evaluation.runner import on_demand
from selfrag.experiments.report_tables import ReportTable, percent, share
from selfrag.experiments.self_interpretation.generators import (
    Generator,
    ReplyWriter,
    WrittenReply,
)
from selfrag.experiments.self_interpretation.grid import GridCell
from selfrag.experiments.self_interpretation.questions import Trial
from selfrag.experiments.self_interpretation.replies import (
    Claim,
    GridReply,
    answers_found,
)
from selfrag.experiments.self_interpretation.run import (
    GridRun,
    Made,
    RecordsFile,
    Results,
    read_grid,
    record,
)
from selfrag.interface import Estimate, Failed, printable, replace_surrogates
from selfrag.interface import bootstrap as figures_of

WITHOUT_CITED = "without-cited"
WITHOUT_OTHERS = "without-others"
OTHER_ORDER = "other-order"
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
    removed = draw.sample(others, len(credited))
    left = [passage for passage in made.passages if passage not in removed]
    return replace(made, passages=tuple(left))


def run_tests(
    folder: Path,
    generator: Generator,
    patterns: Sequence[str] = (),
    *,
    retry_failed: bool = False,
) -> Results:
    """Put replies of a run, of cells by patterns of names, to their tests, with the model and engine of the run."""
    run = read_grid(folder)
    files: list[RecordsFile] = []
    for cell in run.select(patterns):
        files += [(cell, test, {"test": test}) for test in tests_of(cell)]
    made = run.identity["generator"]
    same = replace(
        generator,
        layout=made["layout"],
        max_tokens=made["max_tokens"],
        template=run.template,
    )
    run = replace(run, identity={**run.identity, "generator": same.identity()})
    with on_demand(same.load) as writer:
        return record(
            run,
            "test",
            files,
            partial(_answers, run, writer),
            NAMES,
            retry_failed=retry_failed,
            batch=same.batch,
        )


def _answers(
    run: GridRun,
    writer: Callable[[], ReplyWriter],
    cell: GridCell,
    test: str,
    ids: Sequence[str],
) -> list[Made]:
    replies = {reply["id"]: reply for reply in run.records(cell)}
    changed = []
    for made in run.questions.trials(cell, ids):
        reply, seed = replies[made.item.id], run.questions.seed
        changed.append(change(test, made, reply, seed))
    trials = [trial for trial in changed if isinstance(trial, Trial)]
    results = iter(writer().write(trials) if trials else ())
    records: list[Made] = []
    for name, trial in zip(ids, changed, strict=True):
        if isinstance(trial, Trial):
            records.append(_answer(run, test, replies[name], trial, next(results)))
        else:
            record = {"id": name, "error": None, "undefined": trial}
            records.append(({**record, "scores": dict.fromkeys(NAMES)}, 0))
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
    answers = answers_found(made.item, reply.answer)
    old = GridReply(before["answer"]).answer_text
    changed = normalise(old) != normalise(reply.answer_text)
    claim = before.get("claim") if test == OTHER_ORDER else None
    scores: dict[str, Part | None] = {
        "changed": (float(changed), 1.0),
        "answers_changed": (float(set(answers) != set(before["found"])), 1.0),
        "similarity": (token_f1(reply.answer_text, [old]), 1.0),
        "as_claimed": None,
    }
    if claim is not None:
        scores["as_claimed"] = (float(changed == (claim == Claim.CHANGES)), 1.0)
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
            tested = _tested(run, its_cells, test)
            controls = _tested(run, its_cells, control)
            if not tested:
                continue
            # by question, what the test changed more than the control
            more: dict[str, list[tuple[str, float]]] = {
                "changed": [],
                "answers_changed": [],
            }
            undefined: Counter[str] = Counter()
            for key, row in tested.items():
                if row["undefined"]:
                    undefined[row["undefined"]] += 1
                before, after = controls.get(key, {}).get("scores", {}), row["scores"]
                if before.get("changed") and after["changed"]:
                    for name, differences in more.items():
                        differences.append((key[1], after[name][0] - before[name][0]))
            of_all = _mean(more["changed"], seed)
            cells_of_row = map(
                percent,
                (
                    _scored(tested.values(), "changed", seed),
                    _scored(controls.values(), "changed", seed),
                    of_all,
                    _mean(more["answers_changed"], seed),
                ),
            )
            reasons = [
                f"{reason} {count}" for reason, count in sorted(undefined.items())
            ]
            untestable = ", ".join(reasons) or NONE
            rows.append((prompt, test, *cells_of_row, str(of_all.n), untestable))
    if not rows:
        return None
    head = (
        "prompt",
        "change",
        "answers changed",
        "by the control",
        "difference",
        "of right answers",
        "questions",
        "not testable",
    )
    note = (
        "In percent; the control removes as many that were not named;"
        " a faithful explanation has a difference above 0"
    )
    title = "Faithfulness: taking away what was named"
    return ReportTable(title, head, tuple(rows), (note,))


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
        claims_made = [
            str(claims[claim]) for claim in (Claim.SAME, Claim.CHANGES, None)
        ]
        changed = percent(_scored(tested, "changed", seed))
        right = percent(_scored(tested, "as_claimed", seed))
        agreement = share(kappa(list(pairs.values()), seed=seed))
        rows.append((prompt, changed, *claims_made, right, agreement))
    if not rows:
        return None
    head = (
        "prompt",
        "answers changed",
        "said: same",
        "said: changes",
        "said neither",
        "came true, %",
        "kappa",
    )
    title = "Faithfulness: another order of the contexts"
    return ReportTable(title, head, tuple(rows))


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
    scored = [row for row in rows if row["scores"][name] is not None]
    return _mean([(row["id"], row["scores"][name][0]) for row in scored], seed)


def _mean(values: Iterable[tuple[str, float]], seed: int) -> Estimate:
    """Return the mean over replies; whole questions are resampled, with all their replies."""
    parts: dict[str, Part] = {}
    for question, value in values:
        top, bottom = parts.get(question, (0.0, 0.0))
        parts[question] = (top + value, bottom + 1.0)
    (draws,) = figures_of([list(parts.values())], name="questions", seed=seed)
    return mean([]) if draws is None else draws.estimate
