"""The race of activated against plain adapters: same text from both, the base model's keys reused by one."""

import pytest
import tiny

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.tokenization import HFTextCodec
from speed.alora import Sizes, conversation, race, table

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [Passage(f"p{i}", f"Passage {i} says that water boils. " * 12, f"Title {i}") for i in range(60)]


def test_conversations_have_the_wanted_length_and_nothing_in_common():
    codec = HFTextCodec(tiny.byte_level_tokenizer(reflection=False))
    asked, replied = conversation(CORPUS, codec, 600, 0)
    held = sum(len(codec.encode(passage.text)) for passage in asked.passages)
    said = sum(len(codec.encode(message.content)) for message in replied.messages)
    assert held + said == pytest.approx(600, rel=0.15)
    assert replied.messages[:-1] == asked.messages
    assert asked.messages[-1].role == "user"
    assert replied.messages[-1].role == "assistant"
    other, _ = conversation(CORPUS, codec, 600, 1)
    assert not {p.id for p in asked.passages} & {p.id for p in other.passages}
    with pytest.raises(UserError, match="too few passages"):
        conversation(CORPUS, codec, 600, 3)
    with pytest.raises(UserError, match="of at least"):
        Sizes(rank=0)


@pytest.mark.engine
def test_activated_adapters_compute_the_conversation_once(tmp_path):
    model = tiny.save_llama(tmp_path / "model", reflection=False, context=4096)
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    notes = []
    report = race(model, CORPUS, Sizes(tokens=300, rank=4, repeats=1, max_tokens=3), tmp_path, notes.append)
    assert report.same
    assert len(notes) == 3
    computed = {
        kind: sum(sum(one.computed_tokens) for one in report.timed if one.kind == kind)
        for kind in ("plain", "activated")
    }
    assert computed["activated"] < 0.6 * computed["plain"]
    assert table(report).count("activated") == 6
    assert report.as_dict()["ratio"] == report.ratio > 0
