"""The vocabulary: 15 strings as 15 distinct ids of whatever tokenizer, in the order of the published checkpoints."""

from __future__ import annotations

import pytest
import tiny
from transformers import AddedToken, AutoTokenizer

from selfrag.errors import UserError, VocabularyError
from selfrag.reflection.labels import CRITIQUES, GROUPS, ISREL, ISSUP, ISUSE, RETRIEVE, TOKENS, LabelSet, Role, group
from selfrag.reflection.vocabulary import Vocabulary

# The table of section 1.1 of the reference: ids of selfrag/selfrag_llama2_7b and 13b.
LLAMA_2 = {
    "[No Retrieval]": 32000,
    "[Retrieval]": 32001,
    "[Continue to Use Evidence]": 32002,
    "[Irrelevant]": 32003,
    "[Relevant]": 32004,
    "<paragraph>": 32005,
    "</paragraph>": 32006,
    "[Utility:1]": 32007,
    "[Utility:2]": 32008,
    "[Utility:3]": 32009,
    "[Utility:4]": 32010,
    "[Utility:5]": 32011,
    "[Fully supported]": 32012,
    "[Partially supported]": 32013,
    "[No support / Contradictory]": 32014,
}


def llama_tokenizer(size: int):
    from transformers import LlamaTokenizerFast

    words = {f"▁w{i}": i for i in range(3, size)}
    return LlamaTokenizerFast(vocab={"<unk>": 0, "<s>": 1, "</s>": 2, **words}, merges=[])


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(LLAMA_2, eos_id=2)


def test_appending_to_llama_2_gives_the_published_ids():
    tokenizer = tiny.with_reflection_tokens(llama_tokenizer(32000))
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert dict(vocabulary.ids) == LLAMA_2
    assert vocabulary.eos_id == 2
    assert len(tokenizer) == 32016


@pytest.mark.parametrize("make", [tiny.byte_level_tokenizer, tiny.sentencepiece_tokenizer])
def test_any_family_binds(make, tmp_path):
    """Defect 26: not only one tokenizer class."""
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    size = len(make(reflection=False))
    assert [vocabulary.ids[token] for token in TOKENS] == list(range(size, size + 15))
    tokenizer.save_pretrained(tmp_path)
    assert Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(tmp_path)) == vocabulary


def test_missing_tokens_are_listed():
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    kept = [AddedToken(token, special=True) for token in TOKENS if token not in ("[Relevant]", TOKENS[0])]
    tokenizer.add_tokens(kept)
    said = r"^the tokenizer lacks 2 of 15 reflection tokens: \[No Retrieval\], \[Relevant\];[^\n]*$"
    with pytest.raises(VocabularyError, match=said):
        Vocabulary.from_tokenizer(tokenizer)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(VocabularyError, match="no EOS token"):
        Vocabulary.from_tokenizer(tokenizer)


@pytest.mark.parametrize(
    ("ids", "eos", "message"),
    [
        ({**LLAMA_2, "[Relevant]": 32003}, 2, "share one id"),
        (LLAMA_2, 32001, "share one id"),
        ({token: i for token, i in LLAMA_2.items() if i != 32006}, 2, "missing: </paragraph>"),
    ],
)
def test_ids_are_complete_and_distinct(ids, eos, message):
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(ids, eos)


def test_groups_have_the_published_ids_in_label_order(vocabulary):
    assert vocabulary.group(RETRIEVE) == vocabulary.retrieve == (32001, 32000, 32002)
    assert vocabulary.group(ISREL) == (32004, 32003)
    assert vocabulary.group(ISSUP) == (32012, 32013, 32014)
    assert vocabulary.group(ISUSE) == (32007, 32008, 32009, 32010, 32011)
    assert vocabulary.critiques == {32003, 32004, *range(32007, 32015)}
    assert (vocabulary.paragraph_open, vocabulary.paragraph_close) == (32005, 32006)
    assert vocabulary.control == set(LLAMA_2.values()) | {2}


def test_columns_of_watch_are_the_groups(vocabulary):
    assert len(vocabulary.watch) == len(set(vocabulary.watch)) == 13
    for labels in GROUPS:
        assert vocabulary.watch[vocabulary.columns(labels)] == vocabulary.group(labels)
    with pytest.raises(VocabularyError, match="certainty is not a group"):
        vocabulary.columns(LabelSet(Role.CERTAINTY, ()))


def test_labels_have_the_papers_values_and_are_found_by_name_or_token_in_any_case():
    assert dict(zip(ISREL.names, ISREL.values, strict=True)) == {"Relevant": 1, "Irrelevant": 0}
    assert (ISSUP.values, ISUSE.values) == ((1, 0.5, 0), (-1, -0.5, 0, 0.5, 1))
    assert CRITIQUES == (ISREL, ISSUP, ISUSE)
    assert ISSUP.index("fully supported") == ISSUP.index("[Fully supported]") == 0
    assert ISUSE.index("5") == ISUSE.index(" [utility:5] ") == 4
    assert (group("ISREL"), group(" retrieve ")) == (ISREL, RETRIEVE)
    with pytest.raises(UserError, match="unknown issup label 'maybe'; known: 'Fully supported', 'Partially supp"):
        ISSUP.index("maybe")
    with pytest.raises(UserError, match="unknown reflection group 'isfun'; known: retrieve, isrel, issup, isuse"):
        group("isfun")
