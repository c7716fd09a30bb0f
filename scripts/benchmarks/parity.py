"""Parity of the transformers engine: does a GPU give the answers and the label probabilities of the CPU?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from scripts.benchmarks.job import Job
from scripts.benchmarks.models import demo_checkpoint
from scripts.benchmarks.speed.timing import answer_all, prompting_of
from scripts.benchmarks.speed.workload import Item
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.weights import Weights

POLICY = Decoding(mode="always", max_segments=1, segment_tokens=50)
ROLES = ("isrel", "issup", "isuse")

OTHER_WEIGHTS = (
    Weights(isrel=1.0, issup=3.0, isuse=0.0),
    Weights(isrel=0.0, issup=1.0, isuse=1.0),
    Weights(isrel=2.0, issup=0.5, isuse=2.0),
)
"""Settings that the recorded answers are rescored with."""

QUESTIONS = 32
TINY_QUESTIONS = 2

SLICE = 8
"""Questions between two looks at the clock, for the CPU, which is slow."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and in which number format the model runs."""

    device: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} on {self.device}"


def compare_devices(job: Job) -> None:
    """Compare float32 on the device with float32 on the CPU, and bfloat16 with float32 on the device."""
    torch.set_float32_matmul_precision("highest")  # no TF32
    torch.backends.cudnn.allow_tf32 = False
    path = str(demo_checkpoint(job))
    prompting = prompting_of(path)
    items = job.items()[: TINY_QUESTIONS if job.settings.tiny else QUESTIONS]
    exact = Place(job.device, "float32")
    rounded = Place(job.device, "bfloat16")
    reference = Place("cpu", "float32")
    first = answers_at(job, exact, path, prompting, items)
    second = answers_at(job, rounded, path, prompting, items)
    compare(job, rounded, second, exact, first)
    third = answers_at(job, reference, path, prompting, items)
    compare(job, exact, first, reference, third)
    compare(job, rounded, second, reference, third)


def answers_at(
    job: Job, place: Place, path: str, prompting: Prompting, items: Sequence[Item]
) -> list[Answer]:
    """Return the answers to the questions, or to the first of them if the time of the step runs out."""
    config = TransformersConfig(
        path,
        dtype=place.dtype,  # type: ignore[arg-type]
        device=place.device,
        max_model_len=2048,
    )
    engine = TransformersEngine.load(config)
    answers: list[Answer] = []
    seconds = 0.0
    for start in range(0, len(items), SLICE):
        if answers and not job.has_time(1.5 * seconds):
            break
        run = answer_all(items[start : start + SLICE], prompting, POLICY, engine)
        answers += run.answers
        seconds = run.seconds
    engine.close()
    return answers


def compare(
    job: Job,
    place: Place,
    answers: Sequence[Answer],
    reference: Place,
    expected: Sequence[Answer],
) -> None:
    """Write a line of the table: equal answers, equal rescored answers, differences of label probabilities.

    Where the time was too short for all questions in one place, those that both answered are compared.
    """
    count = min(len(answers), len(expected))
    answers, expected = answers[:count], expected[:count]
    same = [
        _written(answer) == _written(counterpart)
        for answer, counterpart in zip(answers, expected, strict=True)
    ]
    differences = label_differences(answers, expected)
    every = [value for values in differences.values() for value in values]
    rescored = {}
    for number, weights in enumerate(OTHER_WEIGHTS, 1):
        equal = [
            _written(answer.rescore(weights)) == _written(counterpart.rescore(weights))
            for answer, counterpart in zip(answers, expected, strict=True)
        ]
        rescored[f"equal when rescored with weights {number}, %"] = bracketed(
            mean(equal)
        )
    job.result(
        **{
            "run": str(place),
            "reference": str(reference),
            "questions": len(answers),
            "equal answers with citations, %": bracketed(mean(same)),
            **rescored,
            "judgments": len(every),
            "difference of a label's probability, largest": max(every, default=None),
            "mean over the judgments": fmean(every) if every else None,
        }
    )


def label_differences(
    answers: Sequence[Answer], expected: Sequence[Answer]
) -> dict[str, list[float]]:
    """Return by how much the probabilities of each judgment differ, the most of its labels; one number a judgment.

    IsRel is judged before anything is written; the others are compared where both runs wrote the same text.
    """
    differences: dict[str, list[float]] = {role: [] for role in ROLES}
    for answer, counterpart in zip(answers, expected, strict=True):
        for first, second in zip(
            answer.trace.nodes, counterpart.trace.nodes, strict=True
        ):
            for role in ROLES:
                comparable = role == "isrel" or first.text == second.text
                ours = _distribution(first.judgments, role)
                theirs = _distribution(second.judgments, role)
                if comparable and ours and theirs:
                    labels = zip(ours, theirs, strict=True)
                    differences[role].append(max(abs(p - q) for p, q in labels))
    return differences


def _distribution(
    judgments: Mapping[Any, Judgment | None], role: str
) -> Sequence[float]:
    """Return the probabilities of one judgment of a candidate, or none where it was not judged."""
    judgment = judgments.get(role)
    return () if judgment is None else judgment.distribution


def _written(answer: Answer) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    """Return the text of an answer and the passages that it cites, in order."""
    return answer.cited_text(), tuple(passage.key for passage in answer.citations)
