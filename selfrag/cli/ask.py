"""`selfrag ask`, `chat`, `demo` and `show`: answers with numbered citations, judgments and cost, and their traces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from retrieval.passage import Passage
from selfrag.cli import options
from selfrag.cli.engine_options import EngineChoice, quick_engine
from selfrag.cli.running import is_quiet
from selfrag.common.errors import UserError
from selfrag.common.plugins import names
from selfrag.common.untrusted import NAME, cut, replace_surrogates
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.policy import Decoding
from selfrag.reflection.labels import GROUPS
from selfrag.render import file_of, judged, named, notes, spoken, terminal_text

if TYPE_CHECKING:
    from selfrag.reflection.inputs import Message


def ask(
    *,
    ctx: typer.Context,
    question: Annotated[
        str | None,
        typer.Argument(
            help="the question; - reads it from the standard input", show_default=False
        ),
    ] = None,
    conversation: Annotated[
        Path | None,
        typer.Option(
            help="in place of a question: JSON file with a list of turns, or an object with messages"
        ),
    ] = None,
    flow: options.FlowOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="write the trace, everything that was considered, to this JSON file"
        ),
    ] = None,
    model: options.Model = "demo",
    index: options.Index = None,
    engine: EngineChoice,
    load_judge: options.LoadJudge = None,
    policy: options.Policy = "paper",
    when: options.When,
    score: options.Score,
    search: options.SearchOption,
) -> None:
    """Answer a question, and print the cited passages, the model's judgments and the cost."""
    question_or_turns, evidence = _given(question, conversation)
    settings = when | score | search
    other_format = policy in names(options.FORMATS)
    decoding = Decoding() if other_format else options.decoding(policy, settings)
    if other_format and (flow is not None or not isinstance(question_or_turns, str)):
        raise UserError(
            f"--policy {policy} takes a question; --conversation and --flow are for models with reflection"
        )
    if trace is not None:
        trace = trace.resolve()  # a link keeps leading to what is written
        if trace.is_dir():
            raise UserError(f"--trace {trace} is a folder; name a file")
        if not trace.parent.is_dir():
            raise UserError(
                f"--trace {trace}: there is no folder {trace.parent}; make it first"
            )

    if other_format:
        with options.load_format(model, index, engine, policy, settings) as answering:
            answer = answering.generate(question_or_turns)
    else:
        judges = options.judge_names(model, decoding, flow, load_judge or ())
        with options.load(model, index, quick_engine(engine, model), judges) as rag:
            answer = rag.generate(
                question_or_turns, evidence=evidence, flow=flow, decoding=decoding
            )
    _show(
        answer, as_json=as_json, quiet=is_quiet(ctx)
    )  # first, so that a full disk does not cost the answer
    if trace is not None:
        from selfrag.common.atomic import write_text

        write_text(trace, replace_surrogates(answer.trace.to_json()))


def _given(
    question: str | None, conversation: Path | None
) -> tuple[str | tuple[Message, ...], tuple[Passage, ...] | None]:
    """Return what is asked, and the passages that came with it."""
    if (question is None) == (conversation is None):
        raise UserError("give a question or --conversation FILE, one of the two")
    if conversation is not None:
        from selfrag.judges.conversation import read_conversation

        messages, passages = read_conversation(conversation)
        return messages, passages or None
    try:
        text = (
            replace_surrogates(sys.stdin.read() if sys.stdin is not None else "")
            if question == "-"
            else str(question)
        )
    except UnicodeDecodeError as error:
        raise UserError(
            f"the question on the standard input is not {error.encoding.upper()}; convert it"
        ) from error
    if not text.strip():
        raise UserError("the question is empty; write one in quotes")
    return text, None


def _show(answer: Answer, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        sys.stdout.write(
            replace_surrogates(json.dumps(answer.as_dict(), ensure_ascii=False)) + "\n"
        )
        return
    Console().print(terminal_text(spoken(answer)) if quiet else render(answer))


def render(answer: Answer) -> RenderableType:
    """Return the answer as it is shown: text, notes on it, cited passages, judgments, usage."""
    parts: list[RenderableType] = [terminal_text(spoken(answer), "bold")]
    parts += [terminal_text(cut(note), "yellow") for note in notes(answer)]
    if answer.citations:
        parts += [Text(), *_passages(answer)]
    if answer.segments:
        parts += [Text(), _judgments(answer)]
    return Group(*parts, Text(), usage_line(answer.usage))


def usage_line(usage: Usage) -> Text:
    """Return what the answer cost, in one line."""
    return Text(
        f"{usage.requests} requests, {usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached),"
        f" {usage.generated_tokens:,} generated, {usage.searches} searches, {usage.seconds:.1f} s",
        "dim",
    )


_EXCERPT = 2000
"""Characters of a cited passage that are shown."""


def _passages(answer: Answer) -> Iterator[RenderableType]:
    for number, passage in enumerate(answer.citations, 1):
        score = "" if passage.score is None else f", score {passage.score:.3f}"
        heading = Text.assemble(
            (f"[{number}] ", "cyan"),
            terminal_text(named(passage) if passage.title else "", "cyan"),
        )
        source = file_of(passage) or cut(passage.id, NAME)
        yield heading.append_text(terminal_text(f"  ({source}{score})", "dim"))
        yield Padding(terminal_text(cut(passage.text, _EXCERPT)), (0, 0, 0, 4))


def _judgments(answer: Answer) -> Table:
    numbers = answer.numbers
    # Narrow enough for 80 columns with the usual labels.
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True
    )
    names = list(
        dict.fromkeys(name for segment in answer.segments for name in segment.judges)
    )
    for name in (
        "#",
        "cites",
        *(str(labels.role) for labels in GROUPS),
        *names,
        "score",
    ):
        table.add_column(name)
    for number, segment in enumerate(answer.segments, 1):
        cells = [Text(judged(segment.judgments.get(labels.role))) for labels in GROUPS]
        cells += [Text(judged(segment.judges.get(name))) for name in names]
        cited = f"[{numbers[segment.citation.key]}]" if segment.citation else "-"
        table.add_row(str(number), Text(cited), *cells, f"{segment.score:.3f}")
    return table


def chat(
    *,
    model: options.Model = "demo",
    index: options.Index = None,
    engine: EngineChoice,
    flow: options.FlowOption = None,
    policy: options.Policy = "paper",
    when: options.When,
    score: options.Score,
    search: options.SearchOption,
) -> None:
    """Talk with a model in the terminal; each answer sees the conversation so far. It ends with the input (Ctrl-D)."""
    decoding = options.decoding(policy, when | score | search)
    judges = options.judge_names(model, decoding, flow)
    console = Console()
    said: list[Mapping[str, str]] = []
    with options.load(model, index, quick_engine(engine, model), judges) as rag:
        for line in _lines():
            said.append({"role": "user", "content": line})
            turns = rag.recent_turns(said, decoding)
            if len(turns) < len(said):
                console.print(
                    terminal_text(
                        f"the model no longer sees the first {len(said) - len(turns)} turns",
                        "dim",
                    )
                )
            try:
                answer = rag.generate(turns, flow=flow, decoding=decoding)
            except (
                UserError
            ) as error:  # such as a search that failed; the next line may do better
                console.print(terminal_text(f"no answer: {error}", "red"))
                said.pop()
                continue
            console.print(render(answer))
            said.append(
                {"role": "assistant", "content": answer.text.strip() or spoken(answer)}
            )


def _lines() -> Iterator[str]:
    """Lines of the standard input that are not blank, asked for in a terminal."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise UserError(
                f"the standard input is not {error.encoding.upper()}; convert it"
            ) from error
        if line.strip():
            yield replace_surrogates(line)
