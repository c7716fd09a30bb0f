"""What a labelling run will cost, before a request is sent, and what it has cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from critic.cases import Question
from critic.teacher.config import Constraint, EndpointConfig
from critic.teacher.prompts import prompt
from retrieval.checks import number
from retrieval.errors import UserError
from retrieval.pretrained import load

TokenCount = Callable[[str], int]

_PER_REQUEST = 8  # what chat templates add around a message


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of a million tokens, in any currency."""

    prompt: float  # of tokens sent
    completion: float  # of tokens received

    def __post_init__(self) -> None:
        number("price of a million prompt tokens", self.prompt)
        number("price of a million completion tokens", self.completion)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(frozen=True, slots=True)
class Forecast:
    """An estimate, for every question asked once."""

    questions: int
    prompt_tokens: int  # to be sent, about
    most_completion_tokens: int  # to be received, at most
    most_cost: float | None  # in the currency of the prices, at most; None without prices
    least_minutes: float | None  # that the limit of requests a minute takes; None without a limit

    def __str__(self) -> str:
        parts = [
            f"{self.questions:,} questions to ask",
            f"about {self.prompt_tokens:,} tokens to send",
            f"at most {self.most_completion_tokens:,} to receive",
        ]
        if self.most_cost is not None:
            parts.append(f"at most {self.most_cost:,.2f} to pay")
        if self.least_minutes is not None:
            parts.append(f"at least {self.least_minutes:,.1f} minutes")
        return ", ".join(parts)


def by_bytes(text: str) -> int:
    """Tokens of a text by the rule of thumb for English: four bytes a token."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)


def by_tokenizer(name: str) -> TokenCount:
    """Tokens of a text by a Hugging Face tokenizer (directory or hub name).

    Raises:
        UserError: there is no such tokenizer.
    """
    try:
        tokenizer = load("AutoTokenizer", name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"tokenizer {name!r} cannot be loaded ({str(error)[:200]}); give a directory or hub name"
        ) from error
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def forecast(
    questions: Iterable[Question], config: EndpointConfig, prices: Prices | None, count: TokenCount = by_bytes
) -> Forecast:
    """Estimate a run; `count` gives the tokens of a text."""
    letters = config.constraint is Constraint.LOGPROBS
    lengths = [count(prompt(question.case, letters=letters)) + _PER_REQUEST for question in questions]
    asked, sent = len(lengths), sum(lengths)
    received = asked * (1 if letters else config.max_tokens)
    minutes = asked / config.requests_per_minute if config.requests_per_minute else None
    return Forecast(asked, sent, received, prices.cost(sent, received) if prices else None, minutes)
