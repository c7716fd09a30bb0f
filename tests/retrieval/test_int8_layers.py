"""Layers in 8 bits: products by hand, and vectors that do not depend on the batch."""

import numpy as np
import pytest
import torch

from retrieval import UserError, index_passages, open_index
from retrieval.int8_layers import Int8Linear, has_int8, quantize_layers
from retrieval.local_encoders import load_encoder
from selfrag.demo import encoder_path

pytestmark = pytest.mark.skipif(
    not has_int8(), reason="no integer products of oneDNN on this machine"
)


def linear(weight, bias=None):
    layer = torch.nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer


def test_products_by_hand():
    # Row 1: a step of 2 / 63, so -1.2 is -37.8 steps: -38. Row 2: a step of 1.
    layer = Int8Linear(linear([[2.0, -1.2], [63.0, 1.0]], [10.0, 20.0]))
    # Inputs: a step of 1 in the first row, of 4 / 127 in the second, where 1 is 31.75 steps: 32.
    outputs = layer(torch.tensor([[[127.0, 1.0], [-4.0, 1.0]]]))
    first = [2 / 63 * (63 * 127 - 38) + 10, 63 * 127 + 1 + 20]
    step = 4 / 127
    second = [
        2 / 63 * step * (63 * -127 - 38 * 32) + 10,
        step * (63 * -127 + 1 * 32) + 20,
    ]
    assert outputs.shape == (1, 2, 2)
    np.testing.assert_allclose(outputs[0].numpy(), [first, second], rtol=1e-5)


@pytest.mark.parametrize(
    ("weight", "inputs", "expected"),
    [
        pytest.param([[0.0, 0.0]], [[3.0, 5.0]], [[0.0]], id="zero weights"),
        pytest.param([[1.0, 2.0]], [[0.0, 0.0]], [[0.0]], id="zero inputs"),
        # 600 products of the largest numbers: 16 bits would not hold two of them with weights of 8 bits
        pytest.param([[1.0] * 600], [[1.0] * 600], [[600.0]], id="largest"),
        pytest.param([[-1.0] * 600], [[1.0] * 600], [[-600.0]], id="smallest"),
    ],
)
def test_the_edges_of_the_range_are_exact(weight, inputs, expected):
    outputs = Int8Linear(linear(weight))(torch.tensor(inputs))
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-5)


def test_what_is_not_a_number_is_not_hidden():
    outputs = Int8Linear(linear([[1.0, 2.0]]))(torch.tensor([[float("nan"), 1.0]]))
    assert outputs.isnan().all()


def test_each_linear_layer_is_replaced_and_others_stay():
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(2), torch.nn.Sequential(linear([[1.0, 2.0]]))
    )
    quantize_layers(model)
    assert isinstance(model[0], torch.nn.LayerNorm)
    assert isinstance(model[1][0], Int8Linear)


@pytest.mark.demo
def test_a_vector_depends_on_its_text_alone():
    encoder = load_encoder(encoder_path(), precision="int8")
    words = [f"river {name} flows past {name} and the sea " for name in "abcdefgh"]
    texts = [word * count for word in words for count in (1, 2, 5)]
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)


def test_int8_of_a_gpu_is_refused(tiny_bert):
    with pytest.raises(UserError, match="int8 is for the CPU; on meta give bfloat16"):
        load_encoder(tiny_bert, precision="int8", device="meta")


def test_a_machine_without_integer_products_says_so(monkeypatch, tiny_bert):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(
        UserError, match="int8 needs an x86 CPU and a torch with oneDNN"
    ):
        load_encoder(tiny_bert, precision="int8")


def test_an_index_in_int8_is_searched_on_a_machine_without(
    monkeypatch, tmp_path, tiny_bert, animals
):
    encoder = load_encoder(tiny_bert, precision="int8")
    built = index_passages(animals, tmp_path / "index", encoder=encoder)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    index = open_index(tmp_path / "index")
    assert index(["honey"], 1)[0][0].id == built(["honey"], 1)[0][0].id


def test_auto_takes_int8_where_bfloat16_is_slow(monkeypatch, tiny_bert):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert load_encoder(tiny_bert, precision="auto").card.precision == "int8"
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert load_encoder(tiny_bert, precision="auto").card.precision == "float32"


def test_a_model_that_asks_for_the_type_of_a_weight_runs(tmp_path):
    """T5 converts the inputs of its last layer to the type of that layer's weight."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    model = T5EncoderModel(config).eval()
    ids = torch.tensor([[3, 4, 5, 1]])
    with torch.no_grad():
        exact = model(input_ids=ids).last_hidden_state
        quantize_layers(model)
        rounded = model(input_ids=ids).last_hidden_state
    cosines = torch.nn.functional.cosine_similarity(exact, rounded, dim=-1)
    assert cosines.min() > 0.99
