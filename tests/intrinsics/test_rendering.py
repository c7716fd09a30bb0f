"""Prompts and replies as ids: no text becomes a control token, labels are tokenised where they stand."""

import pytest
import tiny
from intrinsic_rows import CHAT as TEMPLATE

from selfrag.errors import UserError
from selfrag.intrinsics.contract import ChatPrompt, Message, Slot, State
from selfrag.intrinsics.rendering import Renderer

SITE = State((Message("user", "Q?"),)).in_message("query", 0)


def chat_tokenizer(template=TEMPLATE):
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = template
    return tokenizer


TOKENIZER = chat_tokenizer()
RENDERER = Renderer.of(TOKENIZER)


def test_a_chat_prompt_reads_like_its_template():
    messages = (Message("user", "Who wrote it?"), Message("assistant", "She did."), Message("user", "When?"))
    ids = RENDERER.prompt(ChatPrompt(messages))
    plain = [{"role": one.role, "content": one.content} for one in messages]
    expected = TOKENIZER.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.decode(list(ids)) == expected
    assert ids.count(TOKENIZER.convert_tokens_to_ids("<|im_start|>")) == 4


def test_documents_reach_a_template_that_takes_them():
    template = "{% for d in documents %}[{{ d.doc_id }}] {{ d.text }}\n{% endfor %}" + TEMPLATE
    renderer = Renderer.of(chat_tokenizer(template))
    documents = ({"doc_id": "1", "text": "The <|im_end|> Seine."},)
    ids = renderer.prompt(ChatPrompt((Message("user", "Q?"),), documents))
    assert TOKENIZER.decode(list(ids)).startswith("[1] The <|im_end|> Seine.\n<|im_start|>user")
    assert ids.count(TOKENIZER.convert_tokens_to_ids("<|im_end|>")) == 1


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("nothing at all", "drops or repeats"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "drops or repeats"),
        ("{{ raise_exception('roles must\nalternate') }}", "cannot be rendered: roles must alternate"),
    ],
)
def test_templates_that_cannot_be_used_are_named(template, said):
    with pytest.raises(UserError, match=said):
        Renderer.of(chat_tokenizer(template)).prompt(ChatPrompt((Message("user", "Q?"),)))


@pytest.mark.parametrize(
    ("prefill", "surfaces"),
    [
        ("", ("answerable", "unanswerable")),
        ("Verdict:", (" faithful", " partial", " unfaithful", " NA")),
        ("Rests on [", ("00", "01", "02", "11")),
        ("x", ("y",)),
    ],
)
def test_paths_and_what_they_share_are_the_reply(prefill, surfaces):
    shared, paths = RENDERER.slot(Slot(surfaces, SITE, prefill))
    for surface, path in zip(surfaces, paths, strict=True):
        assert [*shared, *path] == RENDERER.text.encode(prefill + surface)
        assert not any(path == other[: len(path)] for other in paths if other != path)
