"""An evaluation from files to figures: loads critics one after another, writes JSON with a manifest.

Prints nothing but a bar, on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from critic.cases import Critic, Labelled, read_labelled, rows_file
from critic.evaluation.baselines import MajorityCritic, TfidfCritic
from critic.evaluation.evaluate import Evaluation, evaluate
from critic.evaluation.prompted import PromptedCodec
from critic.student.judge import StudentCritic, load_critic
from retrieval.atomic import write_json, writing
from selfrag.errors import UserError

PROMPTED = "untrained base, prompted"
MAJORITY = "majority label"
TFIDF = "tf-idf + logistic regression"


@dataclass(frozen=True, slots=True)
class Subjects:
    """What is evaluated; at least one.

    Attributes:
        critic: directory or hub name of a trained critic.
        base: its base checkpoint (likewise), asked with the teacher's prompt.
        train: labelled rows, or a data folder, for the baselines that count.
        engine: engine of the models; None for the best one installed.
    """

    critic: str | Path | None = None
    base: str | Path | None = None
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
        out: where to write figures, manifest and every single judgment, as JSON; written anew after each critic, so
            that a kill costs the one at work.
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
    about: dict[str, Any] = {}
    if out is not None:
        with writing(out):  # better said before an hour of judging
            out.parent.mkdir(parents=True, exist_ok=True)
        about = _manifest(rows_path, subjects, seed)
    found: dict[str, Evaluation] = {}
    for name, opened in _critics(subjects, train):
        say(f"{name}: {len(rows)} cases")
        with opened() as critic:
            found[name] = _evaluated(critic, rows, seed)
        if out is not None:
            write_json(out, _record(about, rows, found))
    return found


def _evaluated(critic: Critic, rows: list[Labelled], seed: int) -> Evaluation:
    if not isinstance(critic, StudentCritic):
        return evaluate(critic, rows, seed=seed)
    from tqdm import tqdm

    with tqdm(total=len(rows), unit="case", disable=None) as bar:
        return evaluate(replace(critic, progress=bar.update), rows, seed=seed)


def _critics(subjects: Subjects, train: list[Labelled] | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    # Fitted first: rows that nothing can be fitted to are better named before a model has judged for an hour.
    fitted: dict[str, Critic] = (
        {} if train is None else {TFIDF: TfidfCritic.fit(train), MAJORITY: MajorityCritic.fit(train)}
    )
    if subjects.critic is not None:
        folder = subjects.critic
        yield Path(folder).name, lambda: load_critic(folder, subjects.engine)
    if subjects.base is not None:
        base = subjects.base
        yield PROMPTED, lambda: _prompted(base, subjects.engine)
    for name, critic in fitted.items():
        yield name, partial(_kept, critic)


@contextmanager
def _kept(critic: Critic) -> Iterator[Critic]:
    yield critic


def _prompted(base: str | Path, engine: str | None) -> StudentCritic:
    from selfrag.engines.select import load_engine
    from selfrag.loading import load_tokenizer, resolve_model

    directory = resolve_model(base)
    codec = PromptedCodec.from_tokenizer(load_tokenizer(directory))
    return StudentCritic(load_engine(engine, directory, max_model_len=codec.max_length), codec, exact=True)


def _manifest(rows_path: Path, subjects: Subjects, seed: int) -> dict[str, Any]:
    from selfrag.experiments.provenance import commit, sha256
    from selfrag.experiments.runner_manifest import model_files
    from selfrag.experiments.speed.machine import machine
    from selfrag.loading import resolve_model

    models = {"critic": subjects.critic, "base": subjects.base}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "seed": seed,
        "engine": subjects.engine,
        "rows": {rows_path.name: sha256(rows_path)},
        "train": None if subjects.train is None else sha256(rows_file(subjects.train)),
        "models": {name: model_files(resolve_model(given)) for name, given in models.items() if given is not None},
    }


def _record(about: Mapping[str, Any], rows: list[Labelled], found: Mapping[str, Evaluation]) -> dict[str, Any]:
    return {
        "manifest": about,
        "critics": {name: evaluation.as_dict() for name, evaluation in found.items()},
        "judgments": {
            name: {
                row.id: None if judgment is None else judgment.as_dict()["distribution"]
                for row, judgment in zip(rows, evaluation.judgments, strict=True)
            }
            for name, evaluation in found.items()
        },
    }
