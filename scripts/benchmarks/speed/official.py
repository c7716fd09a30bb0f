"""The published functions as they are, from a clone of their repository, on today's vLLM or on `generate`."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from scripts.benchmarks.speed.timing import Run, Work
from scripts.benchmarks.speed.workload import Form, Item
from selfrag.common.errors import UserError
from selfrag.loading import load_tokenizer


@dataclass(slots=True)
class Model:
    """What the published functions take for vLLM's model. Counts what it does."""

    llm: Any  # loaded with `max_logprobs` of at least 32,000
    requests: int = 0
    prompt_tokens: int = 0
    generated: int = 0

    def generate(self, prompts: Sequence[str], params: Any) -> Any:
        """As of `LLM`; the text keeps reflection tokens, which were no special tokens in the published checkpoint."""
        params.skip_special_tokens = False
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        self.requests += len(outputs)
        self.prompt_tokens += sum(len(output.prompt_token_ids) for output in outputs)
        self.generated += sum(len(output.outputs[0].token_ids) for output in outputs)
        return outputs


@dataclass(slots=True)
class Published:
    """`call_model_rerank_w_scores_batch` (short) or `call_model_beam_batch` (long) of a clone, always with passages."""

    clone: Path  # of the repository AkariAsai/self-rag
    model_dir: str  # checkpoint, for its tokenizer
    llm: Any  # vLLM's model without prefix caching
    form: Form  # short or long
    _modules: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._modules = {
            name: _module(self.clone, name) for name in ("utils", "run_short_form", "run_long_form_static")
        }

    def answer_all(self, items: Sequence[Item]) -> Run:
        """Answer the questions one by one."""
        utils, policy, model = self._modules["utils"], self.form.policy, Model(self.llm)
        tokens = utils.load_special_tokens(load_tokenizer(Path(self.model_dir)), use_grounding=True, use_utility=True)
        named = dict(zip(("ret_tokens", "rel_tokens", "grd_tokens", "ut_tokens"), tokens, strict=True))
        named |= {"max_new_tokens": policy.segment_tokens, "mode": "always_retrieve", "use_seqscore": True}
        start, texts = time.perf_counter(), list[str]()
        for item in items:
            prompt = utils.PROMPT_DICT["prompt_no_input"].format_map({"instruction": item.question})
            found = [{"title": one.title, "text": one.text} for one in item.passages[: policy.passages]]
            if policy.max_segments == 1:
                short = self._modules["run_short_form"].call_model_rerank_w_scores_batch
                texts.append(utils.postprocess(short(prompt, found, model, **named)[0]))
            else:
                long = self._modules["run_long_form_static"].call_model_beam_batch
                depth = policy.max_segments + 1  # it counts the question
                given = {"ctxs": found, "query": item.question, "max_depth": depth, "beam_width": policy.beam}
                texts.append(utils.postprocess(long(prompt, model, **given, **named)[0][0]))
        work = Work(model.requests, model.prompt_tokens, 0, model.generated)
        return Run(time.perf_counter() - start, tuple(texts), work)


def _module(clone: Path, name: str) -> Any:
    """A module of the clone. Empty modules stand in for those that it imports and that are not here.

    Today's vLLM gives an object for each log-probability, where the functions take a number: it becomes one here.
    Where vLLM is not installed, a module with the two names that they import stands in for it.
    """
    folder = clone / "retrieval_lm"
    if not (folder / f"{name}.py").is_file():
        raise UserError(f"--official {clone}: there is no retrieval_lm/{name}.py; give a clone of AkariAsai/self-rag")
    try:
        from vllm.logprobs import Logprob

        Logprob.__float__ = lambda self: float(self.logprob)
        Logprob.exp = lambda self: math.exp(self.logprob)
    except ImportError:
        stand_in: Any = ModuleType("vllm")
        stand_in.LLM, stand_in.SamplingParams = object, SimpleNamespace
        sys.modules["vllm"] = stand_in
    for missing in ("spacy", "jsonlines", "openai"):
        try:
            importlib.import_module(missing)
        except ImportError:
            sys.modules[missing] = ModuleType(missing)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))
