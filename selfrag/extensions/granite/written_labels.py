"""The label that a model wrote: as a value in JSON or as a bare word, with the probabilities of its tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from selfrag.interface import (
    Code,
    Completion,
    LabelLikelihood,
    ModelOutput,
    ModelRequest,
)
from selfrag.judges.lenient_json import JsonNode, JsonReading
from selfrag.judges.output import shown


def bare(request: ModelRequest, completion: Completion) -> ModelOutput:
    """Return the output of a dialect that asks for no JSON."""
    output = ModelOutput(request, completion, JsonReading(None, completion.text))
    if not completion.text.strip():
        output.say(Code.EMPTY, "the model wrote nothing")
    return output


def same(written: Any, label: Any) -> bool:
    """Return whether JSON values are equal and of one type, so that `true` is not 1."""
    return type(written) is type(label) and written == label


def position(written: Any, labels: Sequence[Any]) -> tuple[int | None, bool]:
    """Return which label was written, and whether exactly; case, white space and quotes around digits are forgiven."""
    for index, label in enumerate(labels):
        if same(written, label):
            return index, True
    loose = [
        index
        for index, label in enumerate(labels)
        if _folded(label) == _folded(written)
    ]
    return (loose[0], False) if len(loose) == 1 else (None, False)


def _folded(value: Any) -> str:
    return (
        (value if isinstance(value, str) else json.dumps(value, default=str))
        .strip()
        .casefold()
    )


def distribution(
    output: ModelOutput, node: JsonNode, labels: Sequence[Any], site: int | None
) -> LabelLikelihood | None:
    """Return the distribution over JSON values at a node; certain without log-probabilities, None if it is no label."""
    surfaces = [json.dumps(label, ensure_ascii=False) for label in labels]
    span = None if output.json.inner else (node.begin, node.end)
    written = node.value if node.complete else None
    return _distribution(output, written, labels, surfaces, span, site)


def word_distribution(
    output: ModelOutput, labels: Sequence[str]
) -> LabelLikelihood | None:
    """Return the same for a completion that is a label without JSON; what a model writes after it is ignored."""
    text = output.completion.text
    begin = len(text) - len(text.lstrip())
    word = text.strip()
    matching = [
        x
        for x in labels
        if word.startswith(x) and (x.isalpha() or word[len(x) : len(x) + 1].isspace())
    ]
    if word not in labels and len(matching) == 1:
        output.say(Code.RECOVERED, f"{shown(word)} taken as {matching[0]!r}")
        word = matching[0]
    return _distribution(output, word, labels, labels, (begin, begin + len(word)), None)


def _distribution(
    output: ModelOutput,
    written: Any,
    labels: Sequence[Any],
    surfaces: Sequence[str],
    span: tuple[int, int] | None,
    site: int | None,
) -> LabelLikelihood | None:
    index, exact = position(written, labels)
    if index is None:
        code = Code.EMPTY if written == "" else Code.UNKNOWN_LABEL
        output.say(
            code, f"{shown(written)} is none of {', '.join(map(shown, labels))}", site
        )
        return None
    if not exact:
        output.say(
            Code.RECOVERED, f"{shown(written)} taken as {shown(labels[index])}", site
        )
    tokens = output.completion.tokens
    if tokens and exact and span is not None and any(token.top for token in tokens):
        label_likelihood = LabelLikelihood.read(
            tokens, output.json.text, span, surfaces
        )
        if label_likelihood is not None:
            if label_likelihood.is_doubtful:
                output.say(
                    Code.LOW_COVERAGE,
                    f"only {label_likelihood.coverage:.2f} of the probability is on the labels",
                    site,
                )
            return label_likelihood
        output.say(
            Code.UNMATCHED,
            "the log-probabilities do not fit the text; the label is taken as certain",
            site,
        )
    elif output.request.top_logprobs:
        output.say(
            Code.NO_LOGPROBS,
            "a label without log-probabilities is taken as certain",
            site,
        )
    return LabelLikelihood.certain(index, len(labels))
