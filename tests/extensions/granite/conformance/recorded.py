"""What recorded cases say: the conversation behind a prompt, and the reply behind a result."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace

from conformance.records import categories
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.extensions.granite.completion import SystemTurn
from selfrag.extensions.granite.replies import Shape
from selfrag.judges.wire import Completion
from selfrag.reflection.inputs import JudgeInput, Message

_TAG = re.compile(r"<[rci]\d+> ")
_DATE = re.compile(r"Today's Date: (.+?)\.\n")
_DOCUMENT_ROLE = re.compile(r'document \{"document_id": "(.*)"\}')


def dated(codec, turns):
    """The codec with the date and the system turn of a recorded prompt."""
    first = turns[0]["text"] if turns and turns[0]["role"] == "system" else None
    if first is None or (len(turns) == 1):
        return replace(codec, system=SystemTurn.NONE)
    if not first:
        return replace(codec, system=SystemTurn.EMPTY)
    date = _DATE.search(first)
    return replace(codec, date=date.group(1)) if date else codec


def state_of(codec, turns):
    """The state behind recorded turns: without the head, the tags and what the dialect puts behind."""
    cut = len(turns) - len(codec.spec.turns)
    body, behind = turns[:cut], turns[cut:]
    if body and body[0]["role"] == "system":
        head = body[0]["text"]
        if not head or _DATE.search(head):
            body = body[1:]
    passages = []
    messages = []
    for turn in body:
        text = _TAG.sub("", turn["text"])
        role = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if role:
            passages.append(Passage(role[1], text.removeprefix("\n")))
        elif turn["role"] == "documents":
            texts = re.split(r"(?:^|\n\n)Document \d+\n", text)[1:]
            passages += [Passage(str(index), text) for index, text in enumerate(texts)]
        else:
            messages.append(Message(turn["role"], text))
    for turn, spec in zip(behind, codec.spec.turns, strict=True):
        match = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if spec.role == "{document}" and match:
            passages.append(Passage(match[1], turn["text"].removeprefix("\n")))
    return JudgeInput(tuple(messages), tuple(passages), _arguments(codec, behind))


def _arguments(codec, turns):
    values = {}
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


def replayed(codec, request, results):
    """A completion that amounts to recorded results, for cases that kept no completion.

    Raises:
        UserError: the results speak of sentences that are none.
    """
    binding = codec.binding
    if binding.shape is Shape.SENTENCES:
        names = {new: old for old, new in _retained(codec.spec).items()}
        rows = []
        for row in results:
            kept = {str(binding.number): _numbered(request.sites, row["response_text"])}
            for name, value in row.items():
                if names.get(name, "") in ("f", "e"):
                    kept[names[name]] = value
            rows.append(kept)
        return Completion(json.dumps(rows))
    if binding.shape is Shape.CITATIONS:
        cited = {number: [] for number in range(len(request.sites))}
        for row in results:
            [text] = [
                value
                for name, value in row.items()
                if name.endswith("_text") and name != "response_text"
            ]
            [where] = [
                value for name, value in row.items() if name.endswith("_doc_id")
            ] or [None]
            passages = request.state.passages
            inside = [
                (number, site)
                for number, site in enumerate(request.sources)
                if where is None
                or (
                    site.passage is not None and passages[site.passage].id == str(where)
                )
            ]
            cited[_numbered(request.sites, row["response_text"])] += _run(inside, text)
        rows = [
            {str(binding.number): number, binding.value: numbers}
            for number, numbers in cited.items()
        ]
        return Completion(json.dumps(rows))
    raise UserError(f"{codec.spec.name}: no meaning known for its results")


def _retained(spec):
    for rule in spec.rules:
        if rule["type"] == "project" and isinstance(rule["retained_fields"], Mapping):
            return dict(rule["retained_fields"])
    return {}


def _numbered(places, text):
    return _run(list(enumerate(places)), text)[0]


def _run(places, text):
    """Numbers of the neighbouring sentences that make up a text."""
    words = text.split()
    for first in range(len(places)):
        joined = []
        for last in range(first, len(places)):
            joined += places[last][1].text.split()
            if joined == words:
                return [number for number, _ in places[first : last + 1]]
            if joined != words[: len(joined)]:
                break
    raise UserError(f"no sentences {text!r:.80}")


def booleans(spec, completion, ours, theirs):
    """Whether results differ only where upstream cannot match a boolean label, and ours is right there.

    Right is recomputed without our reading: the alternatives `true` and `false` at the token that was chosen.
    """
    labels = []
    for rule in spec.rules:
        if rule["type"] == "likelihood":
            labels += [label for label, _ in categories(rule)]
    words = ("true", "false")
    chosen = [
        token for token in completion.tokens or () if token.token.strip() in words
    ]
    boolean = labels and all(isinstance(label, bool) for label in labels)
    if not boolean or len(chosen) != 1:
        return False
    mass = {"true": 0.0, "false": 0.0}
    for text, logprob in chosen[0].top:
        if text.strip() in mass:
            mass[text.strip()] += math.exp(logprob)
    right = mass["true"] / (mass["true"] + mass["false"])
    return _differ_in_number(ours, theirs, right)


def _differ_in_number(ours, theirs, right):
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
