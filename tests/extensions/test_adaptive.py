"""Adaptive retrieval: each method against a plain loop, on engines, at endpoints, and what is refused."""

import asyncio
import json
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from plain_rivals import LoggingExecutor, Plain, Thinker, find
from reference_chat import TalkingExecutor
from refusals import refused
from scripted import ScriptedEngine
from written import (
    EOS,
    FIRST_CHARACTER,
    LIMITS,
    PROMPTING,
    Characters,
    passages,
    reply,
    seen,
)

from selfrag.decoding.beam import decode
from selfrag.decoding.trace import Trace
from selfrag.evaluation.items import Item
from selfrag.evaluation.systems import endpoint_system
from selfrag.evaluation.task import CLOSED
from selfrag.extensions.adaptive.adaptive_rag import AdaptiveRAG
from selfrag.extensions.adaptive.crag import CRAG, SelfCRAG
from selfrag.extensions.adaptive.dragin import Dragin
from selfrag.extensions.adaptive.flare import Flare
from selfrag.extensions.adaptive.ircot import _CONCLUDES, IRCoT
from selfrag.extensions.adaptive.iter_retgen import IterRetGen
from selfrag.extensions.adaptive.method import Always, Never
from selfrag.extensions.adaptive.reader import QuestionWork, Reader, Written
from selfrag.extensions.adaptive.seakr import SeaKR
from selfrag.extensions.adaptive.self_ask import SelfAsk
from selfrag.extensions.adaptive.system import FLARE, method_model
from selfrag.extensions.adaptive.system import METHODS as METHOD_ENTRIES
from selfrag.extensions.adaptive.uncertainty import (
    Entropy,
    MaxProbability,
    mean_entropy,
    sequence_probability,
)
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.reflection_prompts import reflection_wording
from selfrag.judges.wire import TokenLogprob
from selfrag.reflection.requests import Internals, Retrieve
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive, finish

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
    "adaptive_rag_trained": AdaptiveRAG(judge="plain_rivals:CLASSIFIER"),
    "crag": CRAG(judge="plain_rivals:JUDGE"),
    "dragin": Dragin(),
    "seakr": SeaKR(samples=3, tokens=30),
}


def answer_by(method, work, retriever=find, engine=None):
    """The answer to one question, or why there is none."""
    *_, end = drive([method.decoder(work)], engine, retriever)
    return end.error if isinstance(end, QuestionFailed) else end.answer


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
    return Reader.of(model, passage_tokens=10_000)


@pytest.mark.parametrize("stops", [False, True], ids=["whole", "stops"])
@pytest.mark.parametrize("name", METHODS)
def test_a_plain_loop_asks_and_answers_the_same(name, stops):
    loops, works, decoders = [], [], []
    for seed in range(MODELS // 5 if stops else MODELS):
        question = f"Who saw Faust {seed}?"
        loops.append(Plain(seed, question, stops=stops))
        works.append(QuestionWork(question, reader_of(seed, stops=stops), 30))
        log = works[-1].reader.executor.log
        decoders.append(logged(METHODS[name].decoder(works[-1]), log))
    events = {event.index: event for event in drive(decoders, None, find)}
    searches = 0
    for seed, (loop, work) in enumerate(zip(loops, works, strict=True)):
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
    assert searches > MODELS // 20 or name == "never"


def test_self_crag_decodes_from_what_crag_has_corrected():
    for seed in range(20):
        question = f"Who saw Faust {seed}?"
        reader = reader_of(seed)
        method = SelfCRAG(judge="plain_rivals:JUDGE")
        answer = answer_by(method, QuestionWork(question, reader, 30))
        passages = Plain(seed, question, stops=True).knowledge()
        policy = answer.trace.decoding
        decoder = decode(question, reader.model, policy, passages=passages)
        *_, expected = drive([decoder], None, None)
        assert answer.text == expected.answer.text
        assert set(answer.citations) <= set(passages)


class Tokens(Characters):
    """Characters without the ids that are none, as a tokenizer decodes."""

    def decode(self, ids):
        return super().decode([i for i in ids if i >= FIRST_CHARACTER])


def scripted(written):
    """A model with reflection tokens that writes the same to every prompt, and its engine."""
    engine = ScriptedEngine(lambda request: reply(written), EOS, limits=LIMITS)
    return Reader.of(replace(PROMPTING, codec=Tokens())), engine


def test_a_model_with_reflection_tokens_reads_evidence_in_its_reply():
    reader, engine = scripted("[Relevant]Text of d2.[Utility:5]</s>")
    method = MaxProbability(threshold=1.0)
    work = QuestionWork("Who?", reader, evidence=passages("d1", "d2"))
    answer = answer_by(method, work, None, engine)
    assert answer.cited_text() == "Text of d2. [1]"
    assert [passage.id for passage in answer.citations] == ["d2"]
    alone, read = (seen(request.prompt_ids) for request in engine.requests)
    assert alone.endswith("Who?\n\n### Response:\n[No Retrieval]")
    assert (
        "### Response:\n[Retrieval]<paragraph>[1] Title of d1\nText of d1.\n\n[2] "
        in read
    )
    assert Trace.from_json(answer.trace.to_json()).as_dict() == answer.trace.as_dict()
    assert (answer.usage.requests, answer.usage.searches) == (2, 0)


class Counting(ScriptedEngine):
    """Counts the batches that it computes."""

    count = 0

    def step(self):
        self.count += bool(self._waiting)
        return super().step()

    def _serve(self, request):
        result, count = super()._serve(request), request.inspect
        if not count:
            return result
        attention = np.ones((count, len(request.prompt_ids)))
        return replace(
            result, internals=Internals(np.ones(count), attention, np.ones(8))
        )


def vary(request):
    """One of some replies, by what stands before."""
    texts = (
        " Ann saw it. He won",
        " So the answer is: Ann.",
        "Yes.\nFollow up: Who?\n",
    )
    place = zlib.crc32(repr(request.prompt_ids).encode()) % len(texts)
    return reply(f"{texts[place]}</s>")


@pytest.mark.parametrize("name", METHODS)
def test_questions_share_the_batches_of_an_engine(name):
    batches = []
    for live in (64, 1):
        reader, _ = scripted("")
        engine = Counting(vary, EOS, limits=replace(LIMITS, inspects=True))
        works = [QuestionWork(f"Who saw {n}?", reader, 30) for n in range(64)]
        decoders = [METHODS[name].decoder(work) for work in works]
        events = list(drive(decoders, engine, find, max_live=live))
        assert {type(event) for event in events} == {QuestionAnswered}
        batches.append(engine.count)
    assert 5 * batches[0] <= batches[1]


def test_a_loaded_model_answers_and_streams():
    reader, engine = scripted("So the answer is: Text of d2.</s>")
    model = method_model(
        engine, reader, IterRetGen(), lambda q, k: [passages("d2")] * len(q)
    )
    assert model.generate("Who?").cited_text() == "Text of d2 [1]"

    async def stream(**options):
        decoding = replace(model.defaults, **options)
        pieces = [piece async for piece in model.astream("Who?", decoding=decoding)]
        return pieces[-1].text

    assert asyncio.run(stream(passages=1)) == "Text of d2"
    with refused("selfrag.beam: this method has passages, passage_tokens and evidence"):
        asyncio.run(stream(beam=5))
    with refused("the question is empty"):
        model.generate(" ")


def test_systems_of_checkpoints_and_endpoints():
    executor = LoggingExecutor(Thinker(1))
    for entry in METHOD_ENTRIES:
        system = endpoint_system(entry.name, executor, {"passages": 2}, live=True)
        assert (system.name, system.live, system.reader.passages) == (
            entry.name,
            True,
            2,
        )
        assert json.dumps(system.as_dict())
    with refused("search-r1 needs a checkpoint; an endpoint runs base, "):
        endpoint_system("search-r1", executor)
    with refused("unknown setting 'theta'"):
        FLARE.at_endpoint(executor, {"theta": 1})
    with refused("threshold=2: give a number from 0 to 1"):
        FLARE.at_endpoint(executor, {"threshold": 2})
    with refused("unknown setting 'beam'"):
        FLARE.load("demo", None, None, {"beam": 2, "passages": None})
    choice = Item("1", "Which?", options=("a", "b"), label="A")
    decoder = FLARE.at_endpoint(executor, {}).decoder(choice, CLOSED)
    with refused("flare answers in words; it has no multiple choice"):
        finish(decoder)


@pytest.mark.parametrize(
    "method, options, message",
    [
        (Flare(), {"logprobs": False}, "FLARE needs the probabilities of tokens"),
        (MaxProbability(), {"logprobs": False}, "max-probability needs the probab"),
        (
            AdaptiveRAG(judge="plain_rivals:RELEVANT"),
            {},
            "plain_rivals:RELEVANT says 'Relevant'; adaptive-rag needs a judge that says A, B or C",
        ),
        (Entropy(), {}, "entropy needs the alternatives of every token"),
        (Dragin(), {}, "this model gives no attention or hidden states; the tran"),
        (SeaKR(), {}, "this model gives no attention or hidden states; the tran"),
        (
            IRCoT(),
            {"continues": False},
            "this method goes on with a reply that has begun",
        ),
    ],
)
def test_what_a_server_lacks_is_said_in_a_line(method, options, message):
    executor = TalkingExecutor(Thinker(5), **options)
    model = ChatModel(executor, Characters(), reflection_wording(), knows_tokens=False)
    error = answer_by(method, QuestionWork("Who saw Faust?", Reader.of(model), 30))
    assert str(error).startswith(message)


@pytest.mark.parametrize("name", ["dragin", "seakr"])
def test_methods_that_look_inside_run_on_a_checkpoint(name, tiny_llama):
    (entry,) = [entry for entry in METHOD_ENTRIES if entry.name == name]
    changes = {"threshold": 0.0} if name == "dragin" else {"samples": 2, "steps": 1}
    settings = {"sentence_tokens": 8, "tokens": 8, **changes}
    with entry.load(str(tiny_llama), None, "transformers", settings) as model:
        model.retriever = find
        answer = model.generate("Who saw Faust?")
        assert answer.trace.nodes
        assert answer.usage.searches >= 1


def test_a_failed_search_ends_a_question_that_has_no_passages_yet():
    count = 0

    def failing(queries, k):
        nonlocal count
        count += 1
        if count > limit:
            raise OSError("no network")
        return find(queries, k)

    limit = 0
    error = answer_by(Always(), QuestionWork("Who?", reader_of(1), 30), failing)
    assert str(error) == "search failed: OSError: no network"
    limit = count + 1
    work = QuestionWork("Who saw Faust 3?", reader_of(3), 30)
    note = "1 search failed (OSError: no network); the answer rests on the others"
    assert answer_by(IterRetGen(), work, failing).note == note


def test_alternatives_of_a_server_give_an_entropy():
    token = TokenLogprob(
        "a", math.log(0.5), (("a", math.log(0.5)), ("b", math.log(0.5)))
    )
    assert mean_entropy(Written("aa", (token, token), True)) == pytest.approx(
        math.log(2)
    )
    assert sequence_probability(Written("aa", (token, token), True)) == pytest.approx(
        0.25
    )
    assert mean_entropy(Written("", (), True)) == 0


def test_sentences_that_conclude_or_compute_are_no_queries_of_ircot():
    for sentence in (
        "So, it is.",
        " Thus Ann won.",
        "That is, 3.",
        "It is 3 + 4,000 = 4,003.",
    ):
        assert _CONCLUDES.match(sentence)
    for sentence in ("Sofia is a city.", "That is a city.", "x = 3.", "Ann won 3 - 4."):
        assert not _CONCLUDES.match(sentence)
