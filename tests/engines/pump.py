"""Drive an engine until given requests are answered: what tests of engines share."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from selfrag.reflection.requests import Constraint, Generated

SCHEMA = {
    "type": "object",
    "properties": {
        "r": {"type": "integer", "minimum": 0, "maximum": 9},
        "f": {"enum": ["yes", "no"]},
    },
    "required": ["r", "f"],
}
LABELS = ("answerable", 'un"answerable"\n', "é")
CONTEXT = 1024
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{"
    " m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
FORMS = (
    Constraint.json(SCHEMA),
    Constraint.regex(r"[0-9]{2}-(a|b)"),
    Constraint.choice(LABELS),
)


def serve(engine, requests, *, seconds=120.0):
    """Results of `requests`, in their order, all submitted at once."""
    tickets = [engine.submit(request) for request in requests]
    results = {}
    deadline = time.monotonic() + seconds
    while missing := set(tickets) - set(results):
        assert time.monotonic() < deadline, (
            f"{len(missing)} requests unanswered after {seconds} s"
        )
        results.update(engine.step())
    return [results[ticket] for ticket in tickets]


def generated(engine, request):
    """The result of one request that must succeed."""
    [result] = serve(engine, [request])
    assert isinstance(result, Generated), result
    return result


def assert_same(one, other, tolerance=1e-4):
    """Same tokens and end; log-probabilities within a tolerance."""
    assert isinstance(one, Generated), one
    assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
    np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, atol=tolerance)
    assert (one.watched.dtype, one.watched.shape) == (np.float32, other.watched.shape)
    np.testing.assert_allclose(one.watched, other.watched, atol=tolerance)


def prompt(length, start=0):
    """Ordinary token ids; prompts of different `start` share no prefix."""
    return tuple(random.Random(start).choices(range(3, 250), k=length))


def at_once(count, work):
    """Results of `work(0..count-1)`, each in a thread of its own, all begun together."""
    gate = threading.Barrier(count)

    def run(number):
        gate.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count), timeout=300))
