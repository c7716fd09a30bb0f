"""Running a command: values are checked first, and what goes wrong becomes one line and an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import logging
import math
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType, OptionInfo

from selfrag.cli.fields import with_field_options
from selfrag.cli.results import (
    INTERRUPTED,
    USER_ERROR,
    CommandResult,
    print_result,
    set_json,
)
from selfrag.common.checks import check_choice, check_url
from selfrag.common.checks import check_int as whole_number
from selfrag.common.errors import UserError, count_of
from selfrag.common.plugins import load_present, names
from selfrag.common.untrusted import printable, replace_surrogates


def run(app: typer.Typer, program: str, argv: Sequence[str] | None = None) -> int:
    """Run one command of a program, by default with the process's own arguments; returns the exit code."""
    # closed by whoever started the program
    if sys.stdout is None or sys.stderr is None:
        if sys.stderr is not None:
            sys.stderr.write(f"{program}: the standard output is closed; open it\n")
        return USER_ERROR
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character is no reason to fail
            stream.reconfigure(errors="replace")
    try:
        code = _code(app, program, sys.argv[1:] if argv is None else argv)
    except Exception as error:
        from selfrag.cli.failing import tell

        return tell(program, error)
    if code == INTERRUPTED:
        from selfrag.cli.failing import fail

        return fail(program, "interrupted", code)
    return code


def _code(app: typer.Typer, program: str, argv: Sequence[str]) -> int:
    """Run the command and return the exit code that it asks for."""
    stderr = sys.stderr
    with _interrupts() as heard:
        try:
            # Without standalone mode the parser raises its errors instead of printing them as a box.
            code = app(args=_received(argv), prog_name=program, standalone_mode=False)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except SystemExit as error:
            # rich ends the program where a pipe is closed
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            raise
        except Exception:
            if heard:  # compiled code makes errors of its own of an interrupt
                return INTERRUPTED
            raise
        finally:
            sys.stderr = stderr
    return int(code or 0)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yield the interrupts that arrive in the block, each of which is also raised."""
    heard: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    # In another thread no handler can be set, and one that somebody else has set stays.
    if (
        usual is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield heard
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, usual)


def _received(argv: Sequence[str]) -> list[str]:
    """Return the arguments; refuse an option without a value, mostly a variable of the shell that is not set."""
    for option, value in pairwise(argv):
        if not value and option.startswith("-") and option != "--":
            raise UserError(f"{option} is empty; give a value, or leave the option out")
    return [_typed(argument) for argument in argv]


def _typed(argument: str) -> str:
    """Return an argument with its letters, where Python has read its UTF-8 as the bytes of another locale."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:  # no UTF-8, or already letters that the locale does not have
        return argument


@dataclass(frozen=True, slots=True)
class Replaced:
    """Marks an option for what a command writes as a whole, and gives the command the option `--replace`.

    Attributes:
        files: names of the files in a folder of results; None where the option names a file. Empty where the command
            itself calls `check_free`.
    """

    files: tuple[str, ...] | None = None


_NAMES_A_SOURCE = frozenset(["--index", "--knowledge", "--engine", "--model", "--base"])
_WRITTEN = ("out", "trace", "write", "keep")
"""Names of options for what a command writes."""
_TEXTS = ("question", "query", "response", "passage", "argument")
"""Names of what is text for a model, and no file."""
_ADDRESSES = ("engine", "endpoint", "url")
_SEEDS, _NUMBERS = (0, 2**32 - 1), (-(2**31), 2**31)
"""Bounds: NumPy takes no other seeds, and nothing here counts further."""


class _Configured(TyperCommand):
    """A command that takes values of options from a file and from the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        path = ctx.meta.get(_CONFIG)
        if ctx.auto_envvar_prefix is not None:
            from selfrag.cli.settings_file import check_variables

            check_variables(ctx)
        if path is not None:
            from selfrag.cli.settings_file import take_settings

            take_settings(ctx, path, loaded_command)
        return super().parse_args(ctx, args)


def _be_quiet(ctx: typer.Context, quiet: bool) -> None:
    ctx.meta[_QUIET] = quiet
    if quiet:
        sys.stderr = ctx.with_resource(Path(os.devnull).open("w"))  # noqa: SIM115 - until `_code` puts the stream back


def check_free(ctx: typer.Context, paths: Iterable[Path]) -> None:
    """Refuse to write over files without `--replace`; with it, they are named when the command is done."""
    from selfrag.common import atomic

    taken = atomic.check_free(paths, bool(ctx.meta.get(_REPLACE)))
    ctx.meta.setdefault(_TAKEN, []).extend(taken)


def is_quiet(ctx: typer.Context) -> bool:
    """Return whether `--quiet` was given."""
    return bool(ctx.meta.get(_QUIET))


def given_options(ctx: typer.Context) -> dict[str, Any]:
    """Return the values of the options that the command line, a file or the environment gave, by option."""
    values = {}
    for option in ctx.command.params:
        source = ctx.get_parameter_source(str(option.name))
        is_given = source is not None and source.name != "DEFAULT"
        if (
            is_given
            and option.param_type_name == "option"
            and option.name in ctx.params
        ):
            values[option.opts[0]] = ctx.params[option.name]
    return values


def refuse_options(ctx: typer.Context, names: Iterable[str], purpose: str) -> None:
    """Refuse options that were given although nothing would read them; `purpose` says what they are for."""
    values = given_options(ctx)
    for name in names:
        if name in values:
            raise UserError(f"{name} is {purpose}; leave it out")


def _set_log_level(ctx: typer.Context, level: str) -> None:
    root = logging.getLogger()
    ctx.call_on_close(functools.partial(root.setLevel, root.level))
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    root.setLevel(level.upper())


_QUIET, _REPLACE, _TAKEN = "selfrag.quiet", "selfrag.replace", "selfrag.taken"
_CONFIG = "selfrag.config"


def _allow_replacing(ctx: typer.Context, is_given: bool) -> None:
    ctx.meta[_REPLACE] = is_given


def _check_outputs(
    ctx: typer.Context, outputs: Mapping[str, Replaced], values: Mapping[str, Any]
) -> None:
    """Refuse outputs of a command that hold finished work, and a file in place of a folder or a folder of a file."""
    out = values.get("out")
    if isinstance(out, Path) and "out" not in outputs and out.is_file():
        raise UserError(f"--out {out} is a file; name a folder")
    for name, output in outputs.items():
        value = values[name]
        for path in value if isinstance(value, list | tuple) else [value]:
            if path is None:
                continue
            if output.files is None:
                if path.is_dir():
                    raise UserError(f"--{name} {path} is a folder; name a file")
                check_free(ctx, [path])
                continue
            if output.files and path.is_file():
                raise UserError(f"--{name} {path} is a file; name a folder")
            check_free(ctx, [path / file for file in output.files])


def _common(
    *,
    replace: Annotated[
        bool, typer.Option("--replace", callback=_allow_replacing)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=set_json)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", callback=_be_quiet)] = False,
) -> None:
    """Declare the options of every command; each acts by its callback.

    Args:
        replace: write over results that are there
        as_json: print one JSON object
        quiet: print the result alone: no progress, no notes
    """


def _add_common(json: bool, replaces: bool) -> list[inspect.Parameter]:
    """Return the parameters of every command; `json` adds the option of those that return a result.

    `replaces` adds that of commands that write over files.
    """
    left_out = {"replace": not replaces, "as_json": not json}
    signature = inspect.signature(with_field_options(_common))
    for _, note in _notes(signature):
        note.expose_value = False
    parameters = signature.parameters.values()
    return [each for each in parameters if not left_out.get(each.name)]


class Commands(typer.Typer):
    """A `typer.Typer` that checks what it hands to its commands.

    A command is refused with one line if a number is not finite or out of range, a text holds a NUL character, a file
    is a pipe, a device or a link to itself, or an output cannot be written. Halves of characters are replaced.
    """

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Register a command as `typer.Typer.command` does."""
        register = super().command(name, cls=_Configured, **settings)

        def decorate(function: CommandFunctionType) -> CommandFunctionType:
            signature = inspect.signature(function, eval_str=True)
            has_result = CommandResult in (
                signature.return_annotation,
                *get_args(signature.return_annotation),
            )
            outputs = {
                name: note
                for name, note in _notes(signature)
                if isinstance(note, Replaced)
            }
            common = _add_common(has_result, bool(outputs))
            takes_context = "ctx" in signature.parameters
            if not takes_context:
                common.append(_CONTEXT)
            expanded = with_field_options(function, common)

            for _, note in _notes(inspect.signature(expanded)):
                if isinstance(note, OptionInfo):
                    note.show_envvar = False  # `serve` has one for each option

            @functools.wraps(expanded)
            def checked(**values: Any) -> None:
                ctx: typer.Context = values["ctx"]
                for parameter in common:  # they have acted already
                    values.pop(parameter.name, None)
                try:
                    for name, value in values.items():
                        values[name] = _checked(name.replace("_", "-"), value)
                    _check_outputs(ctx, outputs, values)
                    if not _NAMES_A_SOURCE.isdisjoint(given_options(ctx)):
                        from selfrag.cli.source_checks import check_sources

                        check_sources(given_options(ctx))
                    result = expanded(**values)
                except UserError as error:
                    raise _placed(ctx, error) from error
                if result is not None:
                    print_result(ctx, result)
                for path in ctx.meta.get(_TAKEN, ()):
                    typer.echo(f"replaced {printable(str(path))}", err=True)
                raise typer.Exit(0 if result is None else result.exit_code)

            register(checked)
            return function

        return decorate


def _notes(signature: inspect.Signature) -> Iterator[tuple[str, Any]]:
    """Yield what annotates the parameters of a command, each with the name of its parameter."""
    for parameter in signature.parameters.values():
        for note in getattr(parameter.annotation, "__metadata__", ()):
            yield parameter.name, note


_CONTEXT = inspect.Parameter(
    "ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
)


def _placed(ctx: typer.Context, error: UserError) -> UserError:
    """Return the error behind the file or variable that brought the value; as it is if the command line did."""
    from selfrag.cli.settings_file import place_of_error

    place = place_of_error(ctx, str(error))
    return error if place is None else UserError(f"{place}: {error}")


def _show_version(ctx: typer.Context, is_given: bool) -> None:
    if is_given:
        from selfrag.common.provenance import package_version

        typer.echo(f"{ctx.info_name} {package_version()}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option(
        "--version",
        is_eager=True,
        callback=_show_version,
        help="Show the version and exit.",
    ),
]


def make_program(
    name: str, about: str, group: type[TyperGroup] = TyperGroup
) -> Commands:
    """Return an empty program with the options before its commands, `-h` and completion in shells."""
    program = Commands(
        name=name,
        cls=group,
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @program.callback()
    def take_options(
        ctx: typer.Context,
        version: _Version = False,
        config: Annotated[
            Path | None,
            typer.Option(
                help="TOML file with values of options, such as model = 'demo'; tables are named after commands."
            ),
        ] = None,
        log_level: Annotated[
            Literal["error", "warning", "info", "debug"] | None,
            typer.Option(
                help="Least level of log lines on stderr.", show_default="warning"
            ),
        ] = None,
    ) -> None:
        ctx.meta[_CONFIG] = _checked("config", config)
        if log_level is not None:
            _set_log_level(ctx, log_level)

    return program


_LOADERS: dict[str, Callable[[str], Any]] = {}
"""What imports a command of a program by its name, by program."""


def loaded_command(program: str, name: str) -> Any:
    """Return a command of a program that `add_commands` has made; None for another program or command."""
    if program not in _LOADERS:
        return None

    try:
        command = _LOADERS[program](name)
    except KeyError:  # an entry point's
        return None
    alone = make_program(program, "")
    add_commands(alone, {name: ""}, lambda _: command)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


def add_commands(
    program: Commands,
    lines: Mapping[str, str],
    load: Callable[[str], Any],
    selected: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Commands:
    """Add commands and groups of commands to a program, and return it.

    Args:
        program: to add to.
        lines: each command's line in `--help`, in its order.
        load: imports a command or a group by its name.
        selected: load this command alone; the others become placeholders, which `--help` lists. None loads all.
        variables: prefix of the variables of the environment that set a command's options, by command.
    """
    _LOADERS.setdefault(str(program.info.name), load)
    for name, line in lines.items():
        command = load(name) if selected in (None, name) else _placeholder(line)
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name)
            continue
        prefix = (variables or {}).get(name)
        settings = {"auto_envvar_prefix": prefix} if prefix else {}
        program.command(name, context_settings=settings)(command)
    return program


def _placeholder(line: str) -> Callable[[], None]:
    def nothing() -> None: ...

    nothing.__doc__ = line
    return nothing


_WITH_VALUE = ("--config", "--log-level")
"""Options of a program that take a value."""


def selected_command(arguments: list[str]) -> str:
    """Return the word of a command line that names its command; "" without one."""
    # A shell that completes a command line passes its words in the environment.
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = iter(arguments or typed.split()[1:])
    for word in words:
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(words, None)
    return ""


def with_entry_points(group: str) -> type[TyperGroup]:
    """Return a class of groups of commands to which the entry points of `group` add theirs, imported when needed."""

    class WithEntryPoints(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *names(group)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            command = super().get_command(ctx, cmd_name)
            if command is not None or cmd_name not in names(group):
                return command
            target = load_present(group, cmd_name)
            if target is None:
                return None
            if not isinstance(target, typer.Typer):
                function, target = target, Commands(add_completion=False)
                target.command(cmd_name)(function)
            command = typer.main.get_command(target)
            command.name = cmd_name
            return command

    return WithEntryPoints


def _checked(name: str, value: Any) -> Any:
    """Return a value as its command may see it."""
    if isinstance(value, list | tuple):
        return type(value)(_checked(name, part) for part in value)
    if isinstance(value, int) and not isinstance(value, bool):
        whole_number(f"--{name}", value, *(_SEEDS if name == "seed" else _NUMBERS))
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"--{name}={value}: give a finite number")
    elif isinstance(value, Path):
        if str(value) != replace_surrogates(str(value)):
            raise UserError(f"{shown(value)} is no name in UTF-8; rename it")
        try:
            os.fsencode(value)
        except UnicodeEncodeError as error:
            raise UserError(
                f"this locale ({error.encoding}) cannot name {shown(value)}; set PYTHONUTF8=1"
            ) from error
        _check_text(name, str(value))
        if name in _WRITTEN:
            from selfrag.common.atomic import check_writable

            check_writable(value)
    elif isinstance(value, str):
        if name in _ADDRESSES and "://" in value:
            check_url(value)
        elif name == "engine":
            from selfrag.engines import ENGINES, GROUP

            check_choice("--engine", value, (*ENGINES, *names(GROUP)))
        value = replace_surrogates(value)
        _check_text(name, value)
    return value


def _check_text(name: str, value: str) -> None:
    """Refuse a NUL character, and what names a file that cannot be read; a question is never taken for a path."""
    if "\0" in value:
        raise UserError(f"{shown(value)} holds a NUL character; leave it out")
    if name not in _TEXTS:
        _place(value)
        _place(value.partition("=")[2])  # of NAME=FILE


def _place(text: str) -> None:
    """Refuse what would be read without end, or leads nowhere, if it is a file; other texts pass."""
    try:
        mode = Path(text).stat().st_mode if text else stat.S_IFREG
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{shown(text)} is a link that leads to itself; name what it should lead to"
            ) from error
        return
    except UnicodeEncodeError:  # no name of a file in this locale
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(
            f"{shown(text)} is neither a file nor a folder; name one of them"
        )


def shown(value: object, most: int = 120) -> str:
    """Return a value as it was typed, cut where it is long."""
    text = str(value)
    return (
        repr(text)
        if len(text) <= most
        else f"{text[:most]!r} (of {count_of(len(text), 'characters', form=',')})"
    )
