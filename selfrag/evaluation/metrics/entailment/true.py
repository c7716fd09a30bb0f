"""TRUE: a T5 that writes 1 or 0 for a premise and a hypothesis, as ALCE uses it. Edge: loads a model.

Source: TRUE (arXiv 2204.04991); the 11B checkpoint `google/t5_xxl_true_nli_mixture` is ALCE's judge. Any
sequence-to-sequence checkpoint that was trained on this form can be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retrieval import pretrained
from selfrag.errors import UserError, require
from selfrag.evaluation.metrics.entailment.batches import batches
from selfrag.evaluation.metrics.entailment.protocol import Pair, Verdicts
from selfrag.evaluation.records import model_files
from selfrag.loading import load_tokenizer, resolve_model

ALCE_JUDGE = "google/t5_xxl_true_nli_mixture"
_NEW_TOKENS = 10
_ANSWERS = {"1": True, "0": False}


@dataclass(frozen=True)
class TrueEntailment:
    """A TRUE model, loaded when it is first asked.

    Attributes:
        open: loads the model of transformers.
        tokenizer: its own.
        source: checkpoint directory or hub name.
        files: checksums of the checkpoint.
        dtype: of the weights.
        batch_tokens: most tokens of a batch.
        max_tokens: longer inputs lose the end of the premise; None for no limit, as in ALCE.
    """

    open: Callable[[], Any]
    tokenizer: Any
    source: str
    files: Mapping[str, str]
    dtype: str
    batch_tokens: int = 8192
    max_tokens: int | None = None

    @classmethod
    def load(cls, source: str = ALCE_JUDGE, **settings: Any) -> TrueEntailment:
        """A checkpoint, loaded at the first verdict: in bfloat16 over the GPUs there are, in float32 on a CPU.

        Several GPUs need `accelerate`.

        Raises:
            UserError: no such checkpoint, or none of a sequence-to-sequence model.
        """
        path = resolve_model(source)
        torch = require("torch", extra="cpu")
        try:
            config = pretrained.load("AutoConfig", path)
        except (OSError, ValueError) as error:
            raise _no_seq2seq(source, error) from error
        if not getattr(config, "is_encoder_decoder", False):
            raise _no_seq2seq(source, f"it is a {config.model_type}")
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        opening = partial(_open, path, source, dtype)
        return cls(opening, load_tokenizer(path), source, model_files(path), str(dtype), **settings)

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        return self.open()

    @property
    def name(self) -> str:
        """The checkpoint's own name."""
        return self.source.rstrip("/").rpartition("/")[2]

    def identity(self) -> Mapping[str, Any]:
        """Kind, checkpoint and limits."""
        limits = {"dtype": self.dtype, "max_tokens": self.max_tokens}
        return {"kind": "true", "model": self.source, "files": dict(self.files), **limits}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """1 is entailment and 0 is none; None where the model wrote something else."""
        encoded = [self._ids(premise, hypothesis) for premise, hypothesis in pairs]
        verdicts: Verdicts = [None] * len(pairs)
        for batch in batches([len(ids) for ids in encoded], self.batch_tokens):
            for position, said in zip(batch, self._written([encoded[at] for at in batch]), strict=True):
                verdicts[position] = _ANSWERS.get(said.strip())
        return verdicts

    def _ids(self, premise: str, hypothesis: str) -> list[int]:
        text = f"premise: {premise} hypothesis: {hypothesis}"
        ids = list(self.tokenizer(text)["input_ids"])
        if self.max_tokens is None or len(ids) <= self.max_tokens:
            return ids
        tail = list(self.tokenizer(f" hypothesis: {hypothesis}")["input_ids"])
        head = list(self.tokenizer(f"premise: {premise}", add_special_tokens=False)["input_ids"])
        return [*head[: max(0, self.max_tokens - len(tail))], *tail]

    def _written(self, rows: Sequence[Sequence[int]]) -> list[str]:
        torch = require("torch", extra="cpu")
        padded = self.tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt")
        with torch.inference_mode():
            out = self.model.generate(
                **{key: value.to(self.model.device) for key, value in padded.items()},
                max_new_tokens=_NEW_TOKENS,
                do_sample=False,
                num_beams=1,
            )
        return list(self.tokenizer.batch_decode(out, skip_special_tokens=True))


def _open(path: Path, source: str, dtype: Any) -> Any:
    torch = require("torch", extra="cpu")
    placed: dict[str, Any] = {"device_map": "auto"} if torch.cuda.is_available() else {}
    try:
        return pretrained.load("AutoModelForSeq2SeqLM", path, dtype=dtype, **placed).eval()
    except (OSError, ValueError) as error:
        raise _no_seq2seq(source, error) from error


def _no_seq2seq(source: str, why: object) -> UserError:
    return UserError(f"{source} is no sequence-to-sequence model: {str(why).splitlines()[0]}")
