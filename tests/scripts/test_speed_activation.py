"""The race of activated against plain adapters: same text from both, the base model's keys reused by one."""

import pytest
import tiny

from retrieval.passage import Passage
from speed.alora import Sizes, race, table

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [Passage(f"p{i}", f"Passage {i} says that water boils. " * 12, f"Title {i}") for i in range(60)]


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
