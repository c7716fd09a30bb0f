"""Settings of `selfrag eval intrinsics`. Importing them imports neither numpy nor a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """What to measure, with what.

    Attributes:
        data: folder with the rows of the intrinsics, or with `intrinsics/`.
        model: the adapters' base: demo, a folder with a checkpoint, or a hub name.
        adapters: folder with a subfolder for each adapter; by default the demo's adapters.
        corpus: for the recall of rewrites and for flows: folder with corpus, queries and qrels, or passages alone. A
            file of passages does if the rows of rewrites say which are relevant, or a folder with one for each domain.
        parts: measure this intrinsic only; by default all but the flows, which are slow.
        engine: vllm or transformers; by default the best one installed.
        limit: most rows of each intrinsic.
        flows: number of questions for flows.
        shots: examples of the prompted baseline; 0 leaves it out.
        judges: measure this judge only: tokens, combined, adapter, prompt, overlap; by default all.
        dialect: prompts of the adapters, such as granite-3.2; needed for published ones.
        judge: judge of entailment for citations and answers, such as true or nli:MODEL.
        grader: chat model, MODEL@URL or a checkpoint, that grades: support of citations, answers, 'I don't know'.
        grader_words: JSON with questions of the grader in other words, such as those of a benchmark's own prompts.
        rival: measure another model by prompts, too: MODEL@URL of an endpoint, or a checkpoint.
        index: search this index instead of --corpus by words; with the ids of the judgments.
        answers: write answers after rewrites to so many questions (tables 5 to 7).
        seed: seed of samples and intervals.
    """

    data: Path
    model: str = "demo"
    adapters: Path | None = None
    corpus: Path | None = None
    parts: tuple[str, ...] = ()
    engine: str | None = None
    limit: int | None = None
    flows: int = 60
    shots: int = 3
    judges: tuple[str, ...] = ()
    dialect: str | None = None
    judge: str | None = None
    grader: str | None = None
    grader_words: Path | None = None
    rival: str | None = None
    index: str | None = None
    answers: int = 0
    seed: int = 0
