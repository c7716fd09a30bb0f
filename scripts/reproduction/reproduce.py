"""Print, rehearse and run the tables of the three papers: one command a table, one report for all.

    python -m scripts.reproduction.reproduce list
    python -m scripts.reproduction.reproduce print [TABLE ...]
    python -m scripts.reproduction.reproduce run selfrag-3a --files DATA --out RUNS
    python -m scripts.reproduction.reproduce rehearse [TABLE ...] --out RUNS
    python -m scripts.reproduction.reproduce report --out RUNS

`print` shows the commands of a table, and `run` runs them; `--set NAME=VALUE` changes a variable of `tables.toml`.
A command that was stopped continues when it is run again. `RUNS/report.md` sets published and measured figures side by
side, for every table that was run. `rehearse` runs every command with the demo model on made-up files in the published
formats, and fails where a column of a table holds no number. Its figures mean nothing.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts.command import command
from scripts.reproduction.standins import FILES, serve_grader
from scripts.reproduction.steps import run_step
from scripts.reproduction.table2 import row
from selfrag.common.atomic import write_text
from selfrag.common.checks import unknown_name
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.evaluation.failures import FAILED
from selfrag.evaluation.intervals import NONE

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="a variable; repeatable"),
]
REHEARSAL = (
    "> A rehearsal with the demo model on made-up files. Its figures mean nothing.\n"
)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table or figure of a paper."""

    name: str  # on the command line
    title: str
    steps: tuple[str, ...]  # command lines with variables in braces
    # files that hold published and measured figures, in the folder of the table
    reports: tuple[str, ...]
    variables: Mapping[str, str]  # of this table alone
    rehearsal: Mapping[str, str]  # stand-ins for them

    def commands(self, values: Mapping[str, str]) -> list[list[str]]:
        """Return the words of each step.

        Raises:
            UserError: a step names a variable without a value.
        """
        return [shlex.split(fill(step, values)) for step in self.steps]


def _read() -> tuple[dict[str, str], dict[str, str], dict[str, PaperTable]]:
    data: dict[str, Any] = tomllib.loads(
        Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    )
    tables = {}
    for name, values in data["tables"].items():
        steps, reports = tuple(values["steps"]), tuple(values["reports"])
        variables, standins = values.get("variables", {}), values.get("rehearsal", {})
        tables[name] = PaperTable(
            name, values["title"], steps, reports, variables, standins
        )
    return data["variables"], data["rehearsal"], tables


VARIABLES, STANDINS, TABLES = _read()


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its variables filled in, also those inside of values.

    Raises:
        UserError: a variable has no value.
    """
    for _ in range(3):
        try:
            text = text.format_map(values)
        except KeyError as error:
            raise UserError(
                f"no value of {error.args[0]!r}; give --set {error.args[0]}=VALUE"
            ) from None
        if "{" not in text:
            break
    return text


def list_tables() -> None:
    """List the tables."""
    for table in TABLES.values():
        print(f"{table.name:18} {table.title}")


def print_commands(
    tables: list[str] | None = None,
    *,
    files: str = "data",
    settings: Settings = None,
) -> None:
    """Print the commands of tables.

    Args:
        tables: their names; all by default.
        files: folder of the data.
        settings: variables.
    """
    for table in find_tables(tables):
        values = chosen(table, files, Path("runs"), settings or ())
        print(f"\n## {table.title} ({table.name})")
        for words in table.commands(values):
            print(f"$ {shlex.join(words)}")


def run_command(
    table: str, *, files: str = "data", settings: Settings = None, out: Path
) -> None:
    """Run one table.

    Args:
        table: its name.
        files: folder of the data.
        settings: variables.
        out: folder of the runs.
    """
    [paper_table] = find_tables([table])
    values = chosen(paper_table, files, out, settings or ())
    check_files(paper_table, values)
    run_table(paper_table, values, out)
    report_runs(out=out)


def rehearse(tables: list[str] | None = None, *, out: Path) -> None:
    """Run tables with stand-ins.

    Args:
        tables: their names; all by default.
        out: folder of the runs.
    """
    standins = out / "standins"
    if not standins.exists():
        shutil.copytree(FILES, standins)
    for table in find_tables(tables):
        values = {
            **chosen(table, str(standins), out, ()),
            **STANDINS,
            **table.rehearsal,
        }
        with serve_grader() as grader_url:
            run_table(table, {**values, "grader_url": grader_url}, out)
        empty = [
            place
            for text in read_reports(table, out)
            for place in find_empty_places(text)
        ]
        if empty:
            raise UserError(f"{table.name}: no number in {'; '.join(empty)}")
    report_runs(out=out)


def report_runs(*, out: Path) -> None:
    """Set published and measured figures of all tables that were run side by side.

    Args:
        out: folder of the runs.
    """
    print(write_report(out))


def find_tables(names: Sequence[str] | None) -> list[PaperTable]:
    """Return the tables of some names; all without names.

    Raises:
        UserError: there is no such table.
    """
    for name in names or ():
        if name not in TABLES:
            listed = "`python -m scripts.reproduction.reproduce list`"
            raise unknown_name("table", name, TABLES, listed)
    return [TABLES[name] for name in names or TABLES]


def chosen(
    table: PaperTable, data: str, out: Path, settings: Sequence[str]
) -> dict[str, str]:
    """Return the variables of a table with those that `--set` changes.

    Raises:
        UserError: a setting is none, or there is no such variable.
    """
    values = {
        **VARIABLES,
        **table.variables,
        "files": data,
        "out": str(out / table.name),
    }
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: give NAME=VALUE")
        if name not in values:
            raise unknown_name("variable", name, values, "`tables.toml`")
        values[name] = value
    if any("{row}" in step for step in table.steps):
        row(values["row"])
    return values


def check_files(table: PaperTable, values: Mapping[str, str]) -> None:
    """Refuse a table of which files are missing.

    Raises:
        UserError: names them all.
    """
    folder, missing = Path(values["files"]), []
    for words in table.commands(values):
        for word in words:
            path = Path(word.rpartition("=")[2])
            if folder in (path, *path.parents) and not path.exists():
                missing.append(str(path))
    if missing:
        listed = ", ".join(dict.fromkeys(missing))
        raise UserError(f"{table.name} needs files that are not there: {listed}")


def find_empty_places(text: str) -> Iterator[str]:
    """Yield the columns and rows of the tables of a Markdown page that hold a dash or a failure and no number."""
    heading = ""
    lines: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("| ").split("|")])
            continue
        if len(lines) > 2:
            head, _, *rows = lines
            for name, cells in zip(head, zip(*rows, strict=True), strict=True):
                if _is_empty(cells):
                    yield f"column {name} of {heading}"
            for name, *figures in rows:
                if _is_empty(figures):
                    yield f"row {name} of {heading}"
        lines = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def _is_empty(cells: Sequence[str]) -> bool:
    """Return whether cells hold no figure, though one was to be there."""
    absent = [cell for cell in cells if cell in (NONE, FAILED, "-", "not measured", "")]
    return bool(absent) and not any(re.search(r"\d", cell) for cell in cells)


def run_table(table: PaperTable, values: Mapping[str, str], out: Path) -> None:
    """Run the steps of a table, and keep what each prints as `step-N.md`.

    Raises:
        UserError: a step failed.
    """
    folder = out / table.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, words in enumerate(table.commands(values), 1):
        step = folder / f"step-{number}.md"
        draft = step.with_suffix(".partial")
        with draft.open("wb") as output:
            code = run_step(words, output)
        # 1 says that a published figure was not reproduced, which the report shows.
        if code not in (0, 1):
            raise UserError(
                f"{table.name}: step {number} failed; the same command continues"
            )
        draft.replace(step)


def read_reports(table: PaperTable, out: Path) -> list[str]:
    """Return the reports of a table that are there."""
    paths: list[Path] = []
    for name in table.reports:
        paths += sorted((out / table.name).glob(name.replace("{row}", "*")))
    return [path.read_text(encoding="utf-8") for path in paths]


def write_report(out: Path) -> Path:
    """Write `report.md`: what each table that was run says of published and measured figures. Return its path.

    Raises:
        UserError: no table was run.
    """
    sections: list[str] = []
    for table in TABLES.values():
        texts = read_reports(table, out)
        if texts:
            sections += [f"## {table.title}\n", *texts]
    if not sections:
        raise UserError(f"{out} holds no table that was run; run one first")
    if (out / "standins").exists():
        sections.insert(0, REHEARSAL)
    path = out / "report.md"
    sections.insert(0, "# Published and measured\n")
    write_text(path, printable("\n".join(sections)))
    return path


main = command(
    list=list_tables,
    print=print_commands,
    run=run_command,
    rehearse=rehearse,
    report=report_runs,
)

if __name__ == "__main__":
    main()
