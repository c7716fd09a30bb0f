"""Text encoders: checkpoints of transformers and sentence-transformers, with the texts they read."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from retrieval.passage import Passage
from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import UserError, require
from selfrag.common.pretrained import best_device, fast_format, load, own_code_refused, quiet, wants_own_code
from selfrag.common.reading import read_json, user_path


@dataclass(frozen=True, slots=True)
class EncoderCard:
    """Identity and settings of an encoder, written into every index."""

    name: str  # what to call it in a message
    fingerprint: str  # differs for every encoder whose vectors differ
    dim: int  # length of a vector, d
    pooling: str = "custom"  # how token vectors become one, such as `mean`
    normalized: bool = False  # vectors have length 1, so that the inner product is the cosine
    max_tokens: int | None = None  # what is behind this many tokens of a text is not read; None if unknown
    source: str = ""  # directory or hub name to load it from again, or empty
    precision: str = "float32"  # number format of the weights. Vectors of one model in two formats can be compared.

    def __post_init__(self) -> None:
        check_int("dim", self.dim)

    def identity(self) -> dict[str, Any]:
        """What decides which vectors can be compared: all but the name, the source and the precision."""
        return {name: value for name, value in asdict(self).items() if name not in ("name", "source", "precision")}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


class Encoder(Protocol):
    """Turns texts into vectors whose inner product is their similarity. Safe to call from several threads."""

    @property
    def card(self) -> EncoderCard:
        """Identity and settings; constant."""

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Vectors [n, d] of n texts, in their order."""


@runtime_checkable
class BlockEncoder(Encoder, Protocol):
    """An encoder that can work on several blocks at once, for example on several machines."""

    def encode_blocks(self, blocks: Iterable[Sequence[str]], batch_size: int) -> Iterator[NDArray[np.float32]]:
        """The vectors of each block of texts, in the order of the blocks, as `checked_encode` gives them."""


@runtime_checkable
class CountingEncoder(Encoder, Protocol):
    """An encoder that counts the texts of which it does not read the end."""

    @property
    def long_texts(self) -> int:
        """Texts so far that were longer than `card.max_tokens`."""


def checked_encode(encoder: Encoder, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
    """`encoder.encode` with its result checked, since an encoder may be the user's own."""
    vectors = np.asarray(encoder.encode(texts, batch_size), dtype=np.float32)
    card = encoder.card
    if vectors.shape != (len(texts), card.dim):
        raise UserError(
            f"encoder {card.name!r} returned shape {vectors.shape} for {len(texts)} texts of dim {card.dim}"
        )
    if not np.isfinite(vectors).all():
        raise UserError(f"encoder {card.name!r} returned values that are not finite")
    return vectors


BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""
_PROBE = "The quick brown fox, naïve café 北京 1234567890 jumps\tover #42!"
_SAMPLES = 512  # values of a tensor that are looked at; fine-tuning moves all of them


def parameters_fingerprint(module: Any, tokenizer: Any, settings: str) -> str:
    """16 hex digits from a sample of every weight, the ids of a probe text and the settings.

    Names of weights do not count, since they change between versions of transformers; nor does a BERT pooler, which
    mean pooling does not use and which loading fills at random where a checkpoint has none.
    """
    import torch

    parts = []
    for name, tensor in module.named_parameters():
        if "pooler." in name:
            continue
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _SAMPLES)].to("cpu", torch.float32)
        parts.append(hashlib.blake2b(repr(tuple(tensor.shape)).encode() + sample.numpy().tobytes()).hexdigest())
    text = "\n".join([*sorted(parts), repr(list(tokenizer(_PROBE)["input_ids"])), settings])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


T = TypeVar("T", list[Any], dict[str, Any])

_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How token vectors become a text vector."""

    pooling: str = "mean"  # `mean` over the tokens, or `cls` for the first
    normalize: bool = False  # scale vectors to length 1
    max_tokens: int | None = None  # texts are cut at this many tokens; None for the model's own limit

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, _POOLINGS.values())
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens)


class UnsupportedModulesError(UserError):
    """The directory describes modules beyond transformer, pooling and normalisation."""


def stated_settings(directory: Path) -> EncoderSettings:
    """What `modules.json` and its neighbours say; without them it is Contriever-like: mean pooling, as it is."""
    modules = _read(directory / "modules.json", list)
    if not modules:
        return EncoderSettings()
    if not all(isinstance(module, dict) and isinstance(module.get("path", ""), str) for module in modules):
        raise UserError(f"{directory / 'modules.json'} must hold objects with a path; fetch the encoder again")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or kinds[0] != "Transformer":
        raise UnsupportedModulesError(
            f"encoder {directory} has the modules {', '.join(kinds)}; use SentenceTransformerEncoder"
        )
    folders = {kind: directory / module.get("path", "") for kind, module in zip(kinds, modules, strict=True)}
    pooling = _pooling(_read(folders["Pooling"] / "config.json", dict), directory) if "Pooling" in kinds else "mean"
    stated = folders["Transformer"] / "sentence_bert_config.json"
    length = _read(stated, dict).get("max_seq_length")
    try:
        return EncoderSettings(pooling, "Normalize" in kinds, length)
    except UserError as error:
        raise UserError(f"{stated}: {error}; fetch the encoder again") from error


def _pooling(config: dict[str, Any], directory: Path) -> str:
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode") and value is True]
    if isinstance(config.get("pooling_mode"), str):  # newer sentence-transformers state one name
        chosen = [f"pooling_mode_{config['pooling_mode']}_{'token' if config['pooling_mode'] == 'cls' else 'tokens'}"]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedModulesError(
            f"encoder {directory} pools by {', '.join(chosen) or 'nothing'}; use SentenceTransformerEncoder"
        )
    return _POOLINGS[chosen[0]]


def _read(path: Path, kind: type[T]) -> T:
    """The list or object in a file; an empty one where there is no file."""
    value = read_json(path) if user_path(path).exists() else kind()
    if not isinstance(value, kind):
        raise UserError(f"{path} must hold a {kind.__name__}, not {type(value).__name__}; fetch the encoder again")
    return value


# Alike in the number of words and characters: to a tokenizer that knows no word of them they are one text.
_PROBES = ("river 17 北京 дом", "stone 42 東雨 мир")
_LOADING = Lock()


def encoder_directory(source: str | Path) -> Path:
    """The model directory itself, or the cached snapshot of a hub name (downloaded once)."""
    path = user_path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is no encoder directory: it has no config.json")
        return path
    if path.is_absolute() or str(source).startswith(".") or str(source).count("/") > 1 or path.exists():
        raise UserError(f"no encoder directory {source}")
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model.bin"]
        return Path(snapshot_download(str(source), allow_patterns=wanted, ignore_patterns=["onnx/*", "openvino/*"]))
    except Exception as error:  # the hub client raises many unrelated types: network, HTTP, validation
        raise UserError(f"no encoder {source!r}: not a directory here, and the hub says: {str(error)[:200]}") from error


def canonical_source(source: str | Path) -> str:
    """One spelling for all that a user may write for an encoder: a hub name, or the folder without links.

    The folder of the snapshot that the hub's cache gives for a name is spelled as that name.
    """
    path = user_path(source)
    if not path.is_dir():
        return str(source)
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = path.resolve()
    repository = folder.parent.parent
    if repository.parent == Path(HF_HUB_CACHE).resolve() and repository.name.startswith("models--"):
        newest = repository / "refs" / "main"
        if newest.is_file() and newest.read_text(encoding="utf-8").strip() == folder.name:
            return repository.name.removeprefix("models--").replace("--", "/")
    return str(folder)


def short_name(source: str) -> str:
    """The last two parts of a directory or hub name: many model directories are all called `model`."""
    return "/".join(Path(source).parts[-2:])


@contextmanager
def loading(source: str | Path) -> Iterator[None]:
    """Load in this block: one encoder at a time, and whatever a library makes of bad files is one line."""
    try:
        with _LOADING:  # transformers sets the default type of tensors and its logging for the whole process
            yield
    except UserError:
        raise
    except Exception as error:  # of any type: division by zero, a missing attribute, a tokenizer's bare Exception
        if wants_own_code(error):
            raise own_code_refused(source) from error
        raise UserError(f"encoder {source} cannot be loaded: {type(error).__name__}: {str(error)[:300]}") from error


def check_encoder(encoder: Encoder, token_ids: Callable[[Sequence[str]], Sequence[Sequence[int]]]) -> None:
    """Encode two texts that differ; refuse an encoder to which they are the same, or whose vectors are of no use.

    `token_ids` gives what it reads of each of some texts.
    """
    name = encoder.card.name
    first, second = map(list, token_ids(_PROBES))
    if first == second:
        raise UserError(
            f"encoder {name!r} reads different texts as the same tokens: its tokenizer files are missing or of another "
            "model, or it cuts texts too short; fetch it again"
        )
    vectors = checked_encode(encoder, (*_PROBES, "a"), 3)[:2]  # the third is short, so padding is tried as well
    largest = np.abs(vectors).max(axis=1)
    if not largest.all() or np.abs(vectors[0] - vectors[1]).max() <= 1e-5 * largest.max():
        raise UserError(
            f"encoder {name!r} gives {'zeros' if not largest.all() else 'the same vector'} for different texts: "
            "its weights are damaged; fetch it again"
        )


_CHARACTERS_PER_TOKEN = 64  # far above any prose; what lies behind is not even tokenised


class TransformerEncoder:
    """Token vectors of a transformer, pooled into one vector a text.

    Args:
        source: a model directory, or a name on the hub.
        settings: pooling, normalisation and length; None takes what the directory states (mean pooling without
            normalisation where it states nothing, which is right for Contriever).
        name: what messages call it; the last two parts of the source by default.
        device: a torch device, or `auto` for a GPU where there is one.
        precision: of the weights: `float32`, `bfloat16`, or `auto` for bfloat16 where the device multiplies in it.

    Raises:
        UserError: the source cannot be loaded, lacks weights, or cannot tell two texts apart.

    Attributes:
        card: see `Encoder`.
        long_texts: see `CountingEncoder`.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        settings: EncoderSettings | None = None,
        name: str | None = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        device, precision = resolve_device(device, precision)
        directory = encoder_directory(source)
        settings = settings or stated_settings(directory)
        place = canonical_source(source)
        self._lock = Lock()
        self.long_texts = 0
        with loading(source):
            self._tokenizer, self._model = _load(directory, source)
            positions = getattr(self._model.config, "max_position_embeddings", None) or 512
            limit = int(min(self._tokenizer.model_max_length, positions))
            self._settings = replace(settings, max_tokens=min(settings.max_tokens or limit, limit))
            self.card = EncoderCard(
                name=name or short_name(place),
                fingerprint=parameters_fingerprint(self._model, self._tokenizer, repr(self._settings)),
                dim=self._model.config.hidden_size,
                pooling=self._settings.pooling,
                normalized=self._settings.normalize,
                max_tokens=self._settings.max_tokens,
                source=place,
                precision=precision,
            )
            self._model = _placed(self._model, device, precision)
            check_encoder(self, self._token_ids)

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Vectors [n, dim] of n texts, in their order; texts of like length share a batch."""
        vectors = np.zeros((len(texts), self.card.dim), dtype=np.float32)
        ids = self._token_ids(texts)
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self._forward([ids[row] for row in rows])
        return vectors

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        longest = int(self._settings.max_tokens or 512)
        # Lone surrogates (possible after a lenient decode elsewhere) are refused by the tokenizer and mean nothing.
        clean = [text[: longest * _CHARACTERS_PER_TOKEN].encode("utf-8", "replace").decode("utf-8") for text in texts]
        with self._lock:  # setting the truncation of a fast tokenizer is not thread-safe
            encoded = self._tokenizer(clean, truncation=True, max_length=longest)
            ids: list[list[int]] = encoded["input_ids"]
            full = [row for row, tokens in enumerate(ids) if len(tokens) >= longest]
            if encoded.encodings is not None:  # a slow tokenizer does not tell what it cut off
                full = [row for row in full if encoded.encodings[row].overflowing or len(clean[row]) < len(texts[row])]
            self.long_texts += len(full)
        return ids

    def _forward(self, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        import torch

        width = max(map(len, ids))
        padding = self._tokenizer.pad_token_id or 0
        batch = torch.tensor([[*row, *[padding] * (width - len(row))] for row in ids], device=self._model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids], device=self._model.device)
        with torch.inference_mode():
            hidden = self._model(input_ids=batch, attention_mask=mask).last_hidden_state.float()
            if self._settings.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                weights = mask.unsqueeze(-1).float()
                pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            if self._settings.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            result: NDArray[np.float32] = pooled.cpu().numpy()
        return result


def resolve_device(device: str, precision: str) -> tuple[str, str]:
    """Return a device and a precision, with `auto` replaced by what this machine has.

    Raises:
        UserError: there is no such device or precision, or no torch.
    """
    torch = require("torch", extra="cpu")
    check_choice("precision", precision, ["float32", "bfloat16", "auto"])
    device = best_device() if device == "auto" else device
    try:
        torch.empty(0, device=device)
    # No such device; torch built without CUDA; a kind of device that torch only names.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"device={device!r:.40} cannot be used ({str(error).splitlines()[0]}); give cpu or auto"
        ) from error
    return device, fast_format(device).name if precision == "auto" else precision


def _placed(model: Any, device: str, precision: str) -> Any:
    import torch

    return model.to(device=device, dtype=getattr(torch, precision))


def _load(directory: Path, source: str | Path) -> tuple[Any, Any]:
    import torch

    with quiet():
        tokenizer = load("AutoTokenizer", directory)
        # In float32 first: the fingerprint must not depend on the precision that is asked for.
        model, report = load("AutoModel", directory, dtype=torch.float32, output_loading_info=True)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise UserError(f"encoder {source} lacks weights ({missing[0]} and {len(missing) - 1} more); fetch it again")
    parts = {name for name, _ in model.named_children()} - {"pooler"}
    unused = sorted(
        key for key in report["unexpected_keys"] if key.split(".")[0] in parts and "position_ids" not in key
    )
    if unused:
        raise UserError(
            f"encoder {source} holds weights that its config.json has no place for ({unused[0]} and "
            f"{len(unused) - 1} more); fetch it again"
        )
    return tokenizer, model.eval()


_SAFE_VERSION = 6
"""Older ones import whatever class a local model names, without being told to."""


class SentenceTransformerEncoder:
    """Vectors as sentence-transformers makes them, for models with modules that `TransformerEncoder` does not know.

    Its arguments and errors are those of `TransformerEncoder`.
    """

    def __init__(
        self, source: str | Path, *, name: str | None = None, device: str = "cpu", precision: str = "float32"
    ) -> None:
        device, precision = resolve_device(device, precision)
        library = require("sentence_transformers", extra="encoders")
        if int(library.__version__.split(".")[0]) < _SAFE_VERSION:
            found = library.__version__
            raise UserError(
                f"sentence-transformers {found} runs code of a model; run: pip install -U 'selfrag[encoders]'"
            )
        directory, place = encoder_directory(source), canonical_source(source)
        self._lock = Lock()
        with loading(source):
            self._model = library.SentenceTransformer(str(directory), device=device, trust_remote_code=False)
            modules = " ".join(type(module).__name__ for module in self._model)
            length = self._model.max_seq_length
            self.card = EncoderCard(
                name=name or short_name(place),
                fingerprint=parameters_fingerprint(self._model, self._model.tokenizer, f"{modules} {length}"),
                dim=int(self._model.encode(["dimension"], show_progress_bar=False).shape[1]),
                pooling="sentence-transformers",
                normalized="Normalize" in modules,
                max_tokens=length,
                source=place,
                precision=precision,
            )
            self._model = _placed(self._model, device, precision)
            check_encoder(self, lambda texts: self._model.tokenizer(list(texts))["input_ids"])

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Vectors [n, dim] of n texts, in their order."""
        with self._lock:
            vectors = self._model.encode(
                list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.card.dim)


__all__ = [
    "Encoder",
    "EncoderCard",
    "EncoderSettings",
    "SentenceTransformerEncoder",
    "TransformerEncoder",
    "load_encoder",
]


def load_encoder(source: Encoder | str | Path, *, device: str = "cpu", precision: str = "float32") -> Encoder:
    """An encoder from a directory or hub name; an encoder object is returned as it is.

    Args:
        source: the encoder.
        device: a torch device, or `auto` for a GPU where there is one.
        precision: of the weights: `float32`, `bfloat16`, or `auto` for bfloat16 where the device multiplies in it.

    Raises:
        UserError: it cannot be loaded, or there is no such device.
    """
    if not isinstance(source, str | Path):
        return source
    try:
        return TransformerEncoder(source, device=device, precision=precision)
    except UnsupportedModulesError:
        return SentenceTransformerEncoder(source, device=device, precision=precision)


@dataclass(frozen=True, slots=True)
class Template:
    """Texts around the slots of a passage and of a query.

    The default is that of Contriever and MiniLM, `title + " " + text`; models trained with prefixes need their own,
    such as `Template("passage: {title} {text}", "query: {query}")` for E5.

    Attributes:
        passage: text with the slots `{title}` and `{text}`.
        query: text with the slot `{query}`.

    Raises:
        UserError: an unknown slot, or no `{text}` or `{query}`.
    """

    passage: str = "{title} {text}"
    query: str = "{query}"

    def __post_init__(self) -> None:
        _check(self.passage, needed="text", known={"title", "text"})
        _check(self.query, needed="query", known={"query"})

    def of_passage(self, passage: Passage) -> str:
        """The text of a passage. Braces in the passage stay text."""
        return self.passage.format(title=passage.title, text=passage.text).strip()

    def of_query(self, query: str) -> str:
        """The text of a query."""
        return self.query.format(query=query)


def _check(template: str, *, needed: str, known: set[str]) -> None:
    try:
        slots = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise UserError(f"template {template!r}: {error}; double the braces that are text") from error
    if needed not in slots or slots - known:
        raise UserError(f"template {template!r} must hold {{{needed}}} and no slot but: {', '.join(sorted(known))}")
