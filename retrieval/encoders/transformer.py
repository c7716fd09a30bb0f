"""Text encoder built directly on transformers: MiniLM, Contriever, BGE, E5 and their like. Knows no index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.card import EncoderCard
from retrieval.encoders.fingerprint import parameters_fingerprint
from retrieval.encoders.loading import canonical_source, check_encoder, encoder_directory, loading, short_name
from retrieval.encoders.settings import EncoderSettings, stated_settings
from retrieval.errors import UserError
from retrieval.pretrained import load

_CHARACTERS_PER_TOKEN = 64  # far above any prose; what lies behind is not even tokenised


class TransformerEncoder:
    """Token vectors of a transformer, pooled into one vector a text.

    Args:
        source: a model directory, or a name on the hub.
        settings: pooling, normalisation and length; None takes what the directory states (mean pooling without
            normalisation where it states nothing, which is right for Contriever).
        name: what messages call it; the last two parts of the source by default.
        device: a torch device.

    Raises:
        UserError: the source cannot be loaded, lacks weights, or cannot tell two texts apart.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        settings: EncoderSettings | None = None,
        name: str | None = None,
        device: str = "cpu",
    ) -> None:
        directory = encoder_directory(source)
        settings = settings or stated_settings(directory)
        place = canonical_source(source)
        self._lock = Lock()
        with loading(source):
            self._tokenizer, self._model = _load(directory, source, device)
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
            )
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
            encoded: list[list[int]] = self._tokenizer(clean, truncation=True, max_length=longest)["input_ids"]
        return encoded

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


@contextmanager
def _quiet() -> Iterator[None]:
    """No bar and no report of unused poolers: they would be all that a search prints on stderr."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _load(directory: Path, source: str | Path, device: str) -> tuple[Any, Any]:
    import torch

    with _quiet():
        tokenizer = load("AutoTokenizer", directory)
        # Float32 on every machine: the vectors of an index must not depend on where they were made.
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
    return tokenizer, model.eval().to(device)
