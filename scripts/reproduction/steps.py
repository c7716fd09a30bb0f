"""The commands that run one row of the table, files for a rehearsal, and the result beside the published figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scripts.reproduction.table2 import COLUMNS, TASKS, Row
from selfrag.common.errors import UserError
from selfrag.evaluation.comparison import compare, read_run
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.judging import OFFICIAL
from selfrag.evaluation.metrics.mauve import ALCE_FEATURES
from selfrag.evaluation.records import read_manifest
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

    entailment: str | None = "true"  # of citations; `true` is T5-11B of TRUE, as in the paper
    features: str | None = ALCE_FEATURES  # model of MAUVE's features
    factscore: str | None = "python"  # of the environment with the official FactScore tool, or `stand-in`
    facts: str | None = None  # judge of whole sentences of biographies, a figure of ours
    knowledge: str | None = None  # index in which sentences are looked up


@dataclass(frozen=True, slots=True)
class Place:
    """What is read and where results go."""

    files: Mapping[str, Path]  # task to file
    out: Path  # directory of runs; a row's is `out/ROW`
    options: tuple[str, ...] = ()  # further words of `selfrag eval run`, such as `--engine=vllm`
    letter: bool = False  # Self-RAG's rows in the words and with the policy of the paper, not of the released code

    def given(self, row: Row) -> list[str]:
        """The files with task and protocol, as `selfrag eval run` takes them."""
        return [f"{task}/{row.protocol(task, letter=self.letter)}={path}" for task, path in self.files.items()]


ROWS_OF_FILES: Mapping[str, tuple[int, str]] = {
    "popqa": (1_399, "the long tail, of entities with fewer than 100 views a month (s_pop < 100)"),
    "triviaqa": (11_313, "the test split of Min et al. (2019); the authors' own file has 7,313"),
    "arc-challenge": (1_172, "the test set"),
    "biographies": (500, "the unlabelled names of FActScore"),
    "asqa": (948, "the development set, as in ALCE"),
}
"""Task to the rows of its file, and which they are; the paper gives no number of PubHealth's."""
ALSO = {"triviaqa": 7_313}
"""Rows of a file that the authors published and that differ from the paper's."""


def check_counts(files: Mapping[str, Path]) -> None:
    """Refuse files that have another number of rows than the paper's.

    Raises:
        UserError: the first file that does, with what is expected.
    """
    for task, path in files.items():
        if task not in ROWS_OF_FILES:
            continue
        text = path.read_text(encoding="utf-8")
        rows = len(json.loads(text)) if path.suffix == ".json" else sum(1 for line in text.splitlines() if line.strip())
        expected, which = ROWS_OF_FILES[task]
        if rows not in (expected, ALSO.get(task)):
            raise UserError(f"{path} has {rows:,} rows, and {task} is measured on {expected:,}: {which}")


def public_files(folder: Path, only: tuple[str, ...] = TASKS) -> dict[str, Path]:
    """The published files that are in a folder.

    Raises:
        UserError: there is none.
    """
    found = {task: folder / PUBLIC_FILES[task] for task in only if (folder / PUBLIC_FILES[task]).is_file()}
    if not found:
        raise UserError(f"{folder} holds none of the published files: {', '.join(PUBLIC_FILES[task] for task in only)}")
    return found


def answering(row: Row, place: Place, model: str | None = None) -> list[str]:
    """Return the one command that answers every task of a row.

    Raises:
        UserError: the row cannot be run.
    """
    return [
        *(
            "selfrag",
            "eval",
            "run",
            *place.given(row),
            f"--model={row.runnable(model)}",
            f"--system={row.system}",
            f"--name={row.name}",
        ),
        *(f"--set={setting}" for setting in row.settings),
        f"--out={place.out}",
        *(option for option in place.options if not (row.is_endpoint and option.startswith("--engine"))),
    ]


def judging(row: Row, place: Place, judges: Judges) -> list[list[str]]:
    """Return the commands that ask second models about the answers; of columns that the paper has only.

    FactScore is the official tool's, which runs in an environment of its own between two commands of `selfrag`.
    """
    run = ["selfrag", "eval", "judge", str(place.out / row.name)]
    data = [f"--data={next(iter(place.files.values())).parent}"]
    steps: list[list[str]] = []
    if "asqa" in place.files and judges.entailment and row.figures[-1] is not None:
        steps.append([*run, "--only=asqa", "--metric=citations", f"--judge={judges.entailment}", *data])
    if "asqa" in place.files and judges.features:
        steps.append([*run, "--only=asqa", "--metric=mauve", f"--features={judges.features}", *data])
    if "biographies" in place.files and judges.factscore and row.figures[FACTSCORE] is not None:
        facts = ["selfrag", "eval", "facts", str(place.out / row.name), "biographies", *data]
        asked = str(place.out / f"{row.name}-facts.jsonl")
        decided = asked.replace(".jsonl", "_factscore_output.json")
        steps.append([*facts, f"--write={asked}"])
        if judges.factscore == STAND_IN:
            steps.append(["python", "-m", "scripts.reproduction.decide_facts", asked, decided])
        else:
            tool = ["-m", "factscore.factscorer", "--input_path", asked, "--model_name", "retrieval+ChatGPT"]
            steps.append([judges.factscore, *tool, "--openai_key", "KEYFILE"])
        steps.append([*facts, f"--read={decided}"])
    if "biographies" in place.files and judges.facts and judges.knowledge:
        sentences = [f"--judge={judges.facts}", f"--knowledge={judges.knowledge}"]
        steps.append([*run, "--only=biographies", "--metric=facts", *sentences, *data])
    return steps


CITIES = (("Paris", "France", "Seine"), ("Rome", "Italy", "Tiber"), ("Prague", "Czechia", "Vltava"))


def write_samples(folder: Path, asqa_items: int = len(CITIES)) -> dict[str, Path]:
    """Write the six files under the names of the public ones, three items each but for ASQA; task to path."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for task, rows in _samples(asqa_items).items():
        path = folder / PUBLIC_FILES[task]
        whole = path.suffix == ".json"  # ALCE publishes one array
        text = json.dumps(rows, indent=1) if whole else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        found[task] = path
    return found


def _samples(asqa_items: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    cities = list(enumerate(CITIES))
    return {
        "popqa": [_popqa(n, *city) for n, city in cities],
        "triviaqa": [_triviaqa(n, *city) for n, city in cities],
        "pubhealth": [_claim(n, *city) for n, city in cities],
        "arc-challenge": [_choice(n, *city) for n, city in cities],
        "biographies": [_biography(*city) for _, city in cities],
        "asqa": [_asqa(n, *CITIES[n % len(CITIES)]) for n in range(asqa_items)],
    }


def _passages(city: str, country: str, river: str) -> list[dict[str, Any]]:
    texts = [f"{city} is the capital of {country}.", f"The {river} flows through {city}.", "Bread is made of flour."]
    texts += ["Bread is baked.", "Rye bread is dark."]
    return [{"id": f"{city}-{i}", "title": city if i < 2 else "Bread", "text": text} for i, text in enumerate(texts)]


def _popqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    question = f"What is the capital of {country}?"
    return {
        "id": number,
        "question": question,
        "possible_answers": json.dumps([city]),
        "answers": [city],
        "ctxs": _passages(city, country, river),
    }


def _triviaqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    question = f"Which river flows through {city}?"
    passages = _passages(city, country, river)
    return {"q_id": f"tqa-{number}", "question": question, "answers": [river, f"River {river}"], "ctxs": passages}


def _claim(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    true = number % 2 == 0
    claim = f"{city} is the capital of {country if true else 'Peru'}."
    passages = _passages(city, country, river)
    return {"claim_id": str(number), "question": claim, "answers": ["true" if true else "false"], "ctxs": passages}


def _choice(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    texts = [city, "Lima", "Quito", "Cusco"]
    return {
        "id": f"arc-{number}",
        "question": f"Which city is the capital of {country}?",
        "choices": {"text": texts, "label": ["A", "B", "C", "D"]},
        "answerKey": "A",
        "ctxs": _passages(city, country, river),
    }


def _biography(city: str, country: str, river: str) -> dict[str, Any]:
    passages = _passages(city, country, river)
    return {"topic": city, "input": f"Question: Tell me a bio of {city}.", "output": "", "ctxs": passages}


def _asqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    answer = f"{city} is the capital of {country}, and the {river} flows through it."
    pairs = [
        {"question": f"What is the capital of {country}?", "short_answers": [city]},
        {"question": f"Which river flows through {city}?", "short_answers": [river]},
    ]
    return {
        "sample_id": f"asqa-{number}",
        "question": f"What is {country} known for?",
        "qa_pairs": pairs,
        "annotations": [{"long_answer": answer, "knowledge": []}],
        "answer": answer,
        "docs": _passages(city, country, river),
    }


ASQA_ITEMS = 20
"""Items of ASQA in a rehearsal; MAUVE needs as many."""
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


STAND_IN = "stand-in"
"""In place of the environment of the FactScore tool in a rehearsal."""
FACTSCORE = [metric for _, metric in COLUMNS].index("factscore")
HEAD = ("task", "metric", "paper", "ours", "difference", "may differ by", "verdict")
Verdict = Literal["within", "outside", "not published", "not measured"]


@dataclass(frozen=True, slots=True)
class Check:
    """One cell."""

    task: str  # of the column
    metric: str  # of the column, with its judge if it has one
    published: float | None  # in percent; None where the paper has none
    ours: Estimate | None  # in percent, with its 95% interval; None where nothing was measured
    tolerance: float  # percentage points
    sampled: bool  # whether only some items of the file were run; the half width of the interval is added then
    undecided: int = 0  # items that the figure leaves out, as a judge gave no verdict on them

    @property
    def difference(self) -> float | None:
        """Ours minus theirs; None where one is missing."""
        return None if self.ours is None or self.published is None else self.ours.value - self.published

    @property
    def slack(self) -> float:
        """How large the difference may be."""
        width = 0.0 if self.ours is None else (self.ours.high - self.ours.low) / 2
        return self.tolerance + (width if self.sampled and width == width else 0.0)  # NaN: one item, no interval

    @property
    def verdict(self) -> Verdict:
        """Whether the figure was reproduced."""
        if self.difference is None:
            return "not published" if self.published is None else "not measured"
        return "within" if abs(self.difference) <= self.slack else "outside"


def check(row: Row, folder: Path, *, letter: bool = False, seed: int = 0) -> list[Check]:
    """Every cell of a row against a run directory.

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
    for (task, metric), published, tolerance in zip(
        row.columns(letter=letter), row.figures, row.tolerances, strict=True
    ):
        figures = tables[task].rows[0].figures if task in tables else {}
        names = [name for name in figures if name.partition(" (")[0] == metric]
        if metric == "factscore":  # sentences that another judge checked are another figure
            names = [name for name in names if OFFICIAL in name]
        name = next(iter(names), metric)
        settings = entries[task]["settings"] if task in entries else {}
        sampled = bool(settings) and settings["items"] < settings["rows"]
        undecided = run.files[task].undecided.get(name, 0) if task in run.files else 0
        checks.append(Check(task, name, published, _percent(figures.get(name)), tolerance, sampled, undecided))
    return checks


def markdown(row: Row, checks: Sequence[Check], about: str = "", *, verdicts: bool = True) -> str:
    """A table of the cells, and what must be known to read it; figures of a rehearsal get no verdict.

    Items that a judge gave no verdict on are counted below the table: a figure that nobody decided is a dash.
    """
    rows = []
    for one in checks:
        ours = NONE if one.ours is None else bracketed(one.ours, scale=1)
        difference = NONE if one.difference is None else f"{one.difference:+.1f}"
        published = NONE if one.published is None else f"{one.published:.1f}"
        verdict = one.verdict if verdicts else NONE
        rows.append((one.task, escape(one.metric), published, ours, difference, f"{one.slack:.1f}", verdict))
    notes = [note for note in (about, row.note) if note]
    left = [
        f"{one.task}: {one.undecided} items are not in {escape(one.metric)}, as the judge gave no verdict on them"
        for one in checks
        if one.undecided
    ]
    parts = [f"## {row.title}, Table 2\n", *(f"{note}.\n" for note in notes), compact(HEAD, rows)]
    return "\n".join([*parts, *(f"{note}.\n" for note in left)])


def _percent(found: Estimate | None) -> Estimate | None:
    return None if found is None else Estimate(100 * found.value, 100 * found.low, 100 * found.high, found.n)
