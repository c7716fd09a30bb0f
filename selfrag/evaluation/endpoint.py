"""Untuned baselines behind any OpenAI-compatible endpoint, such as ChatGPT and Ret-ChatGPT of the Self-RAG paper (4.2).

An endpoint takes texts and gives texts: prompts have the words of the other untuned baselines, in one user turn, and
multiple choice is written, since no endpoint scores options exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.checks import whole
from selfrag.decoding.driver import Service
from selfrag.decoding.requests import Generate
from selfrag.decoding.sessions import Finished, Ticket
from selfrag.decoding.tree import Decoder
from selfrag.errors import DecodingError, UserError
from selfrag.evaluation.baselines import PASSAGES, QUESTION, UNTUNED
from selfrag.evaluation.items import Item
from selfrag.evaluation.multiple_choice import choices
from selfrag.evaluation.presets import documents
from selfrag.evaluation.task import Task
from selfrag.intrinsics.contract import ChatPrompt, Executor, Message, Request, State
from selfrag.intrinsics.flows import ChatWriter, Flow, Write
from selfrag.intrinsics.flows.progress import Progress


@dataclass(frozen=True, slots=True)
class _Worded(ChatWriter):
    """Writes from a prompt that is given as it is."""

    prompt: str = ""

    def request(self, progress: Progress) -> Request:
        """One user turn."""
        return Request(progress.state(), ChatPrompt((Message("user", self.prompt),)), self.max_tokens, self.temperature)


@dataclass(frozen=True, slots=True)
class Prompted:
    """A model behind an endpoint, the first `passages` of the item in the prompt."""

    executor: Executor  # asks it
    passages: int  # how many; 0 asks the model alone
    passage_words: int = 200  # a passage is cut after so many
    cites_all: bool = True

    def __post_init__(self) -> None:
        whole("passages", self.passages, 0)
        whole("passage_words", self.passage_words)

    def decoder(self, item: Item, task: Task) -> Decoder:
        """One greedy answer.

        Raises:
            DecodingError: the task has options scored.
        """
        if item.options and (item.cloze or not task.written):
            raise DecodingError("an endpoint scores no options; take a protocol in which they are written: baseline")
        writer = _Worded(self.executor, task.new_tokens, prompt=self.prompt(item, task))
        state = State((Message("user", item.instruction),), item.passages[: self.passages])
        return (yield from Flow((Write(writer),)).decoder(state, None))

    def prompt(self, item: Item, task: Task) -> str:
        """Numbered passages, the question, and the task's hint if it has one; without a hint nothing is added."""
        used = item.passages[: self.passages]
        shown = [
            f"[{number}] {' '.join(f'{one.title} {one.text}'.split()[: self.passage_words])}\n\n"
            for number, one in enumerate(used, 1)
        ]
        before, lead = (PASSAGES, QUESTION) if used and task.hint else ("", "")
        hint = task.hint.format(choices=", ".join(choices(item).surfaces if item.options else ()))
        return f"{before}{''.join(shown)}{lead}{item.instruction}" + (f"\n\n{hint}" if hint else "")

    def services(self) -> Mapping[str, Service]:
        """The endpoint, for a driver."""
        return ChatWriter(self.executor).services(None)

    def as_dict(self) -> dict[str, Any]:
        """Settings and the texts of the prompt."""
        settings = {"passages": self.passages, "passage_words": self.passage_words}
        return {"kind": "endpoint", **settings, "prompt": [PASSAGES, QUESTION]}


def endpoint_system(
    name: str, executor: Executor, settings: Mapping[str, Any] | None = None, task: Task | None = None
) -> Prompted:
    """A system by its name; `rag` reads as many passages as the protocol of a published task says.

    `settings` are `passages` and `passage_words`, and win over the protocol.

    Raises:
        UserError: a system that needs a checkpoint, or an unknown setting.
    """
    if name not in UNTUNED:
        raise UserError(f"{name} needs a checkpoint; an endpoint runs {', '.join(UNTUNED)}")
    count = documents(task) if name == "rag" and task is not None else UNTUNED[name]
    fields = {"passages": count, **(settings or {})}
    if unknown := sorted(set(fields) - {"passages", "passage_words"}):
        raise UserError(f"--set {unknown[0]}: a system behind an endpoint has passages and passage_words")
    return Prompted(executor, **fields)


class NoEngine:
    """Stands where a driver has an engine: nothing is asked of it."""

    def submit(self, request: Generate) -> Ticket:
        """Never called.

        Raises:
            UserError: always.
        """
        raise UserError(f"an endpoint takes no token ids ({len(request.prompt_ids)} given)")

    def step(self) -> Sequence[Finished]:
        """Nothing is done."""
        return []

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""
