"""The baselines are critics that do what their names say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
from student_cases import PASSAGE, labelled

from critic.baselines import GeneratorCodec, MajorityCritic, PromptedCodec, TfidfCritic
from critic.cases import Case, Labelled
from critic.student.judge import StudentCritic
from critic.teacher.forms import OWN
from retrieval.passage import Passage
from selfrag.errors import UserError

ROWS = labelled(each=3)


def told(row: Labelled) -> Labelled:
    return replace(row, case=replace(row.case, instruction=f"label{row.case.labels.names.index(row.label)} please"))


def test_majority_gives_the_most_frequent_label_and_its_share():
    case = Case("IsRel", "Q?", evidence=PASSAGE)
    rows = [Labelled(str(i), case, "Irrelevant" if i < 3 else "Relevant") for i in range(4)]
    [judgment, other] = MajorityCritic.fit(rows).judge([case, Case("IsUse", "Q?", "", "y")])
    assert judgment.label == "Irrelevant"
    assert judgment.distribution == (0.25, 0.75)
    assert other is None


def test_tfidf_learns_what_words_tell_and_leaves_out_what_it_never_saw():
    critic = TfidfCritic.fit([told(row) for row in ROWS])
    judged = critic.judge([told(row).case for row in ROWS])
    assert [judgment.label for judgment in judged] == [row.label for row in ROWS]
    assert all(sum(judgment.distribution) == pytest.approx(1) for judgment in judged)
    rows = [row for row in ROWS if row.case.group == "IsSup" and row.label != "Partially supported"]
    [support, use] = TfidfCritic.fit(rows).judge([rows[0].case, Case("IsUse", "Q?", "", "y")])
    assert support.probability("Partially supported") == 0
    assert use is None
    with pytest.raises(UserError, match="IsRel has rows of one label only"):
        TfidfCritic.fit([row for row in ROWS if row.label == "Relevant"])


SHOWN = f"[Retrieval]<paragraph>{PASSAGE.title}\n{PASSAGE.text}</paragraph>"


class Words:
    """A tokenizer to count with: one id a word."""

    bos_ids = (7,)

    def encode(self, text):
        return [len(word) for word in text.split()]


@pytest.mark.parametrize(
    ("room", "kept", "dropped"),
    [
        (0, 20, {}),
        (-1, 19, {"evidence": 1}),
        (-20, 1, {"evidence": 19, "task": 1}),  # one word of the passage stays, and the beginning goes
        (-30, 1, {"evidence": 19, "task": 11}),
    ],
)
def test_what_a_prompt_loses_is_counted_in_tokens(room, kept, dropped):
    case = Case("IsRel", "Q?", evidence=Passage("p", " ".join(f"{'x' * 100}" for _ in range(20))))
    # BOS, the prompt, the longest label of a word, and EOS
    whole = 1 + len(OWN.prompt(case).split()) + 1 + 1
    made = PromptedCodec(Words(), 0, whole + room).prompt(case)
    assert made.dropped == dropped
    assert made.ids.count(100) == kept
    assert len(made.ids) == whole - 2 + room
    assert room or made.ids == (7, *Words().encode(OWN.prompt(case)))


@pytest.mark.engine
def test_a_label_that_is_not_offered_has_no_probability(tmp_path):
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine

    base = tiny.save_llama(tmp_path / "m", reflection=False, context=4096)
    engine = TransformersEngine.load(TransformersConfig(str(base), dtype="float32"))
    codec = PromptedCodec.from_tokenizer(tiny.byte_level_tokenizer(reflection=False), 2048)
    with StudentCritic(engine, codec, exact=True) as critic:
        judged = critic.judge([Case("Retrieve", "Add 1 and 1."), Case("Retrieve", "Q?", "So.", "It is.", PASSAGE)])
    assert judged[0].probability("Continue to Use Evidence") == 0
    assert judged[1].probability("Continue to Use Evidence") > 0


@pytest.mark.parametrize(
    ("case", "asked"),
    [
        (Case("Retrieve", "Q?"), ""),
        (Case("Retrieve", "Q?", "One.", "Two."), "[No Retrieval]One."),
        (Case("Retrieve", "Q?", "One.", "Two.", PASSAGE), f"{SHOWN}[Relevant]One."),
        (Case("IsRel", "Q?", evidence=PASSAGE), SHOWN),
        (Case("IsSup", "Q?", "", "It is.", PASSAGE), f"{SHOWN}[Relevant]It is."),
        (Case("IsSup", "Q?", "One.", "Two.", PASSAGE), f"[No Retrieval]One.{SHOWN}[Relevant]Two."),
        (Case("IsUse", "Q?", "", "It is."), "[No Retrieval]It is."),
        (Case("IsUse", "Q?", "", "It is.", PASSAGE), f"{SHOWN}[Relevant]It is.[Fully supported]"),
    ],
)
def test_a_generator_is_asked_where_its_token_is_due(case, asked):
    """C.1: the accuracy of the generator's own tokens, all four groups."""
    tokenizer = tiny.byte_level_tokenizer()
    made = GeneratorCodec.from_tokenizer(tokenizer).prompt(case)
    assert tokenizer.decode(made.ids) == f"### Instruction:\nQ?\n\n### Response:\n{asked}"
    assert [tokenizer.decode(option) for option in made.options] == list(case.labels.tokens)
    long = GeneratorCodec.from_tokenizer(tokenizer)
    words = "word " * 3000
    cut = long.prompt(Case("IsUse", words, words, words, Passage("p", words)))
    assert len(cut.ids) + 1 <= long.max_length
    assert set(cut.dropped) == {"instruction", "preceding", "output", "evidence"}
