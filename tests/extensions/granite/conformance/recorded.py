"""What recorded cases say: the conversation behind a prompt, the reply behind a result, faults of the public libraries.

A result that differs from ours is explained if it is exactly what such a fault, acted out, makes of the reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.compare import Deviation, MismatchError, Rejoined, compare
from conformance.records import categories, plain_result
from retrieval.passage import Passage
from retrieval.sentences import SentenceFinder, Span
from selfrag.common.errors import UserError
from selfrag.extensions.granite.chat import ChatCodec, Spec
from selfrag.extensions.granite.completion import CompletionCodec, SystemTurn
from selfrag.extensions.granite.replies import Shape, reply
from selfrag.judges.wire import Completion, Gold, ModelRequest, TokenLogprob
from selfrag.reflection.findings import Code, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site

_TAG = re.compile(r"<[rci]\d+> ")
_DATE = re.compile(r"Today's Date: (.+?)\.\n")
_DOCUMENT_ROLE = re.compile(r'document \{"document_id": "(.*)"\}')


def dated(
    codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]
) -> CompletionCodec:
    """The codec with the date and the system turn of a recorded prompt."""
    first = turns[0]["text"] if turns and turns[0]["role"] == "system" else None
    if first is None or (len(turns) == 1):
        return replace(codec, system=SystemTurn.NONE)
    if not first:
        return replace(codec, system=SystemTurn.EMPTY)
    date = _DATE.search(first)
    return replace(codec, date=date.group(1)) if date else codec


def state_of(codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]) -> JudgeInput:
    """The state behind recorded turns: without the head, the tags and what the dialect puts behind."""
    behind = len(codec.spec.turns)
    body = list(turns[: len(turns) - behind])
    if (
        body
        and body[0]["role"] == "system"
        and (not body[0]["text"] or _DATE.search(body[0]["text"]))
    ):
        body = body[1:]
    passages: list[Passage] = []
    messages: list[Message] = []
    for turn in body:
        role = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if role:
            passages.append(
                Passage(role.group(1), _untagged(turn["text"].removeprefix("\n")))
            )
        elif turn["role"] == "documents":
            texts = re.split(r"(?:^|\n\n)Document \d+\n", turn["text"])[1:]
            passages += [
                Passage(str(index), _untagged(text)) for index, text in enumerate(texts)
            ]
        else:
            messages.append(Message(turn["role"], _untagged(turn["text"])))
    for turn, spec in zip(turns[len(turns) - behind :], codec.spec.turns, strict=True):
        match = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if spec.role == "{document}" and match:
            passages.append(Passage(match.group(1), turn["text"].removeprefix("\n")))
    return JudgeInput(
        tuple(messages),
        tuple(passages),
        _arguments(codec, turns[len(turns) - behind :]),
    )


def _arguments(
    codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    values: dict[str, str] = {}
    for turn, spec in zip(turns, codec.spec.turns, strict=True):
        names = [name for name in spec.fields() if name != "query"]
        if names:
            pattern, seen = "", set[str]()
            for part in re.split(r"(\{\w+\})", spec.text):
                name = part[1:-1]
                if part.startswith("{") and name in names:
                    pattern += f"(?P={name})" if name in seen else f"(?P<{name}>.+?)"
                    seen.add(name)
                else:
                    pattern += re.escape(part)
            match = re.fullmatch(pattern, turn["text"], re.DOTALL)
            values |= match.groupdict() if match else {}
    return values


def _untagged(text: str) -> str:
    return _TAG.sub("", text)


def recorded_finder(texts: Iterable[str], fallback: SentenceFinder) -> SentenceFinder:
    """A splitter that cuts as recorded, where a text was recorded with tags.

    Args:
        texts: everything that was recorded.
        fallback: for texts that were not.
    """
    cuts: dict[str, list[str]] = {}
    for text in texts:
        for part in re.split(r"(?:^|\n\n)Document \d+\n", text):
            if _TAG.search(part):
                sentences = [
                    piece.strip() for piece in _TAG.split(part) if piece.strip()
                ]
                cuts["".join("".join(sentences).split())] = sentences

    def find(text: str) -> Sequence[Span]:
        sentences = cuts.get("".join(text.split()))
        if sentences is None:
            return fallback(text)
        spans, at = [], 0
        for sentence in sentences:
            begin = text.find(sentence, at)
            if begin < 0:
                return fallback(text)
            at = begin + len(sentence)
            spans.append((begin, at))
        return spans

    return find


def all_texts(value: Any) -> list[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return [value]
    children = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list)
        else ()
    )
    return [text for child in children for text in all_texts(child)]


def replayed(codec: ChatCodec, request: ModelRequest, results: Any) -> Completion:
    """A completion that amounts to recorded results, for cases that kept no completion.

    Raises:
        UserError: the results speak of sentences that are none.
    """
    binding = codec.binding
    if binding.shape is Shape.FREE:
        raise UserError(f"{codec.spec.name}: no meaning known for its results")
    if binding.shape is Shape.SENTENCES:
        names = {new: old for old, new in _retained(codec.spec).items()}
        rows = [
            {
                str(binding.number): _numbered(request.sites, row["response_text"]),
                **{
                    names[name]: value
                    for name, value in row.items()
                    if name in names and names[name] in "fe"
                },
            }
            for row in results
        ]
        return Completion(json.dumps(rows))
    if binding.shape is Shape.CITATIONS:
        cited: dict[int, list[int]] = {
            number: [] for number in range(len(request.sites))
        }
        for row in results:
            text = next(
                value
                for name, value in row.items()
                if name.endswith("_text") and name != "response_text"
            )
            where = next(
                (value for name, value in row.items() if name.endswith("_doc_id")), None
            )
            inside = [
                (number, site)
                for number, site in enumerate(request.sources)
                if where is None
                or (
                    site.passage is not None
                    and request.state.passages[site.passage].id == str(where)
                )
            ]
            cited[_numbered(request.sites, row["response_text"])] += _run(inside, text)
        rows = [
            {str(binding.number): number, binding.value: numbers}
            for number, numbers in cited.items()
        ]
        return Completion(json.dumps(rows))
    if binding.shape is Shape.LABEL:
        return Completion(reply(binding, 0))
    text = (
        next(iter(results.values())) if isinstance(results, Mapping) else str(results)
    )
    (target,) = codec.teach(request, Gold(text=text))
    return Completion(target.text)


def _retained(spec: Spec) -> dict[str, str]:
    for rule in spec.rules:
        if rule["type"] == "project" and isinstance(rule["retained_fields"], Mapping):
            return dict(rule["retained_fields"])
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
        return {name: kinds(item) for name, item in value.items()}
    if isinstance(value, list):
        return [kinds(item) for item in value]
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


def booleans(spec: Spec, completion: Completion, ours: Any, theirs: Any) -> bool:
    """Whether results differ only where upstream cannot match a boolean label, and ours is right there.

    Right is recomputed without our reading: the alternatives `true` and `false` at the token that was chosen.
    """
    labels = [
        label
        for rule in spec.rules
        if rule["type"] == "likelihood"
        for label, _ in categories(rule)
    ]
    if (
        not labels
        or not all(isinstance(label, bool) for label in labels)
        or completion.tokens is None
    ):
        return False
    chosen = [
        token for token in completion.tokens if token.token.strip() in ("true", "false")
    ]
    if len(chosen) != 1:
        return False
    mass = {"true": 0.0, "false": 0.0}
    for text, logprob in chosen[0].top:
        if text.strip() in mass:
            mass[text.strip()] += math.exp(logprob)
    right = mass["true"] / (mass["true"] + mass["false"])
    return _differ_in_number(ours, theirs, right)


def _differ_in_number(ours: Any, theirs: Any, right: float) -> bool:
    if (
        isinstance(ours, Mapping)
        and isinstance(theirs, Mapping)
        and set(ours) == set(theirs)
    ):
        return all(
            ours[name] == theirs[name]
            or _differ_in_number(ours[name], theirs[name], right)
            for name in ours
        )
    return (
        isinstance(ours, float) and theirs in (0.0, 1.0) and abs(ours - right) <= 0.01
    )


Fault = Callable[[ChatCodec, ModelRequest, Completion], Completion | None]


def explained(
    codec: ChatCodec,
    request: ModelRequest,
    completion: Completion,
    ours: Reflection,
    theirs: Any,
) -> set[Deviation]:
    """Reasons for which a recorded result differs from ours; empty if no known fault gives it."""
    joined = Rejoined.of(request)
    if any(note.code is Code.UNKNOWN_LABEL for note in ours.diagnostics):
        our_result = plain_result(codec, request, completion)
        deviations = _same(our_result, _undefined_too(our_result, theirs), joined)
        return set() if deviations is None else deviations | {Deviation.UNDEFINED}
    for deviation, act in _FAULTS:
        changed = act(codec, request, completion)
        if changed is None:
            continue
        deviations = _same(plain_result(codec, request, changed), theirs, joined)
        if deviations is not None:
            return deviations | {deviation}
    return set()


def _same(ours: Any, theirs: Any, joined: Rejoined) -> set[Deviation] | None:
    try:
        return compare(ours, theirs, joined)
    except MismatchError:
        return None


def _undefined_too(ours: Any, theirs: Any) -> Any:
    """The recorded result with None where ours has None."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {
            name: _undefined_too(ours.get(name, ""), value)
            for name, value in theirs.items()
        }
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_undefined_too(a, b) for a, b in zip(ours, theirs, strict=True)]
    return None if ours is None else theirs


def _from_the_end(
    codec: ChatCodec, request: ModelRequest, completion: Completion
) -> Completion | None:
    """Negative numbers of sentences counted from the end, as a Python list does."""
    number, value = codec.binding.number, codec.binding.value
    try:
        rows = json.loads(completion.text)
        for row in rows:
            row[number] = _counted(row[number], len(request.sites))
            if isinstance(row.get(value), list):
                row[value] = [
                    _counted(index, len(request.sources)) for index in row[value]
                ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Completion(json.dumps(rows), completion.finish)


def _counted(number: Any, size: int) -> Any:
    return number + size if isinstance(number, int) and -size <= number < 0 else number


def _first_label(
    codec: ChatCodec, request: ModelRequest, completion: Completion
) -> Completion | None:
    """An alternative that begins several labels (the empty one begins all) taken for the first of them."""
    labels = [str(label) for label in _labels(codec)]

    def taken(token: TokenLogprob, text: str) -> str:
        candidates = [label for label in labels if label.startswith(text)]
        return candidates[0] if len(candidates) > 1 and text != token.token else text

    if not labels or completion.tokens is None:
        return None
    tokens = [
        replace(
            sampled, top=tuple((taken(sampled, text), p) for text, p in sampled.top)
        )
        for sampled in completion.tokens
    ]
    return replace(completion, tokens=tuple(tokens))


def _certain(
    codec: ChatCodec, request: ModelRequest, completion: Completion
) -> Completion | None:
    """A label that one token writes with its quotes taken as certain."""
    written = tuple(
        json.dumps(label) for label in _labels(codec) if isinstance(label, str)
    )
    tokens = completion.tokens or ()
    if not written or not any(token.token.endswith(written) for token in tokens):
        return None
    return replace(
        completion,
        tokens=tuple(
            replace(token, top=((token.token, 0.0),), logprob=0.0) for token in tokens
        ),
    )


def _labels(codec: ChatCodec) -> Iterator[Any]:
    for rule in codec.spec.rules:
        if rule["type"] == "likelihood":
            yield from (label for label, _ in categories(rule))


_FAULTS: tuple[tuple[Deviation, Fault], ...] = (
    (Deviation.NEGATIVE, _from_the_end),
    (Deviation.FIRST_LABEL, _first_label),
    (Deviation.FIRST_LABEL, _certain),
)
