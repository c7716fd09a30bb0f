"""Do prompted IsRel and IsSup of a chat model tell right from wrong better than words in common?

python scripts/benchmarks/judge_auc.py CASES.jsonl [--model demo-base] [--limit 120] [--engine vllm]

Takes labelled cases of the critic with the best and the worst label of a group, and asks the model with the question
before the passage and after it. Prints the AUC of each order and of words in common, with bootstrap intervals and the
paired difference of the orders; the accuracy of the most probable label as it is, and with what the model says of
nothing divided out (contextual calibration, Zhao et al. 2021, arXiv 2102.09690); and what temperatures and biases of
`selfrag eval calibration` make of it, each fitted on four fifths of the cases and measured on the rest.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from critic.case_files import read_labelled
from critic.cases import LabelledCase
from critic.judging import case_input
from retrieval.passage import Passage
from scripts.command import command
from scripts.demo_model.learning import area
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.experiments.reflection_calibration import Observed, calibrate, table
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.reflection_prompts import judge_name
from selfrag.judges.words import overlap, shown
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.reflection.judgment import Judgment
from selfrag.runtime import finish

GROUPS = {
    "IsRel": ("isrel", "Relevant", "Irrelevant"),
    "IsSup": ("issup", "Fully supported", "No support / Contradictory"),
}
ORDERS = (("question", "passage"), ("passage", "question"))


@dataclass(frozen=True, slots=True)
class JudgedCases:
    """Judgments of the same cases in one order of the prompt."""

    order: tuple[str, ...]
    uncalibrated: list[Judgment]
    calibrated: list[Judgment]  # by context


@command
def main(
    cases: str, *, model: str = "demo-base", engine: str = "vllm", limit: int = 120
) -> None:
    """Print the figures of both groups.

    Args:
        cases: labelled cases of the critic.
        model: checkpoint directory, hub name or demo-base.
        engine: vllm or transformers.
        limit: cases of each group.
    """
    path = resolve_model(model)
    loaded = load_engine(engine, path, dtype="float32", max_model_len=2048)
    chat = ChatModel.on(EngineExecutor(loaded, load_tokenizer(path)))
    rows = list(read_labelled(cases))
    random.Random(0).shuffle(rows)  # noqa: S311 - a sample
    for group, (question, best, worst) in GROUPS.items():
        labels = (group, best), (group, worst)
        chosen = [row for row in rows if (row.case.group, row.label) in labels][:limit]
        print(f"\n{group}: {len(chosen)} cases")
        judged = [judge(chat, order, question, chosen, loaded) for order in ORDERS]
        measure(judged, chosen, best)
    loaded.close()


def judge(
    model: ChatModel,
    order: tuple[str, ...],
    question: str,
    rows: Sequence[LabelledCase],
    engine: Engine,
) -> JudgedCases:
    """Return the judgments of cases, as they are and calibrated by context."""
    model = replace(model, wording=replace(model.wording, order=order))
    judge = model.judges[judge_name(question)]
    reflections = finish(judge.judge([case_input(row.case) for row in rows]), engine)
    judgments = [reflection.scored[0] for reflection in reflections]
    scaling = model.calibrated_by_context(engine).scalings[question]
    return JudgedCases(order, judgments, [scaling(item) for item in judgments])


def measure(
    judged: Sequence[JudgedCases], rows: Sequence[LabelledCase], best: str
) -> None:
    """Print the figures of one group."""
    labels = judged[0].uncalibrated[0].labels
    is_best = [row.label == best for row in rows]
    words = []
    for row in rows:
        evidence = row.case.evidence or Passage("none", "")
        words.append(overlap(row.case.output or row.case.instruction, shown(evidence)))
    print(f"  AUC, words in common: {bracketed(area(is_best, words, 0))}")
    accuracies = []
    for cases in judged:
        print(f"  {', '.join(cases.order)}:")
        coverage = np.mean([judgment.coverage for judgment in cases.uncalibrated])
        scores = [judgment.score for judgment in cases.uncalibrated]
        print(f"    AUC {bracketed(area(is_best, scores, 0))}; coverage {coverage:.3f}")
        hits = _hits(cases.uncalibrated, is_best, best)
        calibrated = _hits(cases.calibrated, is_best, best)
        accuracies.append(hits)
        print(f"    accuracy {bracketed(mean(hits))}")
        print(f"    calibrated by context {bracketed(mean(calibrated))}")
        print(f"    difference, paired {_difference(calibrated, hits)}")
        observed = []
        for row, judgment in zip(rows, cases.uncalibrated, strict=True):
            right = labels.index(row.label)
            observed.append(Observed(row.case.instruction, judgment, right))
        for biased in (False, True):
            print(table(calibrate(observed, biased=biased)))
    print(f"  accuracy of the orders, paired {_difference(*accuracies)}")


def _hits(
    judgments: Sequence[Judgment], is_best: Sequence[bool], best: str
) -> list[float]:
    """Return whether the most probable label is right: the best one, or another."""
    hits = []
    for judgment, is_right in zip(judgments, is_best, strict=True):
        hits.append(float((judgment.label == best) == is_right))
    return hits


def _difference(left: Sequence[float], right: Sequence[float]) -> str:
    differences = [a - b for a, b in zip(left, right, strict=True)]
    return bracketed(mean(differences, bounds=(-1.0, 1.0)))


if __name__ == "__main__":
    main()
