"""The commands that run one row of the table, and the result beside the published figures."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from scripts.reproduction.table2 import COLUMNS, TASKS, Row
from selfrag.common.errors import UserError, count_of
from selfrag.evaluation.comparison import compare, read_run
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.judging import OFFICIAL
from selfrag.evaluation.metrics.alce import as_sentences
from selfrag.evaluation.metrics.mauve import ALCE_FEATURES
from selfrag.evaluation.presets import Given
from selfrag.evaluation.published import OF, why_left_out
from selfrag.evaluation.records import read_manifest
from selfrag.evaluation.task_files import TaskFile, read_tasks
from selfrag.render.tables import compact, escape

PUBLIC_FILES: Mapping[str, str] = {
    "popqa": "popqa_longtail_w_gs.jsonl",
    "triviaqa": "triviaqa_test_w_gs.jsonl",
    "pubhealth": "health_claims_processed.jsonl",
    "arc-challenge": "arc_challenge_processed.jsonl",
    "biographies": "factscore_unlabeled_alpaca_13b_retrieval.jsonl",
    "asqa": "asqa_eval_gtr_top100.json",
}
"""Task to the name under which the authors of Self-RAG published its file."""


@dataclass(frozen=True, slots=True)
class Judges:
    """Who judges the columns that need a second model; None leaves the column out."""

    # of citations and of sentences of biographies; `true` is T5-11B of TRUE
    entailment: str | None = "true"
    features: str | None = ALCE_FEATURES  # model of MAUVE's features
    # of the environment with the official FactScore tool, or `stand-in`
    factscore: str | None = "python"
    key: str = "KEYFILE"  # file with the key of OpenAI that the tool asks with
    # index in which sentences of biographies are looked up, a figure of ours
    knowledge: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What is read and where results go."""

    files: Mapping[str, Path]  # task to file
    out: Path  # directory of runs; a row's is `out/ROW`
    options: tuple[
        str, ...
    ] = ()  # further words of `selfrag eval run`, such as `--engine=vllm`
    letter: bool = False  # Self-RAG's rows in the words and with the policy of the paper, not of the released code

    def arguments(self, row: Row) -> list[str]:
        """Return the files with task and protocol, as `selfrag eval run` takes them."""
        return [
            f"{task}/{row.protocol(task, letter=self.letter)}={path}"
            for task, path in self.files.items()
        ]

    def task_files(self, row: Row) -> list[TaskFile]:
        """Return the files, read."""
        return read_tasks([Given.parse(argument) for argument in self.arguments(row)])


def check_counts(files: Mapping[str, Path]) -> None:
    """Refuse files that have another number of rows than the paper's.

    Raises:
        UserError: the first file that does, with what is expected.
    """
    for task, path in files.items():
        if task == "pubhealth":  # the paper gives no number
            continue
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if path.suffix == ".json"
            else list(filter(str.strip, text.splitlines()))
        )
        if why_left_out("selfrag-2", task, len(rows)):
            of = OF["selfrag-2"][task]
            expected = " or ".join(f"{count:,}" for count in of["items"])
            counted = count_of(len(rows), "rows", form=",")
            raise UserError(
                f"{path} has {counted}, and {task} is measured on {expected}: {of['split']}"
            )


def public_files(folder: Path, tasks: tuple[str, ...] = TASKS) -> dict[str, Path]:
    """Return the published files that are in a folder, by task.

    Raises:
        UserError: there is none.
    """
    paths = {task: folder / PUBLIC_FILES[task] for task in tasks}
    present = {task: path for task, path in paths.items() if path.is_file()}
    if not present:
        raise UserError(
            f"{folder} holds none of the published files: {', '.join(path.name for path in paths.values())}"
        )
    return present


def answering(row: Row, place: Place, model: str | None = None) -> list[str]:
    """Return the one command that answers every task of a row.

    Raises:
        UserError: the row cannot be run.
    """
    words = [
        "selfrag",
        "eval",
        "run",
        *place.arguments(row),
        f"--model={row.runnable(model)}",
    ]
    words += [f"--system={row.system}", f"--name={row.name}"]
    words += [f"--set={setting}" for setting in row.settings]
    words.append(f"--out={place.out}")
    for option in place.options:
        if not (row.is_endpoint and option.startswith("--engine")):
            words.append(option)
    return words


def judging(row: Row, place: Place, judges: Judges) -> list[list[str]]:
    """Return the commands that ask second models about the answers; of columns that the paper has only.

    FactScore is the official tool's, which runs in an environment of its own between two commands of `selfrag`.
    """
    run = str(place.out / row.name)
    data = f"--data={next(iter(place.files.values())).parent}"
    steps: list[list[str]] = []

    def judge(task: str, metric: str, *options: str) -> None:
        steps.append(
            [
                "selfrag",
                "eval",
                "judge",
                run,
                f"--only={task}",
                f"--metric={metric}",
                *options,
                data,
            ]
        )

    if "asqa" in place.files:
        if judges.entailment and row.figures[-1] is not None:
            judge("asqa", "citations", f"--load-judge={judges.entailment}")
        if judges.features:
            judge("asqa", "mauve", f"--features={judges.features}")
    if "biographies" in place.files:
        if judges.factscore and row.figures[FACTSCORE] is not None:
            facts = ["selfrag", "eval", "facts", run, "biographies", data]
            facts_file = f"{run}-facts.jsonl"
            decisions = f"{run}-facts_factscore_output.json"
            tool = [
                judges.factscore,
                "-m",
                "factscore.factscorer",
                "--input_path",
                facts_file,
            ]
            tool += ["--model_name", "retrieval+ChatGPT", "--openai_key", judges.key]
            if judges.factscore == STAND_IN:
                tool = [
                    "python",
                    "-m",
                    "scripts.reproduction.decide_facts",
                    facts_file,
                    decisions,
                ]
            steps += [
                [*facts, "--replace", f"--write={facts_file}"],
                tool,
                [*facts, f"--read={decisions}"],
            ]
        if judges.entailment and judges.knowledge:
            judge(
                "biographies",
                "facts",
                f"--load-judge={judges.entailment}",
                f"--knowledge={judges.knowledge}",
            )
    return steps


def check_factscore(python: str, key: Path | None) -> None:
    """Refuse what the official FactScore tool cannot be started with, before anything is answered.

    Raises:
        UserError: there is no such program, or no file with a key.
    """
    if shutil.which(python) is None:
        raise UserError(f"--factscore {python}: no such program; give ENV/bin/python")
    if key is None or not key.is_file() or not key.read_text(encoding="utf-8").strip():
        raise UserError(
            f"--factscore asks OpenAI, and {key or 'no file'} holds a key; give --factscore-key FILE"
        )


def factscore_cost(facts_file: Path) -> str:
    """Return about how many sentences of a file of answers the official FactScore tool is to ask, and what it costs."""
    sentences = 0
    for line in facts_file.read_text(encoding="utf-8").splitlines():
        sentences += len(as_sentences(json.loads(line)["output"] or ""))
    return (
        f"FactScore asks OpenAI about {count_of(sentences, 'sentences', form=',')}. Its authors reckoned 1 USD for 100"
        f" sentences at the prices of 2023, so {sentences / 100:,.2f} USD; the tool prints an estimate of its own"
    )


PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "selfrag": ("-m", "selfrag"),
    "critic": ("-m", "critic"),
    "python": (),
}
"""First word of a command to what this Python runs."""


def python_line(words: Sequence[str]) -> list[str]:
    """Return a command as it is started here; one that begins with another program is started as it is."""
    if words[0] not in PROGRAMS:
        return list(words)
    return [sys.executable, *PROGRAMS[words[0]], *words[1:]]


def run_step(words: Sequence[str], output: IO[bytes] | None = None) -> int:
    """Print a command, run it, its standard output to a file where there is one, and return its exit code."""
    print(f"$ {shlex.join(words)}", flush=True)
    # A process a step: the memory of one model is free before the next is loaded.
    return subprocess.run(python_line(words), check=False, stdout=output).returncode  # noqa: S603 - our own arguments


STAND_IN = "stand-in"
"""In place of the environment of the FactScore tool in a rehearsal."""
FACTSCORE = [metric for _, metric in COLUMNS].index("factscore")
HEAD = ("task", "metric", "paper", "ours", "difference", "may differ by", "verdict")
Verdict = Literal[
    "within", "outside", "not published", "not measured", "not comparable"
]


@dataclass(frozen=True, slots=True)
class Check:
    """One cell."""

    task: str  # of the column
    metric: str  # of the column, with its judge if it has one
    published: float | None  # in percent; None where the paper has none
    # in percent, with its 95% interval; None where nothing was measured
    ours: Estimate | None
    tolerance: float  # percentage points
    left_out: str = (
        ""  # why the published figure is left out, as ours is of other items
    )
    # items that the figure leaves out, as a judge gave no verdict on them
    undecided: int = 0

    @property
    def difference(self) -> float | None:
        """Return ours minus theirs; None where one is missing."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.value - self.published

    @property
    def verdict(self) -> Verdict:
        """Return whether the figure was reproduced."""
        if self.ours is None:
            return "not measured"
        if self.left_out:
            return "not comparable"
        if self.difference is None:
            return "not published"
        return "within" if abs(self.difference) <= self.tolerance else "outside"


def check(
    row: Row, folder: Path, *, letter: bool = False, seed: int = 0
) -> list[Check]:
    """Compare every cell of a row with a run directory.

    Args:
        row: of the table.
        folder: of the run.
        letter: whether it was run by the paper, not by the released code.
        seed: of the intervals.

    Raises:
        UserError: no run, or one that is not finished.
    """
    run = read_run(folder)
    tables = {table.name: table for table in compare([run], seed=seed).tables}
    entries = read_manifest(folder)["files"]
    checks = []
    columns = zip(row.columns(letter=letter), row.figures, row.tolerances, strict=True)
    for (task, metric), published, tolerance in columns:
        if task not in tables:
            checks.append(Check(task, metric, published, None, tolerance))
            continue
        figures = tables[task].rows[0].figures
        names = [name for name in figures if name.partition(" (")[0] == metric]
        # sentences that another judge checked are another figure
        if metric == "factscore":
            names = [name for name in names if OFFICIAL in name]
        name = next(iter(names), metric)
        estimate = figures.get(name)
        if estimate is not None:
            low, high = 100 * estimate.low, 100 * estimate.high
            estimate = Estimate(100 * estimate.value, low, high, estimate.n)
        count = entries[task]["settings"]["items"]
        left_out = why_left_out("selfrag-2", task, count, metric)
        undecided = run.files[task].undecided.get(name, 0)
        known = None if left_out else published
        cell = Check(task, name, known, estimate, tolerance, left_out, undecided)
        checks.append(cell)
    return checks


def markdown(row: Row, checks: Sequence[Check], about: str = "") -> str:
    """Return a table of the cells, and what must be known to read it.

    Items that a judge gave no verdict on are counted below the table: a figure that nobody decided is a dash.
    """
    rows: list[tuple[str, ...]] = []
    undecided = []
    left_out = dict.fromkeys(cell.left_out for cell in checks if cell.left_out)
    for cell in checks:
        published, ours, difference = NONE, NONE, NONE
        if cell.published is not None:
            published = f"{cell.published:.1f}"
        if cell.ours is not None:
            ours = bracketed(cell.ours, scale=1)
        if cell.difference is not None:
            difference = f"{cell.difference:+.1f}"
        metric = escape(cell.metric)
        rows.append(
            (
                cell.task,
                metric,
                published,
                ours,
                difference,
                f"{cell.tolerance:.1f}",
                cell.verdict,
            )
        )
        if cell.undecided:
            undecided.append(
                f"{cell.task}: {count_of(cell.undecided, 'items', 'are')} not in {metric}, as the"
                " judge gave no verdict on them"
            )
    notes = [note for note in (about, row.note) if note]
    head: tuple[str, ...] = HEAD
    if all(cell.published is None for cell in checks):
        # without the columns that need a published figure
        head, rows = HEAD[:2] + HEAD[3:4], [line[:2] + line[3:4] for line in rows]
    lines = [
        f"## {row.title}, Table 2\n",
        *(f"{note}.\n" for note in notes),
        compact(head, rows),
    ]
    return "\n".join([*lines, *(f"{note}.\n" for note in (*undecided, *left_out))])
