"""What a teacher is: cases in, replies out, each with its raw text and its cost; and gold annotations as a teacher."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from critic.cases import Case, Labelled, digest, read_labelled
from critic.teacher.forms import OWN, Forms
from retrieval.checks import number, whole
from retrieval.errors import UserError
from selfrag.engines.client import ServerConfig
from selfrag.provenance import sha256


class TeacherError(UserError):
    """A teacher cannot continue: the key is refused, the endpoint is not there, the quota is used up."""


class Outcome(StrEnum):
    """What came of asking."""

    LABELLED = "labelled"  # a label of the case's set
    ASIDE = "aside"  # an answer that is no label: counted, kept with its raw text, never turned into a label
    FAILED = "failed"  # no answer, after all repetitions; asked again by the next run


@dataclass(frozen=True, slots=True)
class Reply:
    """What a teacher said about one case. The texts of an endpoint in it are untrusted."""

    outcome: Outcome
    label: str | None = None  # a label name of the case's group, where the outcome is `LABELLED`
    raw: str = ""  # the answer as it came, cut to a bounded length
    reason: str = ""  # why there is no label, in one line
    source: str = ""  # who labelled; becomes `label_source` of the row
    constraint: str = ""  # how the answer was held to the label set, if at all
    requests: int = 0  # sent for it, repetitions included
    prompt_tokens: int = 0  # as the endpoint counts them, or an estimate
    completion_tokens: int = 0
    distribution: tuple[float, ...] | None = None  # over the label set in its order, where all labels were scored
    coverage: float | None = None  # probability mass on the label set, where labels were scored


class Teacher(Protocol):
    """Anything that labels cases."""

    @property
    def name(self) -> str:
        """What reports and `label_source` call it."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides its labels, as plain values; a resumed run must have the same. Holds no secret."""

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, with the case's position, in the order in which they arrive.

        Args:
            cases: consumed as slots get free, so that a caller can decide late what is asked next.

        Raises:
            TeacherError: it cannot continue; replies that have arrived were yielded before.
        """


class GoldTeacher:
    """Labels a case by the annotated rows that judge the very same texts.

    Args:
        files: in the schema of `critic.cases.read_labelled`.
        name: what reports call it. `label_source` stays that of the row.

    Raises:
        UserError: a file cannot be read, or a row is bad.
    """

    def __init__(self, files: Sequence[str | Path], name: str = "gold") -> None:
        self.name = name
        self._files = [Path(file) for file in files]
        self._rows: dict[str, list[Labelled]] = {}
        for file in self._files:
            for row in read_labelled(file):
                self._rows.setdefault(digest(row.case), []).append(row)

    def identity(self) -> Mapping[str, Any]:
        """The content of the files."""
        return {"teacher": self.name, "gold": [sha256(file) for file in self._files]}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, in order; a case without a row, or with rows that disagree, is set aside."""
        for position, case in enumerate(cases):
            rows = self._rows.get(digest(case), [])
            labels = sorted({row.label for row in rows})
            if len(labels) == 1:
                yield position, Reply(Outcome.LABELLED, labels[0], labels[0], source=rows[0].label_source or self.name)
            else:
                reason = "the gold rows disagree" if labels else "no gold row"
                yield position, Reply(Outcome.ASIDE, raw="; ".join(labels), reason=reason, source=self.name)


class Constraint(StrEnum):
    """How an answer is held to the label set."""

    AUTO = "auto"  # the first of choice, schema and free that the endpoint takes and obeys
    CHOICE = "choice"  # vLLM structured outputs: one of the labels and nothing else
    SCHEMA = "schema"  # response_format json_schema with an enumeration
    LOGPROBS = "logprobs"  # score a letter a label by the log-probabilities of the first token
    FREE = "free"  # no constraint; the answer is parsed strictly


class Api(StrEnum):
    """Which route is used."""

    CHAT = "chat"
    COMPLETIONS = "completions"  # for base models without a chat template


@dataclass(frozen=True, slots=True)
class EndpointConfig(ServerConfig):
    """How to reach an OpenAI-compatible endpoint, and how to ask."""

    model: str  # name of the model there
    api: Api = Api.CHAT
    constraint: Constraint = Constraint.AUTO
    temperature: float = 0.0  # the paper asked at 1; 0 makes labels repeatable as far as the endpoint does
    max_tokens: int = 200  # most tokens of an answer (the paper: 200)
    seed: int | None = None  # sent along where given
    min_coverage: float = 0.5  # of label scoring: least probability on the label set; below, an answer is set aside
    forms: Forms = OWN  # what is asked
    max_concurrency: int = field(default=8, kw_only=True)
    read_timeout: float = field(default=120.0, kw_only=True)
    retries: int = field(default=5, kw_only=True)
    backoff: float = field(default=1.0, kw_only=True)
    # seconds before a repetition, at most; an endpoint that asks for more ends the run
    longest_wait: float = field(default=300.0, kw_only=True)

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        if not self.model.strip():
            raise TeacherError("the name of the model is empty; give the name that the endpoint knows")
        if self.forms.plain and self.constraint is Constraint.LOGPROBS:
            raise TeacherError("logprobs asks for letters, which prompts of a file do not offer; use free or choice")
        whole("max_tokens", self.max_tokens, 1, 1_000_000)
        number("temperature", self.temperature, 0, 2)
        number("min_coverage", self.min_coverage, 0, 1)

    @property
    def route(self) -> str:
        """The address that requests go to."""
        return f"{self.base}/{'chat/completions' if self.api is Api.CHAT else 'completions'}"
