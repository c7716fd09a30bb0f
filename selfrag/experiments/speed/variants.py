"""Engines with one of our choices taken away, and one that only writes down what it is asked.

Each obeys the engine protocol, so the decoder does not know. Batching is taken away by the driver (`max_live=1`) and
prefix caching by loading the model without it; neither needs an engine of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.decoding.sessions import Serving
from selfrag.engines.vllm_wire import finish

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


@dataclass(slots=True)
class CutAfterwards:
    """Generates to EOS or to the full budget, and cuts at the first stop id only then."""

    engine: Serving
    generated_tokens: int = 0  # before cutting
    _stops: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def submit(self, request: Generate) -> int:
        """Queue a request without its stop ids."""
        ticket = self.engine.submit(replace(request, stop_ids=()))
        self._stops[ticket] = request.stop_ids
        return ticket

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """Work, and cut what is done."""
        done = []
        for ticket, result in self.engine.step():
            stops = self._stops.pop(ticket, ())
            if isinstance(result, Generated):
                self.generated_tokens += len(result.token_ids)
                done.append((ticket, cut(result, stops)))
            else:
                done.append((ticket, result))
        return done

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget requests."""
        self.engine.abort(tickets)


def cut(result: Generated, stops: Sequence[int]) -> Generated | Failed:
    """`result` up to the first stop id, that id included."""
    end = next((i + 1 for i, token in enumerate(result.token_ids) if token in stops), None)
    if end is None:
        return result
    return replace(
        result,
        token_ids=result.token_ids[:end],
        token_logprobs=result.token_logprobs[:end],
        watched=result.watched[:end],
        finish=Finish.STOP,
    )


@dataclass(slots=True)
class Dictionaries:
    """Reads log-probabilities from vLLM's dictionaries, one for each token, in place of flat lists.

    Attributes:
        core: vLLM's `LLMEngine`.
        top: log-probabilities of a token; None for exactly the watched ids.
    """

    core: Any
    top: int | None
    _live: dict[str, Generate] = field(default_factory=dict)
    _count: int = 0

    def submit(self, request: Generate) -> int:
        """Queue a request."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self._count += 1
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            stop_token_ids=list(request.stop_ids),
            logprobs=self.top,
            logprob_token_ids=list(request.watch_ids) if self.top is None else None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.core.add_request(str(self._count), tokens_input(list(request.prompt_ids)), params)
        self._live[str(self._count)] = request
        return self._count

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """Work, and read the dictionaries of what is done."""
        done = [output for output in self.core.step() if output.finished]
        return [(int(output.request_id), _read(self._live.pop(output.request_id), output)) for output in done]

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget requests."""
        names = [str(ticket) for ticket in tickets if self._live.pop(str(ticket), None) is not None]
        self.core.abort_request(names)


def _read(request: Generate, output: Any) -> Generated:
    [completion] = output.outputs
    ids = tuple(completion.token_ids)
    rows: Sequence[Mapping[int, Any]] = completion.logprobs
    return Generated(
        token_ids=ids,
        token_logprobs=tuple(row[token].logprob for token, row in zip(ids, rows, strict=True)),
        watched=np.array([watched(row, request.watch_ids) for row in rows], dtype=np.float32),
        finish=finish(request, ids, str(completion.finish_reason)),
        cached_tokens=output.num_cached_tokens or 0,
    )


def watched(row: Mapping[int, Any], ids: Sequence[int]) -> list[float]:
    """Log-probabilities of `ids` in one of vLLM's dictionaries; `MISSING` where it holds none."""
    return [row[i].logprob if i in row else MISSING for i in ids]
