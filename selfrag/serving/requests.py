"""What clients may send: the fields of each route, their limits, and how they become settings of `SelfRAG`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from starlette.exceptions import HTTPException

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of
from selfrag.decoding.policy import Decoding
from selfrag.judges.conversation import content_text
from selfrag.reflection.weights import Weights
from selfrag.serving.settings import CitationStyle

MOST_TURNS, MOST_EVIDENCE, MOST_QUERIES, MOST_FOUND = 2_000, 100, 256, 100
LONGEST = 32_768
"""Characters of a question or query."""
LONGEST_CONVERSATION = 1_000_000
"""Characters of all turns of a conversation."""
MOST = {
    "passages": 50,
    "shortlist": 100,
    "beam": 16,
    "max_segments": 64,
    "segment_tokens": 2_048,
    "answer_tokens": 16_384,
    "passage_tokens": 4_096,
}
"""Largest values that a request may set, by field of `Decoding`."""

Text = Annotated[str, Field(max_length=LONGEST)]


def _without_limit(most: Any) -> Any:
    """Return None for -1, which clients send where they set no limit."""
    if most == -1:
        return None
    return most


MostTokens = Annotated[
    Annotated[int, Field(ge=1)] | None, BeforeValidator(_without_limit)
]
_MARK = re.compile(r" \[(?:\d{1,3}\]|\[\d{1,3}\]\]\([^()\s]*\))")
"""A citation that this server wrote into an earlier answer."""


class Fault(HTTPException):
    """A request that is refused: one line on what is wrong and what to do, and OpenAI's word for it if there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's shape."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(
            self.status_code,
            "invalid_request_error" if self.status_code < 500 else "server_error",
        )
        return {
            "error": {
                "message": self.detail,
                "type": kind,
                "param": None,
                "code": self.code,
            }
        }


class _Body(BaseModel):
    """A body, or a part of one, in which null means that a field was left out, as clients of OpenAI send it."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: part for name, part in value.items() if part is not None}


class _Exact(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class EvidencePassage(_Exact):
    """A passage that a request brings along."""

    id: Annotated[str, Field(max_length=1_000)]
    text: Text
    title: Annotated[str, Field(max_length=1_000)] = ""
    metadata: dict[str, str | int | float | bool] = Field(
        default_factory=dict, max_length=50
    )


class WeightSettings(_Exact):
    """Fields of `Weights` that a request changes."""

    isrel: float = 1.0
    issup: float = 1.0
    isuse: float = 0.5
    judges: dict[str, float] = Field(default_factory=dict, max_length=50)

    def changed(self, weights: Weights) -> Weights:
        """Return weights with the fields that were sent."""
        return replace(weights, **self.model_dump(exclude_unset=True))


_WIRE = {
    "weights": WeightSettings,
    "require": dict[str, str | list[str]],
    "forbid": dict[str, str | list[str]],
    "judges": list[str],
    "survivors": list[int],
    "guardrails": list[str],
    "abstention": Text,
}
"""Fields of `Decoding` whose JSON has another type."""


def _settings() -> dict[str, Any]:
    hints, preset = get_type_hints(Decoding), Decoding()
    document = inspect.getdoc(Decoding) or ""
    described = dict(re.findall(r"^    (\w+): (.+)$", document, flags=re.M))
    settings = {}
    for name in Decoding.__dataclass_fields__:
        kind, default = hints[name], getattr(preset, name)
        if name in _WIRE:
            kind, default = _WIRE[name], None
        limit = Field(le=MOST.get(name), description=described[name])
        settings[name] = (Annotated[kind, limit], default)
    return settings


class _Controls(_Exact):
    evidence: list[EvidencePassage] | None = Field(
        default=None,
        max_length=MOST_EVIDENCE,
        description="passages to use in place of searching.",
    )
    flow: Literal["none", "qr", "ad", "qr+ad", "qr-both", "qr-both+ad"] | None = Field(
        default=None,
        description="rewrite the query, ask whether the passages answer, or both.",
    )
    rewrite_scope: Literal["retrieval", "conversation", "alone"] = Field(
        default="retrieval", description="what a rewrite changes."
    )
    citation_style: CitationStyle | None = Field(
        default=None, description="marks in the text: [1], a link in Markdown, or none."
    )
    events: bool | None = Field(
        default=None, description="also send sources as events of Open WebUI."
    )

    def decoding(self, base: Decoding) -> Decoding:
        """Return the settings of a request: those that it sends, else those of `base`."""
        names = self.model_fields_set & Decoding.__dataclass_fields__.keys()
        changes = {name: getattr(self, name) for name in names}
        weights = changes.get("weights")
        if weights is not None:
            changes["weights"] = weights.changed(base.weights)
        elif "weights" in changes:
            del changes["weights"]
        return replace(base, **changes)

    def evidence_passages(self) -> list[Passage] | None:
        """Return the passages to use in place of searching; None to search."""
        if self.evidence is None:
            return None
        return _passages(self.evidence)


def _passages(sent: Sequence[EvidencePassage]) -> list[Passage]:
    return [
        Passage(passage.id, passage.text, passage.title, metadata=passage.metadata)
        for passage in sent
    ]


Controls = create_model(
    "Controls",
    __base__=_Controls,
    __doc__="The `selfrag` object of a request: fields of `Decoding`, passages, a flow, and how to cite.",
    **_settings(),
)


class ChatMessage(_Body):
    """A turn of a conversation.

    The output of a tool (`tool`, `function`) is kept as a turn of the conversation, as text that nobody vouches for. An
    assistant without content only called a tool; such a turn is left out.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | dict[str, Any]] | None = None  # text, or parts of it
    refusal: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        try:
            return content_text(content, "")
        except UserError as error:
            raise ValueError(str(error).removeprefix(": ")) from None

    @model_validator(mode="after")
    def _has_content(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"no content; a turn of the role {self.role} has text")
        return self

    def turn(self) -> dict[str, str] | None:
        """Return the turn as plain text, an earlier answer without its citation marks; None where nothing was said."""
        content = self.refusal if self.content is None else self.content
        if content is None:
            return None
        text = str(content)  # the validator has joined the parts
        if self.role == "assistant":
            text = _MARK.sub("", text)
        role = "tool" if self.role == "function" else self.role
        return {"role": role, "content": text}


def _spoken(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Return the turns in which something was said."""
    if len(messages) > MOST_TURNS:
        raise Fault(
            400,
            f"{count_of(len(messages), 'messages', form=',')}, at most {MOST_TURNS:,}; leave out old ones",
            "context_length_exceeded",
        )
    turns = [turn for message in messages if (turn := message.turn()) is not None]
    characters = sum(len(turn["content"]) for turn in turns)
    if characters > LONGEST_CONVERSATION:
        raise Fault(
            400,
            f"{count_of(characters, 'characters', form=',')}, at most {LONGEST_CONVERSATION:,}; leave out old turns",
            "context_length_exceeded",
        )
    return turns


@dataclass(frozen=True, slots=True)
class ServedQuestion:
    """One question, whatever the route."""

    question: str | Sequence[Mapping[str, str]]  # the last turn alone, or all turns
    decoding: Decoding  # settings
    evidence: list[Passage] | None  # passages to use in place of searching
    flow: str | None  # name of a flow
    rewrite_scope: Any  # what a rewrite changes
    style: CitationStyle  # how the text cites
    events: bool  # whether sources are also sent as Open WebUI's events


class _QuestionBody(_Body):
    model: str = Field(description="the name that `/v1/models` lists.")
    stream: bool = Field(
        default=False, description="send each segment as soon as it is final."
    )
    tools: list[Any] | None = Field(
        default=None, description="accepted; the model never calls one."
    )
    tool_choice: Literal["none", "auto"] | None = Field(
        default=None, description="a call cannot be required."
    )
    selfrag: Controls = Field(  # type: ignore[valid-type]
        default_factory=Controls, description="how to answer and cite; see below."
    )

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _no_calls(cls, choice: Any) -> Any:
        if choice not in (None, "none", "auto"):
            raise ValueError(
                "this model calls no tools, so none can be required; leave it out"
            )
        return choice

    def _question(
        self,
        turns: Sequence[Mapping[str, str]],
        most: int | None,
        base: Decoding,
        style: CitationStyle,
        events: bool,
    ) -> ServedQuestion:
        if not turns or turns[-1]["role"] != "user":
            raise UserError(
                "the conversation must end with the user's turn, which is the question"
            )
        if len(turns[-1]["content"]) > LONGEST:
            raise UserError(
                f"the question has more than {LONGEST:,} characters; shorten it"
            )
        controls: Any = self.selfrag
        decoding = controls.decoding(base)
        if most is not None:
            decoding = replace(
                decoding,
                answer_tokens=min(most, decoding.answer_tokens),
                segment_tokens=min(most, decoding.segment_tokens),
            )
        question: str | Sequence[Mapping[str, str]] = list(map(dict, turns))
        if len(turns) == 1:
            question = turns[0]["content"]
        if controls.events is not None:
            events = controls.events
        return ServedQuestion(
            question,
            decoding,
            controls.evidence_passages(),
            controls.flow,
            controls.rewrite_scope,
            controls.citation_style or style,
            events,
        )


class StreamOptions(_Body):
    """Of a streamed chat completion."""

    include_usage: bool = False


class ChatRequest(_QuestionBody):
    """`POST /v1/chat/completions`. Sampling settings are accepted and have no effect: decoding is a search."""

    messages: list[ChatMessage] = Field(
        min_length=1, description="the conversation; the user's turn is last."
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="`include_usage` sends the cost in a last chunk."
    )
    max_tokens: MostTokens = Field(
        default=None, description="most new tokens of the answer; -1: no limit."
    )
    max_completion_tokens: MostTokens = Field(
        default=None, description="the same, by its newer name."
    )
    n: Literal[1] | None = Field(default=None, description="one answer.")
    logprobs: Literal[False] | None = Field(default=None, description="not sent.")
    stop: str | list[str] | None = Field(
        default=None, description="not supported; leave it out."
    )
    response_format: dict[str, Any] | None = Field(
        default=None, description="`text` only."
    )

    @model_validator(mode="after")
    def _supported(self) -> ChatRequest:
        if self.stop:
            raise ValueError(
                "stop: segments end where the model ends them; leave it out"
            )
        if self.response_format and self.response_format.get("type") != "text":
            raise ValueError(
                "response_format: this model writes plain text; leave it out"
            )
        return self

    def question(
        self, base: Decoding, style: CitationStyle, *, events: bool
    ) -> ServedQuestion:
        """Return the question and its settings; the server's hold where the request says nothing."""
        most = self.max_completion_tokens or self.max_tokens
        return self._question(_spoken(self.messages), most, base, style, events)


class ResponsesRequest(_QuestionBody):
    """`POST /v1/responses`."""

    input: Text | Annotated[list[ChatMessage], Field(min_length=1)] = Field(
        description="the question, or the conversation."
    )
    instructions: Text | None = Field(
        default=None, description="a system turn before the input."
    )
    max_output_tokens: MostTokens = Field(
        default=None, description="most new tokens of the answer; -1: no limit."
    )
    previous_response_id: None = Field(
        default=None, description="not supported; send the whole conversation."
    )

    @field_validator("input", mode="before")
    @classmethod
    def _items(cls, value: Any) -> Any:
        """Take the output of a tool as a turn, and leave out calls and reasoning, in which nothing is said."""
        if not isinstance(value, list):
            return value
        items = []
        for item in value:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind in ("function_call_output", "custom_tool_call_output"):
                items.append({"role": "tool", "content": item.get("output")})
            elif kind not in ("function_call", "custom_tool_call", "reasoning"):
                items.append(item)
        return items

    def question(
        self, base: Decoding, style: CitationStyle, *, events: bool
    ) -> ServedQuestion:
        """Return the question and its settings; the server's hold where the request says nothing."""
        messages: list[ChatMessage] = []
        if self.instructions:
            messages.append(ChatMessage(role="system", content=self.instructions))
        if isinstance(self.input, str):
            messages.append(ChatMessage(role="user", content=self.input))
        else:
            messages += self.input
        most = self.max_output_tokens
        return self._question(_spoken(messages), most, base, style, events)


class RescoreRequest(_Exact):
    """`POST /v1/rescore`: a kept answer or a trace under other weights or another threshold."""

    answer_id: str | None = Field(
        default=None, max_length=100, description="`selfrag.id` of an answer."
    )
    trace: dict[str, Any] | None = Field(
        default=None, description="a trace, in place of `answer_id`."
    )
    weights: WeightSettings | None = Field(
        default=None, description="weights to change."
    )
    threshold: float | None = Field(
        default=None, description="retrieval threshold, 0 to 1."
    )
    citation_style: CitationStyle | None = Field(
        default=None, description="as of an answer."
    )

    @model_validator(mode="after")
    def _one_source(self) -> RescoreRequest:
        if (self.answer_id is None) == (self.trace is None):
            raise ValueError("give answer_id or trace, not both")
        return self


class JudgeRequest(_Body):
    """`POST /v1/judge`: one judge on one conversation."""

    judge: Annotated[str, Field(max_length=200)] = Field(
        description="its name, such as `token_issup`."
    )
    messages: list[ChatMessage] = Field(
        min_length=1, description="the conversation; what is judged is last."
    )
    passages: list[EvidencePassage] = Field(
        default_factory=list,
        max_length=MOST_EVIDENCE,
        description="what it is judged against.",
    )
    arguments: dict[str, Text] = Field(
        default_factory=dict,
        max_length=20,
        description="what the judge asks for, such as `requirement`.",
    )

    def turns(self) -> list[dict[str, str]]:
        """Return the turns in which something was said."""
        return _spoken(self.messages)

    def evidence(self) -> list[Passage]:
        """Return the passages."""
        return _passages(self.passages)


class RetrieveRequest(_Body):
    """`POST /retrieve`, as Search-R1 and other trainers send it."""

    queries: list[Text] = Field(
        min_length=1, max_length=MOST_QUERIES, description="what to search for."
    )
    topk: int | None = Field(
        default=None, ge=1, le=MOST_FOUND, description="passages a query."
    )
    return_scores: bool = Field(
        default=False, description="wrap each passage with its score."
    )


class SearchRequest(_Body):
    """`POST /search`, as clients of massive-serve send it."""

    query: (
        Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_QUERIES)]
    ) = Field(description="what to search for; one or many.")
    n_docs: int = Field(default=1, ge=1, le=MOST_FOUND, description="passages a query.")
