"""The floor: recorded requests replayed in one `LLM.generate` call without log-probabilities or text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from selfrag.decoding.requests import Generate


def replay(llm: Any, requests: Sequence[Generate]) -> tuple[float, list[int]]:
    """Serve all requests at once: nothing waits for anything.

    Args:
        llm: vLLM's `LLM`.
        requests: what a run of ours asked for.

    Returns:
        Wall seconds, and the number of tokens each request generated.
    """
    from vllm import SamplingParams

    start = time.perf_counter()
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    params = [
        SamplingParams(temperature=0.0, max_tokens=r.max_tokens, stop_token_ids=list(r.stop_ids), detokenize=False)
        for r in requests
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start, [len(output.outputs[0].token_ids) for output in outputs]
