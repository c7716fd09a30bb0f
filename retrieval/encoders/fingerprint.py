"""A short string that changes when the vectors of a model would. Knows no file: it looks at what was loaded."""

from __future__ import annotations

import hashlib
from typing import Any

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
