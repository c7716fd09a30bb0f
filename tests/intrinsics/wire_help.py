"""States, tokens, and what every codec must do, whatever its dialect."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace

from answering import taught
from hypothesis import strategies as st

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.intrinsics.catalog import catalog
from selfrag.judges.wire import Completion, Gold, TokenLogprob
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.labels import LabelSet

ARGUMENTS = {
    "requirement": "short",
    "policy_text": "none",
    "answer_relevance_category": "x",
    "answer_relevance_analysis": "y",
    "correction_method": "z",
}
"""Of every intrinsic."""


def find(text):
    """Sentences end with a full stop and white space."""
    return [
        match.span() for match in re.finditer(r"\S.*?(?:\.(?=\s|$)|$)", text, re.DOTALL)
    ]


def state(*turns, documents=(), **arguments):
    """User and assistant by turns, so that the last one is a user's if their number is odd."""
    messages = tuple(
        Message("assistant" if i % 2 else "user", text) for i, text in enumerate(turns)
    )
    passages = tuple(Passage(str(i), text) for i, text in enumerate(documents))
    return JudgeInput(messages, passages, arguments)


def token(*pairs):
    """A generated token, the first pair, and its alternatives, as probabilities."""
    top = tuple((text, math.log(p)) for text, p in pairs)
    return TokenLogprob(*top[0], top)


def spell(text):
    """A token that had no alternative."""
    return (token((text, 1.0)),)


CHAT = {f"chat {kind.name}": kind.chat for kind in catalog()}
"""The codecs of the library's own dialect."""
KINDS = {kind.name: kind for kind in catalog()}
STATE = JudgeInput(
    (
        Message("user", "Which fish are yellow?"),
        Message("assistant", "Purple ones are. Green ones are. So there."),
    ),
    (
        Passage("a", "Purple fish are yellow. Fish swim. Fish eat."),
        Passage("b", ""),
        Passage("c", "Green fish exist."),
    ),
    {"requirement": "be short"},
)
SENTENCES = ("hallucination_detection", "citation_generation")
WRITTEN = ("query_rewrite", "query_clarification")
LABELLED = ("answerability", "uncertainty", "context_relevance", "requirement_check")


def golds(codec):
    """What may be taught of `STATE`: each label, cited sentences of each kind, or a text."""
    if codec.intrinsic == "citation_generation":
        return [
            Gold(sources=cited) for cited in (((0, 2), (3,), ()), ((), (1, 3), (0,)))
        ]
    if codec.intrinsic not in (*LABELLED, "hallucination_detection"):
        return [Gold(text='Which "fish" are  yellow?\u00e9')]
    names = (getattr(codec, "binding", None) or codec).labels.names
    count = 1 if codec.intrinsic in LABELLED else 3
    return [
        Gold(labels=tuple(names[(at + i) % len(names)] for i in range(count)))
        for at in range(len(names))
    ]


def check_taught(codec):
    """What is taught of `STATE` comes back."""
    judge_input = (
        STATE
        if codec.intrinsic not in LABELLED
        else replace(STATE, passages=STATE.passages[:1])
    )
    request = codec.encode(judge_input)
    for gold in golds(codec):
        reflection = codec.decode(request, taught(request, codec.teach(request, gold)))
        if gold.text is not None:
            assert reflection.text.split() == gold.text.split()
        elif gold.labels:
            assert (
                tuple(finding.judgment.label for finding in reflection.findings)
                == gold.labels
            )
        for finding, cited in zip(reflection.findings, gold.sources, strict=False):
            assert finding.judgment.label == ("cited" if cited else "uncited")
            assert [citation.site for citation in finding.citations] == [
                request.sources[index] for index in cited
            ]
    if codec.intrinsic in LABELLED:
        assert codec.teach(request, Gold(labels=(None,))) == ()


GIVEN = state("q", "One is. Two is.", documents=("Alpha is. Beta is.",), **ARGUMENTS)
SCORED = st.floats() | st.just(-math.inf) | st.floats(-30, 0)
SCORES = st.lists(st.none() | st.lists(SCORED, max_size=12).map(tuple), max_size=4).map(
    tuple
)
GARBAGE = (
    st.text(max_size=60)
    | st.sampled_from(
        [
            '{"<r0>"',
            '[{"r": 0, "c": [0, "x", null, -1]}]',
            '[{"r": "0", "f": {}}]',
            "[[[",
            '{"a": NaN}',
            "0",
        ]
    )
    | st.recursive(
        st.none() | st.booleans() | st.integers(-3, 12) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["r", "c", "f", "e", "i", "<r0>", "score"]),
                inner,
                max_size=3,
            )
        ),
    ).map(json.dumps)
)


def check_reading(codec, text, finish, tokens, scores):
    """Nothing that a model writes raises, and what is read of it is sound."""
    kind = KINDS.get(codec.intrinsic)
    request = codec.encode(GIVEN)
    reflection = codec.decode(request, Completion(text, finish, tokens, scores=scores))
    assert reflection.raw == text or scores
    for finding in reflection.findings:
        assert all(
            GIVEN.holds(site)
            for site in (
                finding.site,
                *(citation.site for citation in finding.citations),
            )
        )
        if finding.judgment is not None:
            assert math.isclose(sum(finding.judgment.distribution), 1.0, rel_tol=1e-6)
    if len(request.sites) > 1:
        assert [finding.site for finding in reflection.findings] == list(request.sites)
    if kind is not None:
        json.dumps(kind.result_type.of(reflection).as_dict())


def spelled(text, with_tokens):
    """A token a character, each with an alternative."""
    return (
        tuple(TokenLogprob(c, -0.1, ((c, -0.1), ("x", -3.0))) for c in text)
        if with_tokens
        else None
    )


ASKED = Message("user", "Who wrote it? When?")
REPLIED = Message("assistant", "Goethe did. In 1808 <r0>.")
PASSAGES = (
    Passage("a", "Faust is a play. {Goethe} wrote it <c1>.", "T"),
    Passage("", " "),
    Passage("b", "In 1808."),
)
STATES = {
    "question": JudgeInput((ASKED,), PASSAGES),
    "reply": JudgeInput((ASKED, REPLIED), PASSAGES),
    "follow-up": JudgeInput(
        (ASKED, REPLIED, Message("user", "Why <|x|>\nTask:")),
        PASSAGES[:1],
        {"requirement": "Short."},
    ),
    "bare": JudgeInput(
        (Message("system", "Be brief."), ASKED, REPLIED),
        (),
        {"requirement": "Short.\nTask: y"},
    ),
}
REPLIES = (
    "",
    "answerable",
    "3",
    '"yes"',
    '{"score": "7"}',
    '{"score": "yes"}',
    '{"context_relevance": "relevant"}',
    '[{"r": 0, "f": "partial", "e": "x"}, {"r": 7, "f": "NA", "e": ""}]',
    '[{"i": 0, "r": "x", "f": "faithful"}',
    '[{"r": 0, "c": [2, 1, 0]}, {"r": 1, "c": [-1]}, {"r": 1, "c": []}]',
    '{"<r0>": ["<c0>", "<c1>"], "<r1>": []}',
    '{"rewritten_question": "Who  wrote Faust?"}',
    '{"clarification": "CLEAR"}',
    '"{\\"<r0>\\": \\"0.1-0\\"}"',
)
GOLD = (
    Gold(("answerable",)),
    Gold(("faithful", "NA")),
    Gold(sources=((0, 2), ())),
    Gold(text="Who wrote Faust?"),
)


def as_json(value):
    """The value as JSON, without the state that it was made from."""
    if isinstance(value, LabelSet):
        return list(value.names)
    if is_dataclass(value):
        return {
            f.name: as_json(getattr(value, f.name))
            for f in fields(value)
            if f.name != "state"
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    return (
        [as_json(item) for item in value] if isinstance(value, list | tuple) else value
    )


def said(codec):
    """What a codec makes of every state: its request, its targets, and what it reads."""
    for name, state in STATES.items():
        try:
            request = codec.encode(state)
        except UserError as error:
            yield name, str(error)
            continue
        # Fields of other codecs are not recorded where they are at their defaults.
        fields = as_json(request)
        yield (
            name,
            {
                key: value
                for key, value in fields.items()
                if value or key not in ("prefill", "sentence", "seed")
            },
        )
        for gold in GOLD:
            try:
                yield name, as_json(codec.teach(request, gold))
            except (UserError, ValueError) as error:
                yield name, str(error)
        scores = tuple(
            tuple(-1.0 - at % 3 for at in range(len(slot.surfaces)))
            for slot in request.slots
        )
        for completion in (Completion(scores=scores), *map(Completion, REPLIES)):
            yield name, as_json(codec.decode(request, completion))


def digest(codec):
    return hashlib.sha256(
        json.dumps(list(said(codec)), sort_keys=True).encode()
    ).hexdigest()[:16]
