"""Judges by name: on the model that decodes, and on models of their own.

On the model of a `SelfRAG` a name is an intrinsic (`answerability`, `answerability.overlap`) or a group of reflection
tokens (`token_issup`). A judge with a model of its own is written `KIND:MODEL`, see `open_judge`; `NAME=KIND:MODEL`
gives it a name for weights and guardrails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.common.errors import UserError
from selfrag.common.plugins import names, plugin, registered
from selfrag.common.provenance import model_files, sha256
from selfrag.decoding.token_writer import DecodingModel
from selfrag.engines.adapters import shipped_adapters, shipped_weights
from selfrag.engines.base import Engine
from selfrag.intrinsics.catalog import check_cards, find, intrinsics
from selfrag.intrinsics.model_library import (
    JUDGES,
    MODEL_JUDGES,
    Library,
    by_default,
    prompting_of,
    split_name,
    without_codec,
)
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.endpoint import EndpointConfig, EndpointExecutor
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.entailment import (
    ALCE_JUDGE,
    CODEC,
    ENTAILMENT,
    LEAST,
    TASK,
    NLIJudge,
    TrueJudge,
    short_name,
)
from selfrag.judges.external import Late
from selfrag.judges.prompted import PromptedJudge
from selfrag.judges.reflection_prompts import (
    PROMPT_JUDGE,
    PROMPT_JUDGES,
    reflection_wording,
)
from selfrag.judges.tokens import TokenJudge
from selfrag.judges.wire import Executor, LateExecutor
from selfrag.loading import load_tokenizer, model_address, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.judge import Judge, Scope, check_taking_part, usual_scope

GROUP = "selfrag.judges"
"""Entry points of other packages: each names a judge, or a function of the text after the colon that gives one."""
KINDS = (
    "true",
    "nli:MODEL",
    "judge:MODEL",
    "judge:MODEL@https://HOST/v1",
    "prompt_issup:MODEL[@https://HOST/v1]",
    "INTRINSIC[.JUDGE]:MODEL",
    "MODULE:NAME",
)
"""How `open_judge` names judges."""

JudgeNames: TypeAlias = Sequence[str | Judge] | Mapping[str, str | Path | None]
"""Judges, or their names; or intrinsics with who judges each: a name of `JUDGES`, the folder of an adapter, or None
for the base model with a prompt."""


def find_judge(name: str, judges: Sequence[Judge], model: DecodingModel) -> Judge:
    """Return the judge of this name: one of `judges`, or a group of labels that the model judges by itself."""
    for judge in judges:
        if judge.name == name:
            return judge
    if isinstance(model, Prompting):
        if name in MODEL_JUDGES:
            return TokenJudge(model, MODEL_JUDGES[name])
        of_model: Collection[str] = MODEL_JUDGES
    else:
        of_model = model.judges
        if name in model.judges:
            return model.judges[name]
    known = ", ".join((*(judge.name for judge in judges), *of_model))
    raise UserError(f"no judge {name!r:.60} is loaded; there is {known}")


def is_opened(name: str) -> bool:
    """Return whether a name is that of a judge with a model of its own, which `open_judge` opens."""
    return ":" in name or name == "true" or registered(GROUP, name) is not None


def open_judge(spec: str) -> Judge:
    """Return the judge of a name; its model is loaded when it is first asked.

    Args:
        spec: `true` or `true:MODEL` (T5 of TRUE), `nli:MODEL` (a cross-encoder), `judge:MODEL` (a chat model in
            process) or `judge:MODEL@URL` (at an OpenAI-compatible endpoint), all of entailment; `prompt_issup:MODEL`,
            `prompt_isrel:MODEL@URL` and so on, a chat model asked about one group; an intrinsic on a model of its own
            such as `answerability:MODEL` (`intrinsic:MODEL` is hallucination detection); by words alone,
            `answerability.overlap`; an entry point of `selfrag.judges`, such as `critic:DIR`; or `MODULE:NAME`. A model
            is a directory, a hub name, or `demo`.

    Raises:
        UserError: an unknown kind, or a model that cannot be loaded.
    """
    kind, colon, model = spec.partition(":")
    known: dict[str, Callable[[str], Judge]] = {
        "nli": NLIJudge.load,
        "judge": _chat_judge,
        "intrinsic": partial(_intrinsic, "hallucination_detection", None),
    }
    if kind == "true":
        return TrueJudge.load(model or ALCE_JUDGE)
    if kind.partition(".")[0] in intrinsics():
        intrinsic, by = split_name(kind)
        if not model and by == "overlap":
            return find(intrinsic)(without_codec(intrinsic, by, None, None), name=kind)
        known[kind] = partial(_intrinsic, intrinsic, by)
    if kind in PROMPT_JUDGES:
        known[kind] = partial(_reflection, kind)
    if kind in known:
        if not model:
            raise UserError(f"judge {kind!r} of which model? Give {kind}:MODEL")
        return known[kind](model)
    judge = registered(GROUP, kind)
    if judge is None:
        if not colon:
            raise UserError(
                f"unknown judge {spec[:80]!r}; known: {', '.join((*KINDS, *names(GROUP)))}"
            )
        judge = plugin(GROUP, spec)
    elif not isinstance(judge, Judge):
        judge = judge(model)
    if not isinstance(judge, Judge):
        raise UserError(
            f"{spec:.80} is no judge, but {type(judge).__name__}; see docs/guides/judges.md"
        )
    return judge


def open_named(text: str) -> Judge:
    """Return the judge of `SPEC`, or of `NAME=SPEC` under that name."""
    name, equals, spec = text.partition("=")
    if not equals:
        return open_judge(text)
    judge = copy(open_judge(spec))
    judge.name = name
    return judge


def _chat_judge(spec: str) -> Judge:
    executor, name, about = chat_model(spec)
    identity = {**about, "task": TASK}
    judge = PromptedJudge(
        executor, CODEC, ENTAILMENT, min_coverage=LEAST, identity=identity
    )
    judge.name = f"judge {name}"
    return judge


def _reflection(name: str, spec: str) -> Judge:
    """Return the judge of a question of the wording, on a chat model of its own."""
    executor, short, about = chat_model(spec)
    wording = asdict(reflection_wording())
    shown = {
        text: wording[text]
        for text in ("question", "passage", "order", "write", "write_from_passage")
    }
    question = wording["questions"][name.removeprefix(PROMPT_JUDGE)]

    def load() -> Judge:
        runs = executor.loaded if isinstance(executor, LateExecutor) else executor
        return ChatModel.on(runs).judges[name]

    identity = {"kind": "judge", **about, "prompt": shown | question}
    return Late(f"{name} {short}", PROMPT_JUDGES[name], load, identity)


def chat_model(spec: str) -> tuple[Executor, str, dict[str, Any]]:
    """Return what runs a chat model, its short name, and what tells it from others.

    Args:
        spec: `MODEL` in process, or `MODEL@URL` at an OpenAI-compatible endpoint.

    Raises:
        UserError: the model cannot be found, or no such address.
    """
    address = model_address(spec)
    if address is not None:
        model, url = address
        return (
            EndpointExecutor(EndpointConfig(url, model)),
            short_name(model),
            {"model": model, "url": url},
        )
    files = model_files(resolve_model(spec))
    executor = LateExecutor(lambda: Library.from_pretrained(spec, adapters={}).executor)
    return executor, short_name(spec), {"model": spec, "files": files}


def _intrinsic(intrinsic: str, judge: str | None, model: str) -> Judge:
    """Return an intrinsic on a model of its own."""
    path = resolve_model(model)
    kind = find(intrinsic)
    files = model_files(path)
    shipped = shipped_adapters(model).get(intrinsic)
    learned = shipped_weights(model).get(intrinsic)
    tokens = prompting_of(load_tokenizer(path)) is not None
    judge_of_task = judge or by_default(
        intrinsic,
        tokens=tokens,
        adapter=shipped is not None,
        learned=learned is not None,
    )
    if judge_of_task == "adapter" and shipped is not None:
        files |= {
            f"{intrinsic}/{file}": checksum
            for file, checksum in model_files(shipped).items()
        }
    elif judge_of_task not in ("adapter", "prompt") and learned is not None:
        files |= {f"{intrinsic}/{learned.name}": sha256(learned)}
    identity = {
        "kind": "intrinsic",
        "intrinsic": intrinsic,
        "model": model,
        "files": files,
        "judge": judge_of_task,
    }
    name = f"{intrinsic} on {short_name(model)}"
    return Late(
        name,
        kind.labels,
        lambda: Library.from_pretrained(model).get(kind, judge),
        identity,
    )


@dataclass(frozen=True, slots=True)
class _Requested:
    """An intrinsic, or a group of reflection tokens, that a caller named."""

    name: str  # as it was named, with the judge if there was one
    intrinsic: str  # or one of `MODEL_JUDGES`
    judge: str | None = None  # None for the default
    folder: str | None = None  # of an adapter, or its name on a server


def _requested(judges: JudgeNames) -> list[_Requested | Judge]:
    """Read names; judges with a model of their own are opened."""
    if isinstance(judges, str):
        raise UserError(f"judges={judges!r}: give a list of names")
    requested: list[_Requested | Judge] = []
    for item in judges:
        if not isinstance(item, str):
            requested.append(item)
            continue
        name, equals, spec = item.partition("=")
        if not equals:
            spec = item
        if spec in MODEL_JUDGES:
            requested.append(_Requested(name, spec))
        elif is_opened(spec):
            requested.append(open_named(item))
        else:
            intrinsic, judge = split_name(spec)
            folder = None
            if isinstance(judges, Mapping):
                judge, folder = _judge_and_folder(judges[item])
            if not equals and "." not in spec:
                name = intrinsic
            requested.append(_Requested(name, intrinsic, judge, folder))
    return requested


def _judge_and_folder(value: str | Path | None) -> tuple[str, str | None]:
    """Read who judges an intrinsic: a name of `JUDGES`, None for a prompt, else the folder of an adapter."""
    if value is None:
        return "prompt", None
    if str(value) in JUDGES:
        return str(value), None
    return "adapter", str(value)


def _intrinsics(judges: JudgeNames) -> list[_Requested]:
    """Return the intrinsics among the names that are judged on the model that decodes."""
    return [
        item
        for item in _requested(judges)
        if isinstance(item, _Requested) and item.intrinsic not in MODEL_JUDGES
    ]


def adapters_of(judges: JudgeNames, model: str | Path) -> dict[str, str]:
    """Return the folders of the adapters to load on a model with reflection tokens, by intrinsic.

    A registered model brings those that it has; they are loaded where an adapter judges. A card that does not fit is
    refused.
    """
    shipped = shipped_adapters(model)
    learned = shipped_weights(model)
    intrinsics = _intrinsics(judges)
    folders = {
        item.intrinsic: item.folder for item in intrinsics if item.folder is not None
    }
    for item in intrinsics:
        default = by_default(
            item.intrinsic, tokens=True, adapter=True, learned=item.intrinsic in learned
        )
        if (item.judge or default) == "adapter" and item.intrinsic in shipped:
            folders.setdefault(item.intrinsic, str(shipped[item.intrinsic]))
    check_cards(folders, None)
    return folders


def check_names(judges: Sequence[str], model: str | Path) -> None:
    """Refuse, before a model is loaded, intrinsics that cannot take part while an answer is written."""
    learned = shipped_weights(model)
    for item in _intrinsics(judges):
        default = by_default(
            item.intrinsic,
            tokens=True,
            adapter=False,
            learned=item.intrinsic in learned,
        )
        finished = (
            item.intrinsic == "uncertainty" and (item.judge or default) == "tokens"
        )
        labels = find(item.intrinsic).labels
        check_taking_part(
            item.name, labels, Scope.FINISHED if finished else usual_scope(labels)
        )


def on_engine(
    engine: Engine,
    tokenizer: Any,
    judges: JudgeNames,
    model: str | Path = "",
    prompting: Prompting | None = None,
) -> tuple[Judge, ...]:
    """Return judges for a decoder on an engine, each intrinsic by the judge that was named, or by the default.

    The engine has the adapters that `adapters_of` named. A registered `model` may bring weights of tokens and words.
    """
    # 1. Find the adapter of each intrinsic among those that the engine has.
    loaded = engine.limits.adapters
    requested = _requested(judges)
    adapters: dict[str, str] = {}
    for item in requested:
        if not isinstance(item, _Requested):
            continue
        adapter = next(
            (name for name in (item.intrinsic, item.folder) if name in loaded), None
        )
        if adapter is not None:
            if adapters.setdefault(item.intrinsic, adapter) != adapter:
                raise UserError(f"{item.intrinsic} has two adapters; name one of them")
        elif item.folder is not None:
            known = ", ".join(sorted(loaded)) or "none"
            raise UserError(
                f"the engine has no adapter {item.folder!r} for {item.intrinsic}; it has: {known}"
            )
    # 2. Make the judges.
    if prompting is None:
        prompting = prompting_of(tokenizer)
    library = Library(
        EngineExecutor(engine, tokenizer),
        adapters,
        prompting=prompting,
        weights=shipped_weights(model),
    )
    return _in_library(library, requested)


def on_endpoint(executor: Executor, judges: JudgeNames) -> tuple[Judge, ...]:
    """Return judges for a chat model at an address, which judges intrinsics by prompts."""
    requested = _requested(judges)
    for item in requested:
        if isinstance(item, _Requested) and item.folder is not None:
            raise UserError(
                f"{item.name}: a model at an address has no adapter of {item.folder!r:.60}; ask for prompt"
            )
    return _in_library(Library(executor), requested)


def _in_library(
    library: Library, requested: Sequence[_Requested | Judge]
) -> tuple[Judge, ...]:
    ready: list[Judge] = []
    for item in requested:
        if not isinstance(item, _Requested):
            judge = item
        elif item.intrinsic in MODEL_JUDGES:
            judge = library.judge(item.intrinsic)
            judge.name = item.name
        else:
            judge = library.get(find(item.intrinsic), item.judge, name=item.name)
        ready.append(judge)
    return tuple(ready)
