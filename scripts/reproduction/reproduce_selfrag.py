"""Reproduce rows of Table 2 of the Self-RAG paper: one command a row, expected figures and tolerances beside ours.

    python scripts/reproduction/reproduce_selfrag.py list
    python scripts/reproduction/reproduce_selfrag.py --dry-run
    python scripts/reproduction/reproduce_selfrag.py run selfrag-7b --files eval_data --out RUNS --knowledge INDEX
    python scripts/reproduction/reproduce_selfrag.py run llama2-7b --files eval_data --out RUNS --task popqa --limit 200
    python scripts/reproduction/reproduce_selfrag.py run chatgpt --files eval_data --out RUNS --model NAME@URL
    python scripts/reproduction/reproduce_selfrag.py rehearse --out RUNS

`run` is for a machine with a GPU (7B: 16 GB; TRUE, which judges citations, needs about 25 GB), the public checkpoints
and the files that the authors published (`eval_data` of AkariAsai/self-rag). It continues where it was stopped, prints
every command that it runs, and ends with 0 only if every published figure was reproduced within its tolerance.
`--dry-run` prints for every row its commands, and for every task protocol, budget, documents, settings, published
figures and the whole prompt of a made-up item. `--letter` runs Self-RAG's own rows in the words of Table 5 and with the
policy of the paper instead of those of the released code.
`rehearse` takes every step of `run` with the demo model on three made-up items a task, in the schemas of the public
files: it shows that the steps work, and its figures say nothing about the paper.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from scripts.command import command
from scripts.reproduction.prompts import shown
from scripts.reproduction.steps import (
    ASQA_ITEMS,
    PUBLIC_FILES,
    STAND_IN,
    Judges,
    Place,
    answering,
    check,
    check_counts,
    judging,
    markdown,
    public_files,
    python_line,
    write_samples,
)
from scripts.reproduction.table2 import CITED, ROWS, TASKS, Row, row
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.evaluation.metrics.mauve import ALCE_FEATURES
from selfrag.evaluation.presets import Given
from selfrag.evaluation.task_files import read_tasks

REHEARSAL = "A rehearsal with another model on made-up items: the steps work, the figures say nothing about the paper"
OTHER = "Another model than the paper's was run"


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", dest="plan", help="print prompts and commands of all rows")
    parser.add_argument("--letter", action="store_true", help="Self-RAG's rows by the paper, not by the released code")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="rows, and what they need")
    run = commands.add_parser("run", help="one row", allow_abbrev=False)
    run.add_argument("row", help=f"one of {', '.join(ROWS)}")
    run.add_argument("--files", type=Path, required=True, help="folder of the published files")
    run.add_argument("--task", action="append", choices=TASKS, help="this task only; repeatable")
    run.add_argument("--model", help="another checkpoint than the published one")
    run.add_argument("--judge", default="true", help="of citations; else TRUE, T5-11B")
    run.add_argument("--features", default=ALCE_FEATURES, help="model of MAUVE's features")
    run.add_argument("--factscore", help="Python of the environment with the official FactScore tool; else left out")
    run.add_argument("--facts-judge", help="of whole sentences of biographies, a figure of ours; else --judge")
    run.add_argument("--knowledge", help="index of Wikipedia for these sentences; without it they are left out")
    run.add_argument("--no-judges", action="store_true", help="leave out what needs a second model")
    rehearse = commands.add_parser(
        "rehearse", help="every step with a small model on made-up items", allow_abbrev=False
    )
    rehearse.add_argument("--row", default="selfrag-7b")
    rehearse.add_argument("--model", default="demo")
    rehearse.add_argument("--judge", default="judge:demo")
    rehearse.add_argument("--features", default="demo-base")
    rehearse.add_argument("--knowledge", default="demo")
    for one in (run, rehearse):
        one.add_argument("--out", type=Path, required=True, help="directory of the runs")
        one.add_argument("--engine", help="vllm, transformers or http://HOST:PORT; else the best one here")
        one.add_argument("--limit", type=int, help="a seeded sample of this many items of each file")
        one.add_argument("--dry-run", action="store_true", help="print the commands only")
    arguments = parser.parse_args()
    if arguments.command is None:
        if not arguments.plan:
            parser.error("give a command, or --dry-run")
        return _plan(letter=arguments.letter)
    return {"list": _list, "run": _run, "rehearse": _rehearse}[arguments.command](arguments)


def _plan(*, letter: bool) -> int:
    folder = Path("eval_data")
    public = {task: folder / name for task, name in PUBLIC_FILES.items()}
    judges = Judges(factscore="FACTSCORE/bin/python", facts="true", knowledge="INDEX")
    with tempfile.TemporaryDirectory() as made:
        samples = write_samples(Path(made))
        for one in ROWS.values():
            print(f"\n## {one.title} ({one.name})\n{one.note or one.checkpoint}")
            place = Place(public, Path("runs"), letter=letter)
            if one.system:
                steps = [answering(one, place, one.checkpoint or "CHECKPOINT"), *judging(one, place, judges)]
                print("\n".join(f"$ {shlex.join(words)}" for words in steps))
            if one.note != CITED:
                given = replace(place, files=samples).given(one)
                print("\n".join(shown(one, read_tasks([Given.parse(text) for text in given]))))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    for one in ROWS.values():
        needs = one.checkpoint or ("--model" if one.system else "cannot be run")
        print(f"{one.name:20} {one.title:26} {needs:32} {one.note}".rstrip())
    return 0


def _run(arguments: argparse.Namespace) -> int:
    chosen = row(arguments.row)
    chosen.runnable(arguments.model)
    files = public_files(arguments.files, tuple(arguments.task or TASKS))
    if arguments.limit is None and arguments.factscore != STAND_IN:
        check_counts(files)
    judges = Judges(None, None, None)
    if not arguments.no_judges:
        facts = arguments.facts_judge or arguments.judge
        judges = Judges(arguments.judge, arguments.features, arguments.factscore, facts, arguments.knowledge)
    about = OTHER if arguments.model not in (None, chosen.checkpoint) else ""
    checks_agree = _steps(chosen, files, judges, arguments, about)
    return 0 if checks_agree else 1


def _rehearse(arguments: argparse.Namespace) -> int:
    files = write_samples(arguments.out / "samples", ASQA_ITEMS)
    judges = Judges(arguments.judge, arguments.features, STAND_IN, arguments.judge, arguments.knowledge)
    _steps(row(arguments.row), files, judges, arguments, REHEARSAL)
    return 0  # figures of a rehearsal cannot disagree


def _steps(chosen: Row, files: dict[str, Path], judges: Judges, arguments: argparse.Namespace, about: str) -> bool:
    """Run, judge and compare; whether every published figure was reproduced."""
    given = [f"--{name}={value}" for name in ("engine", "limit") if (value := getattr(arguments, name)) is not None]
    place = Place(files, arguments.out, tuple(given), arguments.letter)
    steps = [answering(chosen, place, arguments.model), *judging(chosen, place, judges)]
    for number, words in enumerate(steps):
        print(f"$ {shlex.join(words)}", flush=True)
        if arguments.dry_run:
            continue
        # A process a step: the memory of one model is free before the next is loaded.
        done = subprocess.run(python_line(words), check=False)  # noqa: S603 - our own arguments
        if done.returncode and number == 0:
            raise UserError(f"{chosen.name}: the answers are not complete; the same command continues")
        if done.returncode:
            print("this judge could not be asked; its columns stay empty", file=sys.stderr)
    if arguments.dry_run:
        return True
    found = check(chosen, arguments.out / chosen.name, letter=arguments.letter)
    text = markdown(chosen, found, about, verdicts=about != REHEARSAL)
    (arguments.out / f"{chosen.name}.md").write_text(text, encoding="utf-8")
    print(f"\n{printable(text)}")
    return all(one.verdict in ("within", "not published") for one in found if one.task in files)


if __name__ == "__main__":
    sys.exit(main())
