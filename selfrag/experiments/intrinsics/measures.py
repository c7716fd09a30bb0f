"""Four intrinsics beside baselines and published figures (tables 8 to 10, 12, 13).

Three are measured on labelled rows; certainty on the model's own answers, and what the adapter costs in accuracy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeAlias

from selfrag.evaluation.intervals import NONE, Estimate, mean, plain, pooled_auc
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
from selfrag.experiments.intrinsics.subjects import ALONE, PUBLISHED, Beside, Subject, ask
from selfrag.experiments.report_tables import MeasuredSection, ReportTable, given, percent, share
from selfrag.intrinsics.catalog import find
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import last_query, merged
from selfrag.judges.wire import ChatPrompt, Codec, Completion, ModelRequest, Slot
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site
from selfrag.reflection.intrinsic_labels import FAITHFULNESS, in_set
from selfrag.reflection.requests import Failed
from selfrag.training.intrinsics.certainty import (
    ChoiceAnswer,
    ChoiceQuestion,
    OwnAnswer,
    confidences,
    of_other_data_sets,
)
from selfrag.training.intrinsics.rows import WORSE, IntrinsicRow, badness, gold_of, without_evidence

ANSWERABILITY_PART = "answerability"
_CLASSES = ("unans. P", "unans. R", "unans. F1", "ans. P", "ans. R", "ans. F1", "weighted F1")
ANSWERABILITY_HEAD = ("system", *_CLASSES, "AUC", "undefined")


def area(scored: Iterable[tuple[bool | float, float | None]], seed: int) -> Estimate:
    """Area under the ROC curve of (positive, score) pairs with a score; every row is an item of its own."""
    known = [(positive, score) for positive, score in scored if score is not None]
    return pooled_auc([[p] if one else [] for one, p in known], [[] if one else [p] for one, p in known], seed=seed)


def published_table(
    title: str, head: Sequence[str], systems: Mapping[str, Sequence[float]], digits: int = 1
) -> ReportTable:
    """Figures of the paper as a table."""
    rows = tuple((system, *given(*values, digits=digits)) for system, values in systems.items())
    return ReportTable(f"Published: {title}", ("system", *head), rows)


def _cells(found: ClassFigures) -> tuple[str, str, str]:
    return percent(found.precision), percent(found.recall), percent(found.f1)


def _parts(rows: Sequence[IntrinsicRow]) -> dict[str, Sequence[int]]:
    """Places of all rows, and of those of each data set."""
    names = [row.source.split("/")[0] for row in rows]
    return {"all rows": range(len(rows))} | {
        name: [at for at, one in enumerate(names) if one == name] for name in sorted(set(names))
    }


def evaluate_answerability(
    rows: Sequence[IntrinsicRow], subjects: Sequence[Subject], train: Sequence[IntrinsicRow], seed: int
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows."""
    truth = [str(row.label) for row in rows]
    frequent = Counter(str(row.label) for row in train or rows)
    majority = max((ANSWERABLE, UNANSWERABLE), key=lambda name: frequent[name])
    predictions: dict[str, list[str | None]] = {"majority": [majority] * len(rows)}
    chances: dict[str, list[float | None]] = {"majority": [0.5] * len(rows)}
    for subject in subjects:
        results = ask(subject, ANSWERABILITY_PART, [row.state for row in rows])
        chances[subject.name] = known = [result.answerable for result in results]
        predictions[subject.name] = [p if p is None else ANSWERABLE if p >= 0.5 else UNANSWERABLE for p in known]
    parts = _parts(rows)
    tables = []
    figures: dict[str, dict[str, Any]] = {}
    for part, members in parts.items():
        lines = []
        for system, said in predictions.items():
            labels = (UNANSWERABLE, ANSWERABLE)
            found = classification([truth[at] for at in members], [said[at] for at in members], labels, seed=seed)
            under = area([(truth[at] == ANSWERABLE, chances[system][at]) for at in members], seed)
            cells = [cell for label in labels for cell in _cells(found.classes[label])]
            lines.append((system, *cells, percent(found.weighted_f1), share(under), str(found.undefined)))
            figures.setdefault(system, {})[part] = found.as_dict() | {"auc": under.as_dict()}
        tables.append(ReportTable(f"Answerability, {part} ({len(members)})", ANSWERABILITY_HEAD, tuple(lines)))
    tables += [published_table(name, _CLASSES, systems) for name, systems in PUBLISHED["answerability"].items()]
    items = tuple(
        {
            "id": row.id,
            "source": row.source,
            "truth": row.label,
            **{system: {"label": said[at], "answerable": chances[system][at]} for system, said in predictions.items()},
        }
        for at, row in enumerate(rows)
    )
    return MeasuredSection(ANSWERABILITY_PART, tuple(tables), figures, items)


CITATIONS_PART = "citation_generation"
CITATIONS_HEAD = ("system", "sentence R", "P", "F1", "passage R", "P", "F1", "undefined", "nothing")


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
    codec: Codec = find(CITATIONS_PART).chat
    requests = [codec.encode(row.state) for row in rows]
    asked = dict.fromkeys(BASELINES, requests)
    gold = dict.fromkeys(BASELINES, _citations_gold(rows, requests))
    given_by = {name: [cite(request) for request in requests] for name, cite in BASELINES.items()}
    gone = [one for row in rows if (one := without_evidence(row)) is not None]
    bare = [codec.encode(row.state) for row in gone]
    again_by = {name: [_cites(cite(request), request) for request in bare] for name, cite in BASELINES.items()}
    undefined = dict.fromkeys(given_by, 0)
    for subject in subjects:
        codec = subject.codec(CITATIONS_PART)  # a dialect splits sentences in its own way
        requests, bare = ([codec.encode(row.state) for row in some] for some in (rows, gone))
        asked[subject.name], gold[subject.name] = requests, _citations_gold(rows, requests)
        found = subject.ask(CITATIONS_PART, [row.state for row in rows])
        given_by[subject.name] = [_cited(one, request) for one, request in zip(found, requests, strict=True)]
        undefined[subject.name] = sum(finding.judgment is None for one in found for finding in one.findings) + sum(
            len(request.sites) for one, request in zip(found, requests, strict=True) if not one.findings
        )
        again = subject.ask(CITATIONS_PART, [row.state for row in gone])
        again_by[subject.name] = [
            _cites(_cited(one, request), request, one) for one, request in zip(again, bare, strict=True)
        ]
    lines, figures = [], {}
    for system, cited in given_by.items():
        by_s, by_p = (
            pair_figures([by(one) for one in gold[system]], [by(one) for one in cited], seed=seed)
            for by in (by_sentence, by_passage)
        )
        nothing = mean([float(one is False) for sentences in again_by[system] for one in sentences], seed=seed)
        cells = [percent(one) for by in (by_s, by_p) for one in (by.recall, by.precision, by.f1)]
        lines.append((system, *cells, str(undefined[system]), percent(nothing)))
        figures[system] = {
            "sentence": plain(by_s),
            "passage": plain(by_p),
            "undefined": undefined[system],
            "nothing": nothing.as_dict(),
        }
    items = tuple(
        {"id": row.id, "gold": gold["first sentence"][at], **{system: cited[at] for system, cited in given_by.items()}}
        for at, row in enumerate(rows)
    )
    own = ReportTable(
        f"Citations against annotated ones ({len(rows)} responses)",
        CITATIONS_HEAD,
        tuple(lines),
        (
            "A good sentence that nobody annotated counts as wrong; the published figures ask a model for entailment",
            f"Nothing: sentences for which nothing is cited after their evidence was cut out of the passages"
            f" ({len(gone)} responses)",
        ),
    )
    annotated = {"the rows themselves": (asked["first sentence"], gold["first sentence"])}
    systems = annotated | {system: (asked[system], cited) for system, cited in given_by.items()}
    judged: list[ReportTable] = []
    for name, judge in {"entailment": _passages_by(beside.entails), "grades": _snippets_by(beside.grader)}.items():
        if judge is not None:
            scored = {system: judge(rows, *cited) for system, cited in systems.items()}
            tables, values = _by_judge(name, rows, scored, seed)
            judged += tables
            for system, found_by_part in values.items():
                figures.setdefault(system, {})[name] = found_by_part
    alce = published_table("Table 12, ALCE", ("R", "P", "F1"), PUBLISHED["citations_alce"])
    f1 = {system: [one[2] for one in values] for system, values in PUBLISHED["citations_longbench"].items()}
    long = published_table("Table 13, LongBench-Cite, F1", ("Chat", "MultifieldQA", "HotpotQA", "GovReport"), f1)
    return MeasuredSection(CITATIONS_PART, (own, *judged, alce, long), figures, items)


CitationMeasure: TypeAlias = Callable[
    [Sequence[IntrinsicRow], Sequence[ModelRequest], Sequence[Sequence[Cited]]], list[Cites | None]
]
"""Figures of each row, of what was asked and cited for it."""
JUDGED = {
    "entailment": "F1 of the two means, as Table 12; a citation of a sentence counts as one of its passage",
    "grades": "LongBench-Cite: full, partial or no support; F1 is the mean of the responses' own, as Table 13",
}


def _passages_by(entails: Entails | None) -> CitationMeasure | None:
    """ALCE's figures, citations lifted to their passages."""
    if entails is None:
        return None
    return lambda rows, requests, cited: cites(
        [
            _cited_sentences(request, own, lambda at, row=row: premise(row.state.passages[at.passage or 0]))  # type: ignore[misc]
            for row, request, own in zip(rows, requests, cited, strict=True)
        ],
        entails,
    )


def _snippets_by(grader: Grader | None) -> CitationMeasure | None:
    """LongBench-Cite's figures; neighbouring sentences that are cited together are one snippet."""
    if grader is None:
        return None
    return lambda rows, requests, cited: grader.cites(
        [row.state.query or "" for row in rows],
        [_cited_sentences(request, own, lambda at: at.text) for request, own in zip(requests, cited, strict=True)],
    )


def _cited_sentences(request: ModelRequest, cited: Sequence[Cited], text: Callable[[Site], str]) -> list[CitedClaim]:
    found = []
    for number, site in enumerate(request.sites):
        spans = merged(request.state, [request.sources[one.evidence] for one in cited if one.sentence == number])
        found.append(CitedClaim(site.text, tuple(dict.fromkeys(map(text, spans)))))
    return found


def _by_judge(
    name: str, rows: Sequence[IntrinsicRow], scored: Mapping[str, Sequence[Cites | None]], seed: int
) -> tuple[list[ReportTable], dict[str, Any]]:
    """Tables of a judge in `JUDGED`, and figures by system and data set."""
    tables, figures = [], dict[str, Any]()
    for part, members in _parts(rows).items():
        lines = []
        for system, every in scored.items():
            known = [one for at in members if (one := every[at]) is not None]
            recall, precision, own = (
                mean(values, seed=seed)
                for values in ([o.recall for o in known], [o.precision for o in known], [o.f1 for o in known])
            )
            pooled = replace(own, value=harmonic(recall.value, precision.value), low=math.nan, high=math.nan)
            f1 = own if name == "grades" else pooled
            lines.append((system, *map(percent, (recall, precision, f1)), str(len(members) - len(known))))
            found = {"recall": recall.as_dict(), "precision": precision.as_dict(), "f1": f1.value if known else None}
            figures.setdefault(system, {})[part] = found
        head = ("system", "recall", "precision", "F1", "undefined")
        tables.append(ReportTable(f"Citations by {name}, {part} ({len(members)})", head, tuple(lines), (JUDGED[name],)))
    return tables, figures


def _citations_gold(rows: Sequence[IntrinsicRow], requests: Sequence[ModelRequest]) -> list[list[Cited]]:
    return [
        [
            _pair(request, site, number)
            for site, numbers in enumerate(gold_of(row, request).sources)
            for number in numbers or ()
        ]
        for row, request in zip(rows, requests, strict=True)
    ]


def _cited(reflection: Reflection, request: ModelRequest) -> list[Cited]:
    """Cited spans as the sentences that lie in them."""
    found = []
    for site, finding in enumerate(reflection.findings):
        for citation in finding.citations:
            found += [
                _pair(request, site, number)
                for number, source in enumerate(request.sources)
                if source.passage == citation.site.passage
                and citation.site.begin <= source.begin
                and source.end <= citation.site.end
            ]
    return found


def _cites(cited: Sequence[Cited], request: ModelRequest, reflection: Reflection | None = None) -> list[bool | None]:
    """Whether anything is cited for each sentence; None where that is undefined."""
    found: list[bool | None] = [any(one.sentence == site for one in cited) for site in range(len(request.sites))]
    if reflection is None:
        return found
    known = [finding.judgment is not None for finding in reflection.findings]
    return [one if site < len(known) and known[site] else None for site, one in enumerate(found)]


def _first(request: ModelRequest) -> list[Cited]:
    return [_pair(request, site, 0) for site in range(len(request.sites))] if request.sources else []


def _lexical(request: ModelRequest) -> list[Cited]:
    """For each sentence the source with the largest share of its words; none where nothing is shared."""
    words = [set(normalise(source.text).split()) for source in request.sources]
    found = []
    for number, site in enumerate(request.sites):
        wanted = set(normalise(site.text).split())
        best = max(range(len(words)), key=lambda at: len(wanted & words[at]), default=None)
        if best is not None and wanted & words[best]:
            found.append(_pair(request, number, best))
    return found


BASELINES: Mapping[str, Callable[[ModelRequest], list[Cited]]] = {
    "first sentence": _first,
    "most words in common": _lexical,
}


def _pair(request: ModelRequest, site: int, number: int) -> Cited:
    source = request.sources[number]
    return Cited(site, str(source.passage), number)


HALLUCINATION_PART = "hallucination_detection"
HALLUCINATION_HEAD = ("system", "P", "R", "F1", "kept", "AUC", "sentences: accuracy", "macro-F1", "undefined")


def evaluate_hallucination(
    rows: Sequence[IntrinsicRow], subjects: Sequence[Subject], train: Sequence[IntrinsicRow], seed: int
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows.

    A response is hallucinated in truth if it holds something unsupported: its worst label is partial or unfaithful.
    It is flagged if the most probable label of one sentence lies below 0.1, which is `unfaithful`.
    """
    worst = [_worst(row) for row in rows]
    frequent = Counter(_grade(label) for row in train or rows for _, label in row.spans or ())
    common = max(WORSE, key=lambda name: frequent[name])
    sites = {"majority": _sentence_labels(rows, find(HALLUCINATION_PART).chat)}
    said = {"majority": [_Said(common == WORSE[-1], 0.5, [common] * len(labels)) for labels in sites["majority"]]}
    items: list[dict[str, Any]] = [{"id": row.id, "worst": one} for row, one in zip(rows, worst, strict=True)]
    for subject in subjects:
        results = ask(subject, HALLUCINATION_PART, [row.state for row in rows])
        sites[subject.name] = _sentence_labels(rows, subject.codec(HALLUCINATION_PART))
        said[subject.name] = [
            _Said(one.is_hallucinated, one.lowest, [_grade(sentence.label) for sentence in one.sentences])
            for one in results
        ]
        for item, one in zip(items, said[subject.name], strict=True):
            item[subject.name] = {"flagged": one.flagged, "lowest": one.lowest, "labels": one.labels}
    figures: dict[str, Any] = {}
    tables = []
    for part, members in _parts(rows).items():
        truth = [worst[at] in ("partial", "unfaithful") for at in members]
        lines = []
        for system, every in said.items():
            gold = [sites[system][at] for at in members]
            line, found = _hallucination_line(system, truth, [every[at] for at in members], gold, seed)
            lines.append(line)
            figures.setdefault(system, {}).update(found if part == "all rows" else {part: found})
        tables.append(
            ReportTable(
                f"Hallucinated responses, {part} ({sum(truth)} of {len(truth)})", HALLUCINATION_HEAD, tuple(lines)
            )
        )
    known = sum(label is not None for labels in sites["majority"] for label in labels)
    notes = (
        "R: share of the hallucinated responses that are flagged; kept: of the faithful ones that are not",
        "AUC: of the lowest expected faithfulness of a sentence",
        f"Sentences: those whose own label is known, {known} of them",
    )
    tables[0] = replace(tables[0], notes=notes)
    paper = published_table("Table 8, RAGTruth QA", HALLUCINATION_HEAD[1:4], PUBLISHED["hallucination"])
    return MeasuredSection(HALLUCINATION_PART, (*tables, paper), figures, tuple(items))


@dataclass(frozen=True, slots=True)
class _Said:
    """What one system said of one response."""

    flagged: bool | None  # None where undefined
    lowest: float | None  # expected faithfulness of its worst sentence
    labels: Sequence[str | None]  # of its sentences


def _grade(label: str | None) -> str | None:
    """A label of any dialect as one of `WORSE`."""
    return None if label is None else in_set(FAITHFULNESS, label)


def _sentence_labels(rows: Sequence[IntrinsicRow], codec: Codec) -> list[list[str | None]]:
    """Grades of the sentences of each row, as the codec splits them."""
    return [[_grade(label) for label in gold_of(row, codec.encode(row.state)).labels] for row in rows]


def _worst(row: IntrinsicRow) -> str:
    labels = [row.response] if row.response is not None else [label for _, label in row.spans or ()]
    return WORSE[max(map(badness, labels), default=0)]


def _hallucination_line(
    system: str, truth: Sequence[bool], said: Sequence[_Said], gold: Sequence[Sequence[str | None]], seed: int
) -> tuple[tuple[str, ...], dict[str, Any]]:
    found = detection(truth, [one.flagged for one in said], seed=seed)
    risks = [None if one.lowest is None else 1 - one.lowest for one in said]
    under = area(zip(truth, risks, strict=True), seed)
    pairs = [
        (right, one.labels[place] if place < len(one.labels) else None)
        for one, sentences in zip(said, gold, strict=True)
        for place, right in enumerate(sentences)
        if right is not None
    ]
    sentences = classification([right for right, _ in pairs], [one for _, one in pairs], WORSE, seed=seed)
    kept = percent(found.classes[FAITHFUL].recall)
    over_sentences = percent(sentences.accuracy), percent(sentences.macro_f1)
    line = (system, *_cells(found.classes[HALLUCINATED]), kept, share(under), *over_sentences, str(found.undefined))
    return line, {"responses": found.as_dict(), "auc": under.as_dict(), "sentences": sentences.as_dict()}


UNCERTAINTY_PART = "uncertainty"
UNCERTAINTY_HEAD = ("system", "ECE of the decile", "of the expectation", "adaptive bins", "Brier", "AUC", "undefined")


def evaluate_certainty(
    answers: Sequence[OwnAnswer], subjects: Sequence[Subject], share_right: float | None, seed: int
) -> MeasuredSection:
    """Measure every subject on the base model's own answers, after the answer and before it, in all and by data set.

    Baselines are how often the model was right in training (`share_right`), and a calibrator of the other data sets, as
    for a task that nobody has calibrated.
    """
    right = [float(one.is_right) for one in answers]
    constant = sum(right) / len(right) if share_right is None else share_right
    chosen = [one for one in answers if isinstance(one, ChoiceAnswer)]
    own = [
        c if isinstance(a, ChoiceAnswer) else None for a, c in zip(answers, confidences(answers).tolist(), strict=True)
    ]
    base = {
        "base: probability of its answer": own,
        "base: calibrated on the other data sets": of_other_data_sets(answers),
    }
    tables, diagrams = list[ReportTable](), dict[str, tuple[Bin, ...]]()
    figures: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = [
        {"id": one.id, "right": one.is_right, "own probability": p} for one, p in zip(answers, own, strict=True)
    ]
    for moment in ("after", "before"):
        lines, sets = [], []
        systems: dict[str, tuple[Sequence[float | None], Sequence[float | None]]] = {
            "always the training accuracy": ([constant] * len(answers),) * 2,
        } | {name: (values, values) for name, values in base.items() if set(values) != {None}}
        states = [one.state(after=moment == "after") for one in answers]
        for subject in subjects:
            results = ask(subject, UNCERTAINTY_PART, states)
            systems[subject.name] = [one.decile for one in results], [one.certainty for one in results]
            for item, result in zip(items, results, strict=True):
                item[f"{subject.name}, {moment}"] = result.certainty
        for system, (deciles, certainties) in systems.items():
            line, values, bins = _certainty_line(system, right, deciles, certainties, seed)
            lines.append(line)
            by_set = _by_data_set(answers, right, deciles, seed)
            figures.setdefault(system, {})[moment] = values | {"ece_by_data_set": by_set}
            if len(by_set) > 1:
                worst = max(by_set, key=lambda name: by_set[name])
                sets.append((system, f"{fmean(by_set.values()):.3f}", f"{by_set[worst]:.3f}", worst))
            if moment == "after":
                diagrams[system] = bins
        accuracy = 100 * sum(right) / len(right)
        title = f"Certainty, {moment} the answer ({len(answers)} questions, {accuracy:.1f}% right)"
        tables.append(ReportTable(title, UNCERTAINTY_HEAD, tuple(lines)))
        if sets:
            title = f"Calibration by data set, {moment} the answer ({len({a.dataset for a in answers})} sets)"
            tables.append(ReportTable(title, ("system", "mean ECE", "largest", "of"), tuple(sets)))
    paper = published_table("MMLU, section 3.2", ("mean ECE", "largest"), PUBLISHED["calibration"], digits=3)
    notes = ("AUC: how often a right answer is given more certainty than a wrong one; 0.5 is chance",)
    tables[0] = ReportTable(tables[0].title, UNCERTAINTY_HEAD, tables[0].rows, notes)
    adapted = [one for one in subjects if one.adapters.get(UNCERTAINTY_PART)]
    if adapted and chosen:
        shown, found = _accuracy([one.question for one in chosen], adapted, seed)
        tables.append(shown)
        for system, values in found.items():
            figures.setdefault(system, {})["accuracy"] = values
    return MeasuredSection(UNCERTAINTY_PART, (*tables, paper), figures, tuple(items), diagrams)


def _certainty_line(
    system: str, right: Sequence[float], deciles: Sequence[float | None], certainties: Sequence[float | None], seed: int
) -> tuple[tuple[str, ...], dict[str, Any], tuple[Bin, ...]]:
    known = [at for at, value in enumerate(certainties) if value is not None]
    truth = [right[at] for at in known]
    expected = [float(certainties[at] or 0.0) for at in known]
    middle = [float(deciles[at] or 0.0) for at in known]
    if not known:
        return (system, *[NONE] * 5, str(len(right))), {"undefined": len(right)}, ()
    found = {
        "ece_decile": calibration_error(middle, truth, seed=seed),
        "ece": calibration_error(expected, truth, seed=seed),
        "ece_adaptive": calibration_error(expected, truth, adaptive=True, seed=seed),
        "brier": brier(expected, truth, seed=seed),
        "auc": area(zip(truth, expected, strict=True), seed),
    }
    undefined = len(right) - len(known)
    values = {name: one.as_dict() for name, one in found.items()} | {"undefined": undefined}
    return (system, *map(share, found.values()), str(undefined)), values, reliability(expected, truth)


def _by_data_set(
    answers: Sequence[OwnAnswer], right: Sequence[float], deciles: Sequence[float | None], seed: int
) -> dict[str, float]:
    """Expected calibration error of each data set that has a defined certainty (section 3.2 of the paper)."""
    members: dict[str, list[tuple[float, float]]] = {}
    for answered, truth, decile in zip(answers, right, deciles, strict=True):
        if decile is not None:
            members.setdefault(answered.dataset, []).append((decile, truth))
    return {name: calibration_error(*zip(*pairs, strict=True), seed=seed).value for name, pairs in members.items()}


def _accuracy(
    questions: Sequence[ChoiceQuestion], adapted: Sequence[Subject], seed: int
) -> tuple[ReportTable, dict[str, dict[str, Any]]]:
    """How often a model chooses the right letter, with an adapter in place and without (section 3.2 of the paper)."""
    found = {"without an adapter": _letters(questions, adapted[0], None)}
    found |= {f"with {one.name}": _letters(questions, one, one.adapters[UNCERTAINTY_PART]) for one in adapted}
    names = sorted({one.dataset for one in questions})
    lines, figures = [], {}
    for system, hits in found.items():
        known = [hit for hit in hits if hit is not None]
        each = [[h for q, h in zip(questions, hits, strict=True) if q.dataset == n and h is not None] for n in names]
        over_sets = mean([fmean(one) for one in each if one], seed=seed)
        accuracy = mean(known, seed=seed)
        lines.append((system, percent(accuracy), percent(over_sets), str(len(hits) - len(known))))
        figures[system] = {"questions": accuracy.as_dict(), "data sets": over_sets.as_dict()}
    title = f"Zero-shot accuracy by letters ({len(questions)} questions, {len(names)} data sets)"
    return ReportTable(title, ("model", "of questions", "mean of data sets", "undefined"), tuple(lines)), figures


def _letters(questions: Sequence[ChoiceQuestion], subject: Subject, adapter: str | None) -> list[float | None]:
    """Whether the most probable letter is the right one; None where it could not be asked."""
    requests = [replace(_lettered(question), adapter=adapter) for question in questions]
    found: list[Completion | Failed] = []
    for start in range(0, len(requests), subject.chunk):
        found += subject.executor.run(requests[start : start + subject.chunk])
    return [_hit(question, one) for question, one in zip(questions, found, strict=True)]


def _hit(question: ChoiceQuestion, found: Completion | Failed) -> float | None:
    scores = None if isinstance(found, Failed) else next(iter(found.scores), None)
    return None if scores is None else float(max(range(len(scores)), key=scores.__getitem__) == question.right)


def _lettered(question: ChoiceQuestion) -> ModelRequest:
    state = JudgeInput((Message("user", question.asked),))
    return ModelRequest(state, ChatPrompt(state.messages), slots=(Slot(tuple(question.letters), last_query(state)),))
