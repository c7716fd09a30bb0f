"""What a model returned, read once: its JSON, and the judgment at each label, from scores or from log-probabilities.

What a model wrote never raises: a label that cannot be read is None, and the diagnostics say why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from selfrag.common.untrusted import printable
from selfrag.judges.layout import is_word
from selfrag.judges.lenient_json import JsonPath, JsonReading, read
from selfrag.judges.wire import Completion, ModelRequest, TokenLogprob
from selfrag.reflection.findings import Code, Diagnostic, Finding
from selfrag.reflection.inputs import JudgeInput, Site
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import LabelSet

LITTLE = 0.5
"""Coverage under which a judgment is reported as doubtful."""


def slot_scores(
    request: ModelRequest, completion: Completion
) -> list[tuple[float, ...] | None]:
    """Return the scores of every slot; None where there are no log-probabilities of the slot's surfaces."""
    checked: list[tuple[float, ...] | None] = []
    for slot, scores in zip_longest(
        request.slots, completion.scores[: len(request.slots)]
    ):
        sound = scores is not None and _sound(scores, len(slot.surfaces))
        checked.append(scores if sound else None)
    return checked


def slot_judgment(
    labels: LabelSet,
    scores: Sequence[float] | None,
    site: Site,
    request: ModelRequest,
    number: int,
) -> tuple[Judgment | None, tuple[Diagnostic, ...]]:
    """Return the judgment of a slot by log-probabilities of its labels, None where undefined, with diagnostics."""
    if scores is None:
        return None, (Diagnostic(Code.MISSING, f"no probabilities for {site}", number),)
    certain = sum(value > -math.inf for value in scores) == 1 and max(scores) == 0.0
    source = _source_of(request, hard=certain)
    evidence = _evidence(request.state, site)
    judgment = Judgment.from_logprobs(
        labels, scores, site=str(site), source=source, evidence=evidence
    )
    if certain:
        return judgment, (
            Diagnostic(
                Code.NO_LOGPROBS, f"a label without probabilities for {site}", number
            ),
        )
    if judgment.coverage < LITTLE:
        message = f"only {judgment.coverage:.2g} of the probability is on the labels at {site}"
        return judgment, (Diagnostic(Code.LOW_COVERAGE, message, number),)
    return judgment, ()


def _source_of(request: ModelRequest, *, hard: bool) -> JudgmentSource:
    """Return who judged; a label without probabilities is `HARD`, whoever wrote it."""
    if hard:
        return JudgmentSource.HARD
    return JudgmentSource.ADAPTER if request.adapter else JudgmentSource.JUDGE


def _evidence(state: JudgeInput, site: Site) -> str | None:
    """Return the id of the passage that a site lies in, or of the only passage there is."""
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
class LabelLikelihood:
    """A distribution over labels that was read off generated tokens."""

    # probability of each label, in label order, summing to 1
    distribution: tuple[float, ...]
    coverage: float  # probability that was found on the labels before normalising
    hard: bool = False  # whether a written label was taken as certain, for want of log-probabilities

    @classmethod
    def certain(cls, index: int, size: int) -> LabelLikelihood:
        """Return all probability on one of `size` labels."""
        return cls(tuple(float(i == index) for i in range(size)), 1.0, hard=True)

    @classmethod
    def read(
        cls,
        tokens: Sequence[TokenLogprob],
        text: str,
        span: tuple[int, int],
        surfaces: Sequence[str],
    ) -> LabelLikelihood | None:
        """Return the distribution at the `span` of a label in `text`, quotes included, for servers that score no slots.

        From the place of the label on, the alternatives of each token are matched with the written forms of all labels
        (`surfaces`). One that fits one form counts for it. One that fits several is followed as far as the generated
        text goes. Probability that is lost on the way lowers the coverage. White space and empty tokens fit nothing;
        special tokens and reasoning before `text` do no harm. None if the tokens do not spell the text, or no label has
        any probability.
        """
        place = _token_at(tokens, text, span[0])
        if place is None:
            return None
        mass = [0.0] * len(surfaces)
        _walk(tokens, *place, dict(enumerate(surfaces)), mass)
        total = math.fsum(mass)
        if total <= 0.0:
            return None
        return cls(tuple([share / total for share in mass]), min(1.0, total))

    @property
    def is_doubtful(self) -> bool:
        """Return whether the labels together have little probability."""
        return self.coverage < LITTLE


def _token_at(
    tokens: Sequence[TokenLogprob], text: str, offset: int
) -> tuple[int, str] | None:
    """Return the index of the token that holds the character at `offset`, and the token's text before it."""
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
    tokens: Sequence[TokenLogprob],
    start: int,
    lead: str,
    forms: dict[int, str],
    mass: list[float],
) -> None:
    """Add to `mass` what the alternatives from token `start` on say about the labels.

    `lead` is the text of that token before the label, and `forms` is what is left to write of each label.
    """
    weight = 1.0  # probability of what was written so far
    for index in range(start, len(tokens)):
        token = tokens[index]
        top = token.top
        if all(text != token.token for text, _ in top):
            top = ((token.token, token.logprob), *top)
        following: dict[int, str] = {}
        following_weight = 0.0
        chosen = False
        for text, logprob in top:
            written = _after(text, lead) if index == start else text
            fitting = [
                label
                for label, form in forms.items()
                if written and _fits(written, form)
            ]
            probability = weight * math.exp(min(0.0, logprob))
            if len(fitting) == 1:
                mass[fitting[0]] += probability
            elif text == token.token and not chosen:
                following = {label: forms[label][len(written) :] for label in fitting}
                following_weight = probability
            chosen = chosen or text == token.token
        if not following:
            return
        forms = following
        weight = following_weight
    # The text ends here: what is written in full is the label.
    complete = [label for label, form in forms.items() if not form]
    if len(complete) == 1 and start < len(tokens):
        mass[complete[0]] += weight


def _after(text: str, lead: str) -> str:
    """Return what an alternative writes of the label, where the token that was chosen wrote `lead` before it."""
    if text.startswith(lead):
        return text[len(lead) :].lstrip(_BLANK)
    bare = "".join(lead.split())
    body = text.lstrip(_BLANK)
    return body[len(bare) :].lstrip(_BLANK) if body.startswith(bare) else ""


def _fits(written: str, form: str) -> bool:
    """Return whether a token that writes this may begin `form`, or may follow where nothing of it is left."""
    if len(written) < len(form) or written == form:
        return form.startswith(written)
    return written.startswith(form) and not (
        written[len(form)].isalnum() or written[len(form)] in "_.-"
    )


_SHOWN = 80


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a model wrote for a request, read once."""

    request: ModelRequest  # what was asked
    completion: Completion  # what came
    json: JsonReading  # the first JSON value in it
    # filled while it is being understood
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @classmethod
    def of(cls, request: ModelRequest, completion: Completion) -> ModelOutput:
        """Find the JSON of a completion, and say what is wrong with its form."""
        output = cls(request, completion, read(completion.text))
        if completion.finish == "length" and output.json.root is None:
            output.say(Code.TRUNCATED, "the output was cut off before any JSON")
        root = output.json.root
        if root is None:
            if completion.text.strip():
                output.say(Code.INVALID, f"no JSON in {shown(completion.text)}")
            else:
                output.say(Code.EMPTY, "the model wrote nothing")
        elif not root.complete:
            output.say(
                Code.TRUNCATED,
                f"the output breaks off or is damaged: ...{shown(completion.text[-40:])}",
            )
        elif output.json.extra:
            output.say(Code.RECOVERED, "there is text around the JSON")
        return output

    def say(self, code: Code, message: str, site: int | None = None) -> None:
        """Note a diagnostic, once."""
        note = Diagnostic(code, message, site)
        if note not in self.diagnostics:
            self.diagnostics.append(note)

    def judgment(
        self, labels: LabelSet, likelihood: LabelLikelihood, site: Site
    ) -> Judgment:
        """Return a distribution as a judgment."""
        source = _source_of(self.request, hard=likelihood.hard)
        evidence = _evidence(self.request.state, site)
        return Judgment(
            labels,
            str(site),
            likelihood.distribution,
            likelihood.coverage,
            source,
            evidence,
        )

    def read_text(self, path: JsonPath) -> str | None:
        """Return the text at a path of the JSON; None, with a diagnostic, where no whole text was written."""
        text = None
        if self.json.root is not None:
            for _, node in self.json.root.at(path):
                if isinstance(node.value, str) and node.value.strip() and node.complete:
                    text = node.value.strip()
        if text is None:
            self.say_missing(path)
        return text

    def say_missing(self, path: JsonPath) -> None:
        """Note that the JSON, if there is any, holds nothing at a path."""
        if self.json.root is not None:
            where = ".".join(map(str, path)) or "the top"
            self.say(
                Code.INVALID, f"nothing at {where} of {shown(self.json.root.value)}"
            )

    def text_finding(
        self,
        text: str | None,
        labels: LabelSet,
        site: Site,
        quiet: str | None,
    ) -> Finding:
        """Return a hard judgment on a text that was written; undefined without a text.

        The first label means that the quiet text was written or, where there is none, something else than the text at
        the site.
        """
        if text is None:
            return Finding(site, None)
        is_new = text.casefold().split() != site.text.casefold().split()
        first = is_new if quiet is None else is_word(text, quiet)
        return Finding(
            site,
            self.judgment(
                labels, LabelLikelihood.certain(int(not first), len(labels)), site
            ),
        )


def shown(value: object) -> str:
    """Return a value of the model for a message: short, printable, on one line."""
    if not isinstance(value, str):
        value = json.dumps(value, default=str)
    text = " ".join(printable(value).split())
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return repr(text)
