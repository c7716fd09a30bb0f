"""What a reply of a published adapter means (`Binding`): read as findings, scored as a slot, written for training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from selfrag.extensions.granite.numbering import number_of
from selfrag.extensions.granite.written_labels import (
    bare,
    distribution,
    word_distribution,
)
from selfrag.interface import (
    Citation,
    Code,
    Completion,
    Finding,
    Gold,
    LabelLikelihood,
    LabelSet,
    ModelOutput,
    ModelRequest,
    Reflection,
    Site,
    SiteKind,
    Slot,
    Target,
    Teachable,
    UserError,
    count_of,
)
from selfrag.judges.lenient_json import JsonNode, JsonPath
from selfrag.judges.output import (
    shown,
    slot_judgment,
    slot_scores,
)
from selfrag.judges.sentences import judged_site, merged
from selfrag.reflection.intrinsic_labels import CITED, in_set

ReplyFindings: TypeAlias = tuple[tuple[Finding, ...], str | None]
"""What a reply judges, and the text in it."""


class Shape(StrEnum):
    """What a reply looks like."""

    WORD = "word"  # one label, bare
    LABEL = "label"  # one label inside JSON
    SENTENCES = "sentences"  # a label for each numbered sentence
    CITATIONS = "citations"  # numbers of sources for each numbered sentence
    TEXT = "text"  # a text inside JSON
    FREE = "free"  # whatever the model says


@dataclass(frozen=True, slots=True)
class Binding:
    """How one reply is read."""

    intrinsic: str  # name of the intrinsic
    shape: Shape  # what the reply looks like
    # the labels; for texts, whether something was written (see `quiet`); None where nothing is judged
    labels: LabelSet | None = None
    written: tuple[
        Any, ...
    ] = ()  # each label as a JSON value, in label order; its token by default
    path: JsonPath = ()  # to the label or the text
    scope: SiteKind = SiteKind.QUERY  # what is judged
    # field of the sentence's number; None if records are `{"<r0>": ...}`
    number: str | None = None
    value: str = ""  # field of the label or the sources in a record
    note: str | None = None  # field of the model's explanation
    note_first: bool = False  # whether the explanation comes before the label
    quiet: str | None = None  # a text that stands for no text (`CLEAR`, `none`)
    fenced: bool = False  # the JSON stands in a code fence
    doubled: bool = False  # the JSON stands in a JSON string
    ranked: bool = False  # sources come in order of importance and are not merged
    # arguments of the template that a caller may leave out
    defaults: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.labels is None or self.shape not in (
            Shape.WORD,
            Shape.LABEL,
            Shape.SENTENCES,
        ):
            return
        if not self.written:
            object.__setattr__(self, "written", self.labels.tokens)
        if len(self.written) != len(self.labels):
            raise ValueError(
                f"{self.intrinsic}: {count_of(len(self.written), 'written forms')} for"
                f" {count_of(len(self.labels), 'labels')}"
            )


class BoundCodec(Teachable):
    """What codecs have in common whose replies are read and taught by a binding."""

    binding: Binding
    intrinsic = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "intrinsic", self.binding.intrinsic)

    def decode(self, request: ModelRequest, completion: Completion) -> Reflection:
        """Return the scores of the request's slot where it has one, else what was written."""
        binding = self.binding
        is_bare = binding.shape in (Shape.WORD, Shape.FREE)
        output = (bare if is_bare else ModelOutput.of)(request, completion)
        if request.slots and binding.labels is not None:
            (target,), (scores,) = request.slots, slot_scores(request, completion)
            site = target.site
            verdict, notes = slot_judgment(binding.labels, scores, site, request, 0)
            judged = (Finding(site, verdict),)
            return Reflection(request.state, judged, None, completion.text, notes)
        findings, text = _READ[binding.shape](binding, output)
        return Reflection(
            request.state, findings, text, completion.text, tuple(output.diagnostics)
        )

    def teach(self, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
        """Return what a perfect model replies; gold that does not fit is refused."""
        return targets(self.binding, request, gold)


def _word(binding: Binding, output: ModelOutput) -> ReplyFindings:
    site = judged_site(binding.scope, output.request.state)
    likelihood = word_distribution(output, binding.written)
    return (_finding(binding, output, likelihood, site),), None


def _finding(
    binding: Binding,
    output: ModelOutput,
    likelihood: LabelLikelihood | None,
    site: Site,
    note: str | None = None,
) -> Finding:
    if likelihood is None or binding.labels is None:
        return Finding(site, None, explanation=note)
    return Finding(
        site, output.judgment(binding.labels, likelihood, site), explanation=note
    )


def _label(binding: Binding, output: ModelOutput) -> ReplyFindings:
    site = judged_site(binding.scope, output.request.state)
    root = output.json.root
    for path, node in root.at(binding.path) if root is not None else ():
        likelihood = distribution(output, node, binding.written, None)
        note = None
        if binding.note and path:
            note = _text_of(root, (*path[:-1], binding.note))
        return (_finding(binding, output, likelihood, site, note),), None
    output.say_missing(binding.path)
    return (Finding(site, None),), None


def _records(
    binding: Binding, output: ModelOutput
) -> Iterator[tuple[int, JsonNode | None, str | None]]:
    """Yield number, value and note of each known sentence; of several records the first."""
    seen: set[int] = set()
    for raw, value, note in _raw_records(binding, output):
        number = number_of(raw)
        if number is None or not 0 <= number < len(output.request.sites):
            output.say(
                Code.OUT_OF_RANGE,
                f"{shown(raw)} names no sentence of {len(output.request.sites)}",
            )
        elif number in seen:
            output.say(
                Code.DUPLICATE,
                f"sentence {number} came twice; the first counts",
                number,
            )
        else:
            seen.add(number)
            yield number, value, note


def _raw_records(
    binding: Binding, output: ModelOutput
) -> Iterator[tuple[Any, JsonNode | None, str | None]]:
    root = output.json.root
    if root is None:
        return
    by_name = binding.number is None
    if (root.members if by_name else root.items) is None:
        kind = "an object" if by_name else "a list"
        output.say(Code.INVALID, f"{kind} was asked for, not {shown(root.value)}")
    if by_name:
        yield from ((key, node, None) for key, node in (root.members or {}).items())
        return
    for item in root.items if root.items is not None else (root,):
        members = item.members or {}
        if binding.number in members:
            note = _text_of(item, (binding.note,)) if binding.note else None
            yield members[binding.number].value, members.get(binding.value), note
        elif item.complete:
            output.say(
                Code.INVALID, f"{shown(item.value)} has no field {binding.number!r}"
            )


def _text_of(node: JsonNode | None, path: tuple[Any, ...]) -> str | None:
    for _, child in node.at(path) if node is not None else ():
        return child.value if isinstance(child.value, str) else None
    return None


def _sentences(binding: Binding, output: ModelOutput) -> ReplyFindings:
    findings: dict[int, Finding] = {}
    for number, value, note in _records(binding, output):
        likelihood = None
        if value is not None:
            likelihood = distribution(output, value, binding.written, number)
        else:
            output.say(Code.INVALID, f"sentence {number} has no label", number)
        findings[number] = _finding(
            binding, output, likelihood, output.request.sites[number], note
        )
    return _in_order(output, findings), None


def _in_order(output: ModelOutput, findings: dict[int, Finding]) -> tuple[Finding, ...]:
    for number, site in enumerate(output.request.sites):
        if number not in findings:
            output.say(Code.MISSING, f"sentence {number} was left out", number)
            findings[number] = Finding(site, None)
    return tuple(findings[number] for number in sorted(findings))


def _citations(binding: Binding, output: ModelOutput) -> ReplyFindings:
    findings: dict[int, Finding] = {}
    for number, value, _ in _records(binding, output):
        site = output.request.sites[number]
        if value is None or value.items is None:
            output.say(
                Code.INVALID, f"sentence {number} has no list of sources", number
            )
            continue
        cited = _sources(output, value.value, number)
        if not cited and value.value:
            findings[number] = Finding(site, None)  # it cites, but nothing that exists
            continue
        if not binding.ranked:
            cited = list(merged(output.request.state, cited))
        verdict = output.judgment(
            CITED, LabelLikelihood.certain(0 if cited else 1, len(CITED)), site
        )
        findings[number] = Finding(
            site, verdict, tuple(Citation(source) for source in cited)
        )
    return _in_order(output, findings), None


def _sources(output: ModelOutput, numbers: Sequence[Any], sentence: int) -> list[Site]:
    """Return the sources that exist, each once, in the order they came."""
    places = output.request.sources
    sites: dict[int, Site] = {}
    for raw in numbers:
        number = number_of(raw)
        if number is None or not 0 <= number < len(places):
            there = f"there are {len(places)}" if places else "there are none"
            output.say(
                Code.OUT_OF_RANGE,
                f"source {shown(raw)} does not exist; {there}",
                sentence,
            )
        elif number in sites:
            output.say(Code.DUPLICATE, f"source {number} came twice", sentence)
        else:
            sites[number] = places[number]
    return list(sites.values())


def _text(binding: Binding, output: ModelOutput) -> ReplyFindings:
    text = output.read_text(binding.path)
    if binding.labels is None:
        return (), text
    site = judged_site(binding.scope, output.request.state)
    return (output.text_finding(text, binding.labels, site, binding.quiet),), text


def _free(binding: Binding, output: ModelOutput) -> ReplyFindings:
    return (), output.completion.text


_READ = {
    Shape.WORD: _word,
    Shape.LABEL: _label,
    Shape.SENTENCES: _sentences,
    Shape.CITATIONS: _citations,
    Shape.TEXT: _text,
    Shape.FREE: _free,
}


TOP_LOGPROBS = 10
"""Alternatives asked for where a label stands in the middle of generated text."""


def with_scores(
    binding: Binding, schema: Mapping[str, Any] | None, request: ModelRequest
) -> ModelRequest:
    """Return the request with its label as a slot, or else with log-probabilities of what is generated."""
    if binding.labels is None or not binding.written:
        return request
    site = judged_site(binding.scope, request.state)
    label_slot = slot(binding, schema, site)
    if label_slot is None:
        return replace(request, top_logprobs=TOP_LOGPROBS)
    return replace(
        request,
        slots=(label_slot,),
        sites=(site,),
        max_tokens=0,
        constraint=None,
        top_logprobs=0,
    )


def slot(binding: Binding, schema: Mapping[str, Any] | None, site: Site) -> Slot | None:
    """Return the slot of a reply whose first free choice is the label; None if something else is written before it."""
    if binding.shape is Shape.WORD:
        return Slot(tuple(map(str, binding.written)), site)
    if (
        binding.shape is not Shape.LABEL
        or len(binding.path) > 1
        or binding.note is not None
    ):
        return None
    prefill = ""
    if path := list(binding.path):
        if schema is not None and list(schema.get("properties", {})) != path:
            return None
        opening = "```json\n{\n    " if binding.fenced else "{"
        prefill = f"{opening}{json.dumps(path[0])}: "
    forms = [json.dumps(form, ensure_ascii=False) for form in binding.written]
    if all(isinstance(form, str) for form in binding.written):
        return Slot(tuple(form[1:] for form in forms), site, f'{prefill}"')
    return Slot(tuple(forms), site, prefill)


def reply(binding: Binding, index: int) -> str:
    """Return what a model that writes label `index` replies."""
    form = binding.written[index]
    if binding.shape is Shape.WORD:
        return str(form)
    return json.dumps(_nested(binding, form), ensure_ascii=False)


def targets(binding: Binding, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
    """Return the training targets of a request; decoding them gives the gold back. Gold that does not fit is refused.

    Explanations are left empty: nobody wrote them down. A reply speaks of all sentences, so one unknown sentence leaves
    nothing to teach.
    """
    if binding.shape in (Shape.WORD, Shape.LABEL):
        return _label_targets(binding, request, gold)
    if binding.shape in (Shape.SENTENCES, Shape.CITATIONS):
        return _sentence_targets(binding, request, gold)
    if gold.text is None or not gold.text.strip():
        raise UserError(f"{binding.intrinsic}: the gold has no text")
    if binding.shape is Shape.FREE:
        return (Target("", gold.text),)
    return (Target("", _json(binding, _nested(binding, gold.text.strip()))),)


def _nested(binding: Binding, value: Any) -> Any:
    """Return an object with a value at the binding's place."""
    for key in reversed(binding.path):
        value = {key: value}
    return value


def _json(binding: Binding, value: Any) -> str:
    if binding.fenced:
        return f"```json\n{json.dumps(value, ensure_ascii=False, indent=4)}\n```"
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if binding.doubled else text


def _label_targets(
    binding: Binding, request: ModelRequest, gold: Gold
) -> tuple[Target, ...]:
    if len(gold.labels) != 1 or binding.labels is None:
        raise UserError(
            f"{binding.intrinsic}: {count_of(len(gold.labels), 'gold labels')} where one is needed"
        )
    if gold.labels[0] is None:
        return ()
    index = binding.labels.index(gold.labels[0])
    if request.slots:
        (slot,) = request.slots
        return (Target(slot.prefill, slot.surfaces[index]),)
    if binding.note is not None:
        raise UserError(
            f"{binding.intrinsic}: its reply explains itself first, and the gold has no explanation"
        )
    return (Target("", reply(binding, index)),)


def _sentence_targets(
    binding: Binding, request: ModelRequest, gold: Gold
) -> tuple[Target, ...]:
    """Return one reply about all numbered sentences: the label of each, or the numbers of its sources."""
    citing = binding.shape is Shape.CITATIONS
    known: Sequence[Any] = gold.sources if citing else gold.labels
    if len(known) != len(request.sites) or (binding.labels is None and not citing):
        kind = "lists" if citing else "labels"
        raise UserError(
            f"{binding.intrinsic}: {len(known)} gold {kind} for {count_of(len(request.sites), 'sentences')}"
        )
    labels = None if citing else binding.labels
    if labels is not None:
        known = [
            None if label is None else in_set(labels, str(label)) for label in known
        ]
    if not known or any(numbers is None for numbers in known):
        return ()
    for cited in known if citing else ():
        if any(not 0 <= index < len(request.sources) for index in cited):
            raise UserError(
                f"{binding.intrinsic}: gold {list(cited)} outside of {count_of(len(request.sources), 'sources')}"
            )
    if labels is not None:
        known = [binding.written[labels.index(str(label))] for label in known]
    if binding.number is not None:
        records = [_record(binding, *pair) for pair in enumerate(known)]
        return (Target("", _json(binding, records)),)
    forms = {}
    for number, form in enumerate(known):
        if citing:
            form = [f"<c{index}>" for index in form]
        forms[f"<r{number}>"] = form
    return (Target("", _json(binding, forms)),)


def _record(binding: Binding, number: int, form: Any) -> dict[str, Any]:
    note = {} if binding.note is None else {binding.note: ""}
    first = note if binding.note_first else {}
    return {str(binding.number): number, **first, binding.value: form, **note}
