"""What ours is timed against: the published loop, on vLLM or on `generate` of transformers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from retrieval.passage import Passage
from scripts.benchmarks.measure import Run
from scripts.benchmarks.workload import Item
from selfrag.decoding.policy import Decoding
from selfrag.engines.transformers_model import LoadedModel
from selfrag.prompting import Prompting
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet
from selfrag.reflection.requests import Generate, Usage
from selfrag.runtime.sessions import Serving

FEW = 20
"""Log-probabilities that vLLM gives without being asked to raise its limit."""
MISSING = -100.0
"""What the official code takes for the log-probability of an id that the engine did not return."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Greedy tokens after one prompt."""

    ids: tuple[int, ...]
    # of each token the most probable ids, with their log-probabilities as numbers or as vLLM's objects
    logprobs: Sequence[Mapping[int, Any]]
    total: float  # log-probability of all tokens


Complete: TypeAlias = Callable[[Sequence[list[int]], int, int], list[Completion]]
"""Completes prompts in one blocking call: prompts, most new tokens, log-probabilities a token."""


def run_on_vllm(
    engine: Any, prompts: Sequence[Sequence[int]], settings: Sequence[dict[str, Any]]
) -> list[Any]:
    """Return the greedy completions of prompts, in order, as vLLM's `LLM.generate` makes them on its `LLMEngine`."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    for number, (prompt, options) in enumerate(zip(prompts, settings, strict=True)):
        params = SamplingParams(
            temperature=0.0, output_kind=RequestOutputKind.FINAL_ONLY, **options
        )
        engine.add_request(f"rival-{number}", tokens_input(list(prompt)), params)
    outputs: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output.outputs[0] for output in engine.step()}
    return [outputs[f"rival-{number}"] for number in range(len(prompts))]


def complete_on_vllm(
    engine: Any, prompts: Sequence[list[int]], tokens: int, logprobs: int
) -> list[Completion]:
    """Complete without the keys and values of earlier prompts."""
    options = {
        "max_tokens": tokens,
        "logprobs": logprobs,
        "skip_special_tokens": False,
        "skip_reading_prefix_cache": True,
    }
    completions = []
    for output in run_on_vllm(engine, prompts, [options] * len(prompts)):
        ids = tuple(output.token_ids)
        completions.append(Completion(ids, output.logprobs, output.cumulative_logprob))
    return completions


def replay_on_vllm(engine: Any, requests: Sequence[Generate]) -> int:
    """Serve all requests at once, without log-probabilities; return the number of new tokens."""
    settings: list[dict[str, Any]] = []
    for request in requests:
        stops = list(request.stop_ids)
        options = {"max_tokens": request.max_tokens, "stop_token_ids": stops}
        settings.append({**options, "detokenize": False})
    prompts = [request.prompt_ids for request in requests]
    outputs = run_on_vllm(engine, prompts, settings)
    return sum(len(output.token_ids) for output in outputs)


def replay_on(engine: Serving, requests: Sequence[Generate]) -> int:
    """Serve all requests at once by an engine, without log-probabilities of reflection tokens."""
    waiting = {engine.submit(replace(request, watch_ids=())) for request in requests}
    generated = 0
    while waiting:
        for ticket, result in engine.step():
            waiting.remove(ticket)
            generated += len(getattr(result, "token_ids", ()))
    return generated


def complete_on_transformers(
    model: LoadedModel, prompts: Sequence[list[int]], tokens: int, logprobs: int
) -> list[Completion]:
    """Complete by `generate` of a plain module, all prompts in one batch."""
    import torch

    width = max(map(len, prompts))
    rows = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(rows)
    for row, prompt in enumerate(prompts):
        rows[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    ends = sorted(model.eos_ids)
    with torch.inference_mode():
        output = model.module.generate(
            input_ids=rows.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0],
            return_dict_in_generate=True,
            output_logits=True,
        )
        chosen = output.sequences[:, width:]  # [rows, tokens]
        logits = torch.stack(output.logits, dim=1).float()  # [rows, tokens, vocabulary]
        every = torch.log_softmax(logits, dim=-1)
        of_chosen = every.gather(2, chosen.unsqueeze(2)).squeeze(2).tolist()
        best = every.topk(min(logprobs, every.shape[-1]), dim=-1)
    values, indices = best.values.tolist(), best.indices.tolist()
    completions = []
    for row, ids in enumerate(chosen.tolist()):
        # padding follows the first id that ends a completion
        ended = [place for place, token in enumerate(ids) if token in model.eos_ids]
        count = ended[0] + 1 if ended else len(ids)
        dictionaries = []
        for place in range(count):
            pairs = zip(indices[row][place], values[row][place], strict=True)
            dictionaries.append(dict(pairs))
        total = math.fsum(of_chosen[row][:count])
        completions.append(Completion(tuple(ids[:count]), dictionaries, total))
    return completions


@dataclass(frozen=True, slots=True)
class Path:
    """A path through the levels: its text ids, its score, and whether it wants another level."""

    ids: tuple[int, ...]
    score: float
    goes_on: bool


@dataclass(slots=True)
class PublishedLoop:
    """The published loop: one question and one node at a time, all passages of a node in one call."""

    complete: Complete
    prompting: Prompting  # the same layouts that ours uses
    policy: Decoding
    logprobs: int  # for every token; the form's own number is faithful, `FEW` is kind
    # id that takes the place of the last one of every completion, for random weights
    ending: int | None = None
    _usage: Usage = field(default_factory=Usage)

    def answer_all(self, items: Sequence[Item]) -> Run:
        """Answer the questions one by one."""
        self._usage = Usage()
        start = time.perf_counter()
        for item in items:
            self.answer(item)
        return Run(time.perf_counter() - start, len(items), self._usage)

    def answer(self, item: Item) -> str:
        """Return the best path of the deepest level, level by level and node by node."""
        prompt = self.prompting.prompt(item.instruction)
        level = [Path((), 1.0, True)]
        for _ in range(self.policy.max_segments):
            children: list[Path] = []
            for path in level:
                if path.goes_on:
                    children += self._step(prompt, path, item.passages)
            if not children:
                break
            level = sorted(children, key=lambda path: -path.score)[: self.policy.beam]
        return self.prompting.text(level[0].ids).strip()

    def _step(
        self, prompt: Sequence[int], path: Path, passages: Sequence[Passage]
    ) -> list[Path]:
        """Return the continuations of one node."""
        vocabulary, policy = self.prompting.vocabulary, self.policy
        retrieval = vocabulary.retrieve[0]
        prompts = []
        for passage in passages[: policy.passages]:
            evidence = self.prompting.evidence(passage, policy.passage_tokens)
            prompts.append([*prompt, *path.ids, retrieval, *evidence.ids])
        completions = self.complete(prompts, policy.segment_tokens, self.logprobs)
        generated = sum(len(completion.ids) for completion in completions)
        self._usage += Usage(
            requests=len(prompts),
            prompt_tokens=sum(map(len, prompts)),
            generated_tokens=generated,
        )
        children = []
        for completion in completions:
            ids = completion.ids
            if self.ending is not None:
                ids = (*ids[:-1], self.ending)
            end = ids.index(retrieval) if retrieval in ids else len(ids)
            score = path.score * self.score(completion)
            text = vocabulary.text_ids(ids[:end])
            children.append(Path((*path.ids, *text), score, end < len(ids)))
        return children

    def score(self, completion: Completion) -> float:
        """Return the score of a candidate; of one segment with IsUse and the probability of its text."""
        ids, rows = completion.ids, completion.logprobs
        score = self._expected(ISREL, rows[0]) + self._emitted(ISSUP, ids, rows)
        if self.policy.max_segments == 1:
            score += self._emitted(ISUSE, ids, rows)
            score += math.exp(completion.total / max(1, len(ids)))
        return score

    def _emitted(
        self, labels: LabelSet, ids: Sequence[int], rows: Sequence[Mapping[int, Any]]
    ) -> float:
        """Return the group score where the model emitted one of its labels; 0 where it emitted none."""
        group = self.prompting.vocabulary.group(labels)
        position = next((i for i, token in enumerate(ids) if token in group), None)
        return 0.0 if position is None else self._expected(labels, rows[position])

    def _expected(self, labels: LabelSet, row: Mapping[int, Any]) -> float:
        group = self.prompting.vocabulary.group(labels)
        values, masses = [], []
        for logprob, value in zip(watched(row, group), labels.values, strict=True):
            if logprob > MISSING:
                masses.append(math.exp(logprob))
                values.append(masses[-1] * value)
        return math.fsum(values) / math.fsum(masses) if masses else 0.5


def watched(row: Mapping[int, Any], ids: Sequence[int]) -> list[float]:
    """Return the log-probabilities of `ids` in a dictionary; `MISSING` where it holds none."""
    # the official code goes through the whole dictionary as well
    known = {token: getattr(entry, "logprob", entry) for token, entry in row.items()}
    return [known.get(token, MISSING) for token in ids]
