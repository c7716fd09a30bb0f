"""Reproduce rows of Table 2 of the Self-RAG paper: one command a row, expected figures and tolerances beside ours.

    python scripts/reproduction/reproduce_selfrag.py list
    python scripts/reproduction/reproduce_selfrag.py --dry-run
    python scripts/reproduction/reproduce_selfrag.py run selfrag-7b --files eval_data --out RUNS --knowledge INDEX
    python scripts/reproduction/reproduce_selfrag.py run llama2-7b --files eval_data --out RUNS --task popqa --limit 200
    python scripts/reproduction/reproduce_selfrag.py run chatgpt --files eval_data --out RUNS --model NAME@URL

`run` is for a machine with a GPU (7B: 16 GB; TRUE, which judges citations, needs about 25 GB), the public checkpoints
and the files that the authors published (`eval_data` of AkariAsai/self-rag). It continues where it was stopped, prints
every command that it runs, and ends with 0 only if every published figure was reproduced within its tolerance.
`--dry-run` prints for every row its commands, and for every task protocol, budget, documents, settings, published
figures and the whole prompt of a made-up item. `--letter` runs Self-RAG's own rows in the words of Table 5 and with the
policy of the paper instead of those of the released code.
`reproduce.py rehearse selfrag-2` runs every step on stand-ins.
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
from scripts.reproduction.prompts import describe_row
from scripts.reproduction.standins import write_samples
from scripts.reproduction.steps import (
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
)
from scripts.reproduction.table2 import CITED, ROWS, TASKS, row
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.evaluation.metrics.mauve import ALCE_FEATURES

OTHER = "Another model than the paper's was run"


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        dest="plan",
        help="print prompts and commands of all rows",
    )
    parser.add_argument(
        "--letter",
        action="store_true",
        help="Self-RAG's rows by the paper, not by the released code",
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="rows, and what they need")
    run = commands.add_parser("run", help="one row", allow_abbrev=False)
    run.add_argument("row", help=f"one of {', '.join(ROWS)}")
    run.add_argument(
        "--files", type=Path, required=True, help="folder of the published files"
    )
    run.add_argument(
        "--task", action="append", choices=TASKS, help="this task only; repeatable"
    )
    run.add_argument("--model", help="another checkpoint than the published one")
    run.add_argument("--judge", default="true", help="of citations; else TRUE, T5-11B")
    run.add_argument(
        "--features", default=ALCE_FEATURES, help="model of MAUVE's features"
    )
    run.add_argument(
        "--factscore",
        help="Python of the environment with the official FactScore tool; else left out",
    )
    run.add_argument(
        "--facts-judge",
        help="of whole sentences of biographies, a figure of ours; else --judge",
    )
    run.add_argument(
        "--knowledge",
        help="index of Wikipedia for these sentences; without it they are left out",
    )
    run.add_argument(
        "--no-judges", action="store_true", help="leave out what needs a second model"
    )
    run.add_argument("--out", type=Path, required=True, help="directory of the runs")
    run.add_argument(
        "--engine",
        help="vllm, transformers or http://HOST:PORT; else the best one here",
    )
    run.add_argument(
        "--limit", type=int, help="a seeded sample of this many items of each file"
    )
    arguments = parser.parse_args()
    if arguments.command is None:
        if not arguments.plan:
            parser.error("give a command, or --dry-run")
        return _plan(letter=arguments.letter)
    return _list() if arguments.command == "list" else _run(arguments)


def _plan(*, letter: bool) -> int:
    """Print the commands and the prompts of all rows."""
    folder = Path("eval_data")
    public = {task: folder / name for task, name in PUBLIC_FILES.items()}
    place = Place(public, Path("runs"), letter=letter)
    judges = Judges(factscore="FACTSCORE/bin/python", facts="true", knowledge="INDEX")
    with tempfile.TemporaryDirectory() as scratch:
        samples = write_samples(Path(scratch))
        for table_row in ROWS.values():
            print(
                f"\n## {table_row.title} ({table_row.name})\n{table_row.note or table_row.checkpoint}"
            )
            if table_row.system:
                model = table_row.checkpoint or "CHECKPOINT"
                for words in (
                    answering(table_row, place, model),
                    *judging(table_row, place, judges),
                ):
                    print(f"$ {shlex.join(words)}")
            if table_row.note != CITED:
                files = replace(place, files=samples).task_files(table_row)
                print("\n".join(describe_row(table_row, files)))
    return 0


def _list() -> int:
    for table_row in ROWS.values():
        needs = "cannot be run"
        if table_row.system:
            needs = table_row.checkpoint or "--model"
        print(
            f"{table_row.name:20} {table_row.title:26} {needs:32} {table_row.note}".rstrip()
        )
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Run, judge and compare; return 1 unless every published figure was reproduced."""
    chosen = row(arguments.row)
    model = chosen.runnable(arguments.model)
    files = public_files(arguments.files, tuple(arguments.task or TASKS))
    if arguments.limit is None and arguments.factscore != STAND_IN:
        check_counts(files)
    judges = Judges(None, None, None)
    if not arguments.no_judges:
        facts = arguments.facts_judge or arguments.judge
        judges = Judges(
            arguments.judge,
            arguments.features,
            arguments.factscore,
            facts,
            arguments.knowledge,
        )
    options = []
    if arguments.engine is not None:
        options.append(f"--engine={arguments.engine}")
    if arguments.limit is not None:
        options.append(f"--limit={arguments.limit}")
    place = Place(files, arguments.out, tuple(options), arguments.letter)
    steps = [answering(chosen, place, arguments.model), *judging(chosen, place, judges)]
    for number, words in enumerate(steps):
        print(f"$ {shlex.join(words)}", flush=True)
        # A process a step: the memory of one model is free before the next is loaded.
        done = subprocess.run(python_line(words), check=False)  # noqa: S603 - our own arguments
        if done.returncode and number == 0:
            raise UserError(
                f"{chosen.name}: the answers are not complete; the same command continues"
            )
        if done.returncode:
            print(
                "this judge could not be asked; its columns stay empty", file=sys.stderr
            )
    cells = check(chosen, arguments.out / chosen.name, letter=arguments.letter)
    about = "" if model == chosen.checkpoint else OTHER
    text = markdown(chosen, cells, about)
    (arguments.out / f"{chosen.name}.md").write_text(text, encoding="utf-8")
    print(f"\n{printable(text)}")
    verdicts = {cell.verdict for cell in cells if cell.task in files}
    return int(not verdicts <= {"within", "not published"})


if __name__ == "__main__":
    sys.exit(main())
