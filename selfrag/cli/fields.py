"""What a command takes: its signature and its docstring declare it, and nothing else.

A positional parameter without a default is an argument, any other an option. Type, choices and default stand in the
signature, the help in the docstring: under `Args:`, or under the heading that the option has in `--help`. What the
docstring leaves out has one meaning in all commands and stands in `COMMON`. `typer.Option(..)` is for other names and
bounds alone, `typer.Argument()` for an argument that may be left out.

Options that set fields of a dataclass are one parameter, `Annotated[FieldValues, Fields(Decoding, "How far", "beam")]`;
the command gets the values that were given, by field. The class documents its fields under `Attributes:`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.models import OptionInfo, ParameterInfo

FieldValues: TypeAlias = dict[str, Any]
"""Values of the fields whose options were given; a field of a field has a dotted name."""
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_SECTION = re.compile(r"^(\w.*):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
COMMON = """
Args:
    against: run to compare the others with
    base: the base model: a checkpoint's folder, or a name on the hub
    cell: cells, such as 'k5-ranked-*'; repeatable; all by default
    data: folder of the data files, if they have moved
    directory: Directory of the index.
    dry_run: print the estimate and stop
    encoder: Directory or hub name of a text encoder, or none to search by words only.
    encoder_engine: Address of a server of embeddings that speaks OpenAI's API. --encoder is then the name of its model.
    files: jsonl, tsv, csv, parquet (id, title, text), txt, md, html, pdf or docx files, folders of them, and
        addresses of pages.
    kind: Kind of search: auto, flat (exact), rabitq, ivf, or a factory string of faiss.
    language: Language of the stems and stop words for search by words (BM25): a name or code such as german or de, auto
        for that of most passages, or none.
    leave_long: leave out and count rows whose target is too long
    out: Folder of the run; the same command continues it.
    print_config: print all settings as a recipe, each with what set it, and stop
    processes: number of processes, for recipes of the Trainer; by default one per GPU
    recipe: cpu, cpus, gpu, fsdp, zero3, paper, paper-13b, or a TOML file; of an intrinsic demo, paper or a file
    retry_failed: run items again that failed
    seed: Seed of the draws.
    settings: a setting of the recipe, such as training.precision=fp32; repeatable
    skip_unreadable: Go on past files that cannot be read. Their passages stay as they were.
    start: run or adapter of an earlier stage to begin with
    storage: Number format of the vectors on disk: auto, float32, float16 or int8.
What answers:
    index: folder made by `selfrag index build` (words:DIR searches it by words alone, dense:DIR by vectors), an address
        of Milvus, http://HOST:PORT/retrieve, searxng:URL, google:ENGINE, a retriever of another package by NAME or
        NAME:TEXT, or MODULE:NAME; several with commas between them; the demo corpus by default
    load_judge: judge to load beside those that other options name: an intrinsic, or NAME=KIND:MODEL such as
        faith=nli:MODEL; repeatable
    model: demo, a folder with a checkpoint, a GGUF file, a name on the hub, or NAME@URL on a server
What counts:
    policy: preset, of which the other options change single settings; search-r1 and its relatives for models that
        search by tags, flare and its relatives for methods that search by themselves
    policy_set: setting of the policy, KEY=VALUE, such as threshold=0.5; repeatable
What is varied:
    changes: setting of the base policy, KEY=VALUE, such as mode=always
When to retrieve:
    flow: none, or qr (rewrite; qr-both searches for question and rewrite), again (search again where unanswerable), ad
        (answer only what is answerable), joined by +
"""
"""Parameters of several commands, as a docstring describes them."""


class Fields:
    """Options for some fields of a dataclass.

    Args:
        config: the dataclass.
        heading: of these options in the help.
        options: each a field, or FIELD=--OPTION where the option has another name, and FIELD=--OPTION/--SAME where it
            has two. A dot leads into a field that is a
            dataclass itself.
        default: shown in place of the default of each field, such as "the recipe's".
    """

    def __init__(
        self, config: type, heading: str, *options: str, default: str = ""
    ) -> None:
        self.config, self.heading = config, heading
        self._default = default
        self._options = [option.partition("=") for option in options]

    def parameters(self) -> Iterator[tuple[str, inspect.Parameter]]:
        """Yield each field with the parameter of a command that sets it."""
        for name, _, option in self._options:
            field = find_field(self.config, name)
            flags = option.split("/") if option else []
            flags = flags or ["--" + name.rpartition(".")[2].replace("_", "-")]
            default = self._default or field.default
            info = typer.Option(
                *flags,
                help=field.help,
                rich_help_panel=self.heading,
                show_default=default,
            )
            annotation: Any = Annotated[field.kind | None, info]
            parameter = flags[0].removeprefix("--").replace("-", "_")
            yield (
                name,
                inspect.Parameter(
                    parameter,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=annotation,
                ),
            )

    def names(self) -> list[str]:
        """Return the options, such as `--beam`."""
        members = [parameter.name for _, parameter in self.parameters()]
        return ["--" + name.replace("_", "-") for name in members]

    def by_option(self, values: FieldValues, table: str) -> dict[str, dict[str, Any]]:
        """Return values as `Recipe.changed` takes them: option -> dotted name below `table` -> value."""
        changes = {}
        for option, (name, _) in zip(self.names(), self.parameters(), strict=True):
            if name in values:
                changes[option] = {f"{table}.{name}": values[name]}
        return changes


@dataclass(frozen=True, slots=True)
class _Field:
    """What an option shows of a field."""

    kind: Any  # type of the option; a field that is no plain value takes texts, repeatable
    help: str
    default: str | bool  # False where there is none to show


@cache
def find_field(config: type, name: str) -> _Field:
    """Return what an option shows of a field, or of a field of a field by its dotted name."""
    outer, _, inner = name.partition(".")
    hint = _without_none(get_type_hints(config)[outer])
    if inner:
        return find_field(hint, inner)
    default = next(field.default for field in fields(config) if field.name == outer)
    has_default = isinstance(default, str | int | float) and not isinstance(
        default, bool
    )
    text = describe_fields(config).get(outer, "")
    kind = hint
    if hint not in (bool, int, float, str, Path) and not _is_choice(hint):
        of_numbers = get_origin(hint) is tuple and get_args(hint)[0] is int
        kind = list[int] if of_numbers else list[str]
        text += "; repeatable"
    return _Field(kind, text, str(default) if has_default else False)


def _without_none(hint: Any) -> Any:
    """Return the first type of a union, which may be that of a value or None."""
    if get_origin(hint) in (Union, UnionType):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


def _is_choice(hint: Any) -> bool:
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    return is_enum or get_origin(hint) is Literal


@cache
def describe_fields(config: type) -> dict[str, str]:
    """Return the first sentence of the documentation of each field, without mark-up."""
    if not is_dataclass(config):
        raise TypeError(f"{config!r} is no dataclass")
    described = {}
    for base in reversed(config.__mro__):  # its own words win
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition(
            "Attributes:\n"
        )
        for name, text in _ATTRIBUTE.findall(attributes):
            sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
            described[name] = sentence.replace("`", "")
    return described


def _describe(document: str) -> tuple[str, dict[str, tuple[str, str | None]]]:
    """Return what a command does, and of each of its parameters the help and the heading."""
    described = {}
    for text in (COMMON, document + "\n"):
        for heading, entries in _SECTION.findall(text):
            panel = None if heading == "Args" else heading
            for name, help_text in _ATTRIBUTE.findall(entries):
                described[name] = " ".join(help_text.split()), panel
    return _SECTION.sub("", document + "\n").strip(), described


def _declared(
    parameter: inspect.Parameter, described: Mapping[str, tuple[str, str | None]]
) -> inspect.Parameter:
    """Return a parameter as typer takes it, with its name on the command line, help and heading."""
    name, hint = parameter.name, parameter.annotation
    if hint is typer.Context:
        return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    kind, notes = hint, [copy(note) for note in getattr(hint, "__metadata__", ())]
    if notes:
        kind = get_args(hint)[0]
    info = next((note for note in notes if isinstance(note, ParameterInfo)), None)
    if info is None:
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        if parameter.default is not parameter.empty:
            is_option = True
        info = typer.Option() if is_option else typer.Argument()
        notes.append(info)
    if isinstance(info, OptionInfo) and info.default is ...:
        flag = "--" + name.replace("_", "-")
        if kind is bool:  # and no --no-FLAG
            info.default = flag
        elif name == "out":
            info.default, info.param_decls = flag, ("-o",)
    if info.help is None:
        info.help, info.rich_help_panel = described.get(name, (None, None))
    return parameter.replace(
        kind=inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[(kind, *notes)],
    )


def with_field_options(
    command: Callable[..., Any], common: Sequence[inspect.Parameter] = ()
) -> Callable[..., Any]:
    """Return a command that takes each parameter with `Fields` as one option per field, and has the common options."""
    signature = inspect.signature(command, eval_str=True)
    about, described = _describe(inspect.cleandoc(command.__doc__ or ""))
    parameters: list[inspect.Parameter] = []
    # Parameter of the command -> option -> field.
    groups: dict[str, dict[str, str]] = {}
    for parameter in signature.parameters.values():
        notes = getattr(parameter.annotation, "__metadata__", ())
        options = [note for note in notes if isinstance(note, Fields)]
        if not options:
            parameters.append(parameter)
        for group in options:
            members = groups.setdefault(parameter.name, {})
            for field, member in group.parameters():
                members[member.name] = field
                parameters.append(member)
    parameters = [_declared(each, described) for each in parameters] + [*common]

    def grouped(**values: Any) -> Any:
        for parameter, options in groups.items():
            chosen = {}
            for option, field in options.items():
                value = values.pop(option)
                if value is not None:
                    chosen[field] = value
            values[parameter] = chosen
        return command(**values)

    for name in ("__name__", "__module__"):
        setattr(grouped, name, getattr(command, name))
    grouped.__doc__ = about
    grouped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return grouped
