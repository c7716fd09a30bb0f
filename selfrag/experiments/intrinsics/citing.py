"""Citations against annotated ones, by sentence and by passage (beside tables 12 and 13 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from selfrag.evaluation.intervals import mean
from selfrag.evaluation.metrics.citations import Cited, PairFigures, by_passage, by_sentence, pair_figures
from selfrag.evaluation.normalisation import normalise
from selfrag.experiments.intrinsics.published import CITATIONS_ALCE, CITATIONS_LONGBENCH
from selfrag.experiments.intrinsics.section import Section, Table, given, percent
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.contract import Reflection, Request
from selfrag.intrinsics.training.gold import gold_of
from selfrag.intrinsics.training.rows import Labelled
from selfrag.intrinsics.training.uncited import without_evidence

NAME = "citation_generation"
HEAD = ("system", "sentence R", "P", "F1", "passage R", "P", "F1", "undefined", "nothing")


def evaluate(rows: Sequence[Labelled], subjects: Sequence[Subject], train: Sequence[Labelled], seed: int) -> Section:
    """Measure every subject, the first sentence of the passages, and the one with most words in common."""
    del train
    codec = subjects[0].codec(NAME)
    requests = [codec.encode(row.state) for row in rows]
    gold = [_gold(row, request) for row, request in zip(rows, requests, strict=True)]
    given_by = {name: [cite(request) for request in requests] for name, cite in BASELINES.items()}
    gone = [one for row in rows if (one := without_evidence(row)) is not None]
    bare = [codec.encode(row.state) for row in gone]
    cites = {name: [_cites(cite(request), request) for request in bare] for name, cite in BASELINES.items()}
    undefined = dict.fromkeys(given_by, 0)
    for subject in subjects:
        found = subject.ask(NAME, [row.state for row in rows])
        given_by[subject.name] = [_cited(one, request) for one, request in zip(found, requests, strict=True)]
        undefined[subject.name] = sum(finding.judgment is None for one in found for finding in one.findings) + sum(
            len(request.sites) for one, request in zip(found, requests, strict=True) if not one.findings
        )
        again = subject.ask(NAME, [row.state for row in gone])
        cites[subject.name] = [
            _cites(_cited(one, request), request, one) for one, request in zip(again, bare, strict=True)
        ]
    lines, figures = [], {}
    for system, cited in given_by.items():
        by_s = pair_figures([by_sentence(one) for one in gold], [by_sentence(one) for one in cited], seed=seed)
        by_p = pair_figures([by_passage(one) for one in gold], [by_passage(one) for one in cited], seed=seed)
        nothing = mean([float(one is False) for sentences in cites[system] for one in sentences], seed=seed)
        lines.append((system, *_cells(by_s), *_cells(by_p), str(undefined[system]), percent(nothing)))
        figures[system] = {
            "sentence": by_s.as_dict(),
            "passage": by_p.as_dict(),
            "undefined": undefined[system],
            "nothing": nothing.as_dict(),
        }
    items = tuple(
        {"id": row.id, "gold": gold[at], **{system: cited[at] for system, cited in given_by.items()}}
        for at, row in enumerate(rows)
    )
    own = Table(
        f"Citations against annotated ones ({len(rows)} responses)",
        HEAD,
        tuple(lines),
        (
            "A good sentence that nobody annotated counts as wrong; the published figures ask a model for entailment",
            f"Nothing: sentences for which nothing is cited after their evidence was cut out of the passages"
            f" ({len(gone)} responses)",
        ),
    )
    alce = Table(
        "Published: Table 12, ALCE",
        ("system", "R", "P", "F1"),
        tuple((system, *given(*values)) for system, values in CITATIONS_ALCE.items()),
    )
    long = Table(
        "Published: Table 13, LongBench-Cite, F1",
        ("system", "Chat", "MultifieldQA", "HotpotQA", "GovReport"),
        tuple((system, *given(*(one[2] for one in values))) for system, values in CITATIONS_LONGBENCH.items()),
    )
    return Section(NAME, (own, alce, long), figures, items)


def _gold(row: Labelled, request: Request) -> list[Cited]:
    lists = gold_of(row, request).sources
    return [_pair(request, site, number) for site, numbers in enumerate(lists) for number in numbers or ()]


def _cited(reflection: Reflection, request: Request) -> list[Cited]:
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


def _cites(cited: Sequence[Cited], request: Request, reflection: Reflection | None = None) -> list[bool | None]:
    """Whether anything is cited for each sentence; None where that is undefined."""
    found: list[bool | None] = [any(one.sentence == site for one in cited) for site in range(len(request.sites))]
    if reflection is None:
        return found
    known = [finding.judgment is not None for finding in reflection.findings]
    return [one if site < len(known) and known[site] else None for site, one in enumerate(found)]


def _first(request: Request) -> list[Cited]:
    return [_pair(request, site, 0) for site in range(len(request.sites))] if request.sources else []


def _lexical(request: Request) -> list[Cited]:
    """For each sentence the source with the largest share of its words; none where nothing is shared."""
    words = [set(normalise(source.text).split()) for source in request.sources]
    found = []
    for number, site in enumerate(request.sites):
        wanted = set(normalise(site.text).split())
        best = max(range(len(words)), key=lambda at: len(wanted & words[at]), default=None)
        if best is not None and wanted & words[best]:
            found.append(_pair(request, number, best))
    return found


BASELINES: Mapping[str, Callable[[Request], list[Cited]]] = {"first sentence": _first, "most words in common": _lexical}


def _pair(request: Request, site: int, number: int) -> Cited:
    source = request.sources[number]
    return Cited(site, str(source.passage), number)


def _cells(found: PairFigures) -> tuple[str, str, str]:
    return percent(found.recall), percent(found.precision), percent(found.f1)
