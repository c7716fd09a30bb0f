"""vLLM's scan of all modules survives llvmlite."""

import sys

import pytest

from selfrag.engines.vllm import spare_llvmlite


def test_what_llvmlite_holds_can_be_looked_through():
    ffi = pytest.importorskip("llvmlite.binding.ffi", reason="llvmlite is not installed")
    spare_llvmlite()
    for value in vars(ffi).values():
        if hasattr(value, "__dict__"):
            vars(value).get("kernel")  # what vLLM does
    assert ffi.lib.LLVMPY_GetVersionInfo() > 0


def test_without_llvmlite_nothing_happens(monkeypatch):
    monkeypatch.delitem(sys.modules, "llvmlite.binding.ffi", raising=False)
    spare_llvmlite()
    assert "llvmlite.binding.ffi" not in sys.modules
