"""Drives many pairs at once: in each round one call of the critic and one search for all that wait. Knows no file.

Rounds are lockstep on purpose. What a batch holds then depends on the pairs alone, not on which answer came first, so
a critic whose numbers shift with the batch gives the same labels again, on any machine and after any interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from critic.augment.augmented import Augmented, Dropped
from critic.augment.steps import Request, Result, Steps
from critic.cases import Case, Critic
from retrieval.errors import UserError
from retrieval.passage import Retriever
from selfrag.decoding.batcher import search
from selfrag.decoding.requests import Failed, Retrieve, Retrieved
from selfrag.reflection.judgment import Judgment


@dataclass(slots=True)
class _Running:
    """One pair and what it waits for."""

    index: int
    steps: Steps
    wanted: list[Request]


def drive(augmentations: Sequence[Steps], critic: Critic, retriever: Retriever | None) -> list[Augmented | Dropped]:
    """Run augmentations to their end; results in their order.

    Args:
        augmentations: not started yet.
        critic: judges; equal cases of a round are judged once.
        retriever: None if no pair searches.

    Raises:
        UserError: the critic failed, or every search of a round of several did. A search that fails alone drops its
            pair.
    """
    done: list[Augmented | Dropped | None] = [None] * len(augmentations)
    running = [_Running(index, steps, []) for index, steps in enumerate(augmentations)]
    results: dict[Request, Result] = {}
    with ThreadPoolExecutor(1, thread_name_prefix="augment-search") as searcher:
        started = False
        while running:
            waiting = []
            for task in running:
                try:
                    answers = [results[request] for request in task.wanted]
                    task.wanted = task.steps.send(answers) if started else next(task.steps)
                    waiting.append(task)
                except StopIteration as stop:
                    done[task.index] = stop.value
            started, running = True, waiting
            wanted = list(dict.fromkeys(request for task in running for request in task.wanted))
            searches = [request for request in wanted if isinstance(request, Retrieve)]
            cases = [request for request in wanted if isinstance(request, Case)]
            found = searcher.submit(_search, retriever, searches)  # beside the critic
            results = dict(zip(cases, _judge(critic, cases), strict=True))
            results.update(found.result())
    return [result for result in done if result is not None]


def _judge(critic: Critic, cases: list[Case]) -> list[Judgment | None]:
    if not cases:
        return []
    judgments = critic.judge(cases)
    if len(judgments) != len(cases):
        raise UserError(f"critic {type(critic).__name__} gave {len(judgments)} judgments for {len(cases)} cases")
    for case, judgment in zip(cases, judgments, strict=True):
        if judgment is not None and judgment.labels != case.labels:
            raise UserError(f"critic {type(critic).__name__} answered {judgment.role} where {case.group} was asked")
    return list(judgments)


def _search(retriever: Retriever | None, requests: list[Retrieve]) -> dict[Request, Result]:
    if not requests:
        return {}
    if retriever is None:
        raise UserError(
            "no index, and a pair that retrieves brings no passage of its own"
            f" (its search: {requests[0].query[:60]!r}); give --index, or leave such pairs out"
        )
    found: dict[Request, Result] = {}
    for request, result in zip(requests, search(retriever, requests), strict=True):
        if not isinstance(result, Retrieved | Failed):
            raise TypeError(type(result).__name__)
        found[request] = result
    failed = [result for result in found.values() if isinstance(result, Failed)]
    if len(failed) == len(requests) > 1:
        raise UserError(f"every search failed: {failed[0].reason}")
    return found
