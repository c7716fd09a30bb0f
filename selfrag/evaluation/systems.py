"""The systems that are compared, by name: baselines, and ours as policies. A name and a tokenizer become decoders.

An OpenAI-compatible endpoint, such as ChatGPT and Ret-ChatGPT of the Self-RAG paper (4.2), takes texts and gives texts:
prompts have the words of the other untuned baselines, in one user turn, and multiple choice is written, since no
endpoint scores options exactly.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from retrieval.passage import Passage
from selfrag.common.checks import check_choice, check_int, parse_settings
from selfrag.common.errors import DecodingError, UserError, count_of
from selfrag.common.plugins import names, registered
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.beam import decode
from selfrag.decoding.option_scoring import normalised, option_logprobs, option_requests
from selfrag.decoding.options import decode_options
from selfrag.decoding.policy import Decoding, check_names
from selfrag.decoding.segments import geometric_mean
from selfrag.decoding.token_writer import DecodingModel
from selfrag.decoding.trace import ROOT, Decision, Node, Status, Trace, decoding_dict
from selfrag.decoding.tree import Decoder, RequestBatch
from selfrag.evaluation.items import Item, choices
from selfrag.evaluation.presets import Given, documents
from selfrag.evaluation.released import cited_as_released
from selfrag.evaluation.task import SET_BY_TASK, Task
from selfrag.intrinsics.flows import ChatWriter, Flow, Write
from selfrag.intrinsics.flows.progress import FlowProgress
from selfrag.judges.chat_model import ChatModel, model_of
from selfrag.judges.wire import ChatPrompt, Executor, ModelRequest
from selfrag.prompting import INSTRUCTION_LAYOUTS, Chat, Prompting, passage_ids
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.requests import (
    Failed,
    Finish,
    Generate,
    Generated,
    RequestResult,
    TokenIds,
    ask,
)
from selfrag.reflection.weights import Weights
from selfrag.tokenization import HFTextCodec, TextCodec


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """What the model reads before it answers."""

    question: str  # as asked, for the answer
    ids: TokenIds  # the whole prompt
    passages: tuple[Passage, ...] = ()  # the evidence in it, in order
    dropped_tokens: int = 0  # tokens of passages that were cut


def write(prompt: SystemPrompt, codec: TextCodec, max_tokens: int) -> Decoder:
    """Write one greedy answer.

    Raises:
        DecodingError: the engine refused the prompt.
    """
    (result,) = yield from ask([Generate(prompt.ids, max_tokens)])
    if isinstance(result, Failed):
        raise DecodingError(f"no answer could be generated: {result.reason}")
    ids = result.token_ids
    if result.finish is Finish.EOS:
        ids = ids[:-1]
    node = _node(prompt, 0, codec.decode(ids), ids)
    node.finish = str(result.finish)
    node.likelihood = geometric_mean(result.token_logprobs)
    node.score = node.path_score = node.likelihood
    return _answer(prompt, [node], 0, max_tokens)


def choose(
    prompt: SystemPrompt, codec: TextCodec, options: Sequence[str], eos_id: int
) -> Decoder:
    """Choose the most probable of `options` after the prompt, by exact probability.

    `options` are as the model would write them, and `eos_id` ends one that another one continues from.
    """
    encoded = [tuple(codec.encode(option)) for option in options]
    requests = option_requests(prompt.ids, encoded, (eos_id,))
    results = yield from _all(requests)
    logprobs = option_logprobs(requests, results, prompt.ids, encoded, (eos_id,))
    nodes: list[Node] = []
    probabilities = normalised(logprobs, options, encoded)
    for option, ids, probability in zip(options, encoded, probabilities, strict=True):
        node = _node(prompt, len(nodes), option, ids)
        node.finish, node.status = "option", Status.PRUNED
        node.likelihood = node.score = node.path_score = probability
        nodes.append(node)
    best = probabilities.index(max(probabilities))
    nodes[best].status = Status.FINISHED
    return _answer(prompt, nodes, best, 1, tuple(options))


def _all(
    requests: list[Generate],
) -> Generator[RequestBatch, list[RequestResult], list[Generated]]:
    scored = []
    for result in (yield from ask(requests)):
        if isinstance(result, Failed):
            raise DecodingError(f"no option could be scored: {result.reason}")
        scored.append(result)
    return scored


def _node(prompt: SystemPrompt, number: int, text: str, ids: TokenIds) -> Node:
    passage = prompt.passages[0] if len(prompt.passages) == 1 else None
    node = Node(
        number, ROOT, 1, "passage" if passage else "none", passage, text, ids, ids
    )
    node.ended = True
    node.status = Status.FINISHED
    node.dropped_tokens = prompt.dropped_tokens
    return node


def _answer(
    prompt: SystemPrompt,
    nodes: list[Node],
    best: int,
    max_tokens: int,
    options: tuple[str, ...] = (),
) -> Answer:
    reads = bool(prompt.passages)
    decision = Decision(
        ROOT,
        "retrieve" if reads else "write",
        "as the system does",
        passages=prompt.passages,
    )
    policy = Decoding(
        mode="always" if reads else "never",
        passages=max(1, len(prompt.passages)),
        max_segments=1,
        segment_tokens=max_tokens,
        beam=1,
        without_evidence=PROTOCOL,
    )
    trace = Trace(prompt.question, policy, tuple(nodes), (decision,), best, options)
    text, segments = segments_of(trace, best)
    return Answer(prompt.question, text, segments, Usage(), trace)


def _answered(
    item: Item, task: Task, prompt: SystemPrompt, codec: TextCodec, eos_id: int
) -> Decoder:
    """Write one greedy answer, or choose the most probable option where the task has them scored."""
    if item.options and not task.written:
        return (yield from choose(prompt, codec, choices(item).surfaces, eos_id))
    return (yield from write(prompt, codec, task.new_tokens))


def _hint(item: Item, task: Task) -> str:
    return task.hint.format(
        choices=", ".join(choices(item).surfaces if item.options else ())
    )


PASSAGES = "Use these passages to answer the question.\n\n"
QUESTION = "Question: "


UNTUNED = {"base": 0, "rag": 1, "rag-1": 1, "rag-5": 5}
"""Passages that an untuned baseline reads, by its name; `rag` has the number of a published task's protocol."""


@dataclass(frozen=True, slots=True)
class Untuned:
    """A model without reflection tokens, which reads the first `passages` of the item, numbered, before the question.

    Either a base model in its chat template, or one that was fine-tuned on plain pairs, in the layout of its rows.
    """

    codec: TextCodec  # safe tokenisation
    chat: Chat  # the model's chat template
    eos_id: int  # ends an answer
    passages: int  # how many; 0 asks the model alone
    passage_tokens: int = 256  # a passage is cut here
    # whether the hint of a task is said; rows of training have none
    is_told: bool = True
    cites_all: bool = True

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Write one greedy answer, or choose an option."""
        hint = _hint(item, task) if self.is_told else ""
        prompt = self.prompt(item, hint, bare=not hint)
        return (yield from _answered(item, task, prompt, self.codec, self.eos_id))

    def prompt(self, item: Item, hint: str = "", *, bare: bool = False) -> SystemPrompt:
        """Return numbered passages, the question, the hint if any; `bare` adds no word to passages and question."""
        used = item.passages[: self.passages]
        ids = [*self.chat.before]
        dropped = 0
        text = item.instruction
        if used and not bare:
            ids += self.codec.encode(PASSAGES)
            text = f"{QUESTION}{text}"
        if hint:
            text += f"\n\n{hint}"
        for number, passage in enumerate(used, 1):
            body, cut = passage_ids(self.codec, passage, self.passage_tokens)
            ids += [
                *self.codec.encode(f"[{number}] "),
                *body,
                *self.codec.encode("\n\n"),
            ]
            dropped += cut
        ids += [*self.codec.encode(text), *self.chat.after]
        return SystemPrompt(item.instruction, tuple(ids), used, dropped)

    def as_dict(self) -> dict[str, Any]:
        """Return settings and the texts of the prompt."""
        return {
            "kind": "untuned" if self.is_told else "finetuned",
            "passages": self.passages,
            "passage_tokens": self.passage_tokens,
            "chat": self.chat.source,
            "prompt": [PASSAGES, QUESTION],
        }


@dataclass(frozen=True, slots=True)
class _Worded(ChatWriter):
    """Writes from a prompt that is given as it is."""

    prompt: str = ""

    def request(self, progress: FlowProgress) -> ModelRequest:
        """Return a request of one user turn."""
        return ModelRequest(
            progress.state(),
            ChatPrompt((Message("user", self.prompt),)),
            self.max_tokens,
            self.temperature,
        )


@dataclass(frozen=True, slots=True)
class Prompted:
    """A model behind an endpoint, the first `passages` of the item in the prompt."""

    executor: Executor  # asks it
    passages: int  # how many; 0 asks the model alone
    passage_words: int = 200  # a passage is cut after so many
    cites_all: bool = True

    def __post_init__(self) -> None:
        check_int("passages", self.passages, 0)
        check_int("passage_words", self.passage_words)

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Write one greedy answer."""
        if item.options and not task.written:
            raise DecodingError(
                "an endpoint scores no options; take a protocol in which they are written: baseline"
            )
        writer = _Worded(self.executor, task.new_tokens, prompt=self.prompt(item, task))
        state = JudgeInput(
            (Message("user", item.instruction),), item.passages[: self.passages]
        )
        return (yield from Flow((Write(writer),)).decoder(state, None))

    def prompt(self, item: Item, task: Task) -> str:
        """Return numbered passages, the question, and the task's hint if any; without a hint nothing is added."""
        shown = ""
        for number, passage in enumerate(item.passages[: self.passages], 1):
            words = f"{passage.title} {passage.text}".split()[: self.passage_words]
            shown += f"[{number}] {' '.join(words)}\n\n"
        hint = _hint(item, task)
        if not hint:
            return f"{shown}{item.instruction}"
        if shown:
            shown = f"{PASSAGES}{shown}{QUESTION}"
        return f"{shown}{item.instruction}\n\n{hint}"

    def as_dict(self) -> dict[str, Any]:
        """Return settings and the texts of the prompt."""
        settings = {"passages": self.passages, "passage_words": self.passage_words}
        return {"kind": "endpoint", **settings, "prompt": [PASSAGES, QUESTION]}


def endpoint_system(
    name: str,
    executor: Executor,
    settings: Mapping[str, Any] | None = None,
    task: Task | None = None,
    *,
    live: bool = False,
) -> System:
    """Return a system by its name; `rag` reads as many passages as the protocol of a published task says.

    `settings` are those of `Decoding` for ours, those of their own for systems of entry points, else `passages` and
    `passage_words`. They win over the protocol; `live` as in `named_system`.
    """
    if name in _MODES:
        return _reflective(name, ChatModel.on(executor), settings or {})
    if name not in UNTUNED:
        make = registered(GROUP, name)
        if not isinstance(make, RunsOnEndpoint):
            raise UserError(
                f"{name} needs a checkpoint; an endpoint runs {', '.join((*UNTUNED, *_MODES))}"
            )
        return _searching(make.at_endpoint(executor, settings or {}), live)
    count = UNTUNED[name]
    if name == "rag" and task is not None:
        count = documents(task)
    fields = {"passages": count, **(settings or {})}
    if unknown := sorted(set(fields) - {"passages", "passage_words"}):
        raise UserError(
            f"--set {unknown[0]}: a system behind an endpoint has passages and passage_words"
        )
    return Prompted(executor, **fields)


class System(Protocol):
    """One way of answering, bound to a model's tokenizer."""

    @property
    def cites_all(self) -> bool:
        """Return whether its answers rest on every passage it was shown, because it makes no citations of its own."""

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Answer one item within the task's budget, from the item's passages."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything that decides its answers, apart from the model, as plain values."""


@dataclass(frozen=True, slots=True)
class Reflective:
    """A model that reflects: by the tokens it was trained with, or a chat model by prompts."""

    # codec, vocabulary and layout of the model, or a chat model
    prompting: DecodingModel
    decoding: Decoding  # the policy; the task sets segments and tokens, so that its budget holds
    cites_all: bool = False
    judges: tuple[Judge, ...] = ()  # that the policy names

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Answer by segment beam search, or option scoring with critique."""
        if item.options:
            surfaces = choices(item).surfaces
            chosen = decode_options(
                item.instruction,
                surfaces,
                self.prompting,
                self.decoding,
                passages=item.passages,
            )
            return (yield from chosen)
        policy = self.policy(task)
        written = decode(
            item.instruction,
            self.prompting,
            policy,
            passages=item.passages,
            judges=self.judges,
        )
        answer = yield from written
        if (
            task.marked
            and policy.pool == "deepest"
            and isinstance(self.prompting, Prompting)
        ):
            return cited_as_released(answer, self.prompting)
        return answer

    def policy(self, task: Task) -> Decoding:
        """Return the policy within the task's budget."""
        tokens = min(self.decoding.segment_tokens, task.new_tokens)
        return replace(
            self.decoding,
            max_segments=task.segments,
            segment_tokens=tokens,
            answer_tokens=task.new_tokens,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as plain values."""
        settings = decoding_dict(self.decoding)
        for name in SET_BY_TASK:
            settings.pop(name, None)
        layout = (
            self.prompting.layout.name
            if isinstance(self.prompting, Prompting)
            else self.prompting.as_dict()
        )
        return {"kind": "reflective", "decoding": settings, "layout": layout}


@runtime_checkable
class SearchesItself(Protocol):
    """A system that can search by itself where a run has a retriever."""

    def searching(self) -> System:
        """Return the same system, which searches and does not read the items' passages."""


@runtime_checkable
class RunsOnEndpoint(Protocol):
    """An entry point of `selfrag.systems` that also makes a system of a model behind an endpoint."""

    def at_endpoint(self, executor: Executor, settings: Mapping[str, Any]) -> System:
        """Return the system of a model that the executor asks."""


def runnable(decoding: Decoding, changed: Iterable[str]) -> Decoding:
    """Return the same policy, if a run of a checkpoint alone can keep to what was changed in it."""
    for name in changed:
        if name in SET_BY_TASK:
            raise UserError(
                f"{name} is the task's, so that all systems have one budget; segment_tokens can be set"
            )
    if decoding.judges or decoding.guardrails:
        raise UserError(
            "other judges and guardrails need models of their own; leave them out of the policy of a run"
        )
    return decoding


TrainedModelKind = Literal["base", "finetuned", "sail", "selfrag"]

ROLES: dict[str, TrainedModelKind] = {
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
PROTOCOL: Literal["write"] = "write"
"""`without_evidence` of systems that are measured: published protocols have an answer for items without passages."""
AS_PUBLISHED = "selfrag"
"""Ours under the policy that a published task was run with; on files of users the same as `selfrag-adaptive`."""
BY_PROTOCOL: dict[str, TrainedModelKind] = {"rag": "base", "finetuned-rag": "finetuned"}
"""Baselines with as many passages as the protocol of a published task gives them; one on files of users."""
SYSTEMS: dict[str, TrainedModelKind] = {AS_PUBLISHED: "selfrag", **BY_PROTOCOL, **ROLES}
"""`ROLES` and the systems that no comparison needs twice."""
GROUP = "selfrag.systems"
"""Entry points of other packages: each names a function of a tokenizer and of settings that gives a `System`."""
_FINETUNED = {"finetuned": 0, "finetuned-rag": 1, "sail": 1}
_ROWS = "selfrag"
"""Layout of the rows that they are trained on."""
WITHOUT_REFLECTION = {**UNTUNED, **_FINETUNED}
"""Systems of models without reflection tokens, and how many passages they read."""
_MODES: dict[str, Literal["adaptive", "always", "never"]] = {
    AS_PUBLISHED: "adaptive",
    "selfrag-always": "always",
    "selfrag-adaptive": "adaptive",
    "selfrag-never": "never",
}


def known_systems() -> dict[str, str]:
    """Return the name of each system to what it is, those of other packages last."""
    systems = {
        AS_PUBLISHED: "segment beam search; a published task under its protocol's policy"
    }
    for mode in ("adaptive", "always", "never"):
        systems[f"selfrag-{mode}"] = f"segment beam search, retrieval {mode}"
    for name, count in UNTUNED.items():
        systems[name] = f"the chat template with {count_of(count, 'passages')}"
    for name, count in _FINETUNED.items():
        systems[name] = f"the layout of plain rows with {count_of(count, 'passages')}"
    for name in BY_PROTOCOL:
        systems[name] += "; a published task under its protocol's number"
    for name in names(GROUP):
        systems.setdefault(name, "of another package")
    return systems


def named_system(
    name: str,
    tokenizer: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    live: bool = False,
) -> System:
    """Return a system by its name.

    `settings` are fields to change: of `Decoding` for ours, those of their own for systems of entry points, else
    `passages`, `passage_tokens` and `layout`, one of `INSTRUCTION_LAYOUTS`. With `live` a system that can search does.
    """
    changes = dict(settings or {})
    if name in WITHOUT_REFLECTION:
        return _untuned(name, tokenizer, changes)
    if name not in SYSTEMS:
        make = registered(GROUP, name)
        if make is None:
            raise UserError(
                f"unknown system {name!r}; known: {', '.join(known_systems())}"
            )
        return _searching(make(tokenizer, changes), live)
    return _reflective(name, model_of(tokenizer, tokenizer.name_or_path), changes)


def _searching(system: System, live: bool) -> System:
    """Return a system, which searches by itself if it can and is to."""
    if live and isinstance(system, SearchesItself):
        return system.searching()
    return system


def _reflective(
    name: str, model: DecodingModel, changes: Mapping[str, Any]
) -> Reflective:
    check_names(changes)
    base = Decoding(mode=_MODES[name], without_evidence=PROTOCOL)
    return Reflective(model, runnable(replace(base, **changes), changes))


def _untuned(name: str, tokenizer: Any, changes: dict[str, Any]) -> Untuned:
    """Return a system of a model without reflection tokens."""
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer has no EOS token; set tokenizer.eos_token first")
    trained = name in _FINETUNED
    layout = changes.pop("layout", _ROWS if trained else None)
    if layout is not None:
        check_choice("layout", layout, tuple(INSTRUCTION_LAYOUTS))
    counts: dict[str, Any] = {
        "passages": WITHOUT_REFLECTION[name],
        "passage_tokens": Decoding().passage_tokens,
    }
    for key, value in changes.items():
        if key not in counts:
            raise UserError(f"unknown setting {key!r}; known: {', '.join(counts)}")
        check_int(key, value, 0 if key == "passages" else 1)
        counts[key] = value
    codec = HFTextCodec(tokenizer)
    chat = Chat.of(tokenizer, codec, layout=layout)
    return Untuned(
        codec, chat, int(tokenizer.eos_token_id), **counts, is_told=not trained
    )


def system_of_task(
    name: str,
    tokenizer: Any,
    task: Task,
    settings: Mapping[str, Any] | None = None,
    *,
    live: bool = False,
) -> System:
    """Return a system as the protocol of a published task has it; a system named after a mode keeps that mode.

    `settings` win over the protocol; `live` as in `named_system`.
    """
    file = Given.marked(Path(), task.preset)
    if file.preset is None or name not in {*_MODES, *BY_PROTOCOL}:
        return named_system(name, tokenizer, settings, live=live)
    published: dict[str, Any] = {"passages": documents(task)}
    if name in _MODES:
        published = file.preset.settings(file.protocol)
    if name != AS_PUBLISHED:
        published.pop("mode", None)
    return named_system(name, tokenizer, {**published, **(settings or {})})


def decoding_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `["threshold=0.5", "weights=isrel=1,issup=2"]` as fields of `Decoding`."""
    settings = parse_settings(pairs)
    if "weights" in settings:
        settings["weights"] = Weights.parse(str(settings["weights"]))
    if "mode" in settings:
        check_names(settings)
        Decoding(**settings).check_effective(settings)
    return settings
