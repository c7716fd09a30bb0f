"""Four intrinsics beside baselines and published figures (tables 8 to 10, 12, 13).

Three are measured on labelled rows; certainty on the model's own answers, and what the adapter costs in accuracy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Any, TypeAlias

from selfrag.evaluation.intervals import NONE, Estimate, json_values, mean, pooled_auc
from selfrag.evaluation.metrics.citations import (
    Cited,
    CitedClaim,
    Cites,
    Entails,
    by_passage,
    by_sentence,
    cites,
    pair_figures,
)
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    FAITHFUL,
    HALLUCINATED,
    UNANSWERABLE,
    Bin,
    ClassFigures,
    brier,
    calibration_error,
    classification,
    detection,
    reliability,
)
from selfrag.evaluation.metrics.grading import Grader
from selfrag.evaluation.metrics.registry import harmonic
from selfrag.evaluation.normalisation import normalise
from selfrag.experiments.intrinsics.subjects import (
    ALONE,
    PUBLISHED,
    Beside,
    Subject,
    ask,
)
from selfrag.experiments.report_tables import (
    MeasuredSection,
    ReportTable,
    percent,
    published_cells,
    share,
)
from selfrag.intrinsics.catalog import find
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import last_query, merged
from selfrag.judges.wire import ChatPrompt, Codec, Completion, ModelRequest, Slot
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.intrinsic_labels import FAITHFULNESS, in_set
from selfrag.reflection.requests import Failed
from selfrag.training.intrinsics.certainty import (
    ChoiceAnswer,
    ChoiceQuestion,
    OwnAnswer,
    confidences,
    of_other_data_sets,
)
from selfrag.training.intrinsics.rows import (
    WORSE,
    IntrinsicRow,
    badness,
    gold_of,
    without_evidence,
)

ANSWERABILITY_PART = "answerability"
_CLASSES = (
    "unans. P",
    "unans. R",
    "unans. F1",
    "ans. P",
    "ans. R",
    "ans. F1",
    "weighted F1",
)
ANSWERABILITY_HEAD = ("system", *_CLASSES, "AUC", "undefined")


def area(scored: Iterable[tuple[bool | float, float | None]], seed: int) -> Estimate:
    """Return the area under the ROC curve of (positive, score) pairs; every row with a score is an item of its own."""
    positives: list[list[float]] = []
    negatives: list[list[float]] = []
    for positive, score in scored:
        if score is not None:
            positives.append([score] * bool(positive))
            negatives.append([score] * (not positive))
    return pooled_auc(positives, negatives, seed=seed)


def published_table(
    title: str,
    head: Sequence[str],
    systems: Mapping[str, Sequence[float]],
    digits: int = 1,
) -> ReportTable:
    """Return figures of the paper as a table."""
    rows = tuple(
        (system, *published_cells(*values, digits=digits))
        for system, values in systems.items()
    )
    return ReportTable(f"Published: {title}", ("system", *head), rows)


def _cells(figures: ClassFigures) -> tuple[str, str, str]:
    return percent(figures.precision), percent(figures.recall), percent(figures.f1)


def _parts(rows: Sequence[IntrinsicRow]) -> dict[str, Sequence[int]]:
    """Return the places of all rows, and of those of each data set."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.source.split("/")[0], []).append(place)
    return {"all rows": range(len(rows)), **dict(sorted(places.items()))}


def evaluate_answerability(
    rows: Sequence[IntrinsicRow],
    subjects: Sequence[Subject],
    train: Sequence[IntrinsicRow],
    seed: int,
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows."""
    truth = [str(row.label) for row in rows]
    frequent = Counter(str(row.label) for row in train or rows)
    majority = max((ANSWERABLE, UNANSWERABLE), key=lambda name: frequent[name])
    labels = (UNANSWERABLE, ANSWERABLE)
    predictions: dict[str, list[str | None]] = {"majority": [majority] * len(rows)}
    chances: dict[str, list[float | None]] = {"majority": [0.5] * len(rows)}
    for subject in subjects:
        results = ask(subject, ANSWERABILITY_PART, [row.state for row in rows])
        chances[subject.name] = [result.answerable for result in results]
        predictions[subject.name] = [
            None if p is None else labels[p >= 0.5] for p in chances[subject.name]
        ]
    tables = []
    figures: dict[str, dict[str, Any]] = {}
    for part, members in _parts(rows).items():
        lines = []
        gold = [truth[place] for place in members]
        for system, said in predictions.items():
            classes = classification(
                gold, [said[place] for place in members], labels, seed=seed
            )
            known = [chances[system][place] for place in members]
            auc = area(
                zip((label == ANSWERABLE for label in gold), known, strict=True), seed
            )
            cells = (
                *_cells(classes.classes[UNANSWERABLE]),
                *_cells(classes.classes[ANSWERABLE]),
            )
            lines.append(
                (
                    system,
                    *cells,
                    percent(classes.weighted_f1),
                    share(auc),
                    str(classes.undefined),
                )
            )
            figures.setdefault(system, {})[part] = {
                **classes.as_dict(),
                "auc": auc.as_dict(),
            }
        tables.append(
            ReportTable(
                f"Answerability, {part} ({len(members)})",
                ANSWERABILITY_HEAD,
                tuple(lines),
            )
        )
    tables += [
        published_table(name, _CLASSES, systems)
        for name, systems in PUBLISHED["answerability"].items()
    ]
    items = []
    for place, row in enumerate(rows):
        item: dict[str, Any] = {"id": row.id, "source": row.source, "truth": row.label}
        for system, said in predictions.items():
            item[system] = {"label": said[place], "answerable": chances[system][place]}
        items.append(item)
    return MeasuredSection(ANSWERABILITY_PART, tuple(tables), figures, tuple(items))


CITATIONS_PART = "citation_generation"
CITATIONS_HEAD = (
    "system",
    "sentence R",
    "P",
    "F1",
    "passage R",
    "P",
    "F1",
    "undefined",
    "nothing",
)


def evaluate_citations(
    rows: Sequence[IntrinsicRow],
    subjects: Sequence[Subject],
    train: Sequence[IntrinsicRow],
    seed: int,
    beside: Beside = ALONE,
) -> MeasuredSection:
    """Measure every subject, the first sentence of the passages, and the one with most words in common.

    With a judge also by entailment (section 6.2.1 of the paper): ALCE's recall and precision of citations, which are
    lifted to their passages, beside those of the rows themselves. With a grader by the three grades of LongBench-Cite
    (section 6.2.2).
    """
    # 1. what the baselines and every subject cite, also after the evidence was cut out of the passages
    gone = list(filter(None, map(without_evidence, rows)))
    chat: Codec = find(CITATIONS_PART).chat
    systems: dict[str, _CitedRows] = {}
    for name, cite in BASELINES.items():
        requests = [chat.encode(row.state) for row in rows]
        cut_requests = [chat.encode(row.state) for row in gone]
        silent = [
            not any(c.sentence == site for c in cite(r))
            for r in cut_requests
            for site in range(len(r.sites))
        ]
        systems[name] = _CitedRows(
            requests,
            _citations_gold(rows, requests),
            list(map(cite, requests)),
            0,
            silent,
        )
    for subject in subjects:
        systems[subject.name] = _ask_citations(subject, rows, gone)
    # 2. figures against the annotated citations
    lines, figures = [], dict[str, Any]()
    for system, citing in systems.items():
        cells: list[str] = []
        values: dict[str, Any] = {}
        for level, pairs_of in (("sentence", by_sentence), ("passage", by_passage)):
            pairs = pair_figures(
                list(map(pairs_of, citing.gold)),
                list(map(pairs_of, citing.cited)),
                seed=seed,
            )
            cells += map(percent, (pairs.recall, pairs.precision, pairs.f1))
            values[level] = json_values(pairs)
        nothing = mean(map(float, citing.silent), seed=seed)
        lines.append((system, *cells, str(citing.undefined), percent(nothing)))
        figures[system] = {
            **values,
            "undefined": citing.undefined,
            "nothing": nothing.as_dict(),
        }
    annotated = systems["first sentence"]
    items = []
    for place, row in enumerate(rows):
        item: dict[str, Any] = {"id": row.id, "gold": annotated.gold[place]}
        items.append(
            item | {system: citing.cited[place] for system, citing in systems.items()}
        )
    annotated_table = ReportTable(
        f"Citations against annotated ones ({len(rows)} responses)",
        CITATIONS_HEAD,
        tuple(lines),
        (
            "A good sentence that nobody annotated counts as wrong; the published figures ask a model for entailment",
            f"Nothing: sentences for which nothing is cited after their evidence was cut out of the passages"
            f" ({len(gone)} responses)",
        ),
    )
    # 3. figures by a judge of entailment and by a grader
    judged: list[ReportTable] = []
    measured = {
        "the rows themselves": replace(annotated, cited=annotated.gold),
        **systems,
    }
    for name, measure in {
        "entailment": _passages_by(beside.entails),
        "grades": _snippets_by(beside.grader),
    }.items():
        if measure is not None:
            scored = {
                system: measure(rows, citing) for system, citing in measured.items()
            }
            tables, by_system = _by_judge(name, rows, scored, seed)
            judged += tables
            for system, of_parts in by_system.items():
                figures.setdefault(system, {})[name] = of_parts
    alce = published_table(
        "Table 12, ALCE", ("R", "P", "F1"), PUBLISHED["citations_alce"]
    )
    f1 = {
        system: [task[2] for task in tasks]
        for system, tasks in PUBLISHED["citations_longbench"].items()
    }
    long = published_table(
        "Table 13, LongBench-Cite, F1",
        ("Chat", "MultifieldQA", "HotpotQA", "GovReport"),
        f1,
    )
    return MeasuredSection(
        CITATIONS_PART, (annotated_table, *judged, alce, long), figures, tuple(items)
    )


@dataclass(frozen=True, slots=True)
class _CitedRows:
    """What one system cites."""

    requests: Sequence[
        ModelRequest
    ]  # one a row, with its sentences as the system's dialect splits them
    gold: Sequence[Sequence[Cited]]  # annotated citations of each row
    cited: Sequence[Sequence[Cited]]  # by the system, of each row
    undefined: int  # sentences that were not judged
    silent: Sequence[
        bool
    ]  # of each sentence whose evidence was cut out, whether nothing is cited for it


def _ask_citations(
    subject: Subject, rows: Sequence[IntrinsicRow], gone: Sequence[IntrinsicRow]
) -> _CitedRows:
    """Ask a subject for citations of rows, and of those rows whose evidence is gone."""
    codec = subject.codec(CITATIONS_PART)  # a dialect splits sentences in its own way
    requests = [codec.encode(row.state) for row in rows]
    cited, undefined = [], 0
    for reflection, request in zip(
        subject.ask(CITATIONS_PART, [row.state for row in rows]), requests, strict=True
    ):
        cited.append(_cited(reflection, request))
        judged = [finding.judgment is not None for finding in reflection.findings] or [
            False
        ] * len(request.sites)
        undefined += judged.count(False)
    silent: list[bool] = []
    cut_requests = [codec.encode(row.state) for row in gone]
    for reflection, request in zip(
        subject.ask(CITATIONS_PART, [row.state for row in gone]),
        cut_requests,
        strict=True,
    ):
        citing = {citation.sentence for citation in _cited(reflection, request)}
        known = [finding.judgment is not None for finding in reflection.findings]
        sites = range(len(request.sites))
        silent += [
            site not in citing and site < len(known) and known[site] for site in sites
        ]
    return _CitedRows(
        requests, _citations_gold(rows, requests), cited, undefined, silent
    )


CitationMeasure: TypeAlias = Callable[
    [Sequence[IntrinsicRow], _CitedRows], list[Cites | None]
]
"""Figures of each row, of what a system cites for it."""
JUDGED = {
    "entailment": "F1 of the two means, as Table 12; a citation of a sentence counts as one of its passage",
    "grades": "LongBench-Cite: full, partial or no support; F1 is the mean of the responses' own, as Table 13",
}


def _passages_by(entails: Entails | None) -> CitationMeasure | None:
    """Return what gives ALCE's figures, citations lifted to their passages."""
    if entails is None:
        return None
    return lambda rows, citing: cites(
        _cited_claims(citing, whole_passages=True), entails
    )


def _snippets_by(grader: Grader | None) -> CitationMeasure | None:
    """Return what gives LongBench-Cite's figures; neighbouring sentences cited together are one snippet."""
    if grader is None:
        return None
    return lambda rows, citing: grader.cites(
        [row.state.query or "" for row in rows],
        _cited_claims(citing, whole_passages=False),
    )


def _cited_claims(
    citing: _CitedRows, *, whole_passages: bool
) -> list[list[CitedClaim]]:
    """Return the sentences of each row with the texts that they cite: passages, or the cited spans alone."""
    claims = []
    for request, cited in zip(citing.requests, citing.cited, strict=True):
        of_row = []
        for number, site in enumerate(request.sites):
            sources = [
                request.sources[citation.evidence]
                for citation in cited
                if citation.sentence == number
            ]
            texts: dict[str, None] = {}
            for span in merged(request.state, sources):
                text = (
                    premise(request.state.passages[span.passage or 0])
                    if whole_passages
                    else span.text
                )
                texts[text] = None
            of_row.append(CitedClaim(site.text, tuple(texts)))
        claims.append(of_row)
    return claims


def _by_judge(
    name: str,
    rows: Sequence[IntrinsicRow],
    scored: Mapping[str, Sequence[Cites | None]],
    seed: int,
) -> tuple[list[ReportTable], dict[str, Any]]:
    """Return the tables of a judge in `JUDGED`, and figures by system and data set."""
    tables, figures = [], dict[str, Any]()
    for part, members in _parts(rows).items():
        lines = []
        for system, every in scored.items():
            known = [
                cites_
                for cites_ in map(every.__getitem__, members)
                if cites_ is not None
            ]
            recall = mean([cites_.recall for cites_ in known], seed=seed)
            precision = mean([cites_.precision for cites_ in known], seed=seed)
            f1 = mean([cites_.f1 for cites_ in known], seed=seed)
            if name != "grades":
                f1 = replace(
                    f1,
                    value=harmonic(recall.value, precision.value),
                    low=math.nan,
                    high=math.nan,
                )
            lines.append(
                (
                    system,
                    *map(percent, (recall, precision, f1)),
                    str(len(members) - len(known)),
                )
            )
            values = {
                "recall": recall.as_dict(),
                "precision": precision.as_dict(),
                "f1": f1.value if known else None,
            }
            figures.setdefault(system, {})[part] = values
        head = ("system", "recall", "precision", "F1", "undefined")
        tables.append(
            ReportTable(
                f"Citations by {name}, {part} ({len(members)})",
                head,
                tuple(lines),
                (JUDGED[name],),
            )
        )
    return tables, figures


def _citations_gold(
    rows: Sequence[IntrinsicRow], requests: Sequence[ModelRequest]
) -> list[list[Cited]]:
    gold = []
    for row, request in zip(rows, requests, strict=True):
        citations = []
        for site, numbers in enumerate(gold_of(row, request).sources):
            citations += [_pair(request, site, number) for number in numbers or ()]
        gold.append(citations)
    return gold


def _cited(reflection: Reflection, request: ModelRequest) -> list[Cited]:
    """Return cited spans as the sentences that lie in them."""
    cited = []
    for site, finding in enumerate(reflection.findings):
        for citation in finding.citations:
            span = citation.site
            for number, source in enumerate(request.sources):
                if (
                    source.passage == span.passage
                    and span.begin <= source.begin
                    and source.end <= span.end
                ):
                    cited.append(_pair(request, site, number))
    return cited


def _first(request: ModelRequest) -> list[Cited]:
    """Cite the first source for each sentence."""
    return [
        _pair(request, site, 0) for site in range(len(request.sites)) if request.sources
    ]


def _lexical(request: ModelRequest) -> list[Cited]:
    """Cite for each sentence the source with the largest share of its words; none where nothing is shared."""
    sources = [set(normalise(source.text).split()) for source in request.sources]
    cited = []
    for number, site in enumerate(request.sites):
        words = set(normalise(site.text).split())
        shared = [len(words & source) for source in sources]
        if any(shared):
            cited.append(_pair(request, number, shared.index(max(shared))))
    return cited


BASELINES: Mapping[str, Callable[[ModelRequest], list[Cited]]] = {
    "first sentence": _first,
    "most words in common": _lexical,
}


def _pair(request: ModelRequest, site: int, number: int) -> Cited:
    source = request.sources[number]
    return Cited(site, str(source.passage), number)


HALLUCINATION_PART = "hallucination_detection"
HALLUCINATION_HEAD = (
    "system",
    "P",
    "R",
    "F1",
    "kept",
    "AUC",
    "sentences: accuracy",
    "macro-F1",
    "undefined",
)


def evaluate_hallucination(
    rows: Sequence[IntrinsicRow],
    subjects: Sequence[Subject],
    train: Sequence[IntrinsicRow],
    seed: int,
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows.

    A response is hallucinated in truth if it holds something unsupported: its worst label is partial or unfaithful.
    It is flagged if the most probable label of one sentence lies below 0.1, which is `unfaithful`.
    """
    worst = list(map(_worst, rows))
    frequent = Counter(
        _grade(label) for row in train or rows for _, label in row.spans or ()
    )
    common = max(WORSE, key=lambda name: frequent[name])
    gold = _sentence_labels(rows, find(HALLUCINATION_PART).chat)
    majority = [
        _Said(common == WORSE[-1], 0.5, [common] * len(labels), labels)
        for labels in gold
    ]
    said = {"majority": majority}
    items: list[dict[str, Any]] = [
        {"id": row.id, "worst": label} for row, label in zip(rows, worst, strict=True)
    ]
    for subject in subjects:
        results = ask(subject, HALLUCINATION_PART, [row.state for row in rows])
        golds = _sentence_labels(rows, subject.codec(HALLUCINATION_PART))
        said[subject.name] = []
        for item, result, labels in zip(items, results, golds, strict=True):
            grades = [_grade(sentence.label) for sentence in result.sentences]
            said[subject.name].append(
                _Said(result.is_hallucinated, result.lowest, grades, labels)
            )
            item[subject.name] = {
                "flagged": result.is_hallucinated,
                "lowest": result.lowest,
                "labels": grades,
            }
    figures: dict[str, Any] = {}
    tables = []
    for part, members in _parts(rows).items():
        truth = [worst[place] in ("partial", "unfaithful") for place in members]
        lines = []
        for system, every in said.items():
            line, values = _hallucination_line(
                system, truth, [every[place] for place in members], seed
            )
            lines.append(line)
            figures.setdefault(system, {}).update(
                values if part == "all rows" else {part: values}
            )
        tables.append(
            ReportTable(
                f"Hallucinated responses, {part} ({sum(truth)} of {len(truth)})",
                HALLUCINATION_HEAD,
                tuple(lines),
            )
        )
    known = sum(len(labels) - labels.count(None) for labels in gold)
    notes = (
        "R: share of the hallucinated responses that are flagged; kept: of the faithful ones that are not",
        "AUC: of the lowest expected faithfulness of a sentence",
        f"Sentences: those whose own label is known, {known} of them",
    )
    tables[0] = replace(tables[0], notes=notes)
    paper = published_table(
        "Table 8, RAGTruth QA", HALLUCINATION_HEAD[1:4], PUBLISHED["hallucination"]
    )
    return MeasuredSection(HALLUCINATION_PART, (*tables, paper), figures, tuple(items))


@dataclass(frozen=True, slots=True)
class _Said:
    """What one system said of one response."""

    flagged: bool | None  # None where undefined
    lowest: float | None  # expected faithfulness of its worst sentence
    labels: Sequence[str | None]  # of its sentences
    gold: Sequence[str | None]  # of its sentences, as the system's dialect splits them


def _grade(label: str | None) -> str | None:
    """Return a label of any dialect as one of `WORSE`."""
    return None if label is None else in_set(FAITHFULNESS, label)


def _sentence_labels(
    rows: Sequence[IntrinsicRow], codec: Codec
) -> list[list[str | None]]:
    """Return the grades of the sentences of each row, as the codec splits them."""
    return [
        list(map(_grade, gold_of(row, codec.encode(row.state)).labels)) for row in rows
    ]


def _worst(row: IntrinsicRow) -> str:
    labels = [label for _, label in row.spans or ()]
    if row.response is not None:
        labels = [row.response]
    return WORSE[max(map(badness, labels), default=0)]


def _hallucination_line(
    system: str, truth: Sequence[bool], said: Sequence[_Said], seed: int
) -> tuple[tuple[str, ...], dict[str, Any]]:
    responses = detection(truth, [answer.flagged for answer in said], seed=seed)
    risks = [None if answer.lowest is None else 1 - answer.lowest for answer in said]
    auc = area(zip(truth, risks, strict=True), seed)
    right, predicted = list[str](), list[str | None]()
    for answer in said:
        for gold, label in zip_longest(answer.gold, answer.labels[: len(answer.gold)]):
            if gold is not None:
                right.append(gold)
                predicted.append(label)
    sentences = classification(right, predicted, WORSE, seed=seed)
    line = (
        system,
        *_cells(responses.classes[HALLUCINATED]),
        percent(responses.classes[FAITHFUL].recall),
        share(auc),
        percent(sentences.accuracy),
        percent(sentences.macro_f1),
        str(responses.undefined),
    )
    return line, {
        "responses": responses.as_dict(),
        "auc": auc.as_dict(),
        "sentences": sentences.as_dict(),
    }


UNCERTAINTY_PART = "uncertainty"
UNCERTAINTY_HEAD = (
    "system",
    "ECE of the decile",
    "of the expectation",
    "adaptive bins",
    "Brier",
    "AUC",
    "undefined",
)


def evaluate_certainty(
    answers: Sequence[OwnAnswer],
    subjects: Sequence[Subject],
    share_right: float | None,
    seed: int,
) -> MeasuredSection:
    """Measure every subject on the base model's own answers, after the answer and before it, in all and by data set.

    Baselines are how often the model was right in training (`share_right`), and a calibrator of the other data sets, as
    for a task that nobody has calibrated.
    """
    right = [float(answer.is_right) for answer in answers]
    constant = sum(right) / len(right) if share_right is None else share_right
    chosen = [answer for answer in answers if isinstance(answer, ChoiceAnswer)]
    pairs = zip(answers, confidences(answers).tolist(), strict=True)
    known = [
        confidence if isinstance(answer, ChoiceAnswer) else None
        for answer, confidence in pairs
    ]
    base = {
        "base: probability of its answer": known,
        "base: calibrated on the other data sets": of_other_data_sets(answers),
    }
    tables, diagrams = list[ReportTable](), dict[str, tuple[Bin, ...]]()
    figures: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = [
        {"id": answer.id, "right": answer.is_right, "own probability": confidence}
        for answer, confidence in zip(answers, known, strict=True)
    ]
    for moment in ("after", "before"):
        lines, sets = [], []
        # system to the deciles and the expectations of its certainty
        systems: dict[str, tuple[Sequence[float | None], Sequence[float | None]]] = {
            "always the training accuracy": ([constant] * len(answers),) * 2
        }
        for name, values in base.items():
            if set(values) != {None}:
                systems[name] = values, values
        states = [answer.state(after=moment == "after") for answer in answers]
        for subject in subjects:
            results = ask(subject, UNCERTAINTY_PART, states)
            systems[subject.name] = (
                [r.decile for r in results],
                [r.certainty for r in results],
            )
            for item, result in zip(items, results, strict=True):
                item[f"{subject.name}, {moment}"] = result.certainty
        for system, (deciles, certainties) in systems.items():
            line, measured, bins = _certainty_line(
                system, right, deciles, certainties, seed
            )
            lines.append(line)
            by_set = _by_data_set(answers, right, deciles, seed)
            figures.setdefault(system, {})[moment] = {
                **measured,
                "ece_by_data_set": by_set,
            }
            if len(by_set) > 1:
                worst = max(by_set, key=lambda name: by_set[name])
                sets.append(
                    (
                        system,
                        f"{fmean(by_set.values()):.3f}",
                        f"{by_set[worst]:.3f}",
                        worst,
                    )
                )
            if moment == "after":
                diagrams[system] = bins
        accuracy = 100 * sum(right) / len(right)
        title = f"Certainty, {moment} the answer ({len(answers)} questions, {accuracy:.1f}% right)"
        tables.append(ReportTable(title, UNCERTAINTY_HEAD, tuple(lines)))
        if sets:
            title = f"Calibration by data set, {moment} the answer ({len({a.dataset for a in answers})} sets)"
            tables.append(
                ReportTable(title, ("system", "mean ECE", "largest", "of"), tuple(sets))
            )
    paper = published_table(
        "MMLU, section 3.2", ("mean ECE", "largest"), PUBLISHED["calibration"], digits=3
    )
    notes = (
        "AUC: how often a right answer is given more certainty than a wrong one; 0.5 is chance",
    )
    tables[0] = replace(tables[0], notes=notes)
    adapted = [
        subject for subject in subjects if subject.adapters.get(UNCERTAINTY_PART)
    ]
    if adapted and chosen:
        shown, accuracies = _accuracy(
            [answer.question for answer in chosen], adapted, seed
        )
        tables.append(shown)
        for system, accuracy_of in accuracies.items():
            figures.setdefault(system, {})["accuracy"] = accuracy_of
    return MeasuredSection(
        UNCERTAINTY_PART, (*tables, paper), figures, tuple(items), diagrams
    )


def _certainty_line(
    system: str,
    right: Sequence[float],
    deciles: Sequence[float | None],
    certainties: Sequence[float | None],
    seed: int,
) -> tuple[tuple[str, ...], dict[str, Any], tuple[Bin, ...]]:
    truth, expected, middle = list[float](), list[float](), list[float]()
    for hit, decile, certainty in zip(right, deciles, certainties, strict=True):
        if certainty is not None:
            truth.append(hit)
            expected.append(float(certainty))
            middle.append(float(decile or 0.0))
    undefined = len(right) - len(truth)
    if not truth:
        return (system, *[NONE] * 5, str(undefined)), {"undefined": undefined}, ()
    figures = {
        "ece_decile": calibration_error(middle, truth, seed=seed),
        "ece": calibration_error(expected, truth, seed=seed),
        "ece_adaptive": calibration_error(expected, truth, adaptive=True, seed=seed),
        "brier": brier(expected, truth, seed=seed),
        "auc": area(zip(truth, expected, strict=True), seed),
    }
    values = {**json_values(figures), "undefined": undefined}
    return (
        (system, *map(share, figures.values()), str(undefined)),
        values,
        reliability(expected, truth),
    )


def _by_data_set(
    answers: Sequence[OwnAnswer],
    right: Sequence[float],
    deciles: Sequence[float | None],
    seed: int,
) -> dict[str, float]:
    """Return the expected calibration error of each data set that has a defined certainty (section 3.2)."""
    members: dict[str, list[tuple[float, float]]] = {}
    for answer, truth, decile in zip(answers, right, deciles, strict=True):
        if decile is not None:
            members.setdefault(answer.dataset, []).append((decile, truth))
    return {
        name: calibration_error(*zip(*pairs, strict=True), seed=seed).value
        for name, pairs in members.items()
    }


def _accuracy(
    questions: Sequence[ChoiceQuestion], adapted: Sequence[Subject], seed: int
) -> tuple[ReportTable, dict[str, dict[str, Any]]]:
    """Measure how often a model chooses the right letter, with an adapter in place and without (section 3.2)."""
    systems = {"without an adapter": _letters(questions, adapted[0], None)}
    for subject in adapted:
        systems[f"with {subject.name}"] = _letters(
            questions, subject, subject.adapters[UNCERTAINTY_PART]
        )
    names = sorted({question.dataset for question in questions})
    lines, figures = [], {}
    for system, hits in systems.items():
        by_set: dict[str, list[float]] = {name: [] for name in names}
        for question, hit in zip(questions, hits, strict=True):
            if hit is not None:
                by_set[question.dataset].append(hit)
        over_sets = mean(map(fmean, filter(None, by_set.values())), seed=seed)
        accuracy = mean(hits, seed=seed)
        lines.append(
            (system, percent(accuracy), percent(over_sets), str(hits.count(None)))
        )
        figures[system] = {
            "questions": accuracy.as_dict(),
            "data sets": over_sets.as_dict(),
        }
    title = f"Zero-shot accuracy by letters ({len(questions)} questions, {len(names)} data sets)"
    return ReportTable(
        title, ("model", "of questions", "mean of data sets", "undefined"), tuple(lines)
    ), figures


def _letters(
    questions: Sequence[ChoiceQuestion], subject: Subject, adapter: str | None
) -> list[float | None]:
    """Return whether the most probable letter is the right one; None where it could not be asked."""
    requests = [replace(_lettered(question), adapter=adapter) for question in questions]
    replies: list[Completion | Failed] = []
    for start in range(0, len(requests), subject.chunk):
        replies += subject.executor.run(requests[start : start + subject.chunk])
    return list(map(_hit, questions, replies))


def _hit(question: ChoiceQuestion, reply: Completion | Failed) -> float | None:
    if isinstance(reply, Failed) or not reply.scores or reply.scores[0] is None:
        return None
    scores = list(reply.scores[0])
    return float(scores.index(max(scores)) == question.right)


def _lettered(question: ChoiceQuestion) -> ModelRequest:
    state = JudgeInput((Message("user", question.prompt),))
    return ModelRequest(
        state,
        ChatPrompt(state.messages),
        slots=(Slot(tuple(question.letters), last_query(state)),),
    )
