"""The published loop on transformers: `model.generate` of a plain checkpoint, with the answers that vLLM would give.

A rival for machines without vLLM. It takes the calls that the loop of `rivals` makes, and
returns the most probable log-probabilities of every token as a dictionary, as vLLM does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch


class LogProbability(float):
    """A log-probability: a number, as the published functions take it, and an object, as vLLM gives it."""

    __slots__ = ()

    @property
    def logprob(self) -> float:
        """Return the number."""
        return float(self)

    def exp(self) -> float:
        """Return the probability; numpy asks objects for it."""
        return math.exp(self)


@dataclass(slots=True)
class TransformersLLM:
    """What the loops take for vLLM's model."""

    module: Any  # causal language model of transformers
    tokenizer: Any  # of prompts that are text, and of the texts that come back
    eos_ids: tuple[int, ...]  # ids that end a completion
    # an id that takes the place of the last one of every completion, for random weights; None leaves them as they are
    ending: int | None = None

    def generate(
        self, prompts: Sequence[Any], params: Any, use_tqdm: bool = False
    ) -> list[Any]:
        """Complete all prompts in one batch, greedily; `params` has `max_tokens` and `logprobs`."""
        ids = [self._prompt_ids(prompt) for prompt in prompts]
        device = self.module.device
        width = max(map(len, ids))
        rows = torch.zeros((len(ids), width), dtype=torch.long)
        mask = torch.zeros_like(rows)
        for row, prompt in enumerate(ids):
            rows[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        with torch.inference_mode():
            output = self.module.generate(
                input_ids=rows.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=params.max_tokens,
                do_sample=False,
                eos_token_id=list(self.eos_ids),
                pad_token_id=self.eos_ids[0],
                return_dict_in_generate=True,
                output_logits=True,
            )
            chosen = output.sequences[:, width:]
            logits = torch.stack(
                output.logits, dim=1
            ).float()  # [rows, tokens, vocabulary]
            logprobs = torch.log_softmax(logits, dim=-1)
            of_chosen = logprobs.gather(2, chosen.unsqueeze(2)).squeeze(2).tolist()
            most = min(params.logprobs, logprobs.shape[-1])
            values, indices = (part.tolist() for part in logprobs.topk(most, dim=-1))
        completions = []
        for row, prompt in enumerate(ids):
            tokens = self._until_end(chosen[row].tolist())
            count = len(tokens)
            dictionaries = []
            for place in range(count):
                pairs = zip(
                    indices[row][place],
                    map(LogProbability, values[row][place]),
                    strict=True,
                )
                dictionaries.append(dict(pairs))
            if self.ending is not None:
                tokens[-1] = self.ending
                dictionaries[-1].setdefault(
                    self.ending, LogProbability(of_chosen[row][count - 1])
                )
            completion = SimpleNamespace(
                token_ids=tokens,
                logprobs=dictionaries,
                cumulative_logprob=math.fsum(of_chosen[row][:count]),
                text=self.tokenizer.decode(
                    tokens, skip_special_tokens=params.skip_special_tokens
                ),
                finish_reason="stop" if tokens[-1] in self.eos_ids else "length",
            )
            completions.append(
                SimpleNamespace(prompt_token_ids=prompt, outputs=[completion])
            )
        return completions

    def _prompt_ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt)["input_ids"]
            return ids
        return list(prompt["prompt_token_ids"])

    def _until_end(self, ids: list[int]) -> list[int]:
        """Return the ids up to the first that ends a completion, that one included; padding follows it."""
        end = next(
            (place for place, token in enumerate(ids) if token in self.eos_ids),
            len(ids) - 1,
        )
        return ids[: end + 1]
