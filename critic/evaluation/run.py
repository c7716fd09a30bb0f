"""An evaluation from files to figures: loads critics one after another, writes JSON with a manifest. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from critic.cases import Critic, Labelled, read_labelled, rows_file
from critic.evaluation.baselines import MajorityCritic, TfidfCritic
from critic.evaluation.evaluate import Evaluation, evaluate
from critic.evaluation.prompted import PromptedCodec
from critic.student.judge import StudentCritic, load_critic
from selfrag.errors import UserError

PROMPTED = "untrained base, prompted"
MAJORITY = "majority label"
TFIDF = "tf-idf + logistic regression"


@dataclass(frozen=True, slots=True)
class Subjects:
    """What is evaluated; at least one.

    Attributes:
        critic: directory of a trained critic.
        base: its base checkpoint, asked with the teacher's prompt.
        train: labelled rows, or a data folder, for the baselines that count.
        engine: engine of the models; None for the best one installed.
    """

    critic: Path | None = None
    base: Path | None = None
    train: Path | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.critic is None and self.base is None and self.train is None:
            raise UserError("nothing to evaluate: give a critic, a base model or training rows")


def run_evaluation(
    rows_path: Path,
    subjects: Subjects,
    *,
    out: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Evaluation]:
    """Evaluate on a file.

    Args:
        rows_path: labelled rows.
        subjects: what is evaluated.
        out: where to write figures, manifest and every single judgment, as JSON.
        seed: of the intervals.
        say: told what is done next.

    Returns:
        Name of a critic -> its evaluation; the trained one first.

    Raises:
        UserError: a file, a row or a model cannot be used.
    """
    rows = list(read_labelled(rows_path, judgeable=True))
    if not rows:
        raise UserError(f"{rows_path} holds no rows")
    train = None if subjects.train is None else list(read_labelled(rows_file(subjects.train)))
    found = {}
    for name, opened in _critics(subjects, train):
        say(f"{name}: {len(rows)} cases")
        with opened() as critic:
            found[name] = evaluate(critic, rows, seed=seed)
    if out is not None:
        from retrieval.atomic import write_json

        write_json(out, _record(rows_path, rows, subjects, found, seed))
    return found


def _critics(subjects: Subjects, train: list[Labelled] | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    if subjects.critic is not None:
        folder = subjects.critic
        yield folder.name, lambda: load_critic(folder, subjects.engine)
    if subjects.base is not None:
        base = subjects.base
        yield PROMPTED, lambda: _prompted(base, subjects.engine)
    if train is not None:
        yield TFIDF, lambda: _kept(TfidfCritic.fit(train))
        yield MAJORITY, lambda: _kept(MajorityCritic.fit(train))


@contextmanager
def _kept(critic: Critic) -> Iterator[Critic]:
    yield critic


def _prompted(base: Path, engine: str | None) -> StudentCritic:
    from selfrag.engines.select import load_engine
    from selfrag.loading import load_tokenizer, resolve_model

    directory = resolve_model(base)
    codec = PromptedCodec.from_tokenizer(load_tokenizer(directory))
    return StudentCritic(load_engine(engine, directory, max_model_len=codec.max_length), codec, exact=True)


def _record(
    rows_path: Path, rows: list[Labelled], subjects: Subjects, found: Mapping[str, Evaluation], seed: int
) -> dict[str, Any]:
    from selfrag.experiments.provenance import commit, sha256
    from selfrag.experiments.speed.machine import machine

    models = {name: path for name, path in (("critic", subjects.critic), ("base", subjects.base)) if path is not None}
    files = {name: sorted([*p.glob("*.safetensors"), *p.glob("*.json")]) for name, p in models.items()}
    return {
        "manifest": {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "seed": seed,
            "engine": subjects.engine,
            "rows": {rows_path.name: sha256(rows_path)},
            "models": {name: {path.name: sha256(path) for path in paths} for name, paths in files.items()},
        },
        "critics": {name: evaluation.as_dict() for name, evaluation in found.items()},
        "judgments": {
            name: {
                row.id: None if judgment is None else judgment.as_dict()["distribution"]
                for row, judgment in zip(rows, evaluation.judgments, strict=True)
            }
            for name, evaluation in found.items()
        },
    }
