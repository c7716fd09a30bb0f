"""Does a device or a number format give the answers of the CPU in float32? `bench_parity.py [--device cuda]`.

The same questions on the transformers engine: in float32 on the CPU, and in float32 and bfloat16 on a device; and on
other engines where they are named. Differences are those of the probabilities of each judgment, the most of its
labels. IsRel is judged before anything is written; the others are compared where both runs wrote the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from scripts.benchmarks.measure import Report, answer_all
from scripts.benchmarks.workload import FORMS, items_of
from scripts.command import command
from selfrag.common.pretrained import best_device
from selfrag.decoding.answer import Answer
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.weights import Weights

OTHER_WEIGHTS = (
    Weights(isrel=1.0, issup=3.0, isuse=0.0),
    Weights(isrel=0.0, issup=1.0, isuse=1.0),
    Weights(isrel=2.0, issup=0.5, isuse=2.0),
)
"""Settings that the recorded answers are rescored with."""
POLICIES = {
    **{name: form.policy for name, form in FORMS.items()},
    "constrained": replace(
        FORMS["short"].policy,
        require={"issup": "Fully supported"},
        forbid={"isuse": ["1", "2"]},
    ),
}
"""Forms of answers: short, long, and short under constraints."""


@command
def main(
    *,
    model: str = "demo",
    device: str = "auto",
    data: Path | None = None,
    questions: int = 16,
    passages: int = 5,
    form: str = "short",
    out: Path | None = None,
    beside: list[str] = [],  # noqa: B006 - of the command line alone
) -> None:
    """Print a line for each pair of runs.

    Args:
        model: checkpoint directory, hub name or `demo`.
        device: torch device; CUDA where there is one.
        data: rows with instruction and passages; else made from the demo corpus.
        questions: to answer.
        passages: of each question.
        form: short, long or constrained.
        out: JSON file with everything measured.
        beside: number format and another engine, such as int8:onnx; repeatable.
    """
    torch.set_float32_matmul_precision("highest")  # no TF32
    torch.backends.cudnn.allow_tf32 = False
    report = Report(out)
    path = resolve_model(model)
    prompting = Prompting.from_tokenizer(load_tokenizer(path))
    items = items_of(data, questions, passages)
    if device == "auto":
        device = best_device()
    answers: dict[str, Sequence[Answer]] = {}
    runs: dict[str, Callable[[], Engine]] = {}
    for setting in beside:
        dtype, _, name = setting.partition(":")
        runs[f"{dtype} on {name}"] = partial(load_engine, name, path, dtype=dtype)
    places = [("float32", device), ("bfloat16", device), ("float32", "cpu")]
    if device == "cpu" and beside:
        places = [("float32", "cpu")]
    for dtype, place in places:  # the CPU comes last: it is slow
        options = {"dtype": dtype, "device": place}
        runs.pop(f"{dtype} on {place}", None)
        runs[f"{dtype} on {place}"] = partial(
            load_engine, "transformers", path, **options
        )
    for name, load in runs.items():
        engine = load()
        run = answer_all(items, prompting, POLICIES[form], engine)
        engine.close()
        for known, reference in answers.items():
            compare(report, form, name, run.answers, known, reference)
        answers[name] = run.answers
    report.print()


def compare(
    report: Report,
    form: str,
    name: str,
    answers: Sequence[Answer],
    reference: str,
    expected: Sequence[Answer],
) -> None:
    """Report equal answers, equal rescored answers, and differences of label probabilities."""
    pairs = list(zip(answers, expected, strict=True))
    line = {"equal answers, %": bracketed(mean([same(*pair) for pair in pairs]))}
    for number, weights in enumerate(OTHER_WEIGHTS, 1):
        equal = [
            same(left.rescore(weights), right.rescore(weights)) for left, right in pairs
        ]
        line[f"equal under weights {number}, %"] = bracketed(mean(equal))
    gaps = [gap for pair in pairs for gap in label_gaps(*pair)]
    report.add(
        run=name,
        reference=reference,
        questions=len(pairs),
        **line,
        judgments=len(gaps),
        largest=max(gaps, default=None),
        mean=fmean(gaps) if gaps else None,
    )


def same(left: Answer, right: Answer) -> bool:
    """Return whether two answers have the same text and cite the same passages."""
    cited = [[passage.key for passage in answer.citations] for answer in (left, right)]
    return left.cited_text() == right.cited_text() and cited[0] == cited[1]


def label_gaps(answer: Answer, expected: Answer) -> Iterator[float]:
    """Yield by how much the probabilities of each judgment differ, the most of its labels."""
    nodes = zip(answer.trace.nodes, expected.trace.nodes, strict=True)
    for left, right in nodes:
        for role, judgment in left.judgments.items():
            counterpart = right.judgments.get(role)
            comparable = role == "isrel" or left.text == right.text
            if comparable and judgment is not None and counterpart is not None:
                labels = zip(
                    judgment.distribution, counterpart.distribution, strict=True
                )
                yield max((abs(p - q) for p, q in labels), default=0.0)


if __name__ == "__main__":
    main()
