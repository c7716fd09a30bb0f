"""Tokenizers read without transformers: the same ids and names, or None where transformers would change them."""

import pytest
import tiny
from json_files import read_json, write_json
from refusals import refused
from transformers import AutoTokenizer

from selfrag.common.fast_tokenizer import fast_tokenizer
from selfrag.prompting import Prompting

TEXTS = ["Who wrote it in 1969?", "<paragraph>\n é</paragraph>", "[Relevant]  a", ""]


@pytest.fixture
def folder(tmp_path):
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_prompts_are_those_of_the_tokenizer_of_transformers(folder):
    ours, theirs = fast_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    left, right = map(Prompting.from_tokenizer, (ours, theirs))
    assert left.vocabulary == right.vocabulary
    assert left.codec.control_ids == right.codec.control_ids
    for text in TEXTS:
        assert left.codec.encode(text) == right.codec.encode(text)
        assert left.codec.encode_surface(text) == right.codec.encode_surface(text)
    for name in "bos_token_id eos_token_id unk_token_id special_tokens_map".split():
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_chat_template() == theirs.chat_template


def test_a_named_token_that_the_file_lacks_is_added_as_transformers_adds_it(folder):
    path = folder / "tokenizer_config.json"
    write_json(path, read_json(path) | {"mask_token": "<mask>"})
    ours, theirs = fast_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)


@pytest.mark.parametrize(
    "changes", [{"tokenizer_class": "LlamaTokenizer"}, {"add_bos_token": True}]
)
def test_what_transformers_changes_is_left_to_it(folder, changes, monkeypatch):
    path = folder / "tokenizer_config.json"
    write_json(path, read_json(path) | changes)
    assert fast_tokenizer(folder) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fast_tokenizer(folder) is not None


def test_damaged_files_are_one_line(folder):
    (folder / "tokenizer.json").write_text("{}")
    with refused("no usable tokenizer"):
        fast_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with refused("holds no object"):
        fast_tokenizer(folder)


def test_a_damaged_template_is_one_line_or_none(folder):
    path = folder / "tokenizer_config.json"
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    write_json(path, read_json(path) | {"chat_template": ["default", {"name": "x"}]})
    assert fast_tokenizer(folder).chat_template is None
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xff{{")
    with refused("chat_template.jinja"):
        fast_tokenizer(folder)
