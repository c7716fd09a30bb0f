"""What a request may be in every engine, and the choice of an engine."""

import importlib.util
import json
import sys

import pytest
from json_files import table
from pump import FORMS, LABELS, SCHEMA, serve
from refusals import refused
from scripted import ScriptedEngine, ScriptedReply

from selfrag.engines import choose_engine, load_engine
from selfrag.reflection.requests import Constraint, Generate, Generated

UNSERVED = """
Generate((), 1) | empty prompt
Generate((1,), 0) | max_tokens=0
Generate((1,) * 4096, 1) | does not fit a context of 4096
Generate((1,), 1, watch_ids=tuple(range(129))) | 129 watched ids; at most 128
Generate((1,), 1, watch_ids=(1, 1)) | not distinct
Generate((1,), 1, allowed_ids=()) | allowed_ids is empty
Generate((1,), 1, allowed_ids=(2,), constraint=FORMS[0]) | exclude each other
Generate((1,), 1, adapter="x") | unknown adapter 'x'
Generate((1, 2), 1, inspect=1) | random draws; --engine transformers does
Generate((1, 2), 1, seed=3) | gives no attention, hidden states or random
Generate((100_000,), 1) | token id 100000 is outside
Generate((-1,), 1) | token id -1 is outside
"""


@pytest.mark.parametrize("request_, reason", table(UNSERVED))
def test_a_request_that_cannot_be_served_comes_back_failed(request_, reason):
    engine = ScriptedEngine(lambda _: ScriptedReply((5, 0)), eos_id=0)
    bad, good = serve(engine, [eval(request_), Generate((1,), 9)])
    assert reason in bad.reason
    assert isinstance(good, Generated)


def test_a_constraint_is_a_value():
    assert Constraint.json(SCHEMA) == Constraint.json(json.loads(json.dumps(SCHEMA)))
    assert len({*FORMS, *FORMS}) == 3
    assert Constraint.json(SCHEMA).value == SCHEMA
    for constraint, sent in (
        (Constraint.regex("a+"), {"regex": "a+"}),
        (Constraint.choice(LABELS), {"choice": list(LABELS)}),
        (Constraint.json(SCHEMA), {"json": SCHEMA}),
    ):
        assert constraint.as_structured_outputs() == sent
    with pytest.raises(ValueError, match="no texts"):
        Constraint.choice(())


@pytest.mark.parametrize(
    ("installed", "chosen", "missing"),
    [(["torch"], "transformers", "vllm"), ([], "onnx", "torch")],
)
def test_without_vllm_what_is_installed_serves(monkeypatch, installed, chosen, missing):
    def find_spec(name):
        return True if name in installed else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    name, reason = choose_engine()
    assert name == chosen
    assert f"{missing} is not installed; run: " in reason


def test_a_vllm_that_does_not_import_is_named(tmp_path, process):
    """In a process of its own: a package called vllm that breaks on import, as beside a wrong torch."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(
        "raise ImportError('libcuda.so.1:\\n cannot open')"
    )
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    script += "from selfrag.engines import choose_engine; print(*choose_engine())"
    out = process(sys.executable, "-c", script).stdout
    assert out.startswith("transformers vllm is installed but does not import")
    assert "ImportError: libcuda.so.1: cannot open" in out
    assert out.count("\n") == 1


UNKNOWN = """
vllm | {"max_modle_len": 3} | vLLM has no option 'max_modle_len'; known: .*kv_cache_gib
transformers | {"max_modle_len": 3} | the transformers engine has no option .*; known: .*max_batch
http | {} | the http engine needs url=
other | {} | unknown engine 'other'; known: vllm, transformers, http
vllm | {"adapters": {"a": "owner/name/a_lora"}} | adapter owner/name/a_lora is no directory here.*hub
"""


@pytest.mark.parametrize("name, options, said", table(UNKNOWN))
def test_engines_and_options_that_are_none(name, options, said):
    with refused(said):
        load_engine(name, "x", **json.loads(options))


def test_an_activated_adapter_takes_the_engine_that_knows_it(tmp_path, monkeypatch):
    taken = []
    loaded = "selfrag.engines.transformers.TransformersEngine.load"
    monkeypatch.setattr(loaded, lambda config: taken.append(dict(config.adapters)))
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "alora_invocation_tokens": [1, 2]}'
    )
    load_engine(None, "x", adapters={"uncertainty": tmp_path})
    assert taken == [{"uncertainty": str(tmp_path)}]
