"""Reproduce rows of Table 2 of the Self-RAG paper: one command a row, expected figures and tolerances beside ours.

    python scripts/reproduction/reproduce_selfrag.py list
    python scripts/reproduction/reproduce_selfrag.py plan
    python scripts/reproduction/reproduce_selfrag.py run selfrag-7b --files eval_data --out RUNS --knowledge INDEX
    python scripts/reproduction/reproduce_selfrag.py run llama2-7b --files eval_data --out RUNS --task popqa --limit 200
    python scripts/reproduction/reproduce_selfrag.py run chatgpt --files eval_data --out RUNS --model NAME@URL

`run` is for a machine with a GPU (7B: 16 GB; TRUE, which judges citations, needs about 25 GB), the public checkpoints
and the files that the authors published (`eval_data` of AkariAsai/self-rag). It continues where it was stopped, prints
every command that it runs, and ends with 0 only if every published figure was reproduced within its tolerance.
`plan` prints for every row its commands, and for every task protocol, budget, documents, settings, published
figures and the whole prompt of a made-up item. `--letter` runs Self-RAG's own rows in the words of Table 5 and with the
policy of the paper instead of those of the released code.
`reproduce.py rehearse selfrag-2` runs every step on stand-ins.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from scripts.command import command
from scripts.reproduction.prompts import describe_row
from scripts.reproduction.standins import FILES
from scripts.reproduction.steps import (
    PUBLIC_FILES,
    STAND_IN,
    Judges,
    Place,
    answering,
    check,
    check_counts,
    check_factscore,
    factscore_cost,
    judging,
    markdown,
    public_files,
    run_step,
)
from scripts.reproduction.table2 import CITED, ROWS, TASKS, row
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.evaluation.metrics.mauve import ALCE_FEATURES

OTHER = "Another model than the paper's was run"


def run_row(
    name: str,
    *,
    files: Path,
    task: list[str] = list(TASKS),  # noqa: B006 - of the command line alone
    model: str | None = None,
    load_judge: str = "true",
    features: str = ALCE_FEATURES,
    factscore: str | None = None,
    factscore_key: Path | None = None,
    knowledge: str | None = None,
    no_judges: bool = False,
    out: Path,
    engine: str | None = None,
    limit: int | None = None,
    letter: bool = False,
) -> int:
    """Run, judge and compare one row; the exit code is 1 unless every published figure was reproduced.

    Args:
        name: of the row, as `list` prints it.
        files: folder of the published files.
        task: this task only; repeatable.
        model: another checkpoint than the published one.
        load_judge: judge of citations and of sentences of biographies; else TRUE, T5-11B.
        features: model of MAUVE's features.
        factscore: Python of the environment with the official FactScore tool; else left out.
        factscore_key: file with the key of OpenAI that the tool asks with.
        knowledge: index of Wikipedia for these sentences, a figure of ours; without it they are left out.
        no_judges: leave out what needs a second model.
        out: directory of the runs.
        engine: vllm, transformers or http://HOST:PORT; else the best one here.
        limit: a seeded sample of this many items of each file.
        letter: Self-RAG's rows by the paper, not by the released code.
    """
    chosen = row(name)
    checkpoint = chosen.runnable(model)
    present = public_files(files, tuple(task))
    if limit is None and factscore != STAND_IN:
        check_counts(present)
    asks_openai = factscore not in (None, STAND_IN) and "biographies" in present
    if factscore is not None and asks_openai and not no_judges:
        check_factscore(factscore, factscore_key)
    key = str(factscore_key)
    judges = Judges(load_judge, features, factscore, key, knowledge)
    if no_judges:
        judges = Judges(None, None, None)
    options = []
    if engine is not None:
        options.append(f"--engine={engine}")
    if limit is not None:
        options.append(f"--limit={limit}")
    place = Place(present, out, tuple(options), letter)
    steps = [answering(chosen, place, model), *judging(chosen, place, judges)]
    for number, words in enumerate(steps):
        if "factscore.factscorer" in words:
            facts_file = Path(words[words.index("--input_path") + 1])
            print(factscore_cost(facts_file))
        code = run_step(words)
        if code and number == 0:
            raise UserError(
                f"{chosen.name}: the answers are not complete; the same command continues"
            )
        if code:
            print(
                "this judge could not be asked; its columns stay empty", file=sys.stderr
            )
    cells = check(chosen, out / chosen.name, letter=letter)
    about = "" if checkpoint == chosen.checkpoint else OTHER
    text = markdown(chosen, cells, about)
    write_text(out / f"{chosen.name}.md", text)
    print(f"\n{printable(text)}")
    verdicts = {cell.verdict for cell in cells if cell.task in present}
    return int(not verdicts <= {"within", "not published", "not comparable"})


def print_plan(*, letter: bool = False) -> None:
    """Print the commands and the prompts of all rows.

    Args:
        letter: Self-RAG's rows by the paper, not by the released code.
    """
    folder = Path("eval_data")
    public = {task: folder / name for task, name in PUBLIC_FILES.items()}
    place = Place(public, Path("runs"), letter=letter)
    judges = Judges(factscore="FACTSCORE/bin/python", knowledge="INDEX")
    samples = public_files(FILES)
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


def list_rows() -> None:
    """List the rows, and what they need."""
    for table_row in ROWS.values():
        needs = "cannot be run"
        if table_row.system:
            needs = table_row.checkpoint or "--model"
        line = f"{table_row.name:20} {table_row.title:26} {needs:32} {table_row.note}"
        print(line.rstrip())


main = command(list=list_rows, plan=print_plan, run=run_row)

if __name__ == "__main__":
    main()
