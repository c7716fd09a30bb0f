"""Human evaluation of a run: a form to fill in offline, and what people said in it (Self-RAG, C.2).

People judge whether an answer is plausible and supported by what it cites (S&P, Menick et al.), and whether IsRel and
IsSup of each of its segments are right. The form is one HTML file; it saves a JSON file for each annotator.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import read_json
from selfrag.common.untrusted import visible
from selfrag.common.validation import validate
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
FIGURES = {
    "plausible": "plausible",
    "s&p": "supported and plausible",
    "isrel": "IsRel right",
    "issup": "IsSup right",
}


@dataclass(frozen=True, slots=True)
class AnnotatedSegment:
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
    pieces: tuple[AnnotatedSegment, ...]

    @property
    def considered(self) -> bool:
        """Return whether S&P counts it: some segment is predicted relevant and at least partially supported (C.2)."""
        return any(
            p.isrel == "Relevant"
            and p.issup not in (None, "No support / Contradictory")
            for p in self.pieces
        )


def sampled(
    folder: Path, count: int, *, seed: int = 0, only: Sequence[str] = ()
) -> list[Sampled]:
    """Return a seeded sample of the answers of each file."""
    (run,) = read_runs([folder], only or None)
    answers: list[Sampled] = []
    for name in run.files:
        path = folder / f"{name}.jsonl"
        ids = read_jsonl(
            path, lambda record: None if record.get("error") else item_id(record)
        )
        answered = sorted(key for key in ids if key is not None)
        chosen = random.Random(seed).sample(answered, len(answered))[:count]  # noqa: S311
        parse = partial(_sampled, name, frozenset(chosen))
        by_id = {
            answer.id: answer
            for answer in read_jsonl(path, parse)
            if answer is not None
        }
        answers += [by_id[key] for key in chosen]
    if not answers:
        raise UserError(f"{folder} has no answer to judge")
    return answers


def _sampled(
    file: str, chosen: Collection[str], record: Mapping[str, Any]
) -> Sampled | None:
    """Return the answer of a record, or None where it is not one of those that were chosen."""
    key = item_id(record)
    if key not in chosen:
        return None
    if record.get("trace") is None:
        raise UserError(f"item {key!r:.60} has no trace; run it again with --traces")
    trace = trace_of(record["trace"])
    answer, segments = segments_of(trace, trace.best)
    pieces = []
    for segment in segments:
        labels = []
        for role in (Role.RELEVANCE, Role.SUPPORT):
            judgment = segment.judgments.get(role)
            labels.append(None if judgment is None else str(judgment.label))
        pieces.append(
            AnnotatedSegment(segment.text, trace.nodes[segment.node].passage, *labels)
        )
    return Sampled(file, key, trace.question, answer, tuple(pieces))


def asked_questions(answers: Sequence[Sampled]) -> Iterator[tuple[int, str, str]]:
    """Yield for everything that is asked the number of the answer, the question, and its name in the form."""
    for number, answer in enumerate(answers):
        yield number, "plausible", f"{number}.plausible"
        if any(piece.passage is not None for piece in answer.pieces):
            yield number, "supported", f"{number}.supported"
        for place, piece in enumerate(answer.pieces):
            for question, label in (("isrel", piece.isrel), ("issup", piece.issup)):
                if label is not None and piece.passage is not None:
                    yield number, question, f"{number}.{place}.{question}"


def form(folder: Path, count: int, *, seed: int = 0, only: Sequence[str] = ()) -> str:
    """Return the form as one HTML file, which asks no address for anything; see `sampled` for arguments and errors."""
    answers = sampled(folder, count, seed=seed, only=only)
    names = {name for _, _, name in asked_questions(answers)}
    about = {
        "format": FORMAT,
        "count": count,
        "seed": seed,
        "only": list(only),
        "sample": digest(answers),
    }
    script = files(__package__).joinpath("form.js").read_text(encoding="utf-8")
    template = templates("selfrag.extensions", "annotation").get_template(
        "form.html.j2"
    )
    body = template.render(
        answers=answers,
        names=names,
        questions=QUESTIONS,
        about=json.dumps(about),
        title=folder.name,
        script=script,
    )
    style = style_sheet(
        files(__package__).joinpath("form.css").read_text(encoding="utf-8")
    )
    return document(
        f"Judge answers of {visible(folder.name, 80)}", style, body, page_policy(script)
    )


def digest(answers: Sequence[Sampled]) -> str:
    """Return what tells this sample from any other."""
    shown = []
    for answer in answers:
        texts = [piece.text for piece in answer.pieces]
        shown.append((answer.file, answer.id, answer.question, answer.answer, texts))
    return hashlib.sha256(
        json.dumps(shown).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one file."""

    file: str
    name: str  # of `FIGURES`
    share: Estimate  # of yes; answers are resampled
    # share of equal verdicts of two annotators; None with one annotator
    agreement: Estimate | None
    kappa: Estimate | None  # Cohen's, over all pairs of annotators


def read_forms(folder: Path, saved: Sequence[Path], *, seed: int = 0) -> list[Figure]:
    """Return what people said about a run.

    Args:
        folder: the run.
        saved: a file of each annotator.
        seed: of the intervals.

    Raises:
        UserError: a file is no such file, is of another sample or run, or nothing was answered.
    """
    forms = [_saved(path) for path in saved]
    first = forms[0]
    for path, saved_form in zip(saved, forms, strict=True):
        if saved_form.sample != first.sample:
            raise UserError(
                f"{path} is of another sample than {saved[0]}; read those of one form together"
            )
    answers = sampled(folder, first.count, seed=first.seed, only=first.only)
    if digest(answers) != first.sample:
        raise UserError(
            f"{saved[0]} was made for another run than {folder}, or the run has changed since"
        )
    verdicts = [_verdicts(answers, saved_form.verdicts) for saved_form in forms]
    members: dict[str, list[int]] = {}
    for number, answer in enumerate(answers):
        members.setdefault(answer.file, []).append(number)
    figures = [
        _figure(file, name, numbers, verdicts, seed)
        for file, numbers in members.items()
        for name in FIGURES
    ]
    if all(figure.share.n == 0 for figure in figures):
        raise UserError(f"{saved[0]}: nothing was answered")
    return figures


@dataclass(frozen=True, slots=True)
class SavedForm:
    """A form as one person filled it in."""

    format: str
    count: int
    seed: int
    only: list[str]
    sample: str
    verdicts: dict[str, bool]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise UserError(f"format={self.format!r:.60} is not {FORMAT!r}")


def _saved(path: Path) -> SavedForm:
    try:
        return validate(SavedForm, read_json(path), others="ignore")
    except UserError as error:
        raise UserError(
            f"{path} is no file that the form of selfrag eval annotate saved: {error}"
        ) from error


PersonVerdicts: TypeAlias = dict[int, dict[str, bool]]
"""Number of the answer -> place in it -> what one person said."""


def _verdicts(
    answers: Sequence[Sampled], verdicts: Mapping[str, bool]
) -> dict[str, PersonVerdicts]:
    """Return what one person said, by figure."""
    by_figure: dict[str, PersonVerdicts] = {name: {} for name in FIGURES}
    for number, question, name in asked_questions(answers):
        if name in verdicts and question != "supported":
            by_figure[question].setdefault(number, {})[name] = verdicts[name]
    for number, answer in enumerate(answers):
        plausible, supported = (
            verdicts.get(f"{number}.{question}")
            for question in ("plausible", "supported")
        )
        if answer.considered and plausible is not None and supported is not None:
            by_figure["s&p"][number] = {"": plausible and supported}
    return by_figure


def _figure(
    file: str,
    name: str,
    members: Sequence[int],
    said: Sequence[Mapping[str, PersonVerdicts]],
    seed: int,
) -> Figure:
    values = []
    pairs: list[list[tuple[bool, bool]]] = []
    for number in members:
        by_person = [verdicts[name].get(number, {}) for verdicts in said]
        known = list(chain.from_iterable(places.values() for places in by_person))
        if known:
            values.append(sum(known) / len(known))
        both = []
        for first, second in combinations(by_person, 2):
            shared = [place for place in first if place in second]
            both += [(first[place], second[place]) for place in shared]
        if both:
            pairs.append(both)
    share = mean(values, seed=seed)
    if not pairs:
        return Figure(file, name, share, None, None)
    equal = [sum(a == b for a, b in both) / len(both) for both in pairs]
    return Figure(file, name, share, mean(equal, seed=seed), kappa(pairs, seed=seed))
