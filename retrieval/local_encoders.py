"""Text encoders that run in this process: checkpoints of transformers and sentence-transformers, by `load_encoder`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retrieval.encoder_files import (
    PROBE,
    EncoderOptions,
    EncoderSettings,
    UnsupportedModulesError,
    canonical_source,
    encoder_directory,
    load_model,
    loading,
    parameters_fingerprint,
    short_name,
    stated_settings,
    weights_fingerprint,
)
from retrieval.encoders import (
    NO_ENCODER,
    Encoder,
    EncoderCard,
    WordsOnly,
    check_vectors,
    checked_encode,
)
from retrieval.onnx_encoder import BertRunner, bert_config, pool_tokens
from retrieval.vectors import Matrix
from selfrag.common.errors import UserError, require
from selfrag.common.fast_tokenizer import FastTokenizer
from selfrag.common.plugins import load_registered
from selfrag.common.pretrained import check_config

BatchWork: TypeAlias = Callable[[list[int]], None]
"""Does the work of the rows of a batch."""
TextTokens: TypeAlias = Sequence[Sequence[int]]
"""Ids of each of some texts."""
SERVERS = "selfrag.encoder_servers"
"""Entry points by the scheme of an address: each names a function of the address that gives an `Encoder`."""
# far above any prose; what lies behind is not even tokenised
_CHARACTERS_PER_TOKEN = 64
# Alike in the number of words and characters: to a tokenizer that knows no word of them they are one text.
_PROBES = ("river 17 北京 дом", "stone 42 東雨 мир")
_SAFE_VERSION = 6
"""Older versions of sentence-transformers import whatever class a local model names, without being told to."""


def load_encoder(source: Encoder | str | Path, **options: Any) -> Encoder:
    """Return the encoder of a directory, a hub name or the address of a server; an encoder object as it is.

    Args:
        source: the encoder. For a server that speaks OpenAI's API: `http://HOST:PORT/v1#MODEL`. `none` for an index of
            words only.
        options: fields of `EncoderOptions`, for an encoder that runs in this process.

    Raises:
        UserError: it cannot be loaded, or there is no such device.
    """
    if not isinstance(source, str | Path):
        return source
    if source == NO_ENCODER:
        if options:
            raise UserError(
                f"encoder none has no settings; leave out {', '.join(options)}"
            )
        return WordsOnly()
    open_server = _server_of(source)
    if open_server is not None:
        if options:
            raise UserError(
                f"encoder {source}: its server decides on {', '.join(options)}; leave that out"
            )
        encoder: Encoder = open_server(str(source))
        return encoder
    try:
        return _open_onnx(source, EncoderOptions(**options)) or TransformerEncoder(
            source, **options
        )
    except UnsupportedModulesError:
        return SentenceTransformerEncoder(source, **options)


def load_alike(
    source: Encoder | str | Path, card: EncoderCard, **options: Any
) -> Encoder:
    """Return what `load_encoder` does, in the number format of an index's encoder unless the options name one.

    An index that an earlier version encoded in int8 is searched in float32.
    """
    is_local = isinstance(source, str | Path) and _server_of(source) is None
    if card.precision and is_local and source != NO_ENCODER:
        precision = card.precision
        if precision == "int8":
            precision = "float32"
        options = {"precision": precision, **options}
    return load_encoder(source, **options)


def _open_onnx(source: str | Path, options: EncoderOptions) -> OnnxEncoder | None:
    """Return a BERT encoder on ONNX Runtime, where that does what the options ask for."""
    if not options.is_plain:
        return None
    directory = encoder_directory(source)
    has_tokenizer = (directory / "tokenizer.json").is_file()
    if not has_tokenizer or bert_config(directory) is None:
        return None
    return OnnxEncoder(source, batch_tokens=options.tokens_of_batch("cpu"))


def _server_of(source: str | Path) -> Any:
    """Return what opens the server of an address, or None for a directory or hub name."""
    scheme, colon, _ = str(source).partition(":")
    return load_registered(SERVERS, scheme) if colon else None


def token_batches(ids: TextTokens, most: int) -> Iterator[list[int]]:
    """Yield the rows of each batch, longest texts first: at most `most` tokens with padding, and at least one row."""
    rows: list[int] = []
    for row in sorted(range(len(ids)), key=lambda row: -len(ids[row])):
        if rows:
            width = len(ids[rows[0]])
            if (len(rows) + 1) * width > most:
                yield rows
                rows = []
        rows.append(row)
    if rows:
        yield rows


_SETTING_THREADS = Lock()
"""Held while the number of threads of this process is changed and set back; of several encoders one runs at a time."""


def _each_on_a_core(work: BatchWork, batches: Sequence[list[int]]) -> None:
    """Do the work of each batch on one core, as many at once as torch has threads.

    So no core waits for another one in the middle of a batch, which costs most where other work shares the machine.
    """
    import torch

    with _SETTING_THREADS:
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                for _ in pool.map(work, batches):
                    pass
            finally:
                # of threads that begin later; it belongs to the process
                torch.set_num_threads(threads)


class TokenEncoder(ABC):
    """What encoders share that make one vector of the token vectors of a text.

    Attributes:
        card: see `Encoder`.
        long_texts: see `CountingEncoder`.
    """

    card: EncoderCard
    _settings: EncoderSettings

    def __init__(self, batch_tokens: int) -> None:
        self._batch_tokens = batch_tokens
        self._lock = Lock()
        self.long_texts = 0

    def _describe(self, place: str, mark: str, dim: int, precision: str) -> None:
        """Make the card, given where the encoder is, its fingerprint and what it computes."""
        settings = self._settings
        self.card = EncoderCard(
            short_name(place),
            mark,
            dim,
            settings.pooling,
            settings.normalize,
            settings.max_tokens,
            place,
            precision,
        )

    @abstractmethod
    def _forward(self, ids: TextTokens) -> Matrix:
        """Return the vectors [n, dim] of one batch of texts."""

    @abstractmethod
    def _tokenized(
        self, texts: list[str], longest: int
    ) -> Iterator[tuple[list[int], bool]]:
        """Yield the ids of each text, at most `longest`, and whether it was cut."""

    @abstractmethod
    def _run_batches(self, work: BatchWork, batches: Sequence[list[int]]) -> None:
        """Do the work of each batch."""

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors [n, dim] of n texts, in their order; texts of like length share a batch."""
        return self._encode_ids(self._token_ids(texts))

    def encode_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[Matrix]:
        """Yield the vectors of each block of texts; the next block is read and tokenised while the model runs."""
        following = iter(blocks)

        def next_ids() -> list[list[int]] | None:
            texts = next(following, None)
            return None if texts is None else self._token_ids(texts)

        with ThreadPoolExecutor(1) as pool:
            ids = pool.submit(next_ids).result()
            while ids is not None:
                waiting = pool.submit(next_ids)
                yield check_vectors(self._encode_ids(ids), self.card, len(ids))
                ids = waiting.result()

    def _encode_ids(self, ids: TextTokens) -> Matrix:
        vectors = np.zeros((len(ids), self.card.dim), dtype=np.float32)

        def encode_rows(rows: list[int]) -> None:
            vectors[rows] = self._forward([ids[row] for row in rows])

        batches = list(token_batches(ids, self._batch_tokens))
        self._run_batches(encode_rows, batches)
        return vectors

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        longest = int(self.card.max_tokens or 512)
        # Lone surrogates (possible after a lenient decode elsewhere) are refused by the tokenizer and mean nothing.
        clean = [
            text[: longest * _CHARACTERS_PER_TOKEN]
            .encode("utf-8", "replace")
            .decode("utf-8")
            for text in texts
        ]
        ids = []
        cut = 0
        # setting the truncation of a fast tokenizer is not thread-safe
        with self._lock:
            for row, (tokens, was_cut) in enumerate(self._tokenized(clean, longest)):
                ids.append(tokens)
                is_full = len(tokens) >= longest
                cut += is_full and (was_cut or len(clean[row]) < len(texts[row]))
            self.long_texts += cut
        return ids


def padded_ids(
    ids: TextTokens, filler: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the ids of texts as one array [n, width], and their lengths [n]."""
    lengths = np.array([len(tokens) for tokens in ids], np.int32)
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(mask.shape, filler, np.int64)
    padded[mask] = np.concatenate(ids)
    return padded, lengths


class TransformerEncoder(TokenEncoder):
    """Token vectors of a transformer, pooled into one vector a text.

    Args:
        source: a model directory, or a name on the hub.
        settings: pooling, normalisation and length; None takes what the directory states (mean pooling without
            normalisation where it states nothing, which is right for Contriever).
        options: fields of `EncoderOptions`.

    Raises:
        UserError: the source cannot be loaded, lacks weights, or cannot tell two texts apart.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        settings: EncoderSettings | None = None,
        **options: Any,
    ) -> None:
        chosen = EncoderOptions(**options).resolve()
        super().__init__(int(chosen.batch_tokens or 0))
        directory = encoder_directory(source)
        settings = settings or stated_settings(directory)
        place = canonical_source(source)
        with loading(source):
            self._tokenizer, self._model = load_model(directory, source)
            positions = (
                getattr(self._model.config, "max_position_embeddings", None) or 512
            )
            limit = min(self._tokenizer.model_max_length, positions)
            self._settings = settings.limited(limit)
            fingerprint = parameters_fingerprint(
                self._model, self._tokenizer, repr(self._settings)
            )
            dim = self._model.config.hidden_size
            self._describe(place, fingerprint, dim, chosen.precision)
            _place(self._model, chosen)
            _check_encoder(self, self._token_ids)

    def _run_batches(self, work: BatchWork, batches: Sequence[list[int]]) -> None:
        if len(batches) > 1 and self._model.device.type == "cpu":
            _each_on_a_core(work, batches)
        else:
            for rows in batches:
                work(rows)

    def _tokenized(
        self, texts: list[str], longest: int
    ) -> Iterator[tuple[list[int], bool]]:
        encoded = self._tokenizer(texts, truncation=True, max_length=longest)
        for row, tokens in enumerate(encoded["input_ids"]):
            # a slow tokenizer does not tell what it cut off
            is_slow = encoded.encodings is None
            yield tokens, is_slow or bool(encoded.encodings[row].overflowing)

    def _forward(self, ids: TextTokens) -> Matrix:
        import torch

        padded, lengths = padded_ids(ids, self._tokenizer.pad_token_id or 0)
        mask = np.arange(padded.shape[1]) < lengths[:, None]  # [n, width]
        batch = torch.from_numpy(padded).to(self._model.device)
        attention = torch.from_numpy(mask.astype(np.int64)).to(self._model.device)
        with torch.inference_mode():
            hidden = self._model(
                input_ids=batch, attention_mask=attention
            ).last_hidden_state.float()
            if self._settings.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                weights = attention.unsqueeze(-1).float()
                pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            if self._settings.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            vectors: Matrix = pooled.cpu().numpy()
        return vectors


class OnnxEncoder(TokenEncoder):
    """A BERT encoder on a CPU in float32 by ONNX Runtime, with the vectors and the card of `TransformerEncoder`.

    Its arguments and errors are those of `TransformerEncoder`.
    """

    def __init__(self, source: str | Path, *, batch_tokens: int) -> None:
        super().__init__(batch_tokens)
        directory = encoder_directory(source)
        settings = stated_settings(directory)
        place = canonical_source(source)
        with loading(source):
            config = bert_config(directory) or {}
            try:
                check_config(directory)
                self._runner = BertRunner(directory, config)
            except UserError as error:
                raise UserError(
                    f"encoder {source} cannot be loaded: {error}"
                ) from error
            tokenizer = FastTokenizer(directory)
            self._core = tokenizer.backend_tokenizer
            self._core.no_truncation()
            self._core.no_padding()
            self._filler = tokenizer.pad_token_id or 0
            limit = min(tokenizer.model_max_length, config["max_position_embeddings"])
            self._settings = settings.limited(limit)
            probe_ids = self._core.encode(PROBE).ids
            fingerprint = weights_fingerprint(
                self._runner.parameters, probe_ids, repr(self._settings)
            )
            self._describe(place, fingerprint, config["hidden_size"], "float32")
            self._runner.parameters.clear()
            self._core.enable_truncation(self._settings.max_tokens or limit)
            _check_encoder(self, self._token_ids)

    def _run_batches(self, work: BatchWork, batches: Sequence[list[int]]) -> None:
        if len(batches) < 2:
            for rows in batches:
                work(rows)
            return
        with ThreadPoolExecutor(self._runner.cores) as pool:
            for _ in pool.map(work, batches):
                pass

    def _tokenized(
        self, texts: list[str], longest: int
    ) -> Iterator[tuple[list[int], bool]]:
        del longest  # the tokenizer is set to it
        for encoding in self._core.encode_batch(texts):
            yield encoding.ids, bool(encoding.overflowing)

    def _forward(self, ids: TextTokens) -> Matrix:
        padded, lengths = padded_ids(ids, self._filler)
        hidden = self._runner.run(padded, lengths)
        settings = self._settings
        return pool_tokens(hidden, lengths, settings.pooling, settings.normalize)


class SentenceTransformerEncoder:
    """Vectors as sentence-transformers makes them, for models with modules that `TransformerEncoder` does not know.

    Its arguments and errors are those of `TransformerEncoder`.
    """

    def __init__(self, source: str | Path, **options: Any) -> None:
        chosen = EncoderOptions(**options).resolve()
        library = require("sentence_transformers", extra="encoders")
        version = library.__version__
        if int(version.split(".")[0]) < _SAFE_VERSION:
            raise UserError(
                f"sentence-transformers {version} runs code of a model; run: pip install -U 'selfrag[encoders]'"
            )
        directory, place = encoder_directory(source), canonical_source(source)
        self._lock = Lock()
        with loading(source):
            model = library.SentenceTransformer(
                str(directory), device=chosen.device, trust_remote_code=False
            )
            self._model = model
            modules = " ".join(type(module).__name__ for module in model)
            length = model.max_seq_length
            self.card = EncoderCard(
                name=short_name(place),
                fingerprint=parameters_fingerprint(
                    model, model.tokenizer, f"{modules} {length}"
                ),
                dim=int(model.encode(["dimension"], show_progress_bar=False).shape[1]),
                pooling="sentence-transformers",
                normalized="Normalize" in modules,
                max_tokens=length,
                source=place,
                precision=chosen.precision,
            )
            self._batch_size = max(1, int(chosen.batch_tokens or 0) // (length or 512))
            _place(model, chosen)
            _check_encoder(
                self, lambda texts: model.tokenizer(list(texts))["input_ids"]
            )

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors [n, dim] of n texts, in their order."""
        with self._lock:
            vectors = self._model.encode(
                list(texts), batch_size=self._batch_size, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.card.dim)


def _place(model: Any, options: EncoderOptions) -> None:
    import torch

    model.to(device=options.device, dtype=getattr(torch, options.precision))


def _check_encoder(
    encoder: Encoder, token_ids: Callable[[Sequence[str]], TextTokens]
) -> None:
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
    # the third is short, so padding is tried as well
    vectors = checked_encode(encoder, (*_PROBES, "a"))[:2]
    largest = np.abs(vectors).max(axis=1)
    if (
        not largest.all()
        or np.abs(vectors[0] - vectors[1]).max() <= 1e-5 * largest.max()
    ):
        fault = "the same vector" if largest.all() else "zeros"
        raise UserError(
            f"encoder {name!r} gives {fault} for different texts: its weights are damaged; fetch it again"
        )
