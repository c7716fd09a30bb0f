"""A merged checkpoint is an ordinary model to vLLM: it loads, and predicts what transformers predicts."""

import pytest
import tiny
from pump import generated
from trained import ROWS, config, train, write

from selfrag.decoding.requests import Generate
from selfrag.engines.vllm import VLLMConfig
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.training.export import merge, save_adapter
from selfrag.training.run import layout_for

pytest.importorskip("vllm", reason="vllm is not installed")
from selfrag.engines.vllm import VLLMEngine

pytestmark = pytest.mark.engine


def test_vllm_loads_a_merged_checkpoint_and_gives_the_same_logprobs(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = tiny.save_llama(tmp_path / "base", reflection=False, tie=True)
    trainee = train(write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(learning_rate=5e-3))
    merged = merge(base, save_adapter(trainee, tmp_path / "adapter"), tmp_path / "merged")

    watch = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(merged)).watch
    prompt = layout_for(trainee.tokenizer, config()).prompting.prompt(ROWS[1].instruction)
    engine = VLLMEngine.load(VLLMConfig(str(merged), max_model_len=256, dtype="float32", kv_cache_gib=0.05))
    try:
        result = generated(engine, Generate(prompt, 3, watch_ids=watch))
    finally:
        engine.close()

    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    logits = model(input_ids=torch.tensor([[*prompt, *result.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[:, list(watch)]
    assert torch.allclose(torch.as_tensor(result.watched).float(), expected, atol=1e-3)
    assert list(result.token_ids) == logits.argmax(-1).tolist()
