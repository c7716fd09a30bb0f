"""Adaptive retrieval: each method against a plain loop, on engines, at endpoints, and what is refused."""

import pytest
from plain_rivals import LoggingExecutor, Plain, Thinker, find
from written import Characters

from selfrag.extensions.adaptive.adaptive_rag import AdaptiveRAG
from selfrag.extensions.adaptive.crag import CRAG
from selfrag.extensions.adaptive.flare import Flare
from selfrag.extensions.adaptive.gates import MaxProbability
from selfrag.extensions.adaptive.ircot import IRCoT
from selfrag.extensions.adaptive.iter_retgen import IterRetGen
from selfrag.extensions.adaptive.method import Always, Never
from selfrag.extensions.adaptive.reader import QuestionWork, Reader
from selfrag.extensions.adaptive.self_ask import SelfAsk
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.reflection_prompts import reflection_wording
from selfrag.reflection.requests import Retrieve
from selfrag.runtime import QuestionFailed, drive

MODELS = 500
METHODS = {
    "never": Never(),
    "always": Always(),
    "flare": Flare(),
    "ircot": IRCoT(),
    "self_ask": SelfAsk(),
    "iter_retgen": IterRetGen(),
    "max_probability": MaxProbability(),
    "adaptive_rag": AdaptiveRAG(),
    "crag": CRAG(judge="plain_rivals:JUDGE"),
}


def logged(decoder, log):
    """Yield what a decoder yields, and note its searches."""
    results = None
    while True:
        try:
            batch = decoder.send(results)
        except StopIteration as end:
            return end.value
        for request in batch:
            if isinstance(request, Retrieve):
                log.append(("search", request.query, request.k))
        results = yield batch


def reader_of(seed, **options):
    """A random model as methods have it."""
    executor = LoggingExecutor(Thinker(seed), **options)
    model = ChatModel(executor, Characters(), reflection_wording(), knows_tokens=False)
    return Reader.of(model)


@pytest.mark.parametrize("stops", [False, True], ids=["whole", "stops"])
@pytest.mark.parametrize("name", METHODS)
def test_a_plain_loop_asks_and_answers_the_same(name, stops):
    plain, works, decoders = [], [], []
    for seed in range(MODELS):
        question = f"Who saw Faust {seed}?"
        plain.append(Plain(seed, question, stops=stops))
        works.append(QuestionWork(question, reader_of(seed, stops=stops), 30))
        log = works[-1].reader.executor.log
        decoders.append(logged(METHODS[name].decoder(works[-1]), log))
    events = {event.index: event for event in drive(decoders, None, find)}
    searches = 0
    for seed, (loop, work) in enumerate(zip(plain, works, strict=True)):
        event = events[seed]
        assert not isinstance(event, QuestionFailed), event.error
        text = getattr(loop, name)()
        assert event.answer.text == text
        requests, expected = work.reader.executor.log, loop.log
        if stops:
            # an engine that stops is asked several times for one sentence
            requests = list(dict.fromkeys(requests))
            expected = list(
                dict.fromkeys(
                    item if item[0] != "write" else item[:2] for item in expected
                )
            )
        assert requests == expected
        searches += sum(item[0] == "search" for item in loop.log)
    assert searches > MODELS // 10 or name == "never"
