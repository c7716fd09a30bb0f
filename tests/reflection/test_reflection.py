"""Labels, the vocabulary of a tokenizer, judgments with their group scores (appendix A.4), scalings and weights."""

import json
import math

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from json_files import table
from refusals import refused
from transformers import AddedToken, AutoTokenizer, LlamaTokenizerFast

from selfrag.common.errors import VocabularyError
from selfrag.reflection import intrinsic_labels
from selfrag.reflection.findings import Reflection, spread
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import (
    CRITIQUES,
    GROUPS,
    ISREL,
    ISSUP,
    ISUSE,
    RETRIEVE,
    TOKENS,
    LabelSet,
    Role,
    group,
)
from selfrag.reflection.vocabulary import (
    STORED,
    Scaling,
    Vocabulary,
    as_record,
    read_scalings,
)
from selfrag.reflection.weights import Weights

# The table of section 1.1 of the reference: ids of selfrag/selfrag_llama2_7b and 13b.
PUBLISHED = (
    "[No Retrieval]",
    "[Retrieval]",
    "[Continue to Use Evidence]",
    "[Irrelevant]",
    "[Relevant]",
    "<paragraph>",
    "</paragraph>",
    *(f"[Utility:{i}]" for i in range(1, 6)),
    "[Fully supported]",
    "[Partially supported]",
    "[No support / Contradictory]",
)
LLAMA_2 = {token: 32000 + i for i, token in enumerate(PUBLISHED)}


# --- vocabulary ----------------------------------------------------------------------------------------------------


def test_appending_to_llama_2_gives_the_published_ids():
    words = {f"▁w{i}": i for i in range(3, 32000)}
    tokenizer = LlamaTokenizerFast(
        vocab={"<unk>": 0, "<s>": 1, "</s>": 2, **words}, merges=[]
    )
    tiny.with_reflection_tokens(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert (dict(vocabulary.ids), vocabulary.eos_id, len(tokenizer)) == (
        LLAMA_2,
        2,
        32016,
    )


@pytest.mark.parametrize(
    "make", [tiny.byte_level_tokenizer, tiny.sentencepiece_tokenizer]
)
def test_any_family_binds_and_brings_its_scalings(make, tmp_path):
    """Defect 26: not only one tokenizer class."""
    tokenizer, size = make(), len(make(reflection=False))
    scalings = {Role.RELEVANCE: Scaling(1.25, (0.0, -0.5)), Role.SUPPORT: Scaling(0.8)}
    tokenizer.init_kwargs[STORED] = as_record(scalings)
    tokenizer.save_pretrained(tmp_path)
    vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert [vocabulary.ids[token] for token in TOKENS] == list(range(size, size + 15))
    assert vocabulary.scalings == scalings
    assert not vocabulary.uncalibrated().scalings


def test_what_a_tokenizer_lacks_is_listed():
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=True)
            for token in TOKENS[1:]
            if token != "[Relevant]"
        ]
    )
    said = r"^the tokenizer lacks 2 of 15 reflection tokens: \[No Retrieval\], \[Relevant\];[^\n]*$"
    with pytest.raises(VocabularyError, match=said):
        Vocabulary.from_tokenizer(tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(VocabularyError, match="no EOS token"):
        Vocabulary.from_tokenizer(tokenizer)


@pytest.mark.parametrize(
    "ids, eos, message",
    [
        ({**LLAMA_2, "[Relevant]": 32003}, 2, "share one id"),
        (LLAMA_2, 32001, "share one id"),
        (
            {token: i for token, i in LLAMA_2.items() if i != 32006},
            2,
            "missing: </paragraph>",
        ),
    ],
)
def test_ids_are_complete_and_distinct(ids, eos, message):
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(ids, eos)


def test_groups_have_the_published_ids_in_label_order_and_their_columns_of_watch():
    vocabulary = Vocabulary(LLAMA_2, eos_id=2)
    assert vocabulary.group(RETRIEVE) == vocabulary.retrieve == (32001, 32000, 32002)
    assert vocabulary.group(ISREL) == (32004, 32003)
    assert vocabulary.group(ISSUP) == (32012, 32013, 32014)
    assert vocabulary.group(ISUSE) == (32007, 32008, 32009, 32010, 32011)
    assert vocabulary.critiques == {32003, 32004, *range(32007, 32015)}
    assert (vocabulary.paragraph_open, vocabulary.paragraph_close) == (32005, 32006)
    assert vocabulary.control == set(LLAMA_2.values()) | {2}
    assert len(vocabulary.watch) == len(set(vocabulary.watch)) == 13
    for labels in GROUPS:
        assert vocabulary.watch[vocabulary.columns(labels)] == vocabulary.group(labels)
    with pytest.raises(VocabularyError, match="certainty is not a group"):
        vocabulary.columns(LabelSet(Role.CERTAINTY, ()))


def test_labels_have_the_papers_values_and_are_found_by_name_or_token_in_any_case():
    assert dict(zip(ISREL.names, ISREL.values, strict=True)) == {
        "Relevant": 1,
        "Irrelevant": 0,
    }
    assert (ISSUP.values, ISUSE.values) == ((1, 0.5, 0), (-1, -0.5, 0, 0.5, 1))
    assert CRITIQUES == (ISREL, ISSUP, ISUSE)
    assert ISSUP.index("fully supported") == ISSUP.index("[Fully supported]") == 0
    assert ISUSE.index("5") == ISUSE.index(" [utility:5] ") == 4
    assert (group("ISREL"), group(" retrieve ")) == (ISREL, RETRIEVE)
    with refused("issup label 'maybe'; known: 'Fully supported'"):
        ISSUP.index("maybe")
    with refused("'isfun'; known: retrieve, isrel, issup, isuse"):
        group("isfun")


# --- judgments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "logprobs, message",
    [
        *(([-0.1, bad], "not log-probabilities") for bad in (math.nan, 0.5, 100.0)),
        ([-math.inf] * 2, "no label has any probability"),
        ([-0.1], "1 log-probabilities for 2 labels"),
    ],
)
def test_what_is_no_log_probability_is_refused(logprobs, message):
    """Defects 8 and 9: an id that was not returned is an error, never -100 and never e^-100."""
    with pytest.raises(ValueError, match=message):
        Judgment.from_logprobs(ISREL, logprobs, site="here")


@given(
    st.sampled_from(GROUPS),
    st.lists(st.floats(-700, -3), min_size=5, max_size=5),
    st.floats(-200, 0),
)
def test_only_ratios_matter(labels, logprobs, shift):
    logprobs = logprobs[: len(labels)]
    judgment = Judgment.from_logprobs(labels, logprobs, site="here")
    assert sum(judgment.distribution) == pytest.approx(1)
    assert 0 <= judgment.coverage <= 1
    assert min(labels.values) - 1e-9 <= judgment.score <= max(labels.values) + 1e-9
    moved = Judgment.from_logprobs(
        labels, [value + shift for value in logprobs], site="here"
    )
    assert moved.score == pytest.approx(judgment.score, abs=1e-9)
    assert moved.distribution == pytest.approx(judgment.distribution, abs=1e-9)


def test_what_a_judgment_says_of_itself():
    logs = list(map(math.log, (0.1, 0.25, 0.15)))
    judgment = Judgment.from_logprobs(
        ISSUP, logs, site="segment 1", source=JudgmentSource.ADAPTER, evidence="wm1"
    )
    assert (judgment.label, judgment.mode, judgment.role) == (
        "Partially supported",
        0.5,
        Role.SUPPORT,
    )
    assert judgment.probability("fully supported") == pytest.approx(0.2)  # renormalised
    assert (judgment.coverage, judgment.score) == pytest.approx((0.5, 0.45))
    # the first of equals
    assert Judgment(ISREL, "here", (0.5, 0.5), 1.0).label == "Relevant"
    data = json.loads(json.dumps(judgment.as_dict()))
    assert list(data["distribution"]) == [
        "Fully supported",
        "Partially supported",
        "No support / Contradictory",
    ]
    assert (data["role"], data["source"], data["site"], data["evidence"]) == (
        "issup",
        "adapter",
        "segment 1",
        "wm1",
    )


# --- scalings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scaling, given, found",
    [
        # roots
        (
            Scaling(2.0),
            (0.81, 0.09, 0.1),
            (0.9 / 1.51623, 0.3 / 1.51623, 0.31623 / 1.51623),
        ),
        # what has none gets none
        (
            Scaling(1.0, (0.0, math.log(4), 5.0)),
            (0.8, 0.2, 0.0),
            (0.5, 0.5, 0.0),
        ),
    ],
)
def test_a_temperature_of_two_takes_the_root_and_a_bias_multiplies_the_odds(
    scaling, given, found
):
    judged = scaling(Judgment(ISSUP, "here", given, 0.7))
    assert judged.distribution == pytest.approx(found, abs=1e-5)
    assert (judged.coverage, judged.site) == (0.7, "here")


RECORDS = """[
[],
{"isrel": 2.0},
{"isrel": {"temperature": 0, "biases": {}}},
{"isrel": {"temperature": true, "biases": {}}},
{"isrel": {"temperature": 1.0, "biases": {"Relevant": 1.0}}},
{"isrel": {"temperature": 1.0, "biases": {"Relevant": 1.0, "Irrelevant": "2"}}},
{"isrel": {"temperature": 100.5, "biases": {}}},
{"isrel": {"temperature": 1, "biases": {"Relevant": 0, "Irrelevant": -100.5}}},
{"certainty": {"temperature": 1.0, "biases": {}}}
]"""


@pytest.mark.parametrize("record", json.loads(RECORDS))
def test_a_bad_record_is_one_line(record):
    with refused(r"^[^\n]*$"):
        read_scalings(record)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.init_kwargs[STORED] = record or [1]
    with pytest.raises(VocabularyError):
        Vocabulary.from_tokenizer(tokenizer)


# --- weights -------------------------------------------------------------------------------------------------------

numbers = st.one_of(st.floats(-1e6, 1e6), st.integers(-(10**6), 10**6))


@given(
    st.builds(
        Weights,
        numbers,
        numbers,
        numbers,
        st.dictionaries(st.sampled_from(["nli", "a.b-c_1"]), numbers),
    )
)
def test_the_canonical_string_of_weights_parses_back(weights):
    again = Weights.parse(str(weights))
    assert again == weights
    assert str(again) == str(weights)


def test_weights_left_out_keep_their_default_and_nonsense_is_named():
    # the shortest that parse back
    assert str(Weights(1e6, -2.0, 1e-9)) == "isrel=1000000,issup=-2,isuse=1e-09"
    with refused(r"weight issup=1\.1e\+06"):
        Weights(issup=1.1e6)
    assert (
        str(Weights(judges={"nli": 0.5, "citations": 2}))
        == "isrel=1,issup=1,isuse=0.5,+citations=2,+nli=0.5"
    )
    assert Weights().as_dict() == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5}
    for text in ("", ",", " isuse = 0.5 ,, isrel=1"):
        assert Weights.parse(text) == Weights()
    for text in (
        "isfun=1",
        "isrel",
        "isrel=",
        "isrel=1=2",
        "isrel=1,isrel=2",
        "isrel=nan",
        "isuse=inf",
        "=1",
    ):
        with refused(r"weight|not a number"):
            Weights.parse(text)


NO_WEIGHTS = """
{"issup": NaN} | weight issup=.* is not a finite number
{"issup": "1"} | weight issup=.* is not a finite number
{"issup": true} | weight issup=.* is not a finite number
{"judges": {"": 1.0}} | no name of a judge
{"judges": {"a b": 1.0}} | no name of a judge
{"judges": {"isrel": 1.0}} | no name of a judge
{"judges": 3} | give names of judges
{"judges": "nli"} | give names of judges
"""


@pytest.mark.parametrize("given, message", table(NO_WEIGHTS))
def test_what_is_no_weight_is_refused(given, message):
    with refused(message):
        Weights(**json.loads(given))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(intrinsic_labels).items()
        if isinstance(value, LabelSet)
    ],
)
def test_scores_of_intrinsic_labels_lie_between_0_and_1(name):
    scores = [label.value for label in getattr(intrinsic_labels, name).labels]
    assert min(scores) >= 0
    assert 0.9 < max(scores) <= 1


def test_the_value_of_a_range_of_faithfulness_is_its_middle():
    for label in intrinsic_labels.FAITHFULNESS_BINS.labels[:10]:
        low, high = sorted(map(float, label.name.split("-")))
        assert label.value == pytest.approx((low + high) / 2)


def test_a_distribution_is_shown_from_the_most_probable_label_without_tiny_shares():
    judgment = Judgment(ISSUP, "segment 1", (0.3, 0.698, 0.002), coverage=1.0)
    assert spread(judgment) == "Partially supported 0.70, Fully supported 0.30"
    assert spread(None) == "undefined"


def test_a_reflection_as_plain_values():
    state = JudgeInput((Message("user", "Who?"),))
    values = Reflection(state, text="Who else?").as_dict()
    assert values == {"judgments": [], "text": "Who else?", "diagnostics": []}
