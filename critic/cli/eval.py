"""`critic eval`: labelled rows in, figures of a critic and its baselines out. Declares options; computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    rows: Annotated[Path, typer.Argument(help="Labelled cases, JSONL.")],
    critic: Annotated[str | None, typer.Option(help="Folder or hub name of a trained critic, or 'demo'.")] = None,
    base: Annotated[
        str | None, typer.Option(help="Untrained base model, asked with the teacher's prompt; folder or hub name.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Training rows (or data folder) for majority label and tf-idf.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or transformers.", show_default="the best one")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write figures and judgments as JSON; killed, it goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the intervals.")] = 0,
) -> None:
    """Accuracy, macro-F1, calibration and confusion for every group, beside baselines and the paper's figures."""
    from critic.evaluation.report import report
    from critic.evaluation.run import Subjects, run_evaluation

    subjects = Subjects(critic, base, train, engine)
    found = run_evaluation(rows, subjects, out=out, seed=seed, say=lambda text: typer.echo(text, err=True))
    typer.echo(report(found, next(iter(found))))
