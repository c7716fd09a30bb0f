"""Requests of the chat dialects: tagged turns, documents, instruction, parameters. Knows no intrinsic and no model.

The order is that of the public libraries: tags, documents as turns, instruction, parameters, schema, log-probabilities.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from selfrag.errors import UserError
from selfrag.intrinsics.contract import State
from selfrag.intrinsics.dialects.seen import Document, Seen
from selfrag.intrinsics.dialects.slots import TOP_LOGPROBS
from selfrag.intrinsics.dialects.spec import Spec

ONE_DOCUMENT = "{document_content}"
_SERVER_DOCUMENTS = "documents"


def arguments(spec: Spec, state: State, seen: Seen, defaults: Mapping[str, str]) -> dict[str, str]:
    """What the instruction's template is filled with: the caller's arguments over the defaults, the last turn."""
    filled = {**defaults, **state.arguments}
    if asks_of_one(spec, state):
        filled["document_content"] = only_passage(spec, state)
    if seen.messages:
        filled["last_message"] = seen.messages[-1].content
    return filled


def asks_of_one(spec: Spec, state: State) -> bool:
    """Whether the document is part of the instruction, and to be taken from the passages."""
    return ONE_DOCUMENT in (spec.instruction or "") and "document_content" not in state.arguments


def only_passage(spec: Spec, state: State) -> str:
    """Title and text of the one passage.

    Raises:
        UserError: there are several, or none.
    """
    given = [passage for passage in state.passages if passage.text.strip()]
    if len(given) != 1:
        raise UserError(f"{spec.name} asks about one passage at a time, not {len(given)}; give it one")
    return f"{given[0].title}\n{given[0].text}" if given[0].title else given[0].text


def instruction(spec: Spec, filled: Mapping[str, str]) -> str | None:
    """The last user turn; None if the dialect has none. Values are filled in once, so braces in them stay text.

    Raises:
        UserError: an argument of the template is not given.
    """
    if spec.instruction is None:
        return None
    try:
        return spec.instruction.format(**filled)
    except KeyError as error:
        raise UserError(f"{spec.name} needs the argument {error.args[0]!r}") from error


def body(spec: Spec, state: State, seen: Seen, defaults: Mapping[str, str]) -> dict[str, Any]:
    """The request in the form of an OpenAI client: known fields at the top, the server's own under `extra_body`.

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
    given = {k: copy.deepcopy(v) for k, v in state.extra.items() if k not in ("messages", "extra_body")}
    made: dict[str, Any] = {"messages": messages, **given, **parameters}
    if spec.model is not None:
        made["model"] = spec.model
    if extra_body:
        made["extra_body"] = extra_body
    if spec.likelihood:
        made |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return made


def _listed(documents: Sequence[Document]) -> list[dict[str, str]]:
    return [{"text": d.text, "doc_id": d.id} if d.id else {"text": d.text} for d in documents]


def _turns(form: str, seen: Seen) -> list[dict[str, str]]:
    """Documents as turns in front of the conversation; one without an id is called None, as the adapters know it."""
    if form == "json":
        return [{"content": json.dumps(_listed(seen.documents)), "role": "user"}]
    if form == "roles":
        return [{"content": document.text, "role": f"document {document.id or None}"} for document in seen.documents]
    texts = "\n\n".join(f"[Document {document.id or None}]\n{document.text}" for document in seen.documents)
    return [{"content": f"You have access to the following documents:\n\n{texts}", "role": "user"}]
