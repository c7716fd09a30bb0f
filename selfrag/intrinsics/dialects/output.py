"""What a model returned, read once: its JSON, and the judgment at each label, from scores or from log-probabilities.

What a model wrote never raises: a label that cannot be read is None, and the diagnostics say why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selfrag.common.untrusted import printable
from selfrag.intrinsics.contract import Code, Completion, Diagnostic, Request, TokenLogprob
from selfrag.intrinsics.dialects.lenient_json import Node, Reading, read
from selfrag.intrinsics.state import Site, State
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import LabelSet

LITTLE = 0.5
"""Coverage under which a judgment is reported as doubtful."""


def slot_scores(request: Request, completion: Completion) -> list[tuple[float, ...] | None]:
    """Scores of every slot; None where there are none or they are no log-probabilities of the slot's surfaces."""
    given = [*completion.scores, *[None] * len(request.slots)]
    return [
        scores if scores is not None and _sound(scores, len(slot.surfaces)) else None
        for slot, scores in zip(request.slots, given, strict=False)
    ]


def slot_judgment(
    labels: LabelSet, scores: Sequence[float] | None, site: Site, request: Request, number: int
) -> tuple[Judgment | None, tuple[Diagnostic, ...]]:
    """The judgment of a slot by log-probabilities of its labels, None where undefined, and what to know about it."""
    if scores is None:
        return None, (Diagnostic(Code.MISSING, f"no probabilities for {site}", number),)
    certain = sum(value > -math.inf for value in scores) == 1 and max(scores) == 0.0
    source = Source.HARD if certain else Source.JUDGE if request.adapter is None else Source.ADAPTER
    judgment = Judgment.from_logprobs(
        labels, scores, site=str(site), source=source, evidence=_evidence(request.state, site)
    )
    if certain:
        return judgment, (Diagnostic(Code.NO_LOGPROBS, f"a label without probabilities for {site}", number),)
    if judgment.coverage < LITTLE:
        message = f"only {judgment.coverage:.2g} of the probability is on the labels at {site}"
        return judgment, (Diagnostic(Code.LOW_COVERAGE, message, number),)
    return judgment, ()


def _evidence(state: State, site: Site) -> str | None:
    """Id of the passage that a site lies in, or of the only passage there is."""
    if site.passage is not None:
        return state.passages[site.passage].id
    return state.passages[0].id if len(state.passages) == 1 else None


def _sound(scores: Sequence[float], count: int) -> bool:
    return (
        len(scores) == count
        and not any(math.isnan(value) or value > 1e-3 for value in scores)
        and max(scores) > -math.inf
    )


_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A distribution over labels that was read off generated tokens."""

    distribution: tuple[float, ...]  # probability of each label, in label order, summing to 1
    coverage: float  # probability that was found on the labels before normalising
    hard: bool = False  # whether a written label was taken as certain, for want of log-probabilities


def certain(index: int, size: int) -> Likelihood:
    """All probability on one of `size` labels."""
    return Likelihood(tuple(float(i == index) for i in range(size)), 1.0, hard=True)


def likelihood(
    tokens: Sequence[TokenLogprob], text: str, span: tuple[int, int], surfaces: Sequence[str]
) -> Likelihood | None:
    """The distribution at the `span` of a written label in `text`, quotes included, for servers that score no slots.

    From the place of the label on, the alternatives of each token are matched with the written forms of all labels
    (`surfaces`). One that fits one form counts for it. One that fits several is followed as far as the generated text
    goes. Probability that is lost on the way lowers the coverage. White space and empty tokens fit nothing; special
    tokens and reasoning before `text` do no harm. None if the tokens do not spell the text, or no label has any
    probability.
    """
    found = _token_at(tokens, text, span[0])
    if found is None:
        return None
    index, lead = found
    mass = [0.0] * len(surfaces)
    _walk(tokens, index, lead, dict(enumerate(surfaces)), 1.0, mass)
    total = math.fsum(mass)
    if total <= 0.0:
        return None
    return Likelihood(tuple(m / total for m in mass), min(1.0, total))


def _token_at(tokens: Sequence[TokenLogprob], text: str, offset: int) -> tuple[int, str] | None:
    """Index of the token that holds the character at `offset`, and the text of that token before it."""
    spelled = "".join(token.token for token in tokens)
    start = spelled.rfind(text)
    if start < 0 or not text:
        return None
    position = 0
    for index, token in enumerate(tokens):
        end = position + len(token.token)
        if position <= start + offset < end:
            return index, token.token[: start + offset - position]
        position = end
    return None


def _walk(
    tokens: Sequence[TokenLogprob], index: int, lead: str, forms: dict[int, str], weight: float, mass: list[float]
) -> None:
    """Add to `mass` what the alternatives at `index` say about the labels whose rest is in `forms`."""
    first = True
    while index < len(tokens):
        token = tokens[index]
        following: tuple[dict[int, str], float] | None = None
        chosen = False
        top = token.top if any(t == token.token for t, _ in token.top) else ((token.token, token.logprob), *token.top)
        for text, logprob in top:
            rest = _after(text, lead) if first else text
            fitting = [label for label, form in forms.items() if rest and _fits(rest, form)]
            probability = weight * math.exp(min(0.0, logprob))
            if len(fitting) == 1:
                mass[fitting[0]] += probability
            elif text == token.token and not chosen:
                following = ({label: forms[label][len(rest) :] for label in fitting}, probability)
            chosen = chosen or text == token.token
        if following is None or not following[0]:
            return
        forms, weight = following
        index, first = index + 1, False
    # The text ends here: what is written whole is the label.
    whole = [label for label, form in forms.items() if not form]
    if len(whole) == 1 and not first:
        mass[whole[0]] += weight


def _after(text: str, lead: str) -> str:
    """What an alternative writes of the label, where the token that was chosen wrote `lead` before it."""
    if text.startswith(lead):
        return text[len(lead) :].lstrip(_BLANK)
    bare = "".join(lead.split())
    body = text.lstrip(_BLANK)
    return body[len(bare) :].lstrip(_BLANK) if body.startswith(bare) else ""


def _fits(rest: str, form: str) -> bool:
    """Whether a token that writes `rest` may begin `form`, or may follow where nothing of it is left to write."""
    if len(rest) < len(form) or rest == form:
        return form.startswith(rest)
    return rest.startswith(form) and not (rest[len(form)].isalnum() or rest[len(form)] in "_.-")


_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Output:
    """What a model wrote for a request, read once."""

    request: Request  # what was asked
    completion: Completion  # what came
    json: Reading  # the first JSON value in it
    diagnostics: list[Diagnostic] = field(default_factory=list)  # filled while it is being understood

    def say(self, code: Code, message: str, site: int | None = None) -> None:
        """Note a diagnostic, once."""
        note = Diagnostic(code, message, site)
        if note not in self.diagnostics:
            self.diagnostics.append(note)


def understand(request: Request, completion: Completion) -> Output:
    """Find the JSON of a completion, and say what is wrong with its form."""
    output = Output(request, completion, read(completion.text))
    if completion.finish == "length" and output.json.root is None:
        output.say(Code.TRUNCATED, "the output was cut off before any JSON")
    root = output.json.root
    if root is None:
        if completion.text.strip():
            output.say(Code.INVALID, f"no JSON in {shown(completion.text)}")
        else:
            output.say(Code.EMPTY, "the model wrote nothing")
    elif not root.complete:
        output.say(Code.TRUNCATED, f"the output breaks off or is damaged: ...{shown(completion.text[-40:])}")
    elif output.json.extra:
        output.say(Code.RECOVERED, "there is text around the JSON")
    return output


def bare(request: Request, completion: Completion) -> Output:
    """The output of a dialect that asks for no JSON."""
    output = Output(request, completion, Reading(None, completion.text))
    if not completion.text.strip():
        output.say(Code.EMPTY, "the model wrote nothing")
    return output


def shown(value: object) -> str:
    """A value of the model for a message: short, printable, on one line."""
    text = " ".join(printable(value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def same(written: Any, label: Any) -> bool:
    """Whether JSON values are equal and of one type, so that `true` is not 1."""
    return type(written) is type(label) and written == label


def position(written: Any, labels: Sequence[Any]) -> tuple[int | None, bool]:
    """Which label was written, and whether exactly so; case, white space and quotes around digits are forgiven."""
    for index, label in enumerate(labels):
        if same(written, label):
            return index, True
    loose = [index for index, label in enumerate(labels) if _folded(label) == _folded(written)]
    return (loose[0], False) if len(loose) == 1 else (None, False)


def _folded(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str)).strip().casefold()


def distribution(output: Output, node: Node, labels: Sequence[Any], site: int | None) -> Likelihood | None:
    """The distribution over JSON values at a node; certain without log-probabilities, None if it is no label."""
    surfaces = [json.dumps(label, ensure_ascii=False) for label in labels]
    span = None if output.json.inner else (node.begin, node.end)
    written = node.value if node.complete else None
    return _distribution(output, written, labels, surfaces, span, site)


def word_distribution(output: Output, labels: Sequence[str]) -> Likelihood | None:
    """The same for a completion that is nothing but a label, without JSON; what a model writes after it is ignored."""
    text = output.completion.text
    begin = len(text) - len(text.lstrip())
    word = text.strip()
    begun = [x for x in labels if word.startswith(x) and (x.isalpha() or word[len(x) : len(x) + 1].isspace())]
    if word not in labels and len(begun) == 1:
        output.say(Code.RECOVERED, f"{shown(word)} taken as {begun[0]!r}")
        word = begun[0]
    return _distribution(output, word, labels, labels, (begin, begin + len(word)), None)


def _distribution(
    output: Output,
    written: Any,
    labels: Sequence[Any],
    surfaces: Sequence[str],
    span: tuple[int, int] | None,
    site: int | None,
) -> Likelihood | None:
    index, exact = position(written, labels)
    if index is None:
        code = Code.EMPTY if written == "" else Code.UNKNOWN_LABEL
        output.say(code, f"{shown(written)} is none of {', '.join(map(shown, labels))}", site)
        return None
    if not exact:
        output.say(Code.RECOVERED, f"{shown(written)} taken as {shown(labels[index])}", site)
    tokens = output.completion.tokens
    if tokens and exact and span is not None and any(token.top for token in tokens):
        found = likelihood(tokens, output.json.text, span, surfaces)
        if found is not None:
            if found.coverage < LITTLE:
                output.say(Code.LOW_COVERAGE, f"only {found.coverage:.2f} of the probability is on the labels", site)
            return found
        output.say(Code.UNMATCHED, "the log-probabilities do not fit the text; the label is taken as certain", site)
    elif output.request.top_logprobs:
        output.say(Code.NO_LOGPROBS, "a label without log-probabilities is taken as certain", site)
    return certain(index, len(labels))


def judgment(output: Output, labels: LabelSet, found: Likelihood, site: Site) -> Judgment:
    """A distribution as a judgment."""
    source = Source.HARD if found.hard else Source.ADAPTER if output.request.adapter else Source.JUDGE
    return Judgment(
        labels, str(site), found.distribution, found.coverage, source, _evidence(output.request.state, site)
    )
