"""`selfrag chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from selfrag.cli import options
from selfrag.cli.ask import plain, render
from selfrag.errors import UserError
from selfrag.intrinsics.state import Message
from selfrag.rendering import spoken
from selfrag.untrusted import whole


def chat(
    *,
    model: options.Model = "demo",
    index: options.Index = None,
    engine: options.QuickEngineName = None,
    flow: options.Flow = None,
    mode: options.Mode = None,
    threshold: options.Threshold = None,
    policy: options.Policy = "paper",
    beam: options.Beam = None,
    passages: options.Passages = None,
    segments: options.Segments = None,
) -> None:
    """Talk with a model in the terminal; each answer sees the conversation so far. It ends with the input (Ctrl-D)."""
    changes = {"mode": mode, "threshold": threshold, "beam": beam, "passages": passages, "max_segments": segments}
    decoding = options.decoding(policy, changes, {})
    names = options.flow_intrinsics(flow)
    from rich.console import Console

    console = Console()
    said: tuple[Message, ...] = ()
    with options.answering(model, index, engine or "transformers", names) as rag:
        for line in _lines():
            asked = (*said, Message("user", line))
            try:
                answer = rag.generate(asked, flow=flow, decoding=decoding)
            except UserError as error:  # such as a conversation that has become too long; the next line may do better
                console.print(plain(f"no answer: {error}", "red"))
                continue
            console.print(render(answer))
            said = (*asked, Message("assistant", answer.text.strip() or spoken(answer)))


def _lines() -> Iterator[str]:
    """Lines of the standard input that are not blank, asked for in a terminal.

    Raises:
        UserError: a line is not UTF-8.
    """
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise UserError(f"the standard input is not {error.encoding.upper()}; convert it") from error
        if line.strip():
            yield whole(line)
