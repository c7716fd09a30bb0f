"""docs/intrinsics/using.md is executed: its Python blocks, on a tiny random model and on the demo model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny

from selfrag.intrinsics.dialects.registry import DIALECTS
from selfrag.intrinsics.library import CATALOG

TEXT = (Path(__file__).parents[2] / "docs" / "intrinsics" / "using.md").read_text(encoding="utf-8")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_intrinsic_and_dialect_is_on_the_page():
    assert all(f"`{name}`" in TEXT for name in (*(kind.name for kind in CATALOG), "chat", *DIALECTS))
    assert all(f"library.get({kind.__name__})" in TEXT for kind in CATALOG)


def run(text: str) -> None:
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for body in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
        exec(compile(body, "using.md", "exec", dont_inherit=True), namespace)  # the point of this test


@pytest.mark.engine
def test_its_blocks_run_on_any_chat_model(tmp_path, capsys):
    model = tiny.save_llama(tmp_path / "chat", reflection=False, context=2048)
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    run(TEXT.replace('from_pretrained("demo")', f'from_pretrained({str(model)!r}, engine="transformers")'))
    assert len(capsys.readouterr().out.splitlines()) >= 10


@pytest.mark.demo
def test_its_blocks_run_on_the_demo_model(capsys):
    run(TEXT)
    assert capsys.readouterr().out.strip()
