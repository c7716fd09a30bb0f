"""Writes rows of intrinsics from files of public benchmarks: reads, labels, checks.

`BENCHMARKS` says which reader a format has. The readers are in `public_benchmarks.py`, `choice_benchmarks.py` and
`recorded_answers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from selfrag.common.public_fields import (
    UnusableError,
)
from selfrag.common.public_rows import RawRow, raw_rows
from selfrag.evaluation.metrics.entailment import support_scores
from selfrag.experiments.intrinsics.choice_benchmarks import (
    read_choices,
    read_csv,
    read_mmlu,
)
from selfrag.experiments.intrinsics.public_benchmarks import (
    BenchmarkRow,
    read_alce,
    read_longbench,
    read_mtrag,
    read_mtrag_rewrite,
    read_ragtruth,
    read_squad,
)
from selfrag.experiments.intrinsics.recorded_answers import read_answers, read_run
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.interface import Judge, UserError, count_of, write_jsonl
from selfrag.judges.entailment import premise
from selfrag.training.intrinsics.certainty import parse_row
from selfrag.training.intrinsics.rows import STEMS, parser

AT_ONCE = 64
"""Rows that are given to a model together."""


def _parts(rows: Iterator[BenchmarkRow]) -> Iterator[list[BenchmarkRow]]:
    return iter(lambda: list(islice(rows, AT_ONCE)), [])


def _judged(rows: Iterator[BenchmarkRow], judge: Judge) -> Iterator[BenchmarkRow]:
    """Yield rows with the score of each sentence: how far all passages together entail it; NA without a verdict."""
    for some in _parts(rows):
        pairs = []
        for row in some:
            state = parser("hallucination_detection")(row).state
            passages = "\n".join(map(premise, state.passages))
            response = state.messages[-1].content
            for sentence in row["sentences"]:
                claim = response[sentence["begin"] : sentence["end"]]
                pairs.append((passages, claim))
        scores = iter(support_scores(judge, pairs))
        for row in some:
            labels = []
            for sentence in row["sentences"]:
                span = {"begin": sentence["begin"], "end": sentence["end"]}
                score = next(scores)
                if score is None:
                    labels.append({**span, "label": "NA"})
                else:
                    labels.append({**span, "score": round(score, 4)})
            yield row | {"label_level": "sentence", "sentences": labels}


def _agreed(
    rows: Iterator[BenchmarkRow], checker: Subject, said: list[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows whose label the checker gives, too."""
    left = 0
    for some in _parts(rows):
        states = [parser("answerability")(row).state for row in some]
        results = checker.ask("answerability", states)
        for row, reflection in zip(some, results, strict=True):
            result = checker.result("answerability", reflection)
            agreed = result.answerable is not None and result.holds == (
                row["label"] == "answerable"
            )
            left += not agreed
            if agreed:
                yield row
    said.append(
        f"left out, as {checker.name} does not give their label: {count_of(left, 'rows')}"
    )


Read: TypeAlias = Callable[[RawRow, Path], Iterator[BenchmarkRow]]
"""Rows of one record of the file at a path; raises `UnusableError` for a record that is none of the benchmark's."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One kind of public file."""

    intrinsic: str  # whose rows it gives
    read: Read
    split: str = "train"  # under which its records stand in a file that is one object


BENCHMARKS: Mapping[str, Benchmark] = {
    "squad2": Benchmark("answerability", read_squad, "data"),
    "mtrag": Benchmark("answerability", read_mtrag),
    "mtrag_rewrite": Benchmark("query_rewrite", read_mtrag_rewrite),
    "ragtruth": Benchmark("hallucination_detection", read_ragtruth),
    "answers": Benchmark("hallucination_detection", read_answers),
    "mmlu": Benchmark("uncertainty", read_mmlu),
    "choices": Benchmark("uncertainty", read_choices),
    "run": Benchmark("uncertainty", read_run),
    "alce": Benchmark("citation_generation", read_alce, "data"),
    "longbench_cite": Benchmark("citation_generation", read_longbench),
}


def parse(text: str) -> tuple[str, Path]:
    """`FORMAT=FILE`, such as `squad2=dev-v2.0.json`, of a format in `BENCHMARKS`."""
    name, equals, path = text.partition("=")
    if not (equals and path):
        raise UserError(
            f"{text!r:.80}: write FORMAT=FILE, such as squad2=dev-v2.0.json"
        )
    if name.strip() not in BENCHMARKS:
        raise UserError(f"unknown format {name!r:.60}; known: {', '.join(BENCHMARKS)}")
    return name.strip(), Path(path)


def rows_files(
    sources: Sequence[tuple[str, Path]], out: Path, part: str
) -> dict[str, Path]:
    """Return the file of each intrinsic that `write_rows` writes."""
    intrinsics = dict.fromkeys(BENCHMARKS[name].intrinsic for name, _ in sources)
    return {name: out / f"{STEMS[name]}_{part}.jsonl" for name in intrinsics}


def write_rows(
    sources: Sequence[tuple[str, Path]],
    out: Path,
    part: str,
    judge: Judge | None = None,
    checker: Subject | None = None,
) -> list[str]:
    """Write files that `selfrag eval intrinsics` and `selfrag train adapter` read, one for each intrinsic.

    The judge says of each sentence of an answer whether its passages entail it, the checker which questions are
    answerable; without them rows stay as they are.

    Returns a line for each file that was read: its rows, and what was left out and why.
    """
    reports: list[str] = []
    if judge is None and "answers" in dict(sources):
        raise UserError(
            "answers of a run have no labels; give a judge with --load-judge, such as nli:MODEL"
        )
    for intrinsic, target in rows_files(sources, out, part).items():
        files = [
            (name, path)
            for name, path in sources
            if BENCHMARKS[name].intrinsic == intrinsic
        ]
        rows = _told(files, part, target, reports)
        if intrinsic == "hallucination_detection" and judge is not None:
            rows = _judged(rows, judge)
        elif intrinsic == "answerability" and checker is not None:
            rows = _agreed(rows, checker, reports)
        write_jsonl(target, rows)
    return reports


def _told(
    sources: Sequence[tuple[str, Path]], part: str, target: Path, said: list[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows of some files; what was read is said in `said`."""
    seen: set[str] = set()
    for name, path in sources:
        skipped: Counter[str] = Counter()
        before = len(seen)
        for row in read_benchmark(BENCHMARKS[name], path, part, skipped):
            if row["id"] in seen:
                raise UserError(
                    f"{path}: id {row['id']!r:.80} occurs twice; name each file once"
                )
            seen.add(row["id"])
            yield row
        reasons = []
        for reason, number in skipped.most_common():
            reasons.append(f"{reason}: {number}")
        left = "; ".join(reasons)
        count = len(seen) - before
        if not count:
            raise UserError(f"{path}: no row for {name}; {left or 'check the format'}")
        line = f"{name}: {count_of(count, 'rows')} in {target}"
        said.append(f"{line}; left out: {left}" if left else line)


def read_benchmark(
    form: Benchmark, path: Path, part: str, skipped: Counter[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows of one file in the schema of its intrinsic, each of them checked.

    The file is JSON, JSON lines or Parquet, of MMLU also CSV. Where records name a split, the part `dev` takes `test`,
    too. `skipped` counts the records that give no row, by reason, while rows are taken.
    """
    check: Callable[[BenchmarkRow], object] = (
        parse_row if form.intrinsic == "uncertainty" else parser(form.intrinsic)
    )
    for raw in read_csv(path) if path.suffix == ".csv" else raw_rows(path, form.split):
        with raw.blamed():
            try:
                for row in form.read(raw, path):
                    split = row.pop("part", part)
                    if ("train" if split == "train" else "dev") != part:
                        raise UnusableError(f"of the split {split:.40}")
                    check(row)
                    yield row
            except UnusableError as why:
                skipped[str(why)] += 1
