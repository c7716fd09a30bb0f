"""An evaluation of the intrinsics: model, adapters and data in; report, figures, items and diagram out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from selfrag.common.errors import VocabularyError
from selfrag.engines.adapters import shipped_adapters
from selfrag.evaluation.failures import Failures, count_reasons
from selfrag.evaluation.metrics.alce import Entails
from selfrag.evaluation.metrics.entailment import entails, remembered
from selfrag.evaluation.metrics.grading import load_grader
from selfrag.experiments.intrinsics.answerability import (
    ANSWERABILITY_PART,
    evaluate_answerability,
)
from selfrag.experiments.intrinsics.certainty import (
    UNCERTAINTY_PART,
    evaluate_certainty,
)
from selfrag.experiments.intrinsics.citations import CITATIONS_PART, evaluate_citations
from selfrag.experiments.intrinsics.conversations import (
    JudgedTurn,
    PassageSearch,
    Searches,
    assign_collections,
    judged_turns,
    read_collection,
    read_collections,
    sample,
    turns,
    unanswerable_turns,
)
from selfrag.experiments.intrinsics.flows import FLOWS_PART, evaluate_flows
from selfrag.experiments.intrinsics.hallucination import (
    HALLUCINATION_PART,
    evaluate_hallucination,
)
from selfrag.experiments.intrinsics.rewrites import (
    REWRITE_PART,
    Writing,
    evaluate_rewrite,
)
from selfrag.experiments.intrinsics.settings import MeasurementSettings
from selfrag.experiments.intrinsics.subjects import (
    ADAPTED,
    PROMPTED,
    UNTRAINED,
    Beside,
    FewShot,
    Subject,
    prompted,
    worked,
)
from selfrag.experiments.report_tables import MeasuredSection, markdown
from selfrag.interface import (
    Passage,
    UserError,
    load_retriever,
    open_judge,
    require,
    write_json,
    write_text,
)
from selfrag.intrinsics.catalog import dialects, find
from selfrag.intrinsics.flows.progress import AnswerWriter, ChatWriter, SelfRAGWriter
from selfrag.intrinsics.model_library import JUDGES, Library, checked
from selfrag.intrinsics.questions import Answerability
from selfrag.intrinsics.responses import HallucinationDetection
from selfrag.judges.prompted import PromptedJudge
from selfrag.training.intrinsics.certainty import OwnAnswer, own_answers, read_questions
from selfrag.training.intrinsics.job import teachable
from selfrag.training.intrinsics.rows import (
    STEMS,
    IntrinsicRow,
    find_file,
    read_labelled,
)
from selfrag.training.settings import ADAPTER, RUN

T = TypeVar("T")
LABELLED: Mapping[str, Callable[..., MeasuredSection]] = {
    ANSWERABILITY_PART: evaluate_answerability,
    HALLUCINATION_PART: evaluate_hallucination,
}
ROWS = (*LABELLED, CITATIONS_PART, REWRITE_PART)
"""What is measured on labelled rows."""
PARTS = (
    REWRITE_PART,
    UNCERTAINTY_PART,
    HALLUCINATION_PART,
    ANSWERABILITY_PART,
    CITATIONS_PART,
    FLOWS_PART,
)
"""What can be measured: the five intrinsics and the flows."""
ANSWER_TOKENS = 64
"""Longest answer of a flow."""


def check_settings(settings: MeasurementSettings) -> None:
    """Refuse settings that cannot be measured, or that nothing would read."""
    if unknown := [part for part in settings.parts if part not in PARTS]:
        raise UserError(
            f"nothing to measure under {unknown[0]!r}; known: {', '.join(PARTS)}"
        )
    for name in settings.judges:
        checked(name)
    if settings.dialect is not None and settings.dialect not in dialects():
        raise UserError(
            f"unknown dialect {settings.dialect!r:.60}; known: {', '.join(dialects())}"
        )
    for name, least in (("limit", 1), ("flows", 2), ("shots", 0), ("answers", 0)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"{name}={value}: give a number of at least {least}")
    if settings.grader_words is not None and settings.grader is None:
        raise UserError("--grader-words is for a --grader; name one")
    searching = (REWRITE_PART, FLOWS_PART)
    answering = (CITATIONS_PART, *searching)
    of = {
        "judge": answering,
        "grader": answering,
        "rival": ROWS,
        "corpus": searching,
        "index": searching,
    }
    for name, parts in {**of, "answers": (REWRITE_PART,)}.items():
        if getattr(settings, name) and not set(parts) & set(settings.parts):
            raise UserError(
                f"--{name} is for {', '.join(parts)}; measure one of them, or leave it out"
            )
    if (
        settings.corpus is None
        and settings.index is None
        and (FLOWS_PART in settings.parts or settings.answers)
    ):
        raise UserError(
            f"{'flows' if FLOWS_PART in settings.parts else 'answers'} search: give --corpus FOLDER"
        )


def evaluate(
    settings: MeasurementSettings, out: Path | None = None
) -> list[MeasuredSection]:
    """Measure, and write `report.md`, `figures.json`, `items.json` and `reliability.png` into `out` after each part."""
    if not settings.parts:
        settings = replace(settings, parts=PARTS[:-1])
    check_settings(settings)
    if out is not None and UNCERTAINTY_PART in settings.parts:
        require("matplotlib", extra="eval")  # for the plot at the end
    sections: list[MeasuredSection] = []
    rows = {
        name: _rows(settings, name, "dev") for name in settings.parts if name in ROWS
    }
    adapters = (
        found_adapters(settings.adapters) if settings.adapters is not None else None
    )
    followups = (
        _followups(settings)
        if {REWRITE_PART, FLOWS_PART} & set(settings.parts)
        else ([], None)
    )
    grader = None
    if settings.grader is not None:
        grader = load_grader(settings.grader, settings.grader_words)
    rival = None if settings.rival is None else prompted(settings.rival, "rival ")
    beside = Beside(_judge(settings, out), grader, rival)
    answers = _answers(settings, out) if UNCERTAINTY_PART in settings.parts else []
    with ExitStack() as stack:
        library = stack.enter_context(
            Library.from_pretrained(
                settings.model,
                engine=settings.engine,
                adapters=adapters,
                dialect=settings.dialect,
            )
        )
        for name in settings.parts:
            errors: list[tuple[str, str, list[str | None]]] = []
            of_part = rows.get(name, [])
            section = _part(
                name, settings, library, of_part, answers, followups, beside, errors
            )
            failures = []
            for system, intrinsic, reasons in errors:
                counts = count_reasons(reasons)
                if counts:
                    failures.append(Failures(system, intrinsic, len(reasons), counts))
                if len(reasons) == len(of_part or answers):
                    for item, reason in zip(section.items, reasons, strict=False):
                        if reason is not None:
                            item.setdefault("errors", {})[system] = reason
            sections.append(section.with_failures(failures))
            if out is not None:
                write(settings, sections, out, library)
    return sections


def found_adapters(folder: Path) -> dict[str, Path]:
    """Return the adapters of a folder, by intrinsic: `NAME/adapter` of training, or `NAME` itself."""
    places = {name: (folder / name / ADAPTER, folder / name) for name in STEMS}
    adapters: dict[str, Path] = {}
    for name, options in places.items():
        for option in reversed(options):
            if (option / "adapter_config.json").is_file():
                adapters[name] = option
    if not adapters:
        raise UserError(
            f"{folder} holds no adapter; give the folder that training wrote to"
        )
    return adapters


def _part(
    name: str,
    settings: MeasurementSettings,
    library: Library,
    rows: list[IntrinsicRow],
    answers: list[OwnAnswer],
    followups: tuple[list[JudgedTurn], Searches | None],
    beside: Beside,
    errors: list[tuple[str, str, list[str | None]]],
) -> MeasuredSection:
    """Measure one part; `errors` get what could not be asked."""
    seed = settings.seed
    train = _rows(settings, name, "train") if name in ROWS else []
    subjects = _subjects(name, settings, library, train)
    if beside.rival is not None and name in ROWS:
        subjects.append(beside.rival)
    subjects = [replace(subject, errors=errors) for subject in subjects]
    if name in LABELLED:
        return LABELLED[name](rows, subjects, train, seed)
    if name == CITATIONS_PART:
        return evaluate_citations(rows, subjects, train, seed, beside)
    turns, search = followups
    engine: Any = getattr(library.executor, "engine", None)
    if name == REWRITE_PART:
        writing = None
        if settings.answers:
            judge = _subjects(FLOWS_PART, settings, library, [])[0]
            judge = replace(judge, errors=errors)
            writing = Writing(
                _writer(settings, library), engine, judge, settings.answers
            )
        judged = [turn for turn in turns if turn.relevant]
        return evaluate_rewrite(rows, judged, search, subjects, seed, writing, beside)
    if name == UNCERTAINTY_PART:
        return evaluate_certainty(answers, subjects, _share_right(settings), seed)
    if search is None:
        raise UserError("flows search: give --corpus FOLDER")
    sampled, writer = sample(turns, settings.flows), _writer(settings, library)
    return evaluate_flows(sampled, search, writer, subjects[0], engine, seed, beside)


def _writer(settings: MeasurementSettings, library: Library) -> AnswerWriter:
    """Return who writes: a model with reflection tokens by its beam, any other one as a chat model."""
    from selfrag.interface import Decoding, Prompting, load_tokenizer, resolve_model

    tokenizer = load_tokenizer(resolve_model(settings.model))
    try:
        prompting = Prompting.from_tokenizer(tokenizer)
    except VocabularyError:
        return ChatWriter(
            library.executor, max_tokens=ANSWER_TOKENS, without_evidence="write"
        )
    decoding = Decoding(
        mode="always",
        max_segments=1,
        segment_tokens=ANSWER_TOKENS,
        without_evidence="write",
    )
    return SelfRAGWriter(prompting, decoding)


def _subjects(
    name: str,
    settings: MeasurementSettings,
    library: Library,
    train: Sequence[IntrinsicRow],
) -> list[Subject]:
    if name == FLOWS_PART:
        # what judges in flows where nobody chose
        kinds = (
            Answerability,
            HallucinationDetection,
        )
        judges = {}
        for kind in kinds:
            judge = library.get(kind).by
            if not isinstance(judge, PromptedJudge):
                judges[kind.name] = judge
        return [
            Subject(
                ADAPTED,
                library.executor,
                library.adapters,
                judges=judges,
                dialect=library.dialect,
            )
        ]
    untrained = Subject(UNTRAINED, library.executor, dialect=library.dialect)
    subjects: list[Subject] = []
    for choice in settings.judges or JUDGES:
        if choice == "prompt":
            subjects.append(untrained)
            if settings.shots and train:
                shots = worked(
                    train, teachable(name), settings.shots, seed=settings.seed
                )
                subjects.append(
                    replace(
                        untrained,
                        name=PROMPTED,
                        executor=FewShot(untrained.executor, shots),
                    )
                )
            continue
        try:
            judge = library.get(find(name), choice).by
        except UserError:
            if choice in settings.judges:
                raise
            continue  # this model or this intrinsic has no such judge
        adapter = judge.adapter if isinstance(judge, PromptedJudge) else None
        adapters = {} if adapter is None else {name: adapter}
        subjects.append(
            replace(untrained, name=choice, adapters=adapters, judges={name: judge})
        )
    return subjects


def _answers(settings: MeasurementSettings, out: Path | None) -> list[OwnAnswer]:
    """Return the base model's own answers, before an engine takes the memory."""
    from tempfile import TemporaryDirectory

    import torch

    from selfrag.interface import resolve_model

    path = find_file(UNCERTAINTY_PART, settings.data, "dev")
    if path is None:
        raise UserError(f"{settings.data} has no uncertainty_dev.jsonl")
    questions = _sampled(read_questions(path), settings)
    with TemporaryDirectory() as scratch:
        kept = (out or Path(scratch)) / "answers.jsonl"
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return own_answers(
            questions, resolve_model(settings.model), kept, device=device
        )


def _share_right(settings: MeasurementSettings) -> float | None:
    """Return how often the base was right in the adapter's training."""
    if settings.adapters is not None:
        folder = settings.adapters / UNCERTAINTY_PART
    elif UNCERTAINTY_PART in (shipped := shipped_adapters(settings.model)):
        folder = shipped[UNCERTAINTY_PART]
    else:
        return None
    for place in (folder / RUN / "manifest.json", folder / "training.json"):
        if place.is_file():
            facts = json.loads(place.read_text(encoding="utf-8"))["facts"]
            right, total = 0.0, 0
            for name, count in facts["questions"].items():
                right += facts["own_accuracy"][name] * count
                total += count
            return float(right / total)
    return None


def _judge(settings: MeasurementSettings, out: Path | None) -> Entails | None:
    """Return who decides on entailment; verdicts are kept beside the report."""
    if settings.judge is None:
        return None
    judge = open_judge(settings.judge)
    if out is None:
        return partial(entails, judge)
    out.mkdir(parents=True, exist_ok=True)
    return remembered(judge, out).entails


def _followups(
    settings: MeasurementSettings,
) -> tuple[list[JudgedTurn], Searches | None]:
    """Return questions with known passages, from rows or made from a collection, and what searches for them."""
    if settings.corpus is None and settings.index is None:
        return [], None
    searched = load_retriever(settings.index, demo=False)
    known = find_file(REWRITE_PART, settings.data, "dev")
    rows = [] if known is None else _rows(settings, REWRITE_PART, "dev")
    collections: dict[str, dict[str, Passage]] = {}
    if settings.corpus is None or any(row.relevant for row in rows):
        passages: dict[str, Passage] | None = None
        if settings.corpus is not None:
            collections = read_collections(settings.corpus)
            passages = {}
            for of_collection in collections.values():
                passages |= of_collection
        follow_ups = judged_turns(rows, passages)
        if not follow_ups:
            raise UserError(
                f"no row of {known or settings.data} names a passage that is there; give a --corpus with judgments"
            )
        file = find_file(ANSWERABILITY_PART, settings.data, "dev")
        follow_ups += (
            []
            if file is None
            else unanswerable_turns(read_labelled(file, ANSWERABILITY_PART))
        )
    else:
        collection = read_collection(settings.corpus, "dev")
        collections = {"": dict(collection.passages)}
        follow_ups = sample(turns(collection), settings.limit)
    if searched is not None:
        return follow_ups, {"": searched}
    follow_ups = assign_collections(follow_ups, collections)
    searches = {}
    for name, of_collection in collections.items():
        searches[name] = PassageSearch(list(of_collection.values()))
    return follow_ups, searches


def _rows(settings: MeasurementSettings, name: str, part: str) -> list[IntrinsicRow]:
    path = find_file(name, settings.data, part)
    if path is None:
        if part == "train":
            return []
        raise UserError(
            f"{settings.data} has no {STEMS[name]}_dev.jsonl; give the folder that has it"
        )
    labelled = read_labelled(path, name)
    return labelled if part == "train" else _sampled(labelled, settings)


def _sampled(rows: Sequence[T], settings: MeasurementSettings) -> list[T]:
    if settings.limit is None or settings.limit >= len(rows):
        return list(rows)
    places = random.Random(settings.seed).sample(range(len(rows)), settings.limit)  # noqa: S311
    return [rows[place] for place in sorted(places)]


def write(
    settings: MeasurementSettings,
    sections: Sequence[MeasuredSection],
    out: Path,
    library: Library,
) -> None:
    """Write what was measured so far."""
    from selfrag.evaluation.metrics.classification import plot_reliability
    from selfrag.interface import commit, sha256

    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in STEMS:
        path = find_file(name, settings.data, "dev")
        if path:
            files[path.name] = path
    manifest = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "settings": json.loads(json.dumps(asdict(settings), default=str)),
        "adapters": dict(library.adapters),
        "data": {name: sha256(path) for name, path in sorted(files.items())},
    }
    texts, figures, items = {}, {}, {}
    for section in sections:
        texts[section.name] = "\n".join(map(markdown, section.tables))
        figures[section.name] = section.figures
        items[section.name] = section.items
    for name, text in texts.items():
        write_text(out / f"{name}.md", text)
    write_text(out / "report.md", "\n".join(texts.values()))
    failures = [failure for section in sections for failure in section.failures]
    values = {"figures": figures, "failures": list(map(asdict, failures))}
    write_json(out / "figures.json", {"manifest": manifest, **values})
    write_json(out / "items.json", items)
    for section in sections:
        if section.reliability:
            plot_reliability(section.reliability, out / "reliability.png")
