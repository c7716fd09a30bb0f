"""Which engine would be used here, and why; on demand, whether it really answers."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator

from selfrag.cli.checks.finding import Finding
from selfrag.errors import UserError


def check_engine() -> Iterator[Finding]:
    """The engine that `SelfRAG.from_pretrained` would choose."""
    from selfrag.engines.select import choose_engine

    name, reason = choose_engine()
    # A vLLM that is installed and does not run is a fault; one that is not installed is a choice.
    broken = name != "vllm" and importlib.util.find_spec("vllm") is not None
    yield Finding("engine", f"{name}: {reason}", "broken" if broken else "ok")


def check_start(name: str) -> Iterator[Finding]:
    """Load a model and generate one token with it."""
    from selfrag.decoding.requests import Generate, Generated
    from selfrag.engines.select import load_engine
    from selfrag.loading import resolve_model

    start = time.monotonic()
    try:
        engine = load_engine(None, resolve_model(name))
    except UserError as error:
        yield Finding("start", str(error), "broken")
        return
    loaded = time.monotonic()
    try:
        engine.submit(Generate((1,), max_tokens=1))
        results: list[object] = []
        while not results:
            results = [result for _, result in engine.step()]
        where = _where(engine)
        detail = f"loads in {loaded - start:.1f} s, one token in {time.monotonic() - loaded:.2f} s{where}"
        good = isinstance(results[0], Generated)
        yield Finding("start", detail if good else str(results[0]), "ok" if good else "broken")
    finally:
        engine.close()


def _where(engine: object) -> str:
    """Whether vLLM computes in this process, as it should on a CPU; nothing for other engines."""
    core = getattr(getattr(engine, "_engine", None), "engine_core", None)
    if core is None:
        return ""
    return ", in this process" if type(core).__name__ == "InprocClient" else ", in worker processes"
