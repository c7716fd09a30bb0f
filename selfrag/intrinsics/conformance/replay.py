"""Recorded results the other way round: what a model would have written for them, and boolean labels recomputed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from selfrag.errors import UserError
from selfrag.intrinsics.contract import Completion, Gold, Request, Site
from selfrag.intrinsics.dialects.chat import ChatCodec
from selfrag.intrinsics.dialects.io_yaml import Spec
from selfrag.intrinsics.dialects.replies import Shape, reply


def replayed(codec: ChatCodec, request: Request, results: Any) -> Completion:
    """A completion that amounts to recorded results, for cases that kept no completion.

    Raises:
        UserError: the results speak of sentences that are none.
    """
    binding = codec.binding
    if binding is None:
        raise UserError(f"{codec.spec.name}: no meaning known for its results")
    if binding.shape is Shape.SENTENCES:
        names = {new: old for old, new in _retained(codec.spec).items()}
        rows = [
            {
                str(binding.number): _numbered(request.sites, row["response_text"]),
                **{names[name]: value for name, value in row.items() if name in names and names[name] in "fe"},
            }
            for row in results
        ]
        return Completion(json.dumps(rows))
    if binding.shape is Shape.CITATIONS:
        cited: dict[int, list[int]] = {number: [] for number in range(len(request.sites))}
        for row in results:
            text = next(value for name, value in row.items() if name.endswith("_text") and name != "response_text")
            where = next((value for name, value in row.items() if name.endswith("_doc_id")), None)
            inside = [
                (number, site)
                for number, site in enumerate(request.sources)
                if where is None or (site.passage is not None and request.state.passages[site.passage].id == str(where))
            ]
            cited[_numbered(request.sites, row["response_text"])] += _run(inside, text)
        rows = [{str(binding.number): number, binding.value: found} for number, found in cited.items()]
        return Completion(json.dumps(rows))
    if binding.shape is Shape.LABEL:
        return Completion(reply(binding, 0))
    text = next(iter(results.values())) if isinstance(results, Mapping) else str(results)
    (target,) = codec.teach(request, Gold(text=text))
    return Completion(target.text)


def _retained(spec: Spec) -> dict[str, str]:
    for rule in spec.rules:
        if rule.type == "project" and isinstance(rule.options["retained_fields"], Mapping):
            return dict(rule.options["retained_fields"])
    return {}


def _numbered(places: Sequence[Site], text: str) -> int:
    return _run(list(enumerate(places)), text)[0]


def _run(places: Sequence[tuple[int, Site]], text: str) -> list[int]:
    """Numbers of the neighbouring sentences that make up a text."""
    words = text.split()
    for first in range(len(places)):
        joined: list[str] = []
        for last in range(first, len(places)):
            joined += places[last][1].text.split()
            if joined == words:
                return [number for number, _ in places[first : last + 1]]
            if joined != words[: len(joined)]:
                break
    raise UserError(f"no sentences {text!r:.80}")


def kinds(value: Any) -> Any:
    """The value with its leaves replaced by what kind they are."""
    if isinstance(value, Mapping):
        return {name: kinds(one) for name, one in value.items()}
    if isinstance(value, list):
        return [kinds(one) for one in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def booleans(spec: Spec, completion: Completion, ours: Any, theirs: Any) -> bool:
    """Whether results differ only where upstream cannot match a boolean label, and ours is right there.

    Right is recomputed without our reading: the alternatives `true` and `false` at the token that was chosen.
    """
    rules = [rule for rule in spec.rules if rule.type == "likelihood"]
    labels = [label for rule in rules for label, _ in rule.options["categories_to_values"]]
    if not labels or not all(isinstance(label, bool) for label in labels) or completion.tokens is None:
        return False
    chosen = [token for token in completion.tokens if token.token.strip() in ("true", "false")]
    if len(chosen) != 1:
        return False
    mass = {"true": 0.0, "false": 0.0}
    for text, logprob in chosen[0].top:
        if text.strip() in mass:
            mass[text.strip()] += math.exp(logprob)
    right = mass["true"] / (mass["true"] + mass["false"])
    return _differ_in_number(ours, theirs, right)


def _differ_in_number(ours: Any, theirs: Any, right: float) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and set(ours) == set(theirs):
        return all(ours[name] == theirs[name] or _differ_in_number(ours[name], theirs[name], right) for name in ours)
    return isinstance(ours, float) and theirs in (0.0, 1.0) and abs(ours - right) <= 0.01
