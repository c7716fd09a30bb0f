"""What ours is timed against: the published loop, and the engine's floor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.passage import Passage
from scripts.benchmarks.speed.timing import Run, Work
from scripts.benchmarks.speed.workload import Form, Item
from selfrag.prompting import Prompting
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet
from selfrag.reflection.requests import Failed, Generate, Generated
from selfrag.runtime.sessions import Serving

KIND = 20
"""Log-probabilities of the kind rival: what vLLM gives without being asked to raise its limit."""
MISSING = -100.0
"""What the official code takes for the log-probability of an id that the engine did not return."""


@dataclass(slots=True)
class Recording:
    """Passes everything on and keeps the requests, in order."""

    engine: Serving
    requests: list[Generate] = field(default_factory=list)

    def submit(self, request: Generate) -> int:
        """Queue and record a request."""
        self.requests.append(request)
        return self.engine.submit(request)

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """Work."""
        return self.engine.step()

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget requests."""
        self.engine.abort(tickets)


def watched(row: Mapping[int, Any], ids: Sequence[int]) -> list[float]:
    """Return the log-probabilities of `ids` in one of vLLM's dictionaries; `MISSING` where it holds none."""
    known = {token: entry.logprob for token, entry in row.items()}
    return [known.get(token, MISSING) for token in ids]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A step of the loop."""

    ids: tuple[int, ...]  # generated ids up to the first `[Retrieval]`
    score: float  # of this step
    goes_on: bool  # whether the model asked for retrieval
    spent: int  # tokens generated, those cut off included


@dataclass(frozen=True, slots=True)
class _State:
    """A path through the levels: its text ids, its score, and whether it wants another level."""

    texts: tuple[tuple[int, ...], ...]
    score: float
    goes_on: bool


@dataclass(slots=True)
class OfficialLoop:
    """The published loop on vLLM's own `LLM.generate`, or on what takes its place (`generate`)."""

    llm: Any  # loaded without prefix caching, and with `max_logprobs` high enough
    prompting: Prompting  # the same layouts that ours uses
    form: Form  # short or long
    logprobs: int  # log-probabilities for every token; `form.rival_logprobs` is faithful, 20 is kind
    # makes the settings of a call; None for vLLM's `SamplingParams`
    sampling: Any = None
    _prompt_tokens: int = 0
    _generated: int = 0
    _requests: int = 0

    def answer_all(self, items: Sequence[Item]) -> Run:
        """Answer the questions one by one."""
        self._prompt_tokens = self._generated = self._requests = 0
        start = time.perf_counter()
        answer = self._short if self.form.policy.max_segments == 1 else self._long
        texts = tuple(map(answer, items))
        seconds = time.perf_counter() - start
        return Run(
            seconds,
            texts,
            Work(self._requests, self._prompt_tokens, 0, self._generated),
        )

    def _short(self, item: Item) -> str:
        """Return the best-scored of one completion for each passage."""
        candidates = self._step(self.prompting.prompt(item.question), item.passages)
        return self.prompting.text(
            max(candidates, key=lambda candidate: candidate.score).ids
        )

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
                    children.append(
                        _State(
                            (*state.texts, text),
                            state.score * candidate.score,
                            candidate.goes_on,
                        )
                    )
            if not children:
                break
            level = sorted(children, key=lambda state: -state.score)[: policy.beam]
        return " ".join(self.prompting.text(text).strip() for text in level[0].texts)

    def _step(
        self, prefix: Sequence[int], passages: Sequence[Passage]
    ) -> list[_Candidate]:
        """Return the candidates of one node, from one blocking call for all passages."""
        policy, retrieval = self.form.policy, self.prompting.vocabulary.retrieve[0]
        prompts = []
        for passage in passages[: policy.passages]:
            evidence = self.prompting.evidence(passage, policy.passage_tokens)
            prompts.append({"prompt_token_ids": [*prefix, retrieval, *evidence.ids]})
        if self.sampling is None:
            from vllm import SamplingParams

            self.sampling = SamplingParams
        params = self.sampling(
            temperature=0.0,
            max_tokens=policy.segment_tokens,
            logprobs=self.logprobs,
            skip_special_tokens=False,
        )
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        candidates = [self._candidate(output.outputs[0]) for output in outputs]
        self._requests += len(prompts)
        self._prompt_tokens += sum(
            len(prompt["prompt_token_ids"]) for prompt in prompts
        )
        self._generated += sum(candidate.spent for candidate in candidates)
        return candidates

    def _candidate(self, completion: Any) -> _Candidate:
        ids, rows = tuple(completion.token_ids), completion.logprobs
        retrieval = self.prompting.vocabulary.retrieve[0]
        end = ids.index(retrieval) if retrieval in ids else len(ids)
        score = self._expected(ISREL, rows[0]) + self._emitted(ISSUP, ids, rows)
        if self.form.policy.max_segments == 1:
            score += self._emitted(ISUSE, ids, rows)
            score += math.exp(completion.cumulative_logprob / max(1, len(ids)))
        return _Candidate(ids[:end], score, end < len(ids), len(ids))

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


def replay(llm: Any, requests: Sequence[Generate]) -> tuple[float, list[int]]:
    """Serve all requests at once: nothing waits for anything.

    Args:
        llm: vLLM's `LLM`.
        requests: what a run of ours asked for.

    Returns:
        Wall seconds, and the number of tokens each request generated.
    """
    from vllm import SamplingParams

    start = time.perf_counter()
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=r.max_tokens,
            stop_token_ids=list(r.stop_ids),
            detokenize=False,
        )
        for r in requests
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start, [
        len(output.outputs[0].token_ids) for output in outputs
    ]
