"""Print, rehearse and run the tables of the three papers: one command a table, one report for all.

    python -m scripts.reproduction.reproduce list
    python -m scripts.reproduction.reproduce print [TABLE ...]
    python -m scripts.reproduction.reproduce run selfrag-3a --files DATA --out RUNS
    python -m scripts.reproduction.reproduce rehearse [TABLE ...] --out RUNS
    python -m scripts.reproduction.reproduce report --out RUNS

`print` shows the commands of a table, and `run` runs them; `--set NAME=VALUE` changes a variable of `tables.toml`.
A command that was stopped continues when it is run again. `RUNS/report.md` sets published and measured figures side by
side, for every table that was run. `rehearse` runs every command with tiny models of random weights on made-up files in
the published formats: it shows that the commands work, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from scripts.command import command
from scripts.reproduction.standins import write_standins
from scripts.reproduction.steps import python_line
from selfrag.common.checks import unknown_name
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable

REHEARSAL = "> A rehearsal with models of random weights on made-up files. Its figures mean nothing.\n"


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
        files(__package__).joinpath("tables.toml").read_text(encoding="utf-8")
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


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the tables")
    shown = commands.add_parser("print", help="the commands of tables; all by default")
    shown.add_argument("tables", nargs="*", metavar="TABLE")
    run = commands.add_parser("run", help="one table")
    run.add_argument("tables", nargs=1, metavar="TABLE")
    rehearse = commands.add_parser(
        "rehearse", help="tables with stand-ins; all by default"
    )
    rehearse.add_argument("tables", nargs="*", metavar="TABLE")
    report = commands.add_parser(
        "report", help="published and measured figures of all tables that were run"
    )
    for parser_of_table in (shown, run):
        parser_of_table.add_argument(
            "--files", default="data", help="folder of the data"
        )
        parser_of_table.add_argument(
            "--set",
            action="append",
            default=[],
            dest="settings",
            metavar="NAME=VALUE",
            help="a variable",
        )
    for parser_of_runs in (run, rehearse, report):
        parser_of_runs.add_argument(
            "--out", type=Path, required=True, help="folder of the runs"
        )
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(f"{table.name:18} {table.title}" for table in TABLES.values()))
        return 0
    if arguments.command == "report":
        print(write_report(arguments.out))
        return 0
    tables = [find_table(name) for name in arguments.tables] or list(TABLES.values())
    if arguments.command == "rehearse":
        return _rehearse(tables, arguments.out)
    for table in tables:
        out = Path("runs") if arguments.command == "print" else arguments.out
        values = chosen(table, arguments.files, out, arguments.settings)
        if arguments.command == "print":
            print(f"\n## {table.title} ({table.name})")
            print(
                "\n".join(f"$ {shlex.join(words)}" for words in table.commands(values))
            )
        else:
            run_table(table, values, out)
            print(write_report(out))
    return 0


def find_table(name: str) -> PaperTable:
    """Return a table by its name.

    Raises:
        UserError: there is none.
    """
    if name not in TABLES:
        raise unknown_name(
            "table", name, TABLES, "`python -m scripts.reproduction.reproduce list`"
        )
    return TABLES[name]


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
    return values


def run_table(table: PaperTable, values: Mapping[str, str], out: Path) -> None:
    """Run the steps of a table, and keep what each prints as `step-N.md`.

    Raises:
        UserError: a step failed.
    """
    folder = out / table.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, words in enumerate(table.commands(values), 1):
        print(f"$ {shlex.join(words)}", flush=True)
        if words[:2] == ["critic", "split"] and Path(words[-1]).exists():
            continue  # the parts of an earlier run
        # A process a step: the memory of one model is free before the next is loaded.
        done = subprocess.run(python_line(words), check=False, stdout=subprocess.PIPE)  # noqa: S603 - our own arguments
        (folder / f"step-{number}.md").write_bytes(done.stdout)
        # 1 says that a published figure was not reproduced, which the report shows.
        if done.returncode not in (0, 1):
            raise UserError(
                f"{table.name}: step {number} failed; the same command continues"
            )


def write_report(out: Path) -> Path:
    """Write `report.md`: what each table that was run says of published and measured figures. Return its path.

    Raises:
        UserError: no table was run.
    """
    parts = ["# Published and measured\n"]
    if (out / "standins").exists():
        parts.append(REHEARSAL)
    for table in TABLES.values():
        folder = out / table.name
        texts = [
            path.read_text(encoding="utf-8")
            for name in table.reports
            for path in sorted(folder.glob(_any(name)))
        ]
        if texts:
            parts += [f"## {table.title}\n", *texts]
    if len(parts) < 2 + (out / "standins").exists():
        raise UserError(f"{out} holds no table that was run; run one first")
    path = out / "report.md"
    path.write_text(printable("\n".join(parts)), encoding="utf-8")
    return path


def _any(report: str) -> str:
    """Return a pattern for the files of a report, whatever its row is."""
    return report.replace("{row}", "*")


def _rehearse(tables: Sequence[PaperTable], out: Path) -> int:
    standins = out / "standins"
    write_standins(standins)
    for table in tables:
        values = chosen(table, str(standins / "files"), out, ())
        values |= {**STANDINS, **table.rehearsal, "standins": str(standins)}
        run_table(table, values, out)
    print(write_report(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
