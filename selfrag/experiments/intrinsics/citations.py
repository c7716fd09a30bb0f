"""Generated citations beside two baselines and published figures (tables 12 and 13 of the intrinsics paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, TypeAlias

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.intervals import json_values, mean
from selfrag.evaluation.metrics.alce import CitedClaim, Cites, cites
from selfrag.evaluation.metrics.citations import (
    Cited,
    by_passage,
    by_sentence,
    pair_figures,
)
from selfrag.evaluation.metrics.registry import harmonic
from selfrag.evaluation.normalisation import normalise
from selfrag.evaluation.published import why_left_out
from selfrag.experiments.intrinsics.part_tables import (
    item_records,
    measure_parts,
    parts_of,
    published_table,
    why_table_left_out,
)
from selfrag.experiments.intrinsics.subjects import ALONE, PUBLISHED, Beside, Subject
from selfrag.experiments.report_tables import MeasuredSection, ReportTable, percent
from selfrag.interface import ModelRequest, Reflection, count_of
from selfrag.intrinsics.catalog import find
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import merged
from selfrag.training.intrinsics.rows import (
    IntrinsicRow,
    TextSpan,
    gold_of,
    without_evidence,
)

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
JUDGED_HEAD = ("system", "recall", "precision", "F1", "undefined")
JUDGED = {
    "entailment": "F1 of the two means, as Table 12; a citation of a sentence counts as one of its passage",
    "grades": "LongBench-Cite: full, partial or no support; F1 is the mean of the responses' own, as Table 13",
}


@dataclass(frozen=True, slots=True)
class _CitedRow:
    """What one system cites for one row."""

    # the row, with its sentences as the system's dialect splits them
    request: ModelRequest
    cited: Sequence[Cited]
    judged: Sequence[bool]  # of each sentence


@dataclass(frozen=True, slots=True)
class _CitingSystem:
    """What one system cites for all rows."""

    rows: Sequence[_CitedRow]
    gold: Sequence[Sequence[Cited]]  # annotated citations of each row
    silent: Sequence[bool]  # of each sentence without evidence: nothing is cited for it


Citer: TypeAlias = Callable[[Sequence[IntrinsicRow]], list[_CitedRow]]


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
    cut_rows = list(filter(None, map(without_evidence, rows)))
    citers = {**BASELINES, **{subject.name: _citer(subject) for subject in subjects}}
    systems = {}
    for name, cite in citers.items():
        cited_rows = cite(rows)
        gold = list(map(_annotated, rows, cited_rows))
        silent: list[bool] = []
        for cut_row in cite(cut_rows):
            citing = {citation.sentence for citation in cut_row.cited}
            for site, judged in enumerate(cut_row.judged):
                silent.append(judged and site not in citing)
        systems[name] = _CitingSystem(cited_rows, gold, silent)
    # 2. figures against the annotated citations
    table, figures = _against_annotated(systems, len(cut_rows), seed)
    tables = [table]
    annotated = systems["first sentence"]
    cited: dict[str, Sequence[Any]] = {"gold": annotated.gold}
    for name, system in systems.items():
        cited[name] = [row.cited for row in system.rows]
    items = item_records(rows, cited)
    # 3. figures by a judge of entailment and by a grader
    gold_rows = []
    for cited_row, citations in zip(annotated.rows, annotated.gold, strict=True):
        gold_rows.append(replace(cited_row, cited=citations))
    measured: dict[str, Sequence[_CitedRow]] = {"the rows themselves": gold_rows}
    for name, system in systems.items():
        measured[name] = system.rows
    for judge, scored in _scores(rows, measured, beside).items():
        judged_tables, by_part = _by_judge(judge, rows, scored, seed)
        tables += judged_tables
        for name, values in by_part.items():
            figures.setdefault(name, {})[judge] = values
    # 4. published figures
    alce = PUBLISHED["citations_alce"]
    metric = "annotations" if beside.entails is None else "entailment"
    left_out = why_table_left_out("intrinsics-12", rows, "alce", metric)
    head: tuple[str, ...] = ("R", "P", "F1")
    tables.append(published_table("Table 12, ALCE", head, alce, left_out=left_out))
    f1 = {}
    for name, tasks in PUBLISHED["citations_longbench"].items():
        f1[name] = [task[2] for task in tasks]
    head = ("Chat", "MultifieldQA", "HotpotQA", "GovReport")
    # rows of this benchmark alone bring statements
    count = sum(bool(row.statements) for row in rows)
    metric = "annotations" if beside.grader is None else "grades"
    data = "longbench_cite" if count else ""
    left_out = why_left_out("intrinsics-13", data, count, metric)
    title = "Table 13, LongBench-Cite, F1"
    tables.append(published_table(title, head, f1, left_out=left_out))
    return MeasuredSection(CITATIONS_PART, tuple(tables), figures, tuple(items))


def _against_annotated(
    systems: Mapping[str, _CitingSystem], cut: int, seed: int
) -> tuple[ReportTable, JsonObject]:
    """Return table and figures of all systems; `cut` is the number of rows whose evidence was cut out."""
    lines, figures = [], {}
    for name, system in systems.items():
        cells: list[str] = []
        values: JsonObject = {}
        for level, pairs_of in (("sentence", by_sentence), ("passage", by_passage)):
            gold = list(map(pairs_of, system.gold))
            predicted = [pairs_of(row.cited) for row in system.rows]
            pairs = pair_figures(gold, predicted, seed=seed)
            cells += map(percent, (pairs.recall, pairs.precision, pairs.f1))
            values[level] = json_values(pairs)
        undefined = sum(row.judged.count(False) for row in system.rows)
        nothing = mean(map(float, system.silent), seed=seed)
        lines.append((name, *cells, str(undefined), percent(nothing)))
        values |= {"undefined": undefined, "nothing": nothing.as_dict()}
        figures[name] = values
    responses = len(systems["first sentence"].rows)
    title = f"Citations against annotated ones ({count_of(responses, 'responses')})"
    notes = (
        "A good sentence that nobody annotated counts as wrong; the published figures ask a model for entailment",
        f"Nothing: sentences for which nothing is cited after their evidence was cut out of the passages"
        f" ({count_of(cut, 'responses')})",
    )
    return ReportTable(title, CITATIONS_HEAD, tuple(lines), notes), figures


def _scores(
    rows: Sequence[IntrinsicRow],
    measured: Mapping[str, Sequence[_CitedRow]],
    beside: Beside,
) -> dict[str, dict[str, list[Cites | None]]]:
    """Return what each judge of `JUDGED` that is there says of each system, row by row."""
    scores: dict[str, dict[str, list[Cites | None]]] = {}
    questions = [row.state.query or "" for row in rows]
    for name, cited_rows in measured.items():
        if beside.entails is not None:
            sentences: list[tuple[TextSpan, ...]] = [()] * len(rows)  # as ALCE counts
            claims = _cited_claims(cited_rows, sentences, whole_passages=True)
            scored = cites(claims, beside.entails)
            scores.setdefault("entailment", {})[name] = scored
        if beside.grader is not None:
            statements = [row.statements for row in rows]
            claims = _cited_claims(cited_rows, statements, whole_passages=False)
            scored = beside.grader.cites(questions, claims)
            scores.setdefault("grades", {})[name] = scored
    return scores


def _by_judge(
    judge: str,
    rows: Sequence[IntrinsicRow],
    scored: Mapping[str, Sequence[Cites | None]],
    seed: int,
) -> tuple[list[ReportTable], JsonObject]:
    """Return the tables of a judge in `JUDGED`, and figures by system and data set."""

    def measure(
        system: str, members: Sequence[int]
    ) -> tuple[Sequence[str], JsonObject]:
        known = list(filter(None, (scored[system][place] for place in members)))
        recall = mean([response.recall for response in known], seed=seed)
        precision = mean([response.precision for response in known], seed=seed)
        f1 = mean([response.f1 for response in known], seed=seed)
        if judge != "grades":
            of_means = harmonic(recall.value, precision.value)
            f1 = replace(f1, value=of_means, low=nan, high=nan)
        cells = map(percent, (recall, precision, f1))
        return (*cells, str(len(members) - len(known))), {
            "recall": recall.as_dict(),
            "precision": precision.as_dict(),
            "f1": f1.value if known else None,
        }

    title = f"Citations by {judge}"
    tables, figures = measure_parts(title, JUDGED_HEAD, parts_of(rows), scored, measure)
    return [replace(table, notes=(JUDGED[judge],)) for table in tables], figures


def _cited_claims(
    rows: Sequence[_CitedRow],
    statements: Sequence[Sequence[TextSpan]],
    *,
    whole_passages: bool,
) -> list[list[CitedClaim]]:
    """Return the statements of each row, or else its sentences, with the texts that they cite.

    A text is a passage, or the cited span alone. Neighbouring sentences that are cited together are one span.
    """
    claims = []
    for row, of_writer in zip(rows, statements, strict=True):
        request, of_row = row.request, []
        spans = of_writer or [(site.begin, site.end) for site in request.sites]
        for begin, end in spans:
            sources = []
            for citation in row.cited:
                site = request.sites[citation.sentence]
                if begin <= (site.begin + site.end) // 2 < end:
                    sources.append(request.sources[citation.evidence])
            texts: dict[str, None] = {}
            for span in merged(request.state, sources):
                text = span.text
                if whole_passages:
                    text = premise(request.state.passages[span.passage or 0])
                texts[text] = None
            sentence = request.state.messages[-1].content[begin:end]
            of_row.append(CitedClaim(sentence, tuple(texts)))
        claims.append(of_row)
    return claims


def _annotated(row: IntrinsicRow, cited_row: _CitedRow) -> list[Cited]:
    """Return the annotated citations of a row, by the sentences of the request."""
    request, citations = cited_row.request, list[Cited]()
    for site, numbers in enumerate(gold_of(row, request).sources):
        citations += [_pair(request, site, number) for number in numbers or ()]
    return citations


def _citer(subject: Subject) -> Citer:
    """Return what asks a subject for citations."""
    codec = subject.codec(CITATIONS_PART)  # a dialect splits sentences in its own way

    def cite(rows: Sequence[IntrinsicRow]) -> list[_CitedRow]:
        reflections = subject.ask(CITATIONS_PART, [row.state for row in rows])
        cited_rows = []
        for row, reflection in zip(rows, reflections, strict=True):
            request = codec.encode(row.state)
            judged = [item.judgment is not None for item in reflection.findings]
            judged = judged or [False] * len(request.sites)
            cited_rows.append(_CitedRow(request, _cited(reflection, request), judged))
        return cited_rows

    return cite


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


def _baseline(choose: Callable[[ModelRequest, str], int | None]) -> Citer:
    """Return what cites at most one source for each sentence; `choose` gives its number from the sentence."""

    def cite(rows: Sequence[IntrinsicRow]) -> list[_CitedRow]:
        cited_rows = []
        for row in rows:
            request: ModelRequest = find(CITATIONS_PART).chat.encode(row.state)
            cited = []
            for number, site in enumerate(request.sites):
                source = choose(request, site.text)
                if source is not None:
                    cited.append(_pair(request, number, source))
            judged = [True] * len(request.sites)
            cited_rows.append(_CitedRow(request, cited, judged))
        return cited_rows

    return cite


def _first(request: ModelRequest, sentence: str) -> int | None:
    return 0 if request.sources else None


def _lexical(request: ModelRequest, sentence: str) -> int | None:
    """Return the source with the largest share of the words; None where nothing is shared."""
    words = set(normalise(sentence).split())
    sources = [set(normalise(source.text).split()) for source in request.sources]
    shared = [len(words & source) for source in sources]
    return shared.index(max(shared)) if any(shared) else None


BASELINES: Mapping[str, Citer] = {
    "first sentence": _baseline(_first),
    "most words in common": _baseline(_lexical),
}


def _pair(request: ModelRequest, site: int, number: int) -> Cited:
    source = request.sources[number]
    return Cited(site, str(source.passage), number)
