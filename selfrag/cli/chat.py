"""`selfrag chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from selfrag.cli import options
from selfrag.cli.options import EngineChoice
from selfrag.common.errors import UserError, count_of
from selfrag.common.untrusted import replace_surrogates


def chat(
    *,
    model: str = "demo",
    index: options.Index = None,
    engine: EngineChoice,
    flow: str | None = None,
    policy: options.Policy = "paper",
    policy_set: options.Changes = None,
    policy_options: options.PolicyOptions,
) -> None:
    """Talk with a model in the terminal; each answer sees the conversation so far. It ends with the input (Ctrl-D)."""
    from rich.console import Console

    from selfrag.render import spoken, terminal_answer, terminal_text

    settings = options.with_changes(policy_options, policy_set)
    decoding = options.decoding(policy, settings)
    judges = options.judge_names(model, decoding, flow)
    console = Console()
    conversation: list[Mapping[str, str]] = []
    with options.load_quickly(model, index, engine, judges) as rag:
        for line in _lines():
            conversation.append({"role": "user", "content": line})
            turns = rag.recent_turns(conversation, decoding)
            if len(turns) < len(conversation):
                dropped = len(conversation) - len(turns)
                note = (
                    f"the model no longer sees the first {count_of(dropped, 'turns')}"
                )
                console.print(terminal_text(note, "dim"))
            try:
                answer = rag.generate(turns, flow=flow, decoding=decoding)
            except UserError as error:
                # Such as a search that failed; the next line may do better.
                console.print(terminal_text(f"no answer: {error}", "red"))
                conversation.pop()
                continue
            console.print(terminal_answer(answer))
            content = answer.text.strip() or spoken(answer)
            conversation.append({"role": "assistant", "content": content})


def _lines() -> Iterator[str]:
    """Yield the lines of the standard input that are not blank; a terminal shows a prompt."""
    prompt = ""
    if sys.stdin.isatty():
        prompt = "> "
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
