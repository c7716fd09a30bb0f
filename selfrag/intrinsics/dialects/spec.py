"""`Spec`: the configuration that is published beside a chat adapter (`io.yaml`), read strictly. Does nothing more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from string import Formatter
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError, require
from selfrag.intrinsics.dialects.json_reading import Path
from selfrag.intrinsics.dialects.seen import DOCUMENTS, EARLIER, LAST

_RULES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = MappingProxyType(
    {
        "likelihood": {"categories_to_values": list},
        "nest": {"field_name": str},
        "project": {"retained_fields": (list, dict)},
        "explode": {"target_field": str},
        "drop_duplicates": {"target_fields": list},
        "decode_sentences": {"source": (str, list), "output_names": dict},
        "merge_spans": {"group_fields": list, "begin_field": str, "end_field": str},
    }
)
"""Output rules, and what each must be told."""
_FIELDS = frozenset(
    {
        "model",
        "response_format",
        "transformations",
        "instruction",
        "parameters",
        "sentence_boundaries",
        "docs_as_message",
        "logprobs_workaround",
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One step from the model's JSON to the records that the public libraries return.

    Attributes:
        type: which step.
        path: where it applies; None stands for every element.
        options: what else the file says.
    """

    type: str
    path: Path
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """One chat adapter on the wire.

    Attributes:
        name: of the adapter.
        model: what the request names; None leaves the caller's.
        schema: JSON schema of the reply, if there is one.
        rules: output rules in order.
        instruction: template of the last user turn, with `str.format` fields; None for no such turn.
        parameters: of the request; they win over the caller's.
        tags: letter of the sentence tags by what carries them.
        documents_as: None leaves documents to the chat template; `string`, `json` and `roles` make them turns.
        harmony: whether the model writes its reasoning before the reply (gpt-oss).
    """

    name: str
    model: str | None = None
    schema: Mapping[str, Any] | None = None
    rules: tuple[Rule, ...] = ()
    instruction: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    documents_as: str | None = None
    harmony: bool = False

    @property
    def likelihood(self) -> bool:
        """Whether a rule needs log-probabilities."""
        return any(rule.type == "likelihood" for rule in self.rules)


def read_spec(name: str, raw: Mapping[str, Any]) -> Spec:
    """A spec from the content of its file.

    Raises:
        UserError: an unknown field or rule, or a value of the wrong kind; the message names it.
    """
    unknown = sorted(set(raw) - _FIELDS)
    if unknown:
        raise UserError(f"adapter {name!r}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}")
    schema = raw.get("response_format")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise UserError(f"adapter {name!r}: response_format is no JSON: {error}") from error
    rules = raw.get("transformations") or ()
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise UserError(f"adapter {name!r}: transformations={rules!r} is no list")
    parameters = _frozen(name, "parameters", raw.get("parameters")) or MappingProxyType({})
    _frozen(name, "parameters.extra_body", parameters.get("extra_body"))
    documents_as = raw.get("docs_as_message")
    if documents_as not in (None, "string", "json", "roles"):
        raise UserError(f"adapter {name!r}: docs_as_message={documents_as!r}; known: string, json, roles")
    return Spec(
        name=name,
        model=_kind(name, "model", raw, str),
        schema=_frozen(name, "response_format", schema),
        rules=tuple(_rule(name, rule) for rule in rules),
        instruction=_template(name, _kind(name, "instruction", raw, str)),
        parameters=parameters,
        tags=_tags(name, raw.get("sentence_boundaries")),
        documents_as=documents_as,
        harmony=bool(raw.get("logprobs_workaround")),
    )


def load_spec(path: FilePath) -> Spec:
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


def _rule(name: str, raw: object) -> Rule:
    if not isinstance(raw, Mapping) or str(raw.get("type")) not in _RULES:
        kind = raw.get("type") if isinstance(raw, Mapping) else raw
        raise UserError(f"adapter {name!r}: unknown output rule {kind!r}; known: {', '.join(sorted(_RULES))}")
    path = raw.get("input_path") or ()
    if not isinstance(path, Sequence) or isinstance(path, str):
        raise UserError(f"adapter {name!r}: input_path={path!r} of rule {raw['type']!r} is no list")
    options = {key: value for key, value in raw.items() if key not in ("type", "input_path")}
    pairs = options.get("categories_to_values")
    if isinstance(pairs, Mapping):
        options["categories_to_values"] = [list(pair) for pair in pairs.items()]
    for option, kinds in _RULES[raw["type"]].items():
        if not isinstance(options.get(option), kinds):
            given = f"{option}={options[option]!r}" if option in options else f"no {option}"
            raise UserError(f"adapter {name!r}: rule {raw['type']!r} has {given}; published adapters show how")
    if not all(_is_pair(pair) for pair in options.get("categories_to_values", ())):
        raise UserError(f"adapter {name!r}: categories_to_values of rule {raw['type']!r} must give each label a number")
    if raw["type"] == "decode_sentences" and not path:
        raise UserError(f"adapter {name!r}: rule 'decode_sentences' needs an input_path to the sentence's number")
    return Rule(raw["type"], tuple(path), MappingProxyType(options))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[1], int | float)


def _template(name: str, text: str | None) -> str | None:
    try:
        fields = [found for _, found, _, _ in Formatter().parse(text or "") if found is not None]
    except ValueError as error:
        raise UserError(f"adapter {name!r}: instruction: {error}") from error
    odd = [found for found in fields if not found.isidentifier()]
    if odd:
        raise UserError(f"adapter {name!r}: instruction has the field {{{odd[0]}}}; fields must be plain names")
    return text


def _kind(name: str, field_name: str, raw: Mapping[str, Any], kind: type[str]) -> str | None:
    value = raw.get(field_name)
    if value is not None and not isinstance(value, kind):
        raise UserError(f"adapter {name!r}: {field_name}={value!r} is no text")
    return value


def _frozen(name: str, field_name: str, value: object) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UserError(f"adapter {name!r}: {field_name}={value!r} is no mapping")
    return MappingProxyType(dict(value))


def _tags(name: str, raw: object) -> Mapping[str, str]:
    given = {} if raw is None else raw
    if not isinstance(given, Mapping):
        raise UserError(f"adapter {name!r}: sentence_boundaries={raw!r} is no mapping")
    for place, letter in given.items():
        if place not in (LAST, DOCUMENTS, EARLIER) or not (isinstance(letter, str) and letter.isalpha()):
            raise UserError(f"adapter {name!r}: sentence_boundaries {place!r}: {letter!r} is not understood")
    return MappingProxyType(dict(given))
