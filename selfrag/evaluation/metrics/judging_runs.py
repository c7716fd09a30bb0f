"""Judges asked about run directories: items and records in, figures beside the records out. Loads no model itself.

Verdicts are kept while they come (`entailment.journal`), so a killed pass goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.lock import locked_directory
from retrieval.passage import Retriever
from selfrag.errors import UserError
from selfrag.evaluation.metrics.entailment.journal import remembered
from selfrag.evaluation.metrics.entailment.protocol import Entailment
from selfrag.evaluation.metrics.factscore.splitting import SentenceSplitter, Splitter
from selfrag.evaluation.metrics.judgeable import Load, judgeable
from selfrag.evaluation.metrics.judged_files import Judged, about, write_judged
from selfrag.evaluation.metrics.judging import Record, judge_citations, judge_claims, judge_facts, judge_likeness
from selfrag.evaluation.metrics.mauve import Features
from selfrag.evaluation.metrics.registry import JUDGED
from selfrag.evaluation.records import read_manifest

CITATIONS = ("citation_precision_nli", "citation_recall_nli", "citation_f1_nli")
DEFAULT = ("citations",)
FAMILIES = ("citations", "claims", "facts", "mauve")
"""What can be asked for: figures that are computed together."""
_FAMILY = {**dict.fromkeys(CITATIONS, "citations"), "claim_recall": "claims", "factscore": "facts", "mauve": "mauve"}


@dataclass(frozen=True)
class Judges:
    """Who decides what; None for what is not asked for.

    Attributes:
        entailment: for citations, claims and facts.
        features: for MAUVE.
        splitter: finds facts.
        knowledge: where facts are looked up.
        source: what tells the knowledge source from another.
    """

    entailment: Entailment | None = None
    features: Features | None = None
    splitter: Splitter = field(default_factory=SentenceSplitter)
    knowledge: Retriever | None = None
    source: Mapping[str, Any] | None = None


def families(names: Sequence[str]) -> tuple[str, ...]:
    """What has to be computed for figures, or families, of these names.

    Raises:
        UserError: an unknown name; lists the known ones.
    """
    found = dict.fromkeys(_FAMILY.get(name, name) for name in names)
    for name in found:
        if name not in FAMILIES:
            raise UserError(f"no judge is needed for {name[:60]!r}, or it is unknown; known: {', '.join(JUDGED)}")
    return tuple(found) or DEFAULT


def judge_run(
    folder: Path,
    load: Load,
    judges: Judges,
    wanted: Sequence[str] = DEFAULT,
    *,
    only: Sequence[str] | None = None,
    progress: Callable[[int], object] = lambda pairs: None,
) -> dict[str, list[Judged]]:
    """Ask judges about the finished files of a run, and write what they say beside the records.

    Args:
        folder: of the run.
        load: items by id, of a run and the name of a file in it.
        judges: who decides.
        wanted: some of `FAMILIES`.
        only: names of files; all by default.
        progress: called with the number of verdicts that are there.

    Returns:
        Name of the file to what each judge said.

    Raises:
        UserError: no run, one that is being written or judged, an unfinished file, other items than those of the run, a
            judge that is missing, or passages that nobody knows.
    """
    found: dict[str, list[Judged]] = {}
    names = read_manifest(folder)["files"] if only is None else only
    with locked_directory(folder):
        for name in names:
            task, records = judgeable(folder, name, load)
            found[name] = [_family(family, records, judges, task, folder, progress) for family in wanted]
            for judged in _joined(found[name]):
                write_judged(folder, name, judged, about())
    return found


def _family(
    family: str,
    records: Sequence[Record],
    judges: Judges,
    task: Mapping[str, Any],
    folder: Path,
    progress: Callable[[int], object],
) -> Judged:
    if family == "mauve":
        if judges.features is None:
            raise UserError("mauve needs a model that gives features of texts; name one with --features")
        return judge_likeness(records, judges.features)
    if judges.entailment is None:
        raise UserError(f"{family} need a judge of entailment; name one with --judge, such as true or nli:MODEL")
    judge = remembered(judges.entailment, folder, progress)
    if family == "citations":
        return judge_citations(records, judge, kind=str(task["kind"]), marked=bool(task.get("marked")))
    if family == "claims":
        return judge_claims(records, judge)
    if judges.knowledge is None:
        raise UserError("facts need a knowledge source to be looked up in; give its index with --knowledge")
    return judge_facts(records, judges.splitter, judges.knowledge, judge, judges.source or {})


def _joined(found: Sequence[Judged]) -> list[Judged]:
    """One value a judge, as one judge has one file."""
    by_judge: dict[str, Judged] = {}
    for one in found:
        before = by_judge.get(one.judge)
        if before is not None:
            one = Judged(
                one.judge,
                one.identity,
                {**before.parts, **one.parts},
                {**before.undecided, **one.undecided},
                {**before.whole, **one.whole},
            )
        by_judge[one.judge] = one
    return list(by_judge.values())
