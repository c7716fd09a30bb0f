"""A causal language model of transformers, and the keys and values of its running sequences."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from selfrag.common import pretrained
from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import EngineError, UserError, count_of, require
from selfrag.common.plugins import load_present
from selfrag.common.reading import read_json
from selfrag.engines.base import Architecture, check_model, reason
from selfrag.reflection.requests import Generate, Internals

if TYPE_CHECKING:
    from selfrag.engines.grammars import Grammars, Matcher


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """How to run a checkpoint under transformers."""

    model: str  # directory or hub name of a causal language model
    # number format of the weights; `auto` is what the checkpoint was saved in, float32 on a CPU without instructions
    # for that, and bfloat16 on a GPU for what was saved in float32
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"  # `auto` (CUDA where there is one), or a torch device
    max_batch: int = 32  # sequences that run together
    # prompt and new tokens together; None is what the model was made for
    max_model_len: int | None = None
    max_prefill_tokens: int = 8192  # prompt tokens computed in one pass, padding included; bounds the memory of a pass
    prefix_cache_mib: int = 512  # memory for keys and values of earlier prompts; 0 shares only among waiting requests
    # name to directory of LoRA adapters, plain or activated, that requests may ask for
    adapters: Mapping[str, str | Path] = field(default_factory=dict)
    # tokens of a draft, looked up in the prompt, that a pass checks at once; 0 generates one token a pass. Candidates
    # copy from their passage, so long answers are faster. See docs/results/speed.md.
    speculate: int = 0
    # let Python code that a checkpoint brings run, with all your rights. Read it first.
    trust_remote_code: bool = False
    # the same request gives the same bytes, whatever ran before or beside it: each is computed alone, without prefixes
    # of others. Slower: docs/results/speed.md.
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, pretrained.FORMATS)
        check_int("max_batch", self.max_batch)
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len, 2)
        check_int("max_prefill_tokens", self.max_prefill_tokens)
        check_int("prefix_cache_mib", self.prefix_cache_mib, 0)
        check_int("speculate", self.speculate, 0)


ARCHITECTURES = "selfrag.architectures"
"""Group of entry points, each an `Architecture`."""
ATTENTION = {"full_attention", "sliding_attention"}


@dataclass(slots=True)
class LoadedModel:
    """A model ready to run, with the facts an engine needs about it."""

    module: Any  # the causal language model
    device: torch.device  # where its inputs go
    max_model_len: int  # longest sequence it takes
    vocab_size: int  # rows of its input embedding
    eos_ids: frozenset[int]  # ids that end every sequence
    adapters: frozenset[str] = frozenset()  # names of the loaded LoRA adapters
    # for each activated LoRA among them the tokens from which on it acts
    invocations: dict[str, tuple[int, ...]] = field(default_factory=dict)
    trust_remote_code: bool = False  # code of the checkpoint may run
    # sequences must run one at a time, because the model sees padding
    alone: bool = False
    _name: str = ""
    _peft: Any = None
    _active: str | None = None
    _grammars: Grammars | None = None
    # newer versions of transformers call the argument `cache`
    _cache_name: str = field(init=False)

    def __post_init__(self) -> None:
        known = inspect.signature(self.module.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"

    def last_logits(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: Any,
        adapter: str | None,
        count: int = 1,
    ) -> Tensor:
        """Return the logits after the last columns, float32 [rows, count, vocabulary].

        `cache` grows by the columns of `ids`.

        Args:
            ids: [rows, new columns].
            mask: [rows, cached and new columns], 1 where a column holds a token.
            positions: [rows, new columns], place of each token in its sequence.
            cache: keys and values of the columns before.
            adapter: name of the adapter to run with, None for the bare model.
            count: how many of the new columns, from the last one back.
        """
        self._switch(adapter)
        new = ids.shape[1]
        try:
            output = self.module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                # By their numbers: for a slice of columns, torch copies the output layer once for each row.
                logits_to_keep=torch.arange(new - count, new, device=ids.device),
                **{self._cache_name: cache},
            )
        except Exception as error:
            raise EngineError(
                f"the model failed on {ids.shape[0]} x {count_of(new, 'tokens')}: {reason(error)}"
            ) from error
        logits: Tensor = output.logits[:, -count:].float()
        return logits

    def inspect(
        self, ids: Sequence[int], prefix: CachedPrefix | None, adapter: str | None
    ) -> Internals | None:
        """Return what the model does on `ids` but for the first, behind a prefix; None if it shows no attention."""
        self._switch(adapter)
        cache, width = padded_cache([prefix])
        usual = self.module.config._attn_implementation
        self.module.set_attn_implementation("eager")  # others keep no attention
        try:
            output = self.module(
                input_ids=torch.tensor([ids], device=self.device),
                position_ids=torch.arange(width, width + len(ids), device=self.device)[
                    None
                ],
                output_attentions=True,
                output_hidden_states=True,
                **{self._cache_name: cache},
            )
        finally:
            self.module.set_attn_implementation(usual)
        if not output.attentions:
            return None
        logprobs = torch.log_softmax(output.logits[0, :-1].float(), dim=-1)
        entropies = torch.special.entr(logprobs.exp()).sum(dim=-1)
        attention = output.attentions[-1][0, :, 1:].float().mean(dim=0)
        states = output.hidden_states  # that of the embeddings and one a layer
        state = states[len(states) // 2][0, -1].float()
        return Internals(
            entropies.cpu().numpy(), attention.cpu().numpy(), state.cpu().numpy()
        )

    def matcher(self, request: Generate) -> Matcher | None:
        """Return a matcher for the constraint of a request, or None if it has none."""
        if request.constraint is None:
            return None
        if self._grammars is None:
            try:
                tokenizer = pretrained.load(
                    "AutoTokenizer",
                    self._name,
                    trust_remote_code=self.trust_remote_code,
                )
            except Exception as error:
                raise EngineError(
                    f"constraints need the tokenizer of {self._name}: {reason(error)}"
                ) from error
            # xgrammar is needed by few requests
            from selfrag.engines.grammars import (
                Grammars,
            )

            self._grammars = Grammars(tokenizer, self.vocab_size)
        return self._grammars.matcher(
            request.constraint, sorted({*request.stop_ids, *self.eos_ids})
        )

    def _switch(self, adapter: str | None) -> None:
        if adapter == self._active:
            return
        if adapter is None:
            self._peft.base_model.disable_adapter_layers()
        else:
            self._peft.base_model.enable_adapter_layers()
            self._peft.set_adapter(adapter)
        self._active = adapter


def load(settings: TransformersConfig) -> LoadedModel:
    """Load a checkpoint and its adapters; an `EngineError` says in one line what is unusable."""
    name = settings.model
    trust_remote_code = settings.trust_remote_code
    check_model(name)
    device = _device(settings.device)
    try:
        with pretrained.quiet():
            architecture = _registered(name)
            config = pretrained.load(
                "AutoConfig", name, trust_remote_code=trust_remote_code
            )
            length = _context(config, name, settings.max_model_len)
            module, report = pretrained.load(
                "AutoModelForCausalLM",
                name,
                trust_remote_code=trust_remote_code,
                config=config,
                dtype=pretrained.number_format(settings.dtype, name, device.type).name,
                output_loading_info=True,
            )
            # transformers would continue with random values
            if missing := sorted(report["missing_keys"]):
                raise EngineError(
                    f"model {name!r} lacks {len(missing)} of its weights, such as {missing[0]}"
                )
            module = module.to(device).eval().requires_grad_(requires_grad=False)
    except UserError:
        raise
    except Exception as error:
        raise EngineError(
            f"model {name!r} cannot be loaded: {reason(error)}"
        ) from error
    alone = architecture is not None and architecture.alone
    stateful = getattr(module, "_is_stateful", False) and not alone
    if stateful or "position_ids" not in inspect.signature(module.forward).parameters:
        raise EngineError(
            f"model {name!r} ({type(module).__name__}) keeps no key-value cache; use the vllm engine"
        )
    vocabulary = int(module.get_input_embeddings().weight.shape[0])
    eos = _eos(module, name, trust_remote_code=trust_remote_code)
    names = frozenset(settings.adapters)
    model = LoadedModel(
        module,
        device,
        length,
        vocabulary,
        eos,
        names,
        {},
        trust_remote_code,
        alone,
        name,
    )
    with pretrained.quiet():
        for adapter, path in settings.adapters.items():
            _add_adapter(model, adapter, Path(path))
    return model


def _registered(name: str) -> Architecture | None:
    """Return the architecture that another package teaches to transformers, if the checkpoint is of one."""
    file = Path(name) / "config.json"
    record = read_json(file) if file.is_file() else None
    model_type = record.get("model_type") if isinstance(record, dict) else None
    architecture = (
        load_present(ARCHITECTURES, model_type) if isinstance(model_type, str) else None
    )
    if architecture is None:
        return None
    if not isinstance(architecture, Architecture):
        raise EngineError(
            f"the entry point {model_type!r:.60} of {ARCHITECTURES} names no Architecture"
        )
    architecture.register(name)
    return architecture


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineError(f"device {name!r} cannot be used: {reason(error)}") from error
    if device.type == "cuda":
        pretrained.leave_out_cudnn_attention()
    return device


def _context(config: Any, name: str, max_model_len: int | None) -> int:
    """Return the longest sequence in tokens; refuse models whose attention is not causal over everything."""
    text = config.get_text_config()
    if unknown := set(getattr(text, "layer_types", None) or ()) - ATTENTION:
        raise EngineError(
            f"model {name!r} has layers of kind {', '.join(sorted(unknown))}; use the vllm engine"
        )
    most: int | None = getattr(text, "max_position_embeddings", None)
    window = getattr(text, "sliding_window", None)
    if window:
        # Inside half a window no token falls out of it, however a batch is padded.
        most = min(most or window, window // 2)
    if max_model_len is None and most is None:
        raise EngineError(
            f"model {name!r} does not say how long its context is; set max_model_len"
        )
    if max_model_len is not None and most is not None and max_model_len > most:
        raise EngineError(
            f"max_model_len={max_model_len}, but model {name!r} takes at most {count_of(most, 'tokens')} here"
        )
    return max_model_len or most or 0


def _eos(module: Any, name: str, *, trust_remote_code: bool) -> frozenset[int]:
    sources = [module.generation_config, module.config.get_text_config()]
    # a checkpoint without a tokenizer still generates; its own configuration names EOS
    with suppress(Exception):
        sources.append(
            pretrained.load("AutoTokenizer", name, trust_remote_code=trust_remote_code)
        )
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if value is None:
            continue
        for token_id in value if isinstance(value, list | tuple) else [value]:
            if token_id is None:
                continue
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise EngineError(
                    f"model {name!r}: eos_token_id={value!r:.60} in config.json or generation_config.json; a token id"
                    " or a list of them is needed"
                )
            ids.add(token_id)
    if not ids and len(sources) == 2:
        raise EngineError(
            f"model {name!r} names no EOS token, and its tokenizer cannot be read"
        )
    return frozenset(ids)


def _add_adapter(model: LoadedModel, name: str, path: Path) -> None:
    from selfrag.engines.adapters import read_config

    settings = read_config(name, path)
    if (kind := settings.get("peft_type")) != "LORA":
        raise EngineError(
            f"adapter {name!r} ({path}): peft_type is {kind!r}; only LoRA is switched by request"
        )
    for setting in ("modules_to_save", "trainable_token_indices", "layer_replication"):
        if settings.get(setting):
            raise EngineError(
                f"adapter {name!r} ({path}): it uses {setting}; merge it into a checkpoint first"
            )
    require("peft", extra="train")
    try:
        config = pretrained.adapter_config(path)
        if invocation := getattr(config, "alora_invocation_tokens", None):
            # The batch runs what comes before the invocation without it; from there on it is a LoRA like any other.
            model.invocations[name] = tuple(invocation)
            config.alora_invocation_tokens = None
        if model._peft is None:
            model._peft = pretrained.load_adapter(
                model.module, path, adapter_name=name, config=config
            )
        else:
            model._peft.add_adapter(name, config)
            model._peft.load_adapter(path, adapter_name=name)
    except UserError as error:
        raise EngineError(str(error)) from error
    except Exception as error:
        raise EngineError(
            f"adapter {name!r} ({path}) cannot be loaded: {reason(error)}"
        ) from error
    model._peft.eval().requires_grad_(requires_grad=False)
    model._peft.base_model.disable_adapter_layers()


SPARE_COLUMNS = 64
"""Columns added at each growth: one copy of the cache for so many tokens."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Keys and values of the first tokens of one sequence."""

    # for each layer the keys and the values, [heads, tokens, head size]
    layers: tuple[tuple[Tensor, Tensor], ...]

    def __len__(self) -> int:
        return int(self.layers[0][0].shape[1])

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def part(self, start: int, end: int) -> CachedPrefix:
        """Return a view of tokens `start` to `end`."""
        return CachedPrefix(
            tuple(
                (keys[:, start:end], values[:, start:end])
                for keys, values in self.layers
            )
        )

    @staticmethod
    def joined(pieces: Sequence[CachedPrefix]) -> CachedPrefix:
        """Return a copy of consecutive pieces as one, holding no other memory."""
        layers = []
        for index in range(len(pieces[0].layers)):
            keys, values = zip(*[piece.layers[index] for piece in pieces], strict=True)
            layers.append((torch.cat(keys, dim=1), torch.cat(values, dim=1)))
        return CachedPrefix(tuple(layers))


def padded_cache(prefixes: Sequence[CachedPrefix | None]) -> tuple[Any, int]:
    """Return an ordinary cache in which row i starts with prefix i, right-aligned, and its number of columns."""
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    filled = {row: prefix for row, prefix in enumerate(prefixes) if prefix is not None}
    if not filled:
        return cache, 0
    width = max(map(len, filled.values()))
    first = next(iter(filled.values()))
    for index, (keys, values) in enumerate(first.layers):
        all_keys = keys.new_zeros((len(prefixes), keys.shape[0], width, keys.shape[2]))
        all_values = values.new_zeros(
            (len(prefixes), values.shape[0], width, values.shape[2])
        )
        for row, prefix in filled.items():
            begin = width - len(prefix)
            all_keys[row, :, begin:], all_values[row, :, begin:] = prefix.layers[index]
        cache.update(all_keys, all_values, index)
    return cache, width


def row_of(layers: Sequence[Any], row: int, start: int, end: int) -> CachedPrefix:
    """Return columns `start` to `end` of one row of a cache's layers, as a view."""
    return CachedPrefix(
        tuple(
            (layer.keys[row, :, start:end], layer.values[row, :, start:end])
            for layer in layers
        )
    )


class _KVCacheLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values with spare rows and columns. A pass through the model fills the newest columns."""

    def __init__(self, cache: KVCache, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.dtype = keys.dtype
        self.device = keys.device
        self.cache = cache
        self.keys = keys
        self.values = values
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        rows = len(self.cache)
        end = self.cache.used
        start = self.get_seq_length()
        self.keys[:rows, :, start:end] = key_states
        self.values[:rows, :, start:end] = value_states
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_seq_length(self) -> int:
        return self.cache.used - self.cache.new


class KVCache:
    """The keys and values of all running sequences of one batch."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.used = 0  # columns in use; row i fills the last `lengths[i]` of them
        self.new = 1  # the last columns, which the running pass fills
        self._layers: list[_KVCacheLayer] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, sequences: Sequence[Sequence[CachedPrefix]]) -> None:
        """Copy new rows in, each given as consecutive pieces."""
        if not sequences:
            return
        lengths = [sum(map(len, pieces)) for pieces in sequences]
        self._reserve(sequences[0][0], len(self) + len(lengths), max(lengths))
        for pieces, length in zip(sequences, lengths, strict=True):
            row = len(self)
            for index, layer in enumerate(self._layers):
                begin = self.used - length
                # What an earlier row left behind is masked, but must be finite: 0 * NaN is NaN.
                layer.keys[row, :, :begin] = 0
                layer.values[row, :, :begin] = 0
                for piece in pieces:
                    end = begin + len(piece)
                    layer.keys[row, :, begin:end], layer.values[row, :, begin:end] = (
                        piece.layers[index]
                    )
                    begin = end
            self.lengths.append(length)

    def extend(self, new: int = 1) -> Any:
        """Make room for `new` more tokens a row and return the cache to run the model with; call it once a step."""
        if self._layers[0].keys.shape[2] < self.used + new:
            self._rebuild(self._layers[0].keys.shape[0], max(self.lengths), new)
        self.new = new
        self.used += new
        self.lengths = [length + new for length in self.lengths]
        return Cache(layers=list(self._layers))

    def keep(self, kept: Sequence[int]) -> None:
        """Keep the first of the newest columns of each row, at least one of them, and forget the others."""
        most = max(kept)
        self.used -= self.new - most
        for row, count in enumerate(kept):
            self.lengths[row] -= self.new - count
            if count == most:
                continue
            end = self.used
            start = end - self.lengths[row]
            shift = most - count
            for layer in self._layers:
                for values in (layer.keys[row], layer.values[row]):
                    values[:, start:end] = values[
                        :, start - shift : end - shift
                    ].clone()

    def row(self, row: int) -> CachedPrefix:
        """Return one row as a view, valid until the cache changes."""
        return row_of(self._layers, row, self.used - self.lengths[row], self.used)

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = len(self) - 1
        if row != last:
            for layer in self._layers:
                layer.keys[row] = layer.keys[last]
                layer.values[row] = layer.values[last]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if not self.lengths:
            self._layers = []

    def _reserve(self, like: CachedPrefix, rows: int, longest: int) -> None:
        if not self._layers:
            self.used = longest
            columns = longest + SPARE_COLUMNS
            for keys, values in like.layers:
                all_keys = keys.new_zeros((rows, keys.shape[0], columns, keys.shape[2]))
                all_values = values.new_zeros(
                    (rows, values.shape[0], columns, values.shape[2])
                )
                self._layers.append(_KVCacheLayer(self, all_keys, all_values))
        elif rows > self._layers[0].keys.shape[0] or longest > self.used:
            self._rebuild(
                max(rows, self._layers[0].keys.shape[0]), max(longest, *self.lengths)
            )

    def _rebuild(self, rows: int, used: int, new_columns: int = 0) -> None:
        """Move to new buffers of `used` columns plus spare ones; columns that no row needs are dropped."""
        live = len(self)
        keep = max(self.lengths)
        columns = max(SPARE_COLUMNS, new_columns)
        for layer in self._layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = old.new_zeros((rows, old.shape[1], used + columns, old.shape[3]))
                new[:live, :, used - keep : used] = old[
                    :live, :, self.used - keep : self.used
                ]
                setattr(layer, name, new)
        self.used = used
