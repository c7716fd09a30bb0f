"""The settings of a teacher behind an endpoint, and of a labelling run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from selfrag.engines.server_config import ServerConfig
from selfrag.interface import UserError, check_float, check_int


class TeacherError(UserError):
    """A teacher cannot continue: the key is refused, the endpoint is not there, the quota is used up."""


class LabelConstraint(StrEnum):
    """How an answer is held to the label set."""

    # the first of choice, schema and free that the endpoint takes and obeys
    AUTO = "auto"
    CHOICE = "choice"  # vLLM structured outputs: one of the labels and nothing else
    SCHEMA = "schema"  # response_format json_schema with an enumeration
    FREE = "free"  # no constraint; the answer is parsed strictly


@dataclass(frozen=True, slots=True)
class TeacherSettings(ServerConfig):
    """How to reach an OpenAI-compatible endpoint, and how to ask.

    Attributes:
        model: name of the model at the endpoint.
        constraint: how replies are restricted to the labels.
        temperature: sampling temperature; the paper's is 1, and 0 makes labels repeatable as far as the endpoint does.
        max_tokens: most new tokens of a reply (the paper: 200).
        seed: seed that is sent to the endpoint.
        max_concurrency: most requests at once.
        requests_per_minute: most requests started a minute.
        read_timeout: seconds to wait for a reply.
        retries: repetitions of a failed request.
        backoff: seconds before the first repetition; doubled for each further one.
        longest_wait: most seconds before a repetition; a longer Retry-After ends the run.
    """

    model: str
    constraint: LabelConstraint = LabelConstraint.AUTO
    temperature: float = 0.0
    max_tokens: int = 200
    seed: int | None = None
    _: KW_ONLY
    max_concurrency: int = 8
    read_timeout: float = 120.0
    retries: int = 5
    backoff: float = 1.0
    longest_wait: float = 300.0

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        if not self.model.strip():
            raise TeacherError(
                "the name of the model is empty; give the name that the endpoint knows"
            )
        check_int("max_tokens", self.max_tokens, 1, 1_000_000)
        check_float("temperature", self.temperature, 0, 2)

    @property
    def route(self) -> str:
        """Return the address that requests go to."""
        return f"{self.base}/chat/completions"


@dataclass(frozen=True, slots=True)
class LabellingLimits:
    """When a run stops asking.

    Attributes:
        targets: labelled rows to reach, by group or GROUP/LABEL; everything without any.
        price_in: price of a million prompt tokens, in any currency.
        price_out: price of a million new tokens.
        most_cost: most money to spend on all runs of the directory together: an estimate above it is refused, and
            requests stop when it is reached.
    """

    targets: Mapping[str, int] = field(default_factory=dict)
    price_in: float | None = None
    price_out: float | None = None
    most_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("price_in", "price_out", "most_cost"):
            if (value := getattr(self, name)) is not None:
                check_float(name, value)
        if (self.price_in, self.price_out).count(None) == 1:
            raise UserError(
                "one price is missing; give both --price-in and --price-out, per million tokens"
            )
        if self.most_cost is not None and self.price_in is None:
            raise UserError(
                "--max-cost needs prices; give --price-in and --price-out, per million tokens"
            )

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what so many tokens cost; None without prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return (
            prompt_tokens * self.price_in + completion_tokens * self.price_out
        ) / 1e6
