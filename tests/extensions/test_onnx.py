"""The engine on ONNX Runtime: other families than the demo's, int8, and what it refuses."""

import json
import shutil
from contextlib import closing

import numpy as np
import pytest
import tiny
from json_files import read_json, write_json
from pump import assert_same, prompt, serve
from refusals import refused
from tables import each

from selfrag.common.errors import EngineError
from selfrag.engines import load_engine
from selfrag.extensions.onnx.checkpoint import read_facts
from selfrag.extensions.onnx.graph import largest_code, to_int8
from selfrag.extensions.onnx.rotation import orthogonal, rotate_blocks
from selfrag.reflection.requests import Constraint, Failed, Generate

pytestmark = pytest.mark.engine

REQUESTS = [
    Generate(prompt(length, length), 12, watch_ids=tuple(range(400, 415)))
    for length in (1, 40, 130)
]
LLAMA3 = """{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
"high_freq_factor": 4.0, "original_max_position_embeddings": 64}"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))


def answers(name, path, **options):
    with closing(load_engine(name, path, **options)) as engine:
        return serve(engine, REQUESTS)


def save_llama3(path):
    """A Llama whose rotary frequencies are scaled as in Llama 3.1."""
    tiny.save_llama(path, tie=True)
    return configured(path, {"rope_parameters": json.loads(LLAMA3)})


def configured(path, changes):
    file = path / "config.json"
    write_json(file, read_json(file) | changes)
    return path


@pytest.mark.parametrize("save", [tiny.save_qwen2, tiny.save_qwen3, save_llama3])
def test_other_families_answer_as_under_transformers(save, tmp_path):
    path = save(tmp_path / "model")
    expected = answers("transformers", path, dtype="float32")
    for result, want in zip(answers("onnx", path), expected, strict=True):
        assert_same(result, want, 1e-3)


@pytest.mark.parametrize(
    "save", [tiny.save_llama, tiny.save_qwen2, tiny.save_qwen3, save_llama3]
)
@pytest.mark.parametrize("code", [127, 64])
def test_int8_gives_nearly_the_same_probabilities(save, code, tmp_path, monkeypatch):
    monkeypatch.setattr("selfrag.extensions.onnx.graph.largest_code", lambda: code)
    path = save(tmp_path / "model")
    expected = answers("onnx", path)
    for result, want in zip(answers("onnx", path, dtype="int8"), expected, strict=True):
        assert np.corrcoef(result.watched[0], want.watched[0])[0, 1] > 0.97


def test_in_int8_a_sequence_has_the_same_numbers_in_every_batch(tiny_llama):
    together = answers("onnx", tiny_llama, dtype="int8")
    alone = answers("onnx", tiny_llama, dtype="int8", max_batch=1)
    for result, want in zip(alone, together, strict=True):
        assert_same(result, want, 1e-5)


def test_products_are_exact_in_8_bits_or_codes_are_small():
    codes, scales = to_int8(np.array([[2.0, -1.0], [0.0, 0.0]], np.float32), 64)
    assert codes.tolist() == [[64, -32], [0, 0]]
    assert scales.tolist() == [2 / 64, 1]
    assert largest_code() in (127, 64)


@pytest.mark.parametrize("size", [1, 9, 64])
def test_rotations_keep_products(size):
    rotation = orthogonal(size)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-6)
    values = np.random.default_rng(0).standard_normal((2, 3, 2 * size), np.float32)
    rotated = rotate_blocks(values, rotation)
    expected = values[0] @ values[1].T
    np.testing.assert_allclose(rotated[0] @ rotated[1].T, expected, atol=1e-4)


def test_a_checkpoint_is_converted_once_and_again_when_its_weights_change(
    tiny_llama, tmp_path, capsys
):
    path = shutil.copytree(tiny_llama, tmp_path / "model")
    graphs = tmp_path / "cache" / "models"
    for _ in range(2):
        load_engine("onnx", path).close()
        assert len(list(graphs.glob("onnx-float32-*"))) == 1
    tiny.save_llama(path, tie=True)
    load_engine("onnx", path).close()
    assert len(list(graphs.glob("onnx-float32-*"))) == 2
    assert capsys.readouterr().err.count("for ONNX Runtime, once ..") == 2


def test_a_prompt_is_computed_in_parts(tiny_llama):
    expected = answers("onnx", tiny_llama)
    in_parts = answers("onnx", tiny_llama, max_prefill_tokens=7, prefix_cache_mib=0)
    for result, want in zip(in_parts, expected, strict=True):
        assert_same(result, want, 1e-3)


def test_a_grammar_is_refused_for_its_request_alone(tiny_llama):
    bound = Generate(prompt(5), 5, constraint=Constraint.regex("a"))
    with closing(load_engine("onnx", tiny_llama)) as engine:
        refused, answered = serve(engine, [bound, REQUESTS[0]])
    assert isinstance(refused, Failed)
    assert not isinstance(answered, Failed)


CHANGES = """
{"model_type": "gpt2"} → 'gpt2'; use --engine transformers
{"model_type": 5} → is 5
{"num_attention_heads": null} → config.json does not describe
{"num_attention_heads": 0} → num_attention_heads
{"quantization_config": {"bits": 4}} → no quantised checkpoint
{"rope_parameters": {"rope_type": "yarn"}} → no rotary scaling 'yarn'
{"vocab_size": "many"} → vocab_size
"""


@each("changes, said", CHANGES)
def test_other_models_are_refused_in_one_line(tiny_llama, tmp_path, changes, said):
    path = shutil.copytree(tiny_llama, tmp_path / "model")
    with refused(said):
        read_facts(configured(path, json.loads(changes)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"adapters": {"a": "b"}}, "runs no adapters"),
        ({"speculate": 3}, "its options: "),
        ({"max_model_len": 10**6}, "takes at most 1024 tokens"),
    ],
)
def test_options_it_has_not_are_refused(tiny_llama, monkeypatch, options, said):
    if "adapters" in options:
        monkeypatch.setattr(
            "selfrag.engines.adapters.resolve_adapter", lambda path: path
        )
    with pytest.raises(EngineError, match=said):
        load_engine("onnx", tiny_llama, **options)


@pytest.mark.parametrize("numbers", ["float32", "int8"])
def test_a_model_larger_than_the_memory_is_refused_before_it_is_converted(
    tiny_llama, tmp_path, monkeypatch, numbers
):
    monkeypatch.setattr("selfrag.extensions.onnx.engine._memory", lambda: 10_000.0)
    with refused(f"GB in {numbers}, and this machine has 0.0 GB"):
        load_engine("onnx", tiny_llama, dtype=numbers)
    assert not (tmp_path / "cache").exists()


def test_missing_and_damaged_weights_are_refused_in_one_line(tiny_llama, tmp_path):
    path = shutil.copytree(tiny_llama, tmp_path / "model")
    [weights] = path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:40])
    with refused("cannot be read"):
        load_engine("onnx", path)
    weights.unlink()
    with refused("holds no safetensors files"):
        load_engine("onnx", path)
