"""The systems that are compared, by name: baselines, and ours as policies. A name and a tokenizer become decoders."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from retrieval.checks import choice, whole
from selfrag.decoding.beam import decode
from selfrag.decoding.options import decode_options
from selfrag.decoding.policy import Decoding, check_names
from selfrag.decoding.reflectors import Critic
from selfrag.decoding.search_tags import PROFILES, Budget, Searcher, decode_tags
from selfrag.decoding.trace import decoding_dict
from selfrag.decoding.tree import Decoder
from selfrag.errors import DecodingError, UserError
from selfrag.evaluation.baselines import UNTUNED, FineTuned, Untuned
from selfrag.evaluation.items import Item, choices
from selfrag.evaluation.presets import Given, documents
from selfrag.evaluation.task import SET_BY_TASK, Task
from selfrag.plugins import names, registered
from selfrag.prompting import INSTRUCTION_LAYOUTS, Chat, Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.reflection.weights import Weights
from selfrag.tokenization import HFTextCodec


class System(Protocol):
    """One way of answering, bound to a model's tokenizer."""

    @property
    def cites_all(self) -> bool:
        """Whether its answers rest on every passage it was shown, because it makes no citations of its own."""

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Answer one item within the task's budget, from the item's passages."""

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides its answers, apart from the model, as plain values."""


@dataclass(frozen=True, slots=True)
class Reflective:
    """A model trained with reflection tokens."""

    prompting: Prompting  # codec, vocabulary and layout of the model
    decoding: Decoding  # the policy; the task sets segments and tokens, so that its budget holds
    cites_all: bool = False
    critics: tuple[Critic, ...] = ()  # the reflectors that the policy names; they run on the engine of the run

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Segment beam search, or option scoring with critique."""
        if item.options:
            surfaces = choices(item).surfaces
            chosen = decode_options(item.instruction, surfaces, self.prompting, self.decoding, passages=item.passages)
            return (yield from chosen)
        policy = self.policy(task)
        written = decode(item.instruction, self.prompting, policy, passages=item.passages, critics=self.critics)
        return (yield from written)

    def policy(self, task: Task) -> Decoding:
        """The policy within the task's budget."""
        tokens = min(self.decoding.segment_tokens, task.new_tokens)
        return replace(self.decoding, max_segments=task.segments, segment_tokens=tokens, answer_tokens=task.new_tokens)

    def as_dict(self) -> dict[str, Any]:
        """The policy."""
        settings = {k: v for k, v in decoding_dict(self.decoding).items() if k not in SET_BY_TASK}
        return {"kind": "reflective", "decoding": settings, "layout": self.prompting.layout.name}


@dataclass(frozen=True, slots=True)
class Searching:
    """A model that searches by writing tags. Its budget is its own: thoughts and queries are tokens too."""

    searcher: Searcher  # format, tokenizer and budget
    live: bool = False  # whether it searches by itself; else every search gets the item's passages
    cites_all: bool = False

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Turns and searches until it answers the bare question."""
        if item.options and not task.written:
            raise DecodingError("a model that searches by tags answers in words; it has no multiple choice")
        question = item.query or item.instruction
        return (yield from decode_tags(question, self.searcher, None if self.live else item.passages))

    def as_dict(self) -> dict[str, Any]:
        """Format and budget."""
        chat = self.searcher.chat
        return {
            "kind": "search tags",
            "profile": asdict(self.searcher.profile),
            "budget": asdict(self.searcher.budget),
            "chat": chat and chat.source,
            "searches": "by itself" if self.live else "the item's passages",
        }


def runnable(decoding: Decoding, given: Iterable[str]) -> Decoding:
    """The same policy, if a run of a checkpoint alone can keep to what was asked of it.

    Raises:
        UserError: a field that the task sets, or reflectors and gates, whose adapters a run does not load.
    """
    if budget := next((name for name in given if name in SET_BY_TASK), None):
        raise UserError(f"{budget} is the task's, so that all systems have one budget; segment_tokens can be set")
    if decoding.reflectors or decoding.gates:
        raise UserError("reflectors and gates need models of their own; scripts/eval_joining.py runs them")
    return decoding


Role = Literal["base", "finetuned", "sail", "selfrag"]

ROLES: dict[str, Role] = {
    "base": "base",
    "rag-1": "base",
    "rag-5": "base",
    "finetuned": "finetuned",
    "sail": "sail",
    "selfrag-always": "selfrag",
    "selfrag-adaptive": "selfrag",
    "selfrag-never": "selfrag",
}
"""Name of a system to which of the trained models it needs."""
AS_PUBLISHED = "selfrag"
"""Ours under the policy that a published task was run with; on files of users the same as `selfrag-adaptive`."""
BY_PROTOCOL: dict[str, Role] = {"rag": "base", "finetuned-rag": "finetuned"}
"""Baselines with as many passages as the protocol of a published task gives them; one on files of users."""
SYSTEMS: dict[str, Role] = {AS_PUBLISHED: "selfrag", **BY_PROTOCOL, **ROLES}
"""`ROLES` and the systems that no comparison needs twice."""
GROUP = "selfrag.systems"
"""Entry points of other packages: each names a function of a tokenizer and of settings that gives a `System`."""
_FINETUNED = {"finetuned": 0, "finetuned-rag": 1, "sail": 1}
_MODES: dict[str, Literal["adaptive", "always", "never"]] = {
    AS_PUBLISHED: "adaptive",
    "selfrag-always": "always",
    "selfrag-adaptive": "adaptive",
    "selfrag-never": "never",
}


def known_systems() -> dict[str, str]:
    """Name of each system to what it is, those of other packages last."""
    own = {
        AS_PUBLISHED: "segment beam search; a published task under its protocol's policy",
        **{f"selfrag-{mode}": f"segment beam search, retrieval {mode}" for mode in ("adaptive", "always", "never")},
        **{name: f"the chat template with {count} passages" for name, count in UNTUNED.items()},
        **{name: f"the training layout with {count} passages, no reflection" for name, count in _FINETUNED.items()},
        **dict.fromkeys(PROFILES, "a model that searches by tags, with a budget of its own"),
    }
    own |= {name: f"{own[name]}; a published task under its protocol's number" for name in BY_PROTOCOL}
    return {**own, **{name: "of another package" for name in names(GROUP) if name not in own}}


def named_system(name: str, tokenizer: Any, settings: Mapping[str, Any] | None = None, *, live: bool = False) -> System:
    """A system by its name.

    `settings` are fields to change: of `Decoding` for ours, of `Budget` for models that search by tags, else `passages`
    and `passage_tokens`; for untuned models also `layout`, one of `INSTRUCTION_LAYOUTS` in place of the chat template.
    `live` as `Searching.live`.

    Raises:
        UserError: unknown name or field, a value that is refused, or the tokenizer lacks reflection tokens.
    """
    given = dict(settings or {})
    codec = HFTextCodec(tokenizer)
    if name in UNTUNED:
        if tokenizer.eos_token_id is None:
            raise UserError("the tokenizer has no EOS token; set tokenizer.eos_token first")
        if (layout := given.pop("layout", None)) is not None:
            choice("layout", layout, tuple(INSTRUCTION_LAYOUTS))
        passages, longest = _counts(given, UNTUNED[name])
        chat = Chat.of(tokenizer, codec, layout=layout)
        return Untuned(codec, chat, int(tokenizer.eos_token_id), passages, longest)
    if name in PROFILES:
        return Searching(Searcher.of(tokenizer, name, Budget().changed(**given)), live)
    if name not in SYSTEMS:
        make = registered(GROUP, name)
        if make is None:
            raise UserError(f"unknown system {name!r}; known: {', '.join(known_systems())}")
        other: System = make(tokenizer, given)
        return other
    prompting = Prompting(codec, Vocabulary.from_tokenizer(tokenizer))
    if name in _FINETUNED:
        return FineTuned(prompting, *_counts(given, _FINETUNED[name]))
    check_names(given)
    return Reflective(prompting, runnable(replace(Decoding(mode=_MODES[name]), **given), given))


def system_of_task(
    name: str, tokenizer: Any, task: Task, settings: Mapping[str, Any] | None = None, *, live: bool = False
) -> System:
    """A system as the protocol of a published task has it; a system named after a mode keeps that mode.

    `settings` win over the protocol; `live` as in `named_system`.

    Raises:
        UserError: as `system`, or the preset is unknown.
    """
    given = Given.marked(Path(), task.preset)
    if given.preset is None or name not in {*_MODES, *BY_PROTOCOL}:
        return named_system(name, tokenizer, settings, live=live)
    if name in BY_PROTOCOL:
        published: dict[str, Any] = {"passages": documents(task)}
    else:
        published = given.preset.settings(given.protocol)
    if name != AS_PUBLISHED:
        published.pop("mode", None)
    return named_system(name, tokenizer, {**published, **(settings or {})})


def parse_settings(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """`["threshold=0.5", "weights=isrel=1,issup=2"]` as fields; values are numbers, names, True, False or None.

    Raises:
        UserError: a pair that is not KEY=VALUE.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{option} {pair}: give KEY=VALUE, such as threshold=0.5")
        if key == "weights":
            found[key] = Weights.parse(text)
            continue
        found[key] = parse_value(text)
    return found


def parse_value(text: str) -> Any:
    """A number or another literal, None, True or False in any case; other text as it is."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _counts(given: Mapping[str, Any], passages: int) -> tuple[int, int]:
    """How many passages, and the most tokens of one."""
    values = {"passages": passages, "passage_tokens": Decoding().passage_tokens}
    for key, value in given.items():
        if key not in values:
            raise UserError(f"unknown setting {key!r}; known: {', '.join(values)}")
        whole(key, value, 0 if key == "passages" else 1)
        values[key] = value
    return values["passages"], values["passage_tokens"]
