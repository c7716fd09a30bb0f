"""`Writer`: what answers trials. `PromptWriter` sends Table 1's prompt to any executor, on an engine or an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from selfrag.errors import UserError
from selfrag.experiments.interpretation.template import Template
from selfrag.experiments.interpretation.trials import Trial, Written
from selfrag.intrinsics.contract import (
    ChatPrompt,
    Completion,
    Executor,
    Failed,
    Message,
    Piece,
    Request,
    State,
    TextPrompt,
)

Layout = Literal["chat", "plain"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class Writer(Protocol):
    """Answers trials; one result each, in order."""

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """A trial that could not be answered alone comes back as `Failed`.

        Raises:
            EngineError: the model or server is gone.
        """
        ...

    def close(self) -> None:
        """Free the model."""
        ...


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """The paper's way: one prompt, one greedy generation.

    Attributes:
        executor: where requests run.
        layout: how the prompt reaches the model: `chat` as a user turn, `plain` as it is.
        template: of the prompt.
        max_tokens: of a generation.
    """

    executor: Executor
    layout: Layout = "chat"
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UserError(f"unknown layout {self.layout!r}; known: {', '.join(LAYOUTS)}")

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One generation a trial; all share the executor's batch."""
        results = self.executor.run([self.request(trial) for trial in trials])
        return [result if isinstance(result, Failed) else _written(result) for result in results]

    def request(self, trial: Trial) -> Request:
        """The prompt as the executor takes it."""
        text = self.template.render(trial.asked, trial.question, trial.contexts, trial.examples)
        state = State((Message("user", trial.question),), trial.passages)
        prompt = _prompt(text, self.layout, self.template.instruction(trial.asked, len(trial.examples)))
        return Request(state, prompt, self.max_tokens)

    def close(self) -> None:
        """Free the executor's engine, if it has one."""
        close = getattr(self.executor, "close", None)
        if close is not None:
            close()


def _prompt(text: str, layout: Layout, own: str) -> ChatPrompt | TextPrompt:
    return ChatPrompt((Message("user", text),), own=own) if layout == "chat" else TextPrompt((Piece(text),), own)


def _written(completion: Completion) -> Written:
    usage = {
        "requests": 1,
        "prompt_tokens": completion.prompt_tokens,
        "generated_tokens": completion.generated_tokens,
    }
    return Written(completion.text, completion.finish, usage, completion.cached_tokens)
