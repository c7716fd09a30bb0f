"""`selfrag ask`: an answer with numbered citations, judgments and cost, and its trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.cli import options
from selfrag.cli.options import EngineChoice
from selfrag.cli.results import CommandResult, print_result
from selfrag.cli.running import Replaced, is_quiet
from selfrag.common.errors import UserError
from selfrag.common.plugins import names
from selfrag.common.untrusted import replace_surrogates

if TYPE_CHECKING:
    from retrieval.passage import Passage
    from selfrag.decoding.answer import Answer
    from selfrag.reflection.inputs import Message


def ask(
    question: Annotated[str | None, typer.Argument(show_default=False)] = None,
    *,
    ctx: typer.Context,
    conversation: Path | None = None,
    flow: str | None = None,
    trace: Annotated[Path | None, Replaced()] = None,
    model: str = "demo",
    index: options.Index = None,
    engine: EngineChoice,
    load_judge: list[str] | None = None,
    policy: options.Policy = "paper",
    policy_set: options.Changes = None,
    policy_options: options.PolicyOptions,
) -> CommandResult | None:
    """Answer a question, and print the cited passages, the model's judgments and the cost.

    Args:
        question: the question; - reads it from the standard input
        conversation: in place of a question: JSON file with a list of turns, or an object with messages
        trace: write the trace, everything that was considered, to this JSON file
    """
    question_or_turns, evidence = _read_question(question, conversation)
    if trace is not None:
        trace = _check_trace(trace)
    settings = options.with_changes(policy_options, policy_set)
    if policy in names(options.FORMATS):
        if flow is not None or not isinstance(question_or_turns, str):
            raise UserError(
                f"--policy {policy} takes a question; --conversation and --flow are for models with reflection"
            )
        settings["load-judge"] = load_judge
        with options.load_format(model, index, engine, policy, settings) as answering:
            answer = answering.generate(question_or_turns)
    else:
        decoding = options.decoding(policy, settings)
        judges = options.judge_names(model, decoding, flow, load_judge or ())
        with options.load_quickly(model, index, engine, judges) as rag:
            answer = rag.generate(
                question_or_turns, evidence=evidence, flow=flow, decoding=decoding
            )
    # Printed before the trace is written: a full disk must not cost the answer.
    print_result(ctx, answer_result(answer, quiet=is_quiet(ctx)))
    if trace is not None:
        from selfrag.common.atomic import write_text

        write_text(trace, replace_surrogates(answer.trace.to_json()))
    return None


def _check_trace(path: Path) -> Path:
    """Return where a trace is written; a link keeps leading to the file."""
    trace = path.resolve()
    if not trace.parent.is_dir():
        raise UserError(
            f"--trace {trace}: there is no folder {trace.parent}; make it first"
        )
    return trace


def _read_question(
    question: str | None, conversation: Path | None
) -> tuple[str | tuple[Message, ...], tuple[Passage, ...] | None]:
    """Return what is question_or_turns, and the passages that came with it."""
    if (question is None) == (conversation is None):
        raise UserError("give a question or --conversation FILE, one of the two")
    if conversation is not None:
        from selfrag.judges.conversation import read_conversation

        messages, passages = read_conversation(conversation)
        return messages, passages or None
    text = str(question)
    if question == "-":
        text = _read_stdin()
    if not text.strip():
        raise UserError("the question is empty; write one in quotes")
    return text, None


def _read_stdin() -> str:
    if sys.stdin is None:
        return ""
    try:
        return replace_surrogates(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise UserError(
            f"the question on the standard input is not {error.encoding.upper()}; convert it"
        ) from error


def answer_result(answer: Answer, *, quiet: bool = False) -> CommandResult:
    """Return an answer as a command prints it; `quiet` shows its text alone."""

    def show() -> None:
        from rich.console import Console

        from selfrag.render import spoken, terminal_answer, terminal_text

        text = terminal_text(spoken(answer)) if quiet else terminal_answer(answer)
        Console().print(text)

    return CommandResult(answer.as_dict(), show)
