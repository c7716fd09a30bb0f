"""Options are made of the fields that they set: name, type, choices, default and help stand in the dataclass."""

import json
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import typer.main
from json_files import parse_table

from critic.cli.main import app as critic_app
from critic.cli.main import main as critic
from selfrag.cli.fields import Fields, FieldValues, describe_fields
from selfrag.cli.main import app, main
from selfrag.cli.running import Commands


@dataclass(frozen=True)
class Inner:
    """Inside.

    Attributes:
        depth: how deep it is. More is said here.
    """

    depth: float = 1.5


@dataclass(frozen=True)
class Outer:
    """Outside.

    Attributes:
        mode: `fast` or
            `slow`.
        most: the most of it
        parts: what it is made of
        inner: what is inside
    """

    mode: Literal["fast", "slow"] = "slow"
    most: int | None = None
    parts: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_a_command_gets_the_values_that_were_given_by_field(capsys):
    program, taken = Commands(), []

    @program.command()
    def go(
        values: Annotated[
            FieldValues,
            Fields(Outer, "Some", "mode", "most=--limit", "parts", "inner.depth"),
        ],
    ) -> None:
        taken.append(values)

    def run(*arguments):
        return program(list(arguments), standalone_mode=False)

    run()
    run(
        "--mode", "fast", "--limit", "3", "--parts", "a", "--parts", "b", "--depth", "2"
    )
    assert taken == json.loads(
        '[{}, {"mode": "fast", "most": 3, "parts": ["a", "b"], "inner.depth": 2.0}]'
    )
    with pytest.raises(Exception, match="'quick' is not one of 'fast', 'slow'"):
        run("--mode", "quick")
    run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "fast or slow [default: (slow)]" in shown
    assert "how deep it is [default: (1.5)]" in shown
    assert "what it is made of; repeatable" in shown
    assert describe_fields(Inner) == {"depth": "how deep it is"}


def commands(command, *path):
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, *path, name)


@pytest.mark.parametrize(
    "program, run", [(app, main), (critic_app, critic)], ids=["selfrag", "critic"]
)
def test_every_command_has_help_and_every_option_says_what_it_does(
    program, run, capsys
):
    for path, command in commands(typer.main.get_command(program)):
        if not command.hidden:
            assert run([*path, "-h"]) == 0
            lacking = [
                option.name
                for option in command.params
                if not option.help and option.name != "help"
            ]
            assert lacking == [], path
    assert capsys.readouterr().err == ""


def test_both_commands_say_their_version(capsys):
    import selfrag

    for name, run in (("selfrag", main), ("critic", critic)):
        assert run(["--version"]) == 0
        assert capsys.readouterr().out == f"{name} {selfrag.__version__}\n"


@pytest.mark.parametrize(
    "line, position, offered",
    parse_table("""
selfrag tr | 1 | train
selfrag ask --pas | 2 | --passages
selfrag index sy | 2 | sync
"""),
)
def test_a_shell_completes_commands_and_options(
    line, position, offered, monkeypatch, process
):
    for name, value in {
        "_SELFRAG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": position,
    }.items():
        monkeypatch.setenv(name, str(value))
    script = "import sys; sys.argv = ['selfrag']\n"
    script += "from selfrag.cli.main import main; main()"
    done = process(sys.executable, "-c", script)
    assert offered in done.stdout.split(), done.stderr
