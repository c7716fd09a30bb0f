"""The configuration published beside a chat adapter (`io.yaml`), read strictly, and its output rules.

The rules lead from the model's JSON to the records that the public libraries return, corrected where these err: a
bad number costs its own record, duplicates are duplicates, offsets are into the caller's text.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from string import Formatter
from types import MappingProxyType
from typing import Any, TypeAlias

from selfrag.errors import UserError, require
from selfrag.intrinsics.contract import Code, Site
from selfrag.intrinsics.dialects.lenient_json import Path
from selfrag.intrinsics.dialects.numbering import DOCUMENTS, EARLIER, LAST
from selfrag.intrinsics.dialects.output import Output, distribution, same, shown

_RULES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "likelihood": {"categories_to_values": list},
    "nest": {"field_name": str},
    "project": {"retained_fields": (list, dict)},
    "explode": {"target_field": str},
    "drop_duplicates": {"target_fields": list},
    "decode_sentences": {"source": (str, list), "output_names": dict},
    "merge_spans": {"group_fields": list, "begin_field": str, "end_field": str},
}
"""Output rules, and what each must be told."""

_FIELDS = {
    *("name", "model", "response_format", "transformations", "instruction", "parameters"),
    *("sentence_boundaries", "docs_as_message", "logprobs_workaround"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One step from the model's JSON to the records that the public libraries return."""

    type: str  # which step
    path: Path  # where it applies; None stands for every element
    options: Mapping[str, Any]  # what else the file says


@dataclass(frozen=True, slots=True)
class Spec:
    """One chat adapter on the wire."""

    name: str  # of the adapter
    model: str | None = None  # what the request names; None leaves the caller's
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply, if there is one
    rules: tuple[Rule, ...] = ()  # output rules in order
    instruction: str | None = None  # template of the last user turn, with `str.format` fields; None for no such turn
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the request; they win over the caller's
    tags: Mapping[str, str] = field(default_factory=dict)  # letter of the sentence tags by what carries them
    # None leaves documents to the chat template; `string`, `json` and `roles` make them turns
    documents_as: str | None = None

    @property
    def likelihood(self) -> bool:
        """Whether a rule needs log-probabilities."""
        return any(rule.type == "likelihood" for rule in self.rules)


def read_spec(name: str, raw: Mapping[str, Any]) -> Spec:
    """A spec from the content of its file.

    Raises:
        UserError: an unknown field or rule, or a value of the wrong kind; the message names it.
    """
    try:
        return _spec(name, raw)
    except UserError as error:
        raise UserError(f"adapter {name!r}: {error}") from error


def _spec(name: str, raw: Mapping[str, Any]) -> Spec:
    unknown = sorted(set(raw) - _FIELDS)
    if unknown:
        raise UserError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}")
    schema = raw.get("response_format")
    try:
        schema = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"response_format is no JSON: {error}") from error
    rules = raw.get("transformations") or ()
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise UserError(f"transformations={rules!r} is no list")
    parameters = _mapping("parameters", raw.get("parameters")) or {}
    _mapping("parameters.extra_body", parameters.get("extra_body"))
    documents_as = raw.get("docs_as_message")
    if documents_as not in (None, "string", "json", "roles"):
        raise UserError(f"docs_as_message={documents_as!r}; known: string, json, roles")
    return Spec(
        name=name,
        model=_text("model", raw.get("model")),
        schema=_mapping("response_format", schema),
        rules=tuple(_rule(rule) for rule in rules),
        instruction=_template(_text("instruction", raw.get("instruction"))),
        parameters=parameters,
        tags=_tags(_mapping("sentence_boundaries", raw.get("sentence_boundaries")) or {}),
        documents_as=documents_as,
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


def _rule(raw: object) -> Rule:
    if not isinstance(raw, Mapping) or str(raw.get("type")) not in _RULES:
        kind = raw.get("type") if isinstance(raw, Mapping) else raw
        raise UserError(f"unknown output rule {kind!r}; known: {', '.join(sorted(_RULES))}")
    path = raw.get("input_path") or ()
    if not isinstance(path, Sequence) or isinstance(path, str):
        raise UserError(f"input_path={path!r} of rule {raw['type']!r} is no list")
    options = {key: value for key, value in raw.items() if key not in ("type", "input_path")}
    pairs = options.get("categories_to_values")
    if isinstance(pairs, Mapping):
        options["categories_to_values"] = [list(pair) for pair in pairs.items()]
    for option, kinds in _RULES[raw["type"]].items():
        if not isinstance(options.get(option), kinds):
            given = f"{option}={options[option]!r}" if option in options else f"no {option}"
            raise UserError(f"rule {raw['type']!r} has {given}; published adapters show how")
    if not all(_is_pair(pair) for pair in options.get("categories_to_values", ())):
        raise UserError(f"categories_to_values of rule {raw['type']!r} must give each label a number")
    if raw["type"] == "decode_sentences" and not path:
        raise UserError("rule 'decode_sentences' needs an input_path to the sentence's number")
    return Rule(raw["type"], tuple(path), MappingProxyType(options))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[1], int | float)


def _template(text: str | None) -> str | None:
    try:
        fields = [found for _, found, _, _ in Formatter().parse(text or "") if found is not None]
    except ValueError as error:
        raise UserError(f"instruction: {error}") from error
    odd = [found for found in fields if not found.isidentifier()]
    if odd:
        raise UserError(f"instruction has the field {{{odd[0]}}}; fields must be plain names")
    return text


def _text(field_name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UserError(f"{field_name}={value!r} is no text")
    return value


def _mapping(field_name: str, value: object) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{field_name}={value!r} is no mapping")
    return None if value is None else MappingProxyType(dict(value))


def _tags(given: Mapping[str, Any]) -> Mapping[str, str]:
    for place, letter in given.items():
        if place not in (LAST, DOCUMENTS, EARLIER) or not (isinstance(letter, str) and letter.isalpha()):
            raise UserError(f"sentence_boundaries {place!r}: {letter!r} is not understood")
    return given


_NOWHERE = object()
Apply: TypeAlias = Callable[[Output, Rule, Any], Any]


def records(rules: Sequence[Rule], output: Output) -> Any:
    """The reply after all rules; None if there is no JSON at all."""
    root = output.json.root
    if root is None:
        return None
    value = copy.deepcopy(root.value)
    for rule in rules:
        value = _APPLY[rule.type](output, rule, value)
    return value


def _likelihood(output: Output, rule: Rule, value: Any) -> Any:
    pairs = rule.options["categories_to_values"]
    labels, values = [label for label, _ in pairs], [float(number) for _, number in pairs]
    root = output.json.root
    for path, node in root.at(rule.path) if root is not None else ():
        if not same(_held(value, path), node.value):
            output.say(Code.INVALID, f"an earlier rule has changed {shown(node.value)}; its likelihood is left out")
            continue
        found = distribution(output, node, labels, _row(path))
        expected = None if found is None else sum(p * v for p, v in zip(found.distribution, values, strict=True))
        value = _replaced(value, path, expected)
    return value


def _row(path: Path) -> int | None:
    return path[0] if path and isinstance(path[0], int) else None


def _held(value: Any, path: Sequence[str | int | None]) -> Any:
    """What stands at a concrete path; `_NOWHERE` where it leads nowhere."""
    for key in path:
        there = isinstance(value, Mapping) and key in value
        if not there and not (isinstance(value, list) and isinstance(key, int) and key < len(value)):
            return _NOWHERE
        value = value[key]
    return value


def _replaced(value: Any, path: Sequence[str | int | None], new: Any) -> Any:
    if not path:
        return new
    value[path[0]] = _replaced(value[path[0]], path[1:], new)
    return value


def _nest(output: Output, rule: Rule, value: Any) -> Any:
    return _at(rule.path, value, lambda found: {rule.options["field_name"]: found})


def _project(output: Output, rule: Rule, value: Any) -> Any:
    kept = rule.options["retained_fields"]
    names = dict(kept) if isinstance(kept, Mapping) else {name: name for name in kept}

    def project(record: Any) -> Any:
        if isinstance(record, list):
            return [project(one) for one in record]
        if not isinstance(record, Mapping):
            return record
        return {new: record.get(old) for old, new in names.items()}

    return _at(rule.path, value, project)


def _explode(output: Output, rule: Rule, value: Any) -> Any:
    name = rule.options["target_field"]

    def rows(record: Any) -> Iterator[Any]:
        many = record.get(name) if isinstance(record, Mapping) else None
        if not isinstance(many, list):
            output.say(Code.INVALID, f"{shown(record)} has no list {name!r}")
            return
        yield from ({**record, name: one} for one in many)

    return _at(rule.path, value, lambda found: [row for record in _listed(found) for row in rows(record)])


def _drop_duplicates(output: Output, rule: Rule, value: Any) -> Any:
    names = rule.options["target_fields"]

    def distinct(found: Any) -> Any:
        kept: dict[tuple[str, ...], Any] = {}
        for record in _listed(found):
            key = tuple(repr(record.get(name)) for name in names) if isinstance(record, Mapping) else (repr(record),)
            if key in kept:
                output.say(Code.DUPLICATE, f"{shown(record)} came twice")
            kept.setdefault(key, record)
        return list(kept.values())

    return _at(rule.path, value, distinct)


def _decode_sentences(output: Output, rule: Rule, value: Any) -> Any:
    request = output.request
    places = request.sites if rule.options["source"] == LAST else request.sources
    field = rule.path[-1]
    names: Mapping[str, str] = rule.options["output_names"]

    def decode(record: Any) -> Any | None:
        if not isinstance(record, Mapping) or field not in record:
            output.say(Code.INVALID, f"{shown(record)} has no field {field!r}")
            return None
        site = lookup(output, record[field], places, str(field))
        return None if site is None else {**record, **_described(output, site, names)}

    if len(rule.path) < 2:
        return decode(value)
    return _at(rule.path[:-2], value, lambda found: [r for one in _listed(found) if (r := decode(one)) is not None])


def lookup(output: Output, number: Any, places: Sequence[Site], name: str) -> Site | None:
    """The place that a model called by number; None, with a diagnostic, if there is no such place."""
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(places):
        return places[number]
    there = f"0..{len(places) - 1}" if places else "no sentences"
    output.say(Code.OUT_OF_RANGE, f"{name} = {shown(number)} names no sentence; there are {there}")
    return None


def _described(output: Output, site: Site, names: Mapping[str, str]) -> dict[str, Any]:
    passage = None if site.passage is None else output.request.state.passages[site.passage].id or None
    facts = {"begin": site.begin, "end": site.end, "text": site.text}
    facts |= {"document_id": passage, "message_index": site.message}
    return {names[fact]: value for fact, value in facts.items() if fact in names}


def _merge_spans(output: Output, rule: Rule, value: Any) -> Any:
    group = rule.options["group_fields"]
    begin, end, text = names = (rule.options["begin_field"], rule.options["end_field"], rule.options.get("text_field"))

    def key(row: Any) -> tuple[Any, ...]:
        values = (row.get(name) for name in group)
        # Models write anything; values of different types are told apart and never compared.
        return tuple((type(v).__name__, v if isinstance(v, int | float | str) else repr(v)) for v in values)

    def order(row: Any) -> tuple[Any, ...]:
        return (*key(row), row[begin], row[end])

    def merge(found: Any) -> list[Any]:
        known = [row for row in _listed(found) if isinstance(row, Mapping)]
        rows = [row for row in known if isinstance(row.get(begin), int) and isinstance(row.get(end), int)]
        merged: list[Any] = []
        last: Any = None
        for row in sorted(map(dict, rows), key=order):
            gap = _between(output, last, row, names) if last is not None and key(last) == key(row) else None
            if gap is None:
                last = row
                merged.append(row)
            else:
                last[end] = row[end]
                if text is not None:
                    last[text] = f"{last[text]}{gap}{row[text]}"
        return merged

    return _at(rule.path, value, merge)


def _between(output: Output, left: Any, right: Any, names: tuple[str, str, str | None]) -> str | None:
    """What stands between two spans of one original if it is white space only; None if they are not neighbours."""
    begin, end, text = names
    for site in output.request.sources:
        if (site.begin, site.end) != (right[begin], right[end]) or right[begin] < left[end]:
            continue
        if text is not None and site.text != right[text]:
            continue
        whole = output.request.state.original(site)
        gap = whole[left[end] : right[begin]]
        if (text is None or whole[left[begin] : left[end]] == left[text]) and not gap.strip():
            return gap
    return None


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _at(path: Path, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied where the path leads."""
    if not path:
        return change(value)
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_at(rest, one, change) if first in (None, index) else one for index, one in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: _at(rest, one, change) if first in (None, key) else one for key, one in value.items()}
    return value


_APPLY: dict[str, Apply] = {
    "likelihood": _likelihood,
    "nest": _nest,
    "project": _project,
    "explode": _explode,
    "drop_duplicates": _drop_duplicates,
    "decode_sentences": _decode_sentences,
    "merge_spans": _merge_spans,
}
