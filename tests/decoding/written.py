"""Hand-written trees for the scripted engine: what the model writes after what it has seen, as readable text.

A tree maps the response so far to what comes next. Passages in it are `<d1>`, reflection tokens their own strings, and
`</s>` the end. In what comes next, `{isrel .9 .1}` emits the most probable label with this distribution, and
`{~issup .2 .3 .5}` only puts a distribution where the next token stands (a critique that is due but not emitted):

    {"": "{~retrieve .9 .1 0}x",
     "[Retrieval]<d1>": "{isrel .9 .1}Paris.{issup .6 .3 .1}{isuse .05 .05 .1 .3 .5}</s>"}

A pair `(text, p)` makes p the geometric mean of the token probabilities without the last token, which ends the segment.
Single tokens differ: their log-probabilities are 0.5, 1.5, 0.5, 1.5, .. times log p, the odd one out has log p; that
of the last token is `END`. So the likelihood term is p, and a mean over other tokens, or of another kind, is not.
In a pair `(text, (-0.2, -0.4, ..))` every token has its own log-probability.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from scripted import ScriptedEngine, ScriptedReply

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.options import decode_options
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.engines.base import EngineLimits
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS, group
from selfrag.reflection.requests import Failed
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.runtime import QuestionAnswered, QuestionFailed, SegmentFinal, drive

REFUSING = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "{isrel .9 .1}I don't know.{issup 0 0 1}[Utility:1]</s>",
    "[Retrieval]<d2>": "{isrel .6 .4}Found.{issup 1 0 0}[Utility:5]</s>",
}
"""The first passage is more relevant, the second supports what is written."""
EOS, BOS, FIRST_CHARACTER = 0, 40, 100
LIMITS = EngineLimits(max_model_len=4096, vocab_size=FIRST_CHARACTER + 0x110000)
VOCABULARY = Vocabulary({token: i for i, token in enumerate(TOKENS, start=1)}, EOS)
SURFACE = {i: token for token, i in VOCABULARY.ids.items()} | {EOS: "</s>", BOS: ""}
MARKED = re.compile(
    "|".join(re.escape(token) for token in (*TOKENS, "</s>"))
    + r"|\{~?\w+(?: [\d.e-]+)+\}|.",
    re.DOTALL,
)
RESPONSE = "### Response:\n"
END = -1.75
"""Log-probability of the last token of a reply."""


class Characters:
    """A `TextCodec` in which every character is one id."""

    bos_ids = (BOS,)

    def encode(self, text):
        return [FIRST_CHARACTER + ord(character) for character in text]

    def decode(self, ids):
        return "".join(chr(i - FIRST_CHARACTER) for i in ids)


PROMPTING = Prompting(Characters(), VOCABULARY)


def passages(*names):
    """Passages `d1`, .. with their own text."""
    return tuple(
        Passage(name, f"Text of {name}.", f"Title of {name}", 1.0) for name in names
    )


def seen(ids):
    """Prompt ids as text: the reflection tokens by their strings, `<d1>` for the evidence made of passage d1."""
    text = "".join(
        SURFACE[i] if i in SURFACE else chr(i - FIRST_CHARACTER) for i in ids
    )
    return re.sub(
        r"<paragraph>Title of (\w+)\n.*?</paragraph>", r"<\1>", text, flags=re.DOTALL
    )


def reply(written):
    """The scripted reply that a written text stands for."""
    if isinstance(written, Failed):
        return written
    text, likely = written if isinstance(written, tuple) else (written, math.exp(-0.1))
    ids = []
    rows = {}
    for piece in MARKED.findall(text):
        if not (len(piece) > 1 and piece.startswith("{")):
            ids.append(
                VOCABULARY.ids.get(piece, EOS)
                if len(piece) > 1
                else FIRST_CHARACTER + ord(piece)
            )
            continue
        name, *numbers = piece[1:-1].split()
        labels = group(name.lstrip("~"))
        distribution = [float(number) for number in numbers]
        assert len(distribution) == len(labels), piece
        rows.setdefault(len(ids), {}).update(
            zip(VOCABULARY.group(labels), distribution, strict=True)
        )
        if not name.startswith("~"):
            ids.append(VOCABULARY.group(labels)[distribution.index(max(distribution))])
    for position, row in rows.items():
        row.setdefault(ids[position], 0.9)
    return ScriptedReply(
        tuple(ids),
        rows,
        likely if isinstance(likely, tuple) else (*spread(likely, len(ids) - 1), END),
    )


def spread(probability, count):
    """Different log-probabilities with this geometric mean.

    They are rounded to a multiple of 2**-30, so that means of equally probable texts of different lengths are equal.
    """
    mean = round(math.log(probability) * 2**30) / 2**30
    return tuple(
        mean if i + 1 == count and count % 2 else mean * (0.5, 1.5)[i % 2]
        for i in range(count)
    )


TWO_WAYS = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": (
        "{isrel .9 .1}Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>",
        0.5,
    ),
    "[Retrieval]<d2>": ("{isrel .6 .4}Sure.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>", 0.5),
    "[No Retrieval]": ("Own.{isuse 0 0 1 0 0}</s>", 0.5),
}
"""A relevant passage that does not support what is written, a less relevant one that does, and no passage."""


def model(trees):
    """A scripted model that knows a tree for each question."""

    def answer(request):
        asked, _, response = seen(request.prompt_ids).partition(RESPONSE)
        question = asked.removeprefix("### Instruction:\n").removesuffix("\n\n")
        if question not in trees or response not in trees[question]:
            raise AssertionError(
                f"nothing is written for {question!r} after {response!r}"
            )
        return reply(trees[question][response])

    return answer


@dataclass
class Searches:
    """A retriever that knows the passages of every query and records the batches it was asked."""

    results: Mapping | Callable[[str], Sequence[Passage]]
    batches: list = field(default_factory=list)

    def __call__(self, queries, k, /):
        self.batches.append(list(queries))
        known = self.results
        return [
            (known(query) if callable(known) else known[query])[:k] for query in queries
        ]

    @property
    def queries(self):
        return [query for batch in self.batches for query in batch]


@dataclass
class Run:
    """One decoded question, and everything that was asked for on the way."""

    answer: Answer
    commits: list
    engine: ScriptedEngine
    searches: Searches

    @property
    def prompts(self):
        """Responses so far of all requests, in order."""
        return [
            seen(request.prompt_ids).partition(RESPONSE)[2]
            for request in self.engine.requests
        ]

    def node(self, text):
        """The only candidate with this text."""
        (found,) = [node for node in self.answer.trace.nodes if node.text == text]
        return found

    def statuses(self):
        """What became of each candidate, by text."""
        return {node.text: str(node.status) for node in self.answer.trace.nodes}


def scripted(trees, **options):
    """An engine for hand-written trees."""
    return ScriptedEngine(model(trees), EOS, **{"limits": LIMITS, **options})


def run(
    tree,
    *names,
    question="Q",
    search=None,
    evidence=None,
    policy=None,
    choices=None,
    length="none",
    limits=LIMITS,
    given=MappingProxyType({}),
    serving=MappingProxyType({}),
    **options,
):
    """Decode `question` against a tree.

    Args:
        tree: what the model writes.
        names: passages that every search finds.
        question: as asked.
        search: passages by query, in place of `names`.
        evidence: passages given by the caller.
        policy: the settings, or `options`, fields of `Decoding`.
        choices: a closed set, with `length`.
        limits: of the engine.
        given: further arguments of `decode`: query, history, critics.
        serving: how the engine works: batch.
    """
    engine = ScriptedEngine(
        tree if callable(tree) else model({question: tree}),
        EOS,
        limits=limits,
        **serving,
    )
    searches = Searches(
        search if search is not None else lambda query: passages(*names)
    )
    settings = policy or Decoding(**options)

    if choices is None:
        decoder = decode(question, PROMPTING, settings, passages=evidence, **given)
    else:
        how = {"length": length, "most_watched": limits.max_watch}
        decoder = decode_options(
            question, choices, PROMPTING, settings, passages=evidence, **how
        )
    *committed, end = drive([decoder], engine, searches)
    if isinstance(end, QuestionFailed):
        raise end.error
    assert isinstance(end, QuestionAnswered)
    trace = end.answer.trace
    assert Trace.from_json(trace.to_json()) == trace
    commits = [event.segment for event in committed if isinstance(event, SegmentFinal)]
    return Run(end.answer, commits, engine, searches)
