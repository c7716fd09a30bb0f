"""The beam with and without intrinsics: every variant is a policy, and a small comparison runs, resumes and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval_joining import VARIANTS, Joining, run_variants
from selfrag.errors import UserError
from selfrag.intrinsics.catalog import find


def test_every_variant_is_a_policy_on_intrinsics_that_there_are() -> None:
    joining = Joining("demo")
    assert joining.policy("tokens") == joining.decoding
    for name in VARIANTS:
        policy = joining.policy(name)
        assert (name == "tokens") == (not policy.reflectors and not policy.gates)
    assert [find(name).name for name in joining.intrinsics] == list(joining.intrinsics)
    assert Joining("demo", ("tokens", "citations-join")).intrinsics == ("citation_generation",)
    with pytest.raises(UserError, match="unknown variant 'tokes'; known: tokens, hallucination-joins"):
        Joining("demo", ("tokes",))


@pytest.mark.engine
def test_a_comparison_runs_and_goes_on(tmp_path: Path) -> None:
    import tiny

    from selfrag.evaluation.runner import Source

    model = tiny.save_llama(tmp_path / "model", context=2048)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.save_pretrained(model)
    passage = {"id": "p1", "title": "Seine", "text": "The Seine is a river in Paris."}
    row = {"task": "short_qa", "instruction": "Where is the Seine?", "answers": ["Paris"], "gold_passage_ids": ["p1"]}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**row, "id": f"q{i}", "passages": [passage]}) + "\n" for i in range(2)))
    names = ("tokens", "relevance-for-isrel")
    joining = Joining(str(model), names, engine="transformers")
    source = Source([file])
    for _ in range(2):  # the second time everything is there
        found = run_variants(joining, source.load(), tmp_path / "out", source.settings())
        assert {name: result["rows"]["items"] for name, result in found.items()} == dict.fromkeys(names, 2)
    manifest = json.loads((tmp_path / "out" / "relevance-for-isrel" / "manifest.json").read_text())
    assert manifest["identity"]["judges"] == {"context_relevance": "tokens"}
    alone = json.loads((tmp_path / "out" / "tokens" / "manifest.json").read_text())
    assert alone["identity"]["judges"] == {}  # other variants beside it do not make it another run
    assert manifest["identity"]["system"]["decoding"]["reflectors"] == ["context_relevance=isrel"]
