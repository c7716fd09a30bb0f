"""Do prompted IsRel and IsSup of a chat model tell right from wrong better than words in common?

python scripts/benchmarks/judge_auc.py CASES.jsonl [--model demo-base] [--limit 120] [--engine vllm]

Takes labelled cases of the critic with the best and the worst label of a group. Prints the AUC of both with bootstrap
intervals and their paired difference; and the accuracy of the most probable label, before and after the distribution
for an empty question and passage is divided out (contextual calibration, Zhao et al. 2021, arXiv 2102.09690).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

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
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.words import overlap, shown
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.judgment import Judgment
from selfrag.runtime import finish

GROUPS = {
    "IsRel": ("prompt_isrel", "Relevant", "Irrelevant"),
    "IsSup": ("prompt_issup", "Fully supported", "No support / Contradictory"),
}
EMPTY = "N/A"


@command
def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases")
    parser.add_argument("--model", default="demo-base")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--limit", type=int, default=120, help="cases of each group")
    options = parser.parse_args()
    path = resolve_model(options.model)
    engine = load_engine(options.engine, path, dtype="float32", max_model_len=2048)
    judges = ChatModel.on(EngineExecutor(engine, load_tokenizer(path))).judges
    rows = list(read_labelled(options.cases))
    random.Random(0).shuffle(rows)  # noqa: S311 - a sample
    for group, (name, best, worst) in GROUPS.items():
        chosen = [
            row
            for row in rows
            if row.case.group == group and row.label in (best, worst)
        ][: options.limit]
        measure(judges[name], engine, chosen, best)
        sys.stdout.flush()
    engine.close()
    return 0


def measure(
    judge: Judge, engine: Engine, rows: Sequence[LabelledCase], best: str
) -> None:
    """Print the figures of one group."""
    turns = (Message("user", EMPTY), Message("assistant", EMPTY))
    content_free = JudgeInput(
        turns[: 1 if judge.name == "prompt_isrel" else 2],
        (Passage("empty", EMPTY, ""),),
    )
    states = [case_input(row.case) for row in rows]
    reflections = finish(judge.judge([*states, content_free]), engine)
    judgments: list[Judgment] = [reflection.scored[0] for reflection in reflections]
    prior = np.array(judgments.pop().distribution)
    right = [row.label == best for row in rows]
    scores, words, raw, calibrated = [], [], [], []
    position = judge.labels.names.index(best)
    for row, judgment in zip(rows, judgments, strict=True):
        evidence = row.case.evidence or Passage("none", "")
        text = row.case.output or row.case.instruction
        scores.append(judgment.score)
        words.append(overlap(text, shown(evidence)))
        probabilities = np.array(judgment.distribution)
        raw.append(float((probabilities.argmax() == position) == (row.label == best)))
        calibrated.append(
            float(((probabilities / prior).argmax() == position) == (row.label == best))
        )
    coverage = np.mean([judgment.coverage for judgment in judgments])
    print(
        f"{judge.name}, {len(rows)} cases, {sum(right)} {best}, mean coverage {coverage:.3f}"
    )
    print(
        f"  prior of an empty prompt: {dict(zip(judge.labels.names, prior.round(3).tolist(), strict=True))}"
    )
    for what, values in (("prompted", scores), ("words in common", words)):
        print(f"  AUC, {what}: {bracketed(area(right, values, 0))}")
    print(
        f"  accuracy, most probable label: {bracketed(mean(raw))}; calibrated: {bracketed(mean(calibrated))}"
    )
    difference = mean(
        [after - before for after, before in zip(calibrated, raw, strict=True)],
        bounds=(-1.0, 1.0),
    )
    print(f"  accuracy, calibrated - raw, paired: {bracketed(difference)}")


if __name__ == "__main__":
    sys.exit(main())
