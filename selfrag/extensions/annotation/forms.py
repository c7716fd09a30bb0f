"""Human evaluation of a run: a form to fill in offline, and what people said in it (Self-RAG, C.2).

People judge whether an answer is plausible and supported by what it cites (S&P, Menick et al.), and whether IsRel and
IsSup of each of its segments are right. The form is one HTML file; it saves a JSON file for each annotator.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import read_json
from selfrag.common.untrusted import visible
from selfrag.decoding.answer import segments_of
from selfrag.decoding.trace import trace_of
from selfrag.evaluation.comparison import read_runs
from selfrag.evaluation.intervals import Estimate, kappa, mean
from selfrag.evaluation.records import item_id
from selfrag.reflection.labels import Role
from selfrag.render.documents import document, page_policy, style_sheet, templates

FORMAT = "selfrag-annotation-1"
QUESTIONS = {
    "plausible": "Is the answer a reasonable reply to the question, and on topic?",
    "supported": "Is what it cites enough to verify the answer?",
    "isrel": "Is this judgment of the passage's relevance right?",
    "issup": "Is this judgment of the passage's support right?",
}
"""What is asked: the first two of an answer, the others of each segment with a judgment."""
FIGURES = {"plausible": "plausible", "s&p": "supported and plausible", "isrel": "IsRel right", "issup": "IsSup right"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment as people see it."""

    text: str
    passage: Passage | None  # what it was written from
    isrel: str | None  # the model's most probable label; None where it judged nothing
    issup: str | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer that people judge."""

    file: str  # of the run
    id: str  # of the item
    question: str
    answer: str
    pieces: tuple[Piece, ...]

    @property
    def considered(self) -> bool:
        """Whether S&P counts it: some segment is predicted relevant and at least partially supported (C.2)."""
        return any(p.isrel == "Relevant" and p.issup not in (None, "No support / Contradictory") for p in self.pieces)


def sampled(folder: Path, count: int, *, seed: int = 0, only: Sequence[str] = ()) -> list[Sampled]:
    """A seeded sample of the answers of each file."""
    (run,) = read_runs([folder], only or None)
    found: list[Sampled] = []
    for name in run.files:
        path = folder / f"{name}.jsonl"
        ids = list(read_jsonl(path, lambda record: None if record.get("error") else item_id(record)))
        answered = sorted(key for key in ids if key is not None)
        order = {key: at for at, key in enumerate(random.Random(seed).sample(answered, len(answered))[:count])}  # noqa: S311
        taken = [one for one in read_jsonl(path, lambda r: _sampled(name, r, order)) if one is not None]  # noqa: B023
        found += sorted(taken, key=lambda one: order[one.id])
    if not found:
        raise UserError(f"{folder} has no answer to judge")
    return found


def _sampled(file: str, record: Mapping[str, Any], wanted: Mapping[str, int]) -> Sampled | None:
    key = item_id(record)
    if key not in wanted:
        return None
    if record.get("trace") is None:
        raise UserError(f"item {key!r:.60} has no trace; run it again with --traces")
    trace = trace_of(record["trace"])
    answer, segments = segments_of(trace, trace.best)
    pieces = []
    for one in segments:
        judged = (one.judgments.get(role) for role in (Role.RELEVANCE, Role.SUPPORT))
        labels = (None if judgment is None else str(judgment.label) for judgment in judged)
        pieces.append(Piece(one.text, trace.nodes[one.node].passage, *labels))
    return Sampled(file, key, trace.question, answer, tuple(pieces))


def asked(answers: Sequence[Sampled]) -> Iterator[tuple[int, str, str]]:
    """Number of the answer, name of the question, and its name in the form, for everything that is asked."""
    for number, one in enumerate(answers):
        for question in ("plausible", "supported"):
            if question == "plausible" or any(piece.passage is not None for piece in one.pieces):
                yield number, question, f"{number}.{question}"
        for place, piece in enumerate(one.pieces):
            for question, label in (("isrel", piece.isrel), ("issup", piece.issup)):
                if label is not None and piece.passage is not None:
                    yield number, question, f"{number}.{place}.{question}"


def form(folder: Path, count: int, *, seed: int = 0, only: Sequence[str] = ()) -> str:
    """The form as one HTML file, which asks no address for anything; see `sampled` for arguments and errors."""
    answers = sampled(folder, count, seed=seed, only=only)
    names = {name for _, _, name in asked(answers)}
    about = {"format": FORMAT, "count": count, "seed": seed, "only": list(only), "sample": digest(answers)}
    script = files(__package__).joinpath("form.js").read_text(encoding="utf-8")
    body = (
        templates("selfrag.extensions", "annotation")
        .get_template("form.html.j2")
        .render(
            answers=answers, names=names, questions=QUESTIONS, about=json.dumps(about), title=folder.name, script=script
        )
    )
    style = style_sheet(files(__package__).joinpath("form.css").read_text(encoding="utf-8"))
    return document(f"Judge answers of {visible(folder.name, 80)}", style, body, page_policy(script))


def digest(answers: Sequence[Sampled]) -> str:
    """What tells this sample from any other."""
    shown = [(one.file, one.id, one.question, one.answer, [piece.text for piece in one.pieces]) for one in answers]
    return hashlib.sha256(json.dumps(shown).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one file."""

    file: str
    name: str  # of `FIGURES`
    share: Estimate  # of yes; answers are resampled
    agreement: Estimate | None  # share of equal verdicts of two annotators; None with one annotator
    kappa: Estimate | None  # Cohen's, over all pairs of annotators


def read_forms(folder: Path, saved: Sequence[Path], *, seed: int = 0) -> list[Figure]:
    """What people said about a run.

    Args:
        folder: the run.
        saved: a file of each annotator.
        seed: of the intervals.

    Raises:
        UserError: a file is no such file, is of another sample or run, or nothing was answered.
    """
    forms = [_saved(path) for path in saved]
    about = {key: forms[0][key] for key in ("count", "seed", "only", "sample")}
    if other := next((path for path, one in zip(saved, forms, strict=True) if one["sample"] != about["sample"]), None):
        raise UserError(f"{other} is of another sample than {saved[0]}; read those of one form together")
    answers = sampled(folder, about["count"], seed=about["seed"], only=about["only"])
    if digest(answers) != about["sample"]:
        raise UserError(f"{saved[0]} was made for another run than {folder}, or the run has changed since")
    said = [_verdicts(answers, one["verdicts"]) for one in forms]
    found = [
        _figure(file, name, [number for number, one in enumerate(answers) if one.file == file], said, seed)
        for file in dict.fromkeys(one.file for one in answers)
        for name in FIGURES
    ]
    if all(one.share.n == 0 for one in found):
        raise UserError(f"{saved[0]}: nothing was answered")
    return found


def _saved(path: Path) -> dict[str, Any]:
    given = read_json(path)
    kinds = {"count": int, "seed": int, "only": list, "sample": str, "verdicts": dict}
    good = isinstance(given, dict) and given.get("format") == FORMAT
    if not good or not all(isinstance(given.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{path} is no file that the form of selfrag eval annotate saved")
    if not all(isinstance(verdict, bool) for verdict in given["verdicts"].values()):
        raise UserError(f"{path}: a verdict is neither true nor false")
    return dict(given)


Verdicts: TypeAlias = dict[int, dict[str, bool]]
"""Number of the answer -> place in it -> what one person said."""


def _verdicts(answers: Sequence[Sampled], given: Mapping[str, bool]) -> dict[str, Verdicts]:
    """What one person said, by figure."""
    found: dict[str, Verdicts] = {name: {} for name in FIGURES}
    for number, question, name in asked(answers):
        if name in given and question != "supported":
            found[question].setdefault(number, {})[name] = given[name]
    for number, one in enumerate(answers):
        pair = [given.get(f"{number}.{question}") for question in ("plausible", "supported")]
        if one.considered and None not in pair:
            found["s&p"][number] = {"": all(pair)}
    return found


def _figure(
    file: str,
    name: str,
    members: Sequence[int],
    said: Sequence[Mapping[str, Verdicts]],
    seed: int,
) -> Figure:
    values = []
    pairs: list[list[tuple[bool, bool]]] = []
    for number in members:
        every = [one[name].get(number, {}) for one in said]
        known = [verdict for one in every for verdict in one.values()]
        if known:
            values.append(sum(known) / len(known))
        pairs.append([(a[at], b[at]) for a, b in combinations(every, 2) for at in a if at in b])
    both = [one for one in pairs if one]
    if not both:
        return Figure(file, name, mean(values, seed=seed), None, None)
    equal = [sum(a == b for a, b in one) / len(one) for one in both]
    return Figure(file, name, mean(values, seed=seed), mean(equal, seed=seed), kappa(both, seed=seed))
