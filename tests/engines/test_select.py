"""Which engine is chosen, and how its options are checked."""

import importlib.util
import subprocess
import sys

import pytest

from selfrag.engines.select import choose_engine, load_engine
from selfrag.errors import UserError


def test_without_vllm_transformers_serves(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    name, reason = choose_engine()
    assert name == "transformers"
    assert "vllm is not installed; run: " in reason


def test_a_vllm_that_does_not_import_is_named(tmp_path):
    """In a process of its own: a package called vllm that breaks on import, as beside a wrong torch."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('libcuda.so.1:\\n cannot open')")
    script = "from selfrag.engines.select import choose_engine; print(*choose_engine(), sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "transformers|vllm is installed but does not import (ImportError: libcuda.so.1: cannot open)\n"
    )


@pytest.mark.parametrize(("engine", "known"), [("vllm", "kv_cache_gib"), ("transformers", "max_batch")])
def test_unknown_option_names_the_known(engine, known, tmp_path):
    with pytest.raises(UserError, match=f"the {engine} engine has no option 'max_modle_len'; known: .*{known}"):
        load_engine(engine, tmp_path, max_modle_len=3)


def test_an_activated_adapter_takes_the_engine_that_knows_it(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "selfrag.engines.transformers.TransformersEngine.load", lambda config: taken.append(dict(config.adapters))
    )
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "alora_invocation_tokens": [1, 2]}')
    load_engine(None, "x", adapters={"uncertainty": tmp_path})
    assert taken == [{"uncertainty": str(tmp_path)}]


def test_an_adapter_that_is_nowhere_is_named(tmp_path):
    with pytest.raises(UserError, match=r"adapter owner/name/uncertainty_lora is no directory here.*hub"):
        load_engine("transformers", "x", adapters={"uncertainty": "owner/name/uncertainty_lora"})
