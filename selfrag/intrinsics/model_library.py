"""`Library`: the intrinsics on one model with its adapters, loaded by name; and the judges that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from selfrag.common.errors import UserError, VocabularyError
from selfrag.engines.adapters import resolve_adapter, shipped_adapters, shipped_weights
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.catalog import check_cards, codec_of, find
from selfrag.intrinsics.families import (
    PUBLISHED,
    adapter_codecs,
    checkpoint_codecs,
    find_published,
)
from selfrag.judges.critiques import VIEWS, OverlapJudge
from selfrag.judges.learned import (
    CombinedJudge,
    ScoreCalibrator,
    TraceCertainty,
    Weighing,
)
from selfrag.judges.reflection_prompts import PROMPT_JUDGES
from selfrag.judges.tokens import TokenCritiques, TokenJudge
from selfrag.judges.wire import DIALECT, Codec, Executor
from selfrag.loading import DEMO
from selfrag.prompting import Prompting
from selfrag.reflection.judge import Judge
from selfrag.reflection.labels import CRITIQUES, LabelSet

JUDGES: Mapping[str, str] = MappingProxyType(
    {
        "tokens": "the model's own reflection tokens",
        "combined": "reflection tokens and words in common, weighed as the model's own file says",
        "adapter": "the LoRA adapter of the intrinsic, plain or activated",
        "prompt": "the base model, asked by a prompt",
        "overlap": "words in common, without a model",
    }
)
"""Judges that every model with its adapters has, by name."""

DEFAULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "answerability": ("tokens",),
        "context_relevance": ("tokens",),
        "hallucination_detection": ("combined", "tokens"),
        "citation_generation": ("overlap",),
        "uncertainty": ("tokens",),
    }
)
"""What judges on a model with reflection tokens if nothing else is asked for, as far as it is there; the best measured
(`docs/results/intrinsics.md`)."""
TOKEN_JUDGES: Mapping[str, LabelSet] = MappingProxyType(
    {f"token_{labels.role}": labels for labels in CRITIQUES}
)
"""Judges of models with reflection tokens: each group, by the name that weights and guardrails call it."""
MODEL_JUDGES: Mapping[str, LabelSet] = MappingProxyType(
    {**TOKEN_JUDGES, **PROMPT_JUDGES}
)
"""Judges that a model has by itself: its tokens, or its prompts for the same groups."""
# need a file of the model
_LEARNED = frozenset(
    {("hallucination_detection", "combined"), ("uncertainty", "tokens")}
)


def split_name(name: str) -> tuple[str, str | None]:
    """Return `answerability.overlap` as the names of the intrinsic and of the judge, None where none is named."""
    kind, dot, judge = name.partition(".")
    if not dot:
        return find(name).name, None
    return find(kind).name, checked(judge)


def checked(name: str) -> str:
    """Return the name of a judge; an unknown one is refused with the known ones."""
    if name not in JUDGES:
        raise UserError(f"unknown judge {name!r:.60}; known: {', '.join(JUDGES)}")
    return name


def prompting_of(tokenizer: Any) -> Prompting | None:
    """Return the layout of a model with reflection tokens; None for any other model."""
    try:
        return Prompting.from_tokenizer(tokenizer)
    except VocabularyError:
        return None


def by_default(intrinsic: str, *, tokens: bool, adapter: bool, learned: bool) -> str:
    """Return the judge of an intrinsic that nobody chose one for: of `DEFAULTS`, else the adapter, else a prompt.

    `learned` says whether the model brings weights of tokens and words, or a calibrator, for it.
    """
    if tokens:
        for judge in DEFAULTS.get(intrinsic, ()):
            if learned or (intrinsic, judge) not in _LEARNED:
                return judge
    return "adapter" if adapter else "prompt"


def without_codec(
    intrinsic: str,
    name: str,
    prompting: Prompting | None,
    weights: Path | None,
    engine: Any = None,
) -> Judge:
    """Return a judge that asks no codec, tokens on an engine; refuse what the model or the intrinsic does not have."""
    if intrinsic == "uncertainty" and name == "tokens":
        if weights is None:
            raise UserError(
                "uncertainty.tokens: no calibrator was fitted for this model; ask for prompt"
            )
        return TraceCertainty(ScoreCalibrator.read(weights))
    if intrinsic not in VIEWS:
        raise UserError(
            f"{intrinsic} cannot be judged by {name}; it has: adapter, prompt"
        )
    if name == "overlap":
        return OverlapJudge(intrinsic)
    if prompting is None:
        raise UserError(
            f"{intrinsic}.{name}: the model has no reflection tokens; ask for prompt or overlap"
        )
    if name == "tokens":
        return TokenCritiques(intrinsic, prompting, engine)
    if weights is None:
        raise UserError(
            f"{intrinsic}.combined: no weights were learned for this model; ask for tokens"
        )
    return CombinedJudge(intrinsic, prompting, Weighing.read(weights), engine)


C = TypeVar("C", bound=Capability[Any])


@dataclass(frozen=True)
class Library:
    """The intrinsics on one model."""

    executor: Executor  # where requests run
    # adapter of an intrinsic on the executor, by the intrinsic's name; others use the base model
    adapters: Mapping[str, str] = field(default_factory=dict)
    dialect: str = DIALECT  # of the adapters and of the base model
    # judge of an intrinsic by its name, where another one than the default is wanted
    judges: Mapping[str, str] = field(default_factory=dict)
    prompting: Prompting | None = None  # of a model with reflection tokens
    # files of learned weights of tokens and words, by the intrinsic's name
    weights: Mapping[str, Path] = field(default_factory=dict)
    # codecs of adapters that say by files of their own what they understand, by the intrinsic's name
    codecs: Mapping[str, Codec] = field(default_factory=dict)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEMO,
        *,
        engine: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        dialect: str | None = None,
        judges: Mapping[str, str] | None = None,
        **engine_options: Any,
    ) -> Library:
        """Load a model and its adapters.

        Args:
            name_or_path: `demo`, a directory, or a name on the Hugging Face hub. Adapters inside a checkpoint are
                found where an `AdapterFamily` knows it.
            engine: `vllm`, `transformers`, the address of a `vllm serve`, or None for the best one installed.
            adapters: folder of a LoRA adapter (its name on a server) by the intrinsic's name, which is then judged by
                it; `published` for the one that a family lists. None takes those that are shipped with the
                demo model, and none for other models.
            dialect: see `codec_of`; None is what the adapter's own files say (`AdapterFamily`), else the default, and
                refuses adapters without either and without a card (`check_cards`).
            judges: a name of `JUDGES` by the intrinsic's name; see `get` for the defaults.
            engine_options: fields of the engine's configuration, such as `max_model_len`.

        Raises:
            UserError: a name is unknown, something cannot be loaded, an adapter was trained with other prompts, or
                nobody says with which.
        """
        from selfrag.engines import is_remote, load_engine
        from selfrag.judges.engine import EngineExecutor
        from selfrag.loading import load_tokenizer, resolve_model

        # 1. Find adapters, and codecs that files of an adapter or of the checkpoint ask for.
        sources, codecs = _adapters(name_or_path, adapters)
        path = resolve_model(name_or_path)
        tokenizer = load_tokenizer(
            path, trust_remote_code=engine_options.get("trust_remote_code", False)
        )
        if dialect is None:
            codecs |= checkpoint_codecs(path)
        folders: dict[str, str] = {}
        if not is_remote(engine):
            folders = {
                name: str(resolve_adapter(folder)) for name, folder in sources.items()
            }
            if dialect is None:
                codecs |= adapter_codecs(folders)
            check_cards(
                {
                    name: folder
                    for name, folder in folders.items()
                    if name not in codecs
                },
                dialect,
            )
            engine_options["adapters"] = folders
        # 2. Choose who judges.
        chosen = {
            find(name).name: checked(judge) for name, judge in (judges or {}).items()
        }
        if adapters is not None:
            chosen = dict.fromkeys(sources, "adapter") | chosen
        # 3. Load the engine. A server has its own names for adapters.
        loaded = load_engine(engine, path, **engine_options)
        names = dict(zip(folders, folders, strict=True))
        if is_remote(engine):
            served = loaded.limits.adapters
            names = {
                name: str(adapter)
                for name, adapter in sources.items()
                if str(adapter) in served
            }
            missing = sorted(set(map(str, sources.values())).difference(served))
            if adapters is not None and missing:
                loaded.close()
                raise UserError(
                    f"the server has no adapter {missing[0]!r}; it has: {', '.join(sorted(served))}"
                )
        return cls(
            EngineExecutor(loaded, tokenizer),
            names,
            dialect or DIALECT,
            chosen,
            prompting_of(tokenizer),
            shipped_weights(name_or_path),
            codecs,
        )

    @classmethod
    def at_endpoint(
        cls,
        url: str,
        model: str,
        *,
        adapters: Mapping[str, str] | None = None,
        dialect: str = DIALECT,
        **settings: Any,
    ) -> Library:
        """Return the intrinsics of a model behind any OpenAI-compatible endpoint, by its adapters or by prompts alone.

        Args:
            url: such as `http://127.0.0.1:8000/v1`.
            model: name of the model at the endpoint.
            adapters: what the server calls the adapter of an intrinsic, by the intrinsic's name.
            dialect: see `codec_of`.
            settings: further fields of `EndpointConfig`, such as `api_key_env`.

        Raises:
            UserError: a name is unknown, or the address is none.
        """
        from selfrag.judges.endpoint import EndpointConfig, EndpointExecutor

        names = {find(name).name: adapter for name, adapter in (adapters or {}).items()}
        return cls(
            EndpointExecutor(EndpointConfig(url, model, **settings)), names, dialect
        )

    def get(
        self, kind: type[C], judge: str | Judge | None = None, **settings: Any
    ) -> C:
        """Return an intrinsic of this model.

        Args:
            kind: the intrinsic.
            judge: who judges: a name of `JUDGES`, or any judge. None is the one chosen for this library, else that of
                `by_default`.
            settings: those of `Capability`, such as `arguments`.

        Raises:
            UserError: the dialect has no such intrinsic, or the model no such judge.
        """
        if not isinstance(judge, str | None):
            return kind(judge, **settings)
        name = kind.name
        codec = codec_of(kind, self.dialect)
        adapter_codec = self.codecs.get(name)
        adapter = self.adapters.get(name)
        weights = self.weights.get(name)
        prompting = self.prompting if self.dialect == DIALECT else None
        adapted = adapter is not None or adapter_codec is not None
        chosen = judge or self.judges.get(name)
        if chosen is None:
            chosen = by_default(
                name,
                tokens=prompting is not None,
                adapter=adapted,
                learned=weights is not None,
            )
        if checked(chosen) == "prompt":
            return kind.on(self.executor, codec, **settings)
        if chosen == "adapter":
            if not adapted:
                raise UserError(
                    f"{name}: the model has no adapter for it; ask for prompt or give adapters="
                )
            return kind.on(self.executor, adapter_codec or codec, adapter, **settings)
        return kind(
            without_codec(name, chosen, prompting, weights, self.executor.engine),
            **settings,
        )

    def judge(self, name: str) -> Judge:
        """Return a judge of this model: an intrinsic, or a group of labels as `token_issup` or `prompt_issup`."""
        if name in PROMPT_JUDGES:
            return self._prompted(name)
        if name not in TOKEN_JUDGES:
            return self[name]
        if self.prompting is None:
            prompted = name.replace("token_", "prompt_")
            raise UserError(
                f"{name}: the model has no reflection tokens; ask for {prompted}"
            )
        return TokenJudge(self.prompting, TOKEN_JUDGES[name])

    def _prompted(self, name: str) -> Judge:
        from selfrag.judges.chat_model import ChatModel

        return ChatModel.on(self.executor).judges[name]

    def __getitem__(self, name: str) -> Capability[Any]:
        kind, judge = split_name(name)
        return self.get(find(kind), judge)

    def close(self) -> None:
        """Free the model."""
        self.executor.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _adapters(
    name_or_path: str | Path, adapters: Mapping[str, str | Path] | None
) -> tuple[dict[str, str | Path], dict[str, Codec]]:
    """Return adapters by the catalog's names, and the codecs of published ones."""
    if adapters is None:
        return dict(shipped_adapters(name_or_path)), {}
    sources: dict[str, str | Path] = {}
    codecs: dict[str, Codec] = {}
    for key, adapter in adapters.items():
        kind = find(key)
        if adapter == PUBLISHED:
            adapter, dialect = find_published(kind.name, str(name_or_path))
            codecs[kind.name] = codec_of(kind, dialect)
        sources[kind.name] = adapter
    return sources, codecs
