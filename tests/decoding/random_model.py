"""Random settings, and a scripted model that writes random trees: the same prompt always gets the same reply.

Where a request stops at no Retrieve token, up to three segments are written.

Texts and probabilities come from small sets, so that ties, repeated segments, empty ones and equal paths are common.
"""

import random
import zlib

import numpy as np
from hypothesis import strategies as st
from scripted import ScriptedReply
from written import EOS, FIRST_CHARACTER, VOCABULARY

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.reflection.labels import CRITIQUES, ISREL, RETRIEVE
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights

TEXTS = (
    "One.",
    "Two.",
    "Three",
    " four.",
    "",
    " ",
    "- five\n",
    ", six",
    "7",
    "8",
    "9",
    "Ten.",
    "Eleven.",
    "12%",
)


def _seed(seed, ids):
    return zlib.crc32(np.array([seed, *ids], dtype=np.int64).tobytes())


UNEXPECTED = 1e-5
"""Scale of the probabilities of reflection tokens where the model does not expect them."""


def random_model(seed, *, failures=0.0, noise=0.0):
    """A model; `failures` is the share of requests that fail, `noise` that of places where no critique is expected."""

    def reply(request):
        draw = random.Random(_seed(seed, request.prompt_ids))
        if request.max_tokens == 1:
            scale = UNEXPECTED if noise and draw.random() < noise else 1.0
            rows = {
                0: {
                    i: scale * draw.choice((0.1, 0.2, 0.5, draw.random()))
                    for i in VOCABULARY.watch
                }
            }
            return ScriptedReply((FIRST_CHARACTER,), rows)
        if draw.random() < failures:
            return Failed("no memory")
        ids = []
        rows = {}
        for _ in range(1 if request.stop_ids else 3):
            _segment(draw, ids, rows, noise)
            if ids[-1] == EOS:
                break
        if not request.stop_ids and ids[-1] != EOS:
            ids.append(EOS)
        return ScriptedReply(
            tuple(ids), rows, [draw.choice((-0.125, -0.5, -draw.random())) for _ in ids]
        )

    return reply


def _segment(draw, ids, rows, noise):
    """Add a segment, which a Retrieve token or EOS ends."""
    for labels in CRITIQUES:
        if labels is not ISREL:
            scale = UNEXPECTED if noise and draw.random() < noise else 1.0
            rows[len(ids)] = {
                i: scale * draw.choice((0.1, 0.2, 0.5, draw.random()))
                for i in VOCABULARY.watch
            }
        if draw.random() < 0.7:
            rows[len(ids)] = {i: draw.choice((0.1, 0.2, 0.7)) for i in VOCABULARY.watch}
            ids.append(draw.choice(VOCABULARY.group(labels)))
        if labels is ISREL:
            ids += [FIRST_CHARACTER + ord(c) for c in draw.choice(TEXTS)]
    rows[len(ids)] = {i: draw.choice((0.05, 0.3, 0.6)) for i in VOCABULARY.watch}
    ids.append(draw.choice((*VOCABULARY.group(RETRIEVE) * 2, EOS)))


def random_search(seed, most=5):
    """A retriever that finds up to `most` passages for each query, always the same; two texts may share an id."""

    def search(query):
        draw = random.Random(_seed(seed, query.encode()))
        names = [
            f"d{draw.randrange(9)}"
            for _ in range(
                draw.choice((0, 1, *range(2, most + 1), *range(2, most + 1)))
            )
        ]
        texts = [draw.choice(("Text", "Text", "Other text")) for _ in names]
        return [
            Passage(n, f"{text} of {n}.", f"Title of {n}", 1.0)
            for n, text in zip(names, texts, strict=True)
        ]

    return search


seeds = st.integers(0, 2**31)
numbers = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]) | st.floats(-2, 3, width=32)
weights = st.builds(Weights, numbers, numbers, numbers)
policies = st.builds(
    Decoding,
    mode=st.sampled_from(["adaptive", "adaptive", "adaptive", "always", "never"]),
    threshold=st.sampled_from([None, 0.0, 0.2, 0.5, 0.8]),
    retrieve_test=st.sampled_from(["yes_no", "all", "log_ratio"]),
    keep_evidence=st.sampled_from(["most_probable", "below_threshold"]),
    retrieve_once=st.booleans(),
    no_retrieval_branch=st.booleans(),
    without_evidence=st.sampled_from(["abstain", "write"]),
    passages=st.integers(1, 4),
    shortlist=st.sampled_from([None, None, 4, 6]),
    passage_tokens=st.sampled_from([5, 256]),
    beam=st.integers(1, 3),
    max_segments=st.integers(1, 4),
    segment_end=st.sampled_from(["retrieve", "retrieve", "retrieval", "completion"]),
    segment_tokens=st.sampled_from([4, 100]),
    after_cut=st.sampled_from(["end", "go_on"]),
    answer_tokens=st.sampled_from([10, 1000]),
    weights=weights,
    likelihood=st.sampled_from(["segment", "all", "product", "none"]),
    undefined=st.sampled_from(["skip", "force", "zero"]),
    aggregate=st.sampled_from(["product", "sum", "vote"]),
    accumulate=st.sampled_from(["mean", "sum", "product"]),
    require=st.sampled_from(
        [{}, {}, {"issup": ["Fully supported", "Partially supported"]}]
    ),
    forbid=st.sampled_from([{}, {}, {"isrel": "Irrelevant"}, {"isuse": ["1"]}]),
    history=st.sampled_from(["text", "text+passages", "written"]),
    pool=st.sampled_from(["finished", "finished", "deepest"]),
)
