"""The rival: the published inference loop, written anew from its description, with its costs left in.

One question after another; in the long form one node after another; every candidate generated to EOS or to the full
budget and cut at the first `[Retrieval]` afterwards; no prefix shared; text detokenised; log-probabilities as one
dictionary of thousands of ids for every token. Its scores are those of the published code, so that its search goes the
way the published search goes; the defects that only crash it are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage
from selfrag.experiments.speed.run import Run, Work
from selfrag.experiments.speed.variants import MISSING, watched
from selfrag.experiments.speed.workload import Form, Item
from selfrag.prompting import Prompting
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A step of the loop.

    Attributes:
        ids: generated ids up to the first `[Retrieval]`.
        score: of this step.
        goes_on: whether the model asked for retrieval.
        spent: tokens generated, those cut off included.
    """

    ids: tuple[int, ...]
    score: float
    goes_on: bool
    spent: int


@dataclass(frozen=True, slots=True)
class _State:
    """A path through the levels: its text ids, its score, and whether it wants another level."""

    texts: tuple[tuple[int, ...], ...]
    score: float
    goes_on: bool


@dataclass(slots=True)
class OfficialLoop:
    """The published loop on vLLM's own `LLM.generate`.

    Attributes:
        llm: loaded without prefix caching, and with `max_logprobs` high enough.
        prompting: the same layouts that ours uses.
        form: short or long.
        logprobs: log-probabilities for every token; `form.rival_logprobs` is faithful, 20 is kind.
    """

    llm: Any
    prompting: Prompting
    form: Form
    logprobs: int
    _prompt_tokens: int = 0
    _generated: int = 0
    _requests: int = 0

    def answer_all(self, items: Sequence[Item]) -> Run:
        """Answer the questions one by one."""
        self._prompt_tokens = self._generated = self._requests = 0
        start = time.perf_counter()
        one = self._short if self.form.policy.max_segments == 1 else self._long
        texts = tuple(one(item) for item in items)
        seconds = time.perf_counter() - start
        return Run(seconds, texts, Work(self._requests, self._prompt_tokens, 0, self._generated))

    def _short(self, item: Item) -> str:
        """One completion for each passage; the best-scored one is the answer."""
        candidates = self._step(self.prompting.prompt(item.question), item.passages)
        return self.prompting.text(max(candidates, key=lambda candidate: candidate.score).ids)

    def _long(self, item: Item) -> str:
        """Level by level, node by node; the best path of the deepest level is the answer."""
        prompt, policy = self.prompting.prompt(item.question), self.form.policy
        level = [_State((), 1.0, True)]
        for _ in range(policy.max_segments):
            children: list[_State] = []
            for state in level:
                if not state.goes_on:
                    continue
                history = tuple(i for text in state.texts for i in text)
                for candidate in self._step((*prompt, *history), item.passages):
                    text = tuple(self.prompting.vocabulary.text_ids(candidate.ids))
                    children.append(_State((*state.texts, text), state.score * candidate.score, candidate.goes_on))
            if not children:
                break
            level = sorted(children, key=lambda state: -state.score)[: policy.beam]
        return " ".join(self.prompting.text(text).strip() for text in level[0].texts)

    def _step(self, prefix: Sequence[int], passages: Sequence[Passage]) -> list[_Candidate]:
        """All passages of one node in one blocking call."""
        from vllm import SamplingParams

        policy, retrieval = self.form.policy, self.prompting.vocabulary.retrieve[0]
        prompts = []
        for passage in passages[: policy.passages]:
            evidence = self.prompting.evidence(passage, policy.passage_tokens)
            prompts.append({"prompt_token_ids": [*prefix, retrieval, *evidence.ids]})
        params = SamplingParams(
            temperature=0.0, max_tokens=policy.segment_tokens, logprobs=self.logprobs, skip_special_tokens=False
        )
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        found = [self._candidate(output.outputs[0]) for output in outputs]
        self._requests += len(prompts)
        self._prompt_tokens += sum(len(prompt["prompt_token_ids"]) for prompt in prompts)
        self._generated += sum(candidate.spent for candidate in found)
        return found

    def _candidate(self, completion: Any) -> _Candidate:
        ids, rows = tuple(completion.token_ids), completion.logprobs
        retrieval = self.prompting.vocabulary.retrieve[0]
        end = ids.index(retrieval) if retrieval in ids else len(ids)
        score = self._expected(ISREL, rows[0]) + self._emitted(ISSUP, ids, rows)
        if self.form.policy.max_segments == 1:
            score += self._emitted(ISUSE, ids, rows)
            score += math.exp(completion.cumulative_logprob / max(1, len(ids)))
        return _Candidate(ids[:end], score, end < len(ids), len(ids))

    def _emitted(self, labels: LabelSet, ids: Sequence[int], rows: Sequence[Mapping[int, Any]]) -> float:
        """Group score where the model emitted one of its labels; 0 where it emitted none."""
        group = self.prompting.vocabulary.group(labels)
        position = next((i for i, token in enumerate(ids) if token in group), None)
        return 0.0 if position is None else self._expected(labels, rows[position])

    def _expected(self, labels: LabelSet, row: Mapping[int, Any]) -> float:
        group = self.prompting.vocabulary.group(labels)
        raw = [math.exp(value) if value > MISSING else 0.0 for value in watched(row, group)]
        total = math.fsum(raw)
        return math.fsum(p * v for p, v in zip(raw, labels.values, strict=True)) / total if total else 0.5
