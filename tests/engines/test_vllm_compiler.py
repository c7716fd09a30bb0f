"""vLLM on a machine without a C++ compiler or without Python's headers."""

import os
import subprocess
import sys

import pytest

from selfrag.engines import vllm as compiler

SCRIPT = """
import sys
from selfrag.decoding.requests import Generate
from selfrag.engines.vllm import VLLMEngine
from selfrag.engines.vllm import VLLMConfig
engine = VLLMEngine.load(VLLMConfig(sys.argv[1], max_model_len=64, kv_cache_gib=0.05))
ticket = engine.submit(Generate((3, 4, 5), 2, watch_ids=(7, 8)))
results = {}
while not results:
    results.update(engine.step())
print(results[ticket].watched.shape)
"""


def test_a_missing_compiler_and_missing_headers_are_found(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", sys.executable)  # any program
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert not compiler.has_compiler()
    (tmp_path / "Python.h").touch()
    assert compiler.has_compiler()
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert not compiler.has_compiler()


@pytest.mark.engine
@pytest.mark.slow
def test_log_probabilities_without_a_compiler(tiny_llama, tmp_path):
    pytest.importorskip("vllm", reason="vllm is not installed")
    hidden = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_llama)], env=os.environ | hidden, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "(1, 2)\n" or done.stdout == "(2, 2)\n"
