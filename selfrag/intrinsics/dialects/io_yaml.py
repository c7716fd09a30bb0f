"""The configuration published beside a chat adapter (`io.yaml`), read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError, require
from selfrag.intrinsics.dialects.numbering import DOCUMENTS, EARLIER, LAST

_RULES = ("likelihood", "nest", "project", "explode", "drop_duplicates", "decode_sentences", "merge_spans")
_TEXT, _MAPPING = {"type": ["string", "null"]}, {"type": ["object", "null"]}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {},
        "model": _TEXT,
        "response_format": {"type": ["string", "object", "null"]},
        "transformations": {
            "type": ["array", "null"],
            "items": {"type": "object", "required": ["type"], "properties": {"type": {"enum": _RULES}}},
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
    instruction: str | None = None  # template of the last user turn, with `str.format` fields; None for no such turn
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the request; they win over the caller's
    tags: Mapping[str, str] = field(default_factory=dict)  # letter of the sentence tags by what carries them
    # None leaves documents to the chat template; `string`, `json` and `roles` make them turns
    documents_as: str | None = None

    @property
    def likelihood(self) -> bool:
        """Whether a rule needs log-probabilities."""
        return any(rule["type"] == "likelihood" for rule in self.rules)


def read_spec(name: str, raw: Mapping[str, Any]) -> Spec:
    """A spec from the content of its file.

    Raises:
        UserError: an unknown field or rule, or a value of the wrong kind; the message names it.
    """
    for fault in _validator().iter_errors(dict(raw)):
        where = ".".join(map(str, fault.path))
        raise UserError(f"adapter {name!r}: {where + ': ' if where else ''}{' '.join(fault.message.split()):.300}")
    given = {key: value for key, value in raw.items() if value is not None}
    schema = given.get("response_format")
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        fields = [one for _, one, _, _ in Formatter().parse(given.get("instruction", "")) if one is not None]
    except (ValueError, RecursionError) as error:
        raise UserError(f"adapter {name!r}: response_format or instruction cannot be read: {error}") from error
    if odd := [one for one in fields if not one.isidentifier()]:
        raise UserError(f"adapter {name!r}: instruction has the field {{{odd[0]}}}; fields must be plain names")
    if not (schema is None or isinstance(schema, Mapping)):
        raise UserError(f"adapter {name!r}: response_format is no JSON schema: {schema!r:.80}")
    return Spec(
        name=name,
        model=given.get("model"),
        schema=None if schema is None else MappingProxyType(dict(schema)),
        rules=tuple(given.get("transformations", ())),
        instruction=given.get("instruction"),
        parameters=MappingProxyType(dict(given.get("parameters", {}))),
        tags=MappingProxyType(dict(given.get("sentence_boundaries", {}))),
        documents_as=given.get("docs_as_message"),
    )


@cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(_SCHEMA)


def load_spec(path: Path) -> Spec:
    """A spec from an `io.yaml` (or JSON) beside an adapter; the folder gives the name.

    Raises:
        UserError: the file cannot be read, or is no such configuration.
    """
    yaml = require("yaml", extra="granite")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as YAML: {reason}") from error
    if not isinstance(raw, Mapping):
        raise UserError(f"{path}: holds a {type(raw).__name__}, not the configuration of an adapter")
    return read_spec(path.resolve().parent.name, raw)
