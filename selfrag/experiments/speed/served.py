"""One vLLM with two faces: our `VLLMEngine` and vLLM's own `LLM`, on the same weights, settings and cache.

So the floor and the rivals run on exactly the engine that ours runs on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.engines.environment import environment
from selfrag.engines.vllm import VLLMEngine, quiet_import
from selfrag.engines.vllm_config import VLLMConfig, build_environment, check_model, engine_arguments
from selfrag.errors import require
from selfrag.loading import load_tokenizer
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model.

    Attributes:
        llm: vLLM's offline front end.
        engine: ours, over the same vLLM engine. Never use both at the same time.
    """

    llm: Any
    engine: VLLMEngine

    def forget(self) -> None:
        """Empty the prefix cache, so that a run cannot profit from the one before."""
        self.llm.reset_prefix_cache()

    def settings(self) -> dict[str, Any]:
        """What was loaded, and how."""
        core = self.llm.llm_engine
        config = core.vllm_config
        return {
            "model": Path(config.model_config.model).name,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "vocabulary": config.model_config.get_vocab_size(),
            "in_process": type(core.engine_core).__name__ == "InprocClient",
            "eager": bool(config.model_config.enforce_eager),
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "block_size": config.cache_config.block_size,
            "max_logprobs": config.model_config.max_logprobs,
        }


def serve(config: VLLMConfig) -> Served:
    """Load a checkpoint with the settings that `VLLMEngine.load` would use.

    Raises:
        MissingExtraError: vLLM is not installed.
    """
    check_model(config.model)
    with quiet_import():
        require("vllm", extra="cpu")
        from vllm import LLM
        from vllm.platforms import current_platform

        cpu: bool = current_platform.is_cpu()
        ours = build_environment(cpu=cpu, kv_cache_is_ours=config.kv_cache_gib is not None)
        with environment({"LD_PRELOAD": os.environ.get("LD_PRELOAD"), **ours}):
            llm = LLM(**engine_arguments(config, (), cpu=cpu))
    return Served(llm, VLLMEngine(llm.llm_engine))


def prompting_of(model: str) -> Prompting:
    """Tokenizer, vocabulary and layout of a checkpoint directory.

    Raises:
        UserError: it has no usable tokenizer, or one without reflection tokens.
    """
    tokenizer = load_tokenizer(Path(model))
    return Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
