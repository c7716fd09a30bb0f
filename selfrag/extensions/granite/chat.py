"""`ChatCodec`: an intrinsic of granite-common or mellea on the wire, by its published configuration (`io.yaml`). Pure.

The order is that of the public libraries: tags, documents as turns, instruction, parameters, schema, log-probabilities.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any

from selfrag.extensions.granite.numbering import (
    DOCUMENTS,
    EARLIER,
    LAST,
    NumberedState,
    ShownPassage,
    number_sentences,
)
from selfrag.extensions.granite.replies import (
    TOP_LOGPROBS,
    Binding,
    BoundCodec,
    with_scores,
)
from selfrag.interface import (
    ChatPrompt,
    Constraint,
    JudgeInput,
    Message,
    ModelRequest,
    SentenceFinder,
    UserError,
    check_int,
    require,
)

_RULES = (
    "likelihood",
    "nest",
    "project",
    "explode",
    "drop_duplicates",
    "decode_sentences",
    "merge_spans",
)
_TEXT, _MAPPING = {"type": ["string", "null"]}, {"type": ["object", "null"]}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {},
        "model": _TEXT,
        "response_format": {"type": ["string", "object", "null"]},
        "transformations": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": _RULES}},
            },
        },
        "instruction": _TEXT,
        "parameters": {**_MAPPING, "properties": {"extra_body": _MAPPING}},
        "sentence_boundaries": {
            **_MAPPING,
            "propertyNames": {"enum": [LAST, DOCUMENTS, EARLIER]},
            "additionalProperties": {"type": "string", "pattern": r"^[a-zA-Z]+\Z"},
        },
        "docs_as_message": {"enum": [None, "string", "json", "roles"]},
        "logprobs_workaround": {},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One chat adapter on the wire."""

    name: str  # of the adapter
    model: str | None = None  # what the request names; None leaves the caller's
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply, if there is one
    # the public libraries' way from the model's JSON to their plain results, in order
    rules: tuple[Mapping[str, Any], ...] = ()
    # template of the last user turn, with `str.format` fields; None for no such turn
    instruction: str | None = None
    # of the request; they win over the caller's
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # letter of the sentence tags by what carries them
    tags: Mapping[str, str] = field(default_factory=dict)
    # None leaves documents to the chat template; `string`, `json` and `roles` make them turns
    documents_as: str | None = None

    @property
    def likelihood(self) -> bool:
        """Return whether a rule needs log-probabilities."""
        return any(rule["type"] == "likelihood" for rule in self.rules)


def read_spec(name: str, raw: Mapping[str, Any]) -> Spec:
    """Return a spec from the content of its file; an unknown field or value is refused in one line."""
    for fault in _validator().iter_errors(dict(raw)):
        where = ".".join(map(str, fault.path))
        raise UserError(
            f"adapter {name!r}: {where + ': ' if where else ''}{' '.join(fault.message.split()):.300}"
        )
    values = {key: value for key, value in raw.items() if value is not None}
    schema = values.get("response_format")
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        fields = [
            field
            for _, field, _, _ in Formatter().parse(values.get("instruction", ""))
            if field is not None
        ]
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"adapter {name!r}: response_format or instruction cannot be read: {error}"
        ) from error
    if odd := [field for field in fields if not field.isidentifier()]:
        raise UserError(
            f"adapter {name!r}: instruction has the field {{{odd[0]}}}; fields must be plain names"
        )
    if not (schema is None or isinstance(schema, Mapping)):
        raise UserError(
            f"adapter {name!r}: response_format is no JSON schema: {schema!r:.80}"
        )
    return Spec(
        name=name,
        model=values.get("model"),
        schema=None if schema is None else MappingProxyType(dict(schema)),
        rules=tuple(values.get("transformations", ())),
        instruction=values.get("instruction"),
        parameters=MappingProxyType(dict(values.get("parameters", {}))),
        tags=MappingProxyType(dict(values.get("sentence_boundaries", {}))),
        documents_as=values.get("docs_as_message"),
    )


@cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(_SCHEMA)


def load_spec(path: Path) -> Spec:
    """Read a spec from an `io.yaml` (or JSON) beside an adapter; the folder gives the name."""
    yaml = require("yaml", extra="granite")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as YAML: {reason}") from error
    if not isinstance(raw, Mapping):
        raise UserError(
            f"{path}: holds a {type(raw).__name__}, not the configuration of an adapter"
        )
    return read_spec(path.resolve().parent.name, raw)


ONE_DOCUMENT = "{document_content}"
_SERVER_DOCUMENTS = "documents"


def arguments(
    spec: Spec, state: JudgeInput, seen: NumberedState, defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return the fields of the instruction's template: the caller's arguments over the defaults, the last turn."""
    filled = {**defaults, **state.arguments}
    if asks_of_one(spec, state):
        passage = state.passages[seen.only(spec.name).index]
        filled["document_content"] = (
            f"{passage.title}\n{passage.text}" if passage.title else passage.text
        )
    if seen.messages:
        filled["last_message"] = seen.messages[-1].content
    return filled


def asks_of_one(spec: Spec, state: JudgeInput) -> bool:
    """Return whether the document is part of the instruction, and to be taken from the passages."""
    return (
        ONE_DOCUMENT in (spec.instruction or "")
        and "document_content" not in state.arguments
    )


def instruction(spec: Spec, filled: Mapping[str, str]) -> str | None:
    """Return the last user turn, if the dialect has one. Values are filled in once, so braces in them stay text."""
    if spec.instruction is None:
        return None
    try:
        return spec.instruction.format(**filled)
    except KeyError as error:
        raise UserError(f"{spec.name} needs the argument {error.args[0]!r}") from error


def body(
    spec: Spec, state: JudgeInput, seen: NumberedState, defaults: Mapping[str, str]
) -> dict[str, Any]:
    """Return the request of an OpenAI client: known fields at the top, the server's own under `extra_body`.

    Fields of `state.extra` are kept; parameters of the spec win over them.
    """
    messages = [{"content": m.content, "role": m.role} for m in seen.messages]
    extra_body = copy.deepcopy(dict(state.extra.get("extra_body") or {}))
    listed = bool(seen.documents) or extra_body.get(_SERVER_DOCUMENTS) is not None
    if seen.documents or spec.documents_as is not None:
        extra_body.pop(_SERVER_DOCUMENTS, None)
    if spec.documents_as is None:
        if seen.documents and not asks_of_one(spec, state):
            extra_body = {_SERVER_DOCUMENTS: _listed(seen.documents), **extra_body}
    else:
        messages = [*(_turns(spec.documents_as, seen) if listed else ()), *messages]
    text = instruction(spec, arguments(spec, state, seen, defaults))
    if text is not None:
        messages.append({"content": text, "role": "user"})
    parameters = copy.deepcopy(dict(spec.parameters))
    extra_body |= parameters.pop("extra_body", None) or {}
    if spec.schema is not None:
        extra_body["structured_outputs"] = {"json": copy.deepcopy(dict(spec.schema))}
    values = {
        k: copy.deepcopy(v)
        for k, v in state.extra.items()
        if k not in ("messages", "extra_body")
    }
    made: dict[str, Any] = {"messages": messages, **values, **parameters}
    if spec.model is not None:
        made["model"] = spec.model
    if extra_body:
        made["extra_body"] = extra_body
    if spec.likelihood:
        made |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return made


def _listed(documents: Sequence[ShownPassage]) -> list[dict[str, str]]:
    return [
        {"text": d.text, "doc_id": d.id} if d.id else {"text": d.text}
        for d in documents
    ]


def _turns(form: str, seen: NumberedState) -> list[dict[str, str]]:
    """Return documents as turns before the conversation; one without an id is called None, as the adapters know it."""
    if form == "json":
        return [{"content": json.dumps(_listed(seen.documents)), "role": "user"}]
    if form == "roles":
        return [
            {"content": document.text, "role": f"document {document.id or None}"}
            for document in seen.documents
        ]
    texts = "\n\n".join(
        f"[Document {document.id or None}]\n{document.text}"
        for document in seen.documents
    )
    return [
        {
            "content": f"You have access to the following documents:\n\n{texts}",
            "role": "user",
        }
    ]


_DEFAULT_TOKENS = 1024
_LIMITS = ("max_completion_tokens", "max_tokens")
_OWN = frozenset(_LIMITS) | {
    "messages",
    "documents",
    "structured_outputs",
    "extra_body",
}
_OWN |= {"model", "temperature", "logprobs", "top_logprobs"}
"""Fields of the body that a `ModelRequest` has a place for."""


@dataclass(frozen=True)
class ChatCodec(BoundCodec):
    """One adapter of a chat dialect."""

    dialect: str  # name of the dialect
    spec: Spec  # the adapter's published configuration
    binding: Binding  # what its reply means
    find: SentenceFinder  # sentence splitter; the adapters were trained with `punkt`
    # score a label that stands right behind the prompt as a slot, and ask for log-probabilities of others; False sends
    # the request exactly as published
    exact: bool = True
    # name of the adapter on the server; None for the base model
    adapter: str | None = None
    # name of the judge: an adapter inside a Granite Switch checkpoint
    embedded: str | None = None

    def wire(self, state: JudgeInput) -> dict[str, Any]:
        """Return the published request of an OpenAI client: the server's own fields are under `extra_body`."""
        return self._seen(state)[0]

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return the request; see `exact`. Empty conversations, missing arguments and odd limits are refused."""
        made, seen = self._seen(state)
        extra_body = made.get("extra_body", {})
        schema = extra_body.get("structured_outputs", {}).get("json")
        prompt = ChatPrompt(
            tuple(Message(turn["role"], turn["content"]) for turn in made["messages"]),
            tuple(extra_body.get("documents", ())),
            {
                key: value
                for key, value in {**made, **extra_body}.items()
                if key not in _OWN
            },
            self.spec.instruction or "",
        )
        request = ModelRequest(
            state,
            prompt,
            max_tokens=_limit(made),
            temperature=made.get("temperature"),
            constraint=None if schema is None else Constraint.json(schema),
            sites=seen.sites,
            sources=seen.sources,
            top_logprobs=made.get("top_logprobs", 0),
            adapter=self.adapter or self.spec.model,
        )
        return (
            with_scores(self.binding, self.spec.schema, request)
            if self.exact
            else request
        )

    def _seen(self, state: JudgeInput) -> tuple[dict[str, Any], NumberedState]:
        if not state.messages:
            raise UserError(
                f"{self.spec.name}: the conversation is empty; give at least one turn"
            )
        seen = number_sentences(self.spec.tags, state, self.find)
        return body(self.spec, state, seen, self.binding.defaults), seen


def _limit(made: Mapping[str, Any]) -> int:
    """Return how many tokens may be generated, by whichever name the contract or the caller gave them."""
    name = next((name for name in _LIMITS if made.get(name) is not None), None)
    if name is None:
        return _DEFAULT_TOKENS
    limit: int = made[name]
    check_int(name, limit)
    return limit
