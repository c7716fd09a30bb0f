import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retrieval import UserError
from retrieval.encoders import EncoderCard, EncoderSettings, TransformerEncoder, load_encoder
from retrieval.encoders.card import checked_encode
from retrieval.encoders.settings import UnsupportedModulesError, stated_settings

TEXTS = ["a cat sat.", "", "x" * 5000, "the quick brown fox jumps over a lazy dog", "ü \ud800 京", "b"]


def state(directory, modules, pooling=None, length=None):
    """Write what sentence-transformers writes beside a model."""
    kind = "sentence_transformers.models.{}".format
    entries = [
        {"idx": n, "name": str(n), "type": kind(name), "path": f"{n}_{name}" * (n > 0)}
        for n, name in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    if length:
        (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))


@pytest.fixture(scope="module")
def plain(tiny_bert):
    return TransformerEncoder(tiny_bert)


def test_without_statements_it_is_contriever_like(plain):
    assert (plain.card.pooling, plain.card.normalized, plain.card.max_tokens, plain.card.dim) == ("mean", False, 64, 16)


def test_mean_pooling_leaves_padding_out(plain, tiny_bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(tiny_bert), AutoModel.from_pretrained(tiny_bert).eval()
    with torch.inference_mode():
        by_hand = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for text in TEXTS[:2]
        ]
    np.testing.assert_allclose(plain.encode(TEXTS)[:2], by_hand, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_order_and_values_do_not_depend_on_the_batch(plain, batch_size):
    together = plain.encode(TEXTS, batch_size)
    assert together.dtype == np.float32
    alone = np.stack([plain.encode([text])[0] for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert plain.encode([]).shape == (0, 16)


def test_settings_are_obeyed(tiny_bert, plain):
    unit = TransformerEncoder(tiny_bert, settings=EncoderSettings(normalize=True))
    np.testing.assert_allclose(np.linalg.norm(unit.encode(TEXTS), axis=1), 1, atol=1e-5)
    first = TransformerEncoder(tiny_bert, settings=EncoderSettings(pooling="cls"))
    assert not np.allclose(first.encode(TEXTS[:1]), plain.encode(TEXTS[:1]))
    short = TransformerEncoder(tiny_bert, settings=EncoderSettings(max_tokens=5))
    np.testing.assert_array_equal(short.encode(["abc def"]), short.encode(["abc xyz"]))
    fingerprints = {encoder.card.fingerprint for encoder in (unit, first, short, plain)}
    assert len(fingerprints) == 4


def test_the_fingerprint_is_that_of_the_weights(tiny_bert, plain, tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    assert TransformerEncoder(tiny_bert, name="other").card.fingerprint == plain.card.fingerprint
    model = AutoModel.from_pretrained(tiny_bert)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    assert TransformerEncoder(tmp_path).card.fingerprint != plain.card.fingerprint


def test_many_threads_get_their_own_results(plain):
    texts = [f"text {n} " + "word " * (n % 30) for n in range(60)]
    expected = plain.encode(texts)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: plain.encode([text])[0], texts))
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)


def test_statements_of_sentence_transformers_are_read(tmp_path):
    assert stated_settings(tmp_path) == EncoderSettings()
    state(tmp_path, ["Transformer", "Pooling", "Normalize"], length=256)
    assert stated_settings(tmp_path) == EncoderSettings("mean", True, 256)
    state(tmp_path, ["Transformer", "Pooling"], {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    assert stated_settings(tmp_path).pooling == "cls"
    state(tmp_path, ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    assert stated_settings(tmp_path).pooling == "mean"
    state(tmp_path, ["Transformer", "Pooling", "Dense"])
    with pytest.raises(UnsupportedModulesError, match="Dense"):
        stated_settings(tmp_path)
    state(tmp_path, ["Transformer", "Pooling"], {"pooling_mode_max_tokens": True})
    with pytest.raises(UnsupportedModulesError, match="pooling_mode_max_tokens"):
        stated_settings(tmp_path)
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(UserError, match=r"modules\.json: not JSON"):
        stated_settings(tmp_path)


def test_what_cannot_be_loaded_is_named(tmp_path, tiny_bert):
    with pytest.raises(UserError, match=r"no encoder directory .*missing"):
        load_encoder(tmp_path / "missing")
    with pytest.raises(UserError, match=r"no encoder 'nobody/no-such-encoder': not a directory here"):
        load_encoder("nobody/no-such-encoder")
    with pytest.raises(UserError, match=r"it has no config\.json"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny_bert / "config.json").read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_bert / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tiny_bert / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded"):
        load_encoder(tmp_path)


def test_an_encoder_of_the_users_own_is_checked(encoder):
    assert load_encoder(encoder) is encoder

    class Bad:
        card = EncoderCard("bad", "0", 3)

        def __init__(self, value):
            self.value = value

        def encode(self, texts, batch_size=64):
            return self.value

    with pytest.raises(UserError, match=r"'bad' returned shape \(1, 2\) for 1 texts of dim 3"):
        checked_encode(Bad([[1, 2]]), ["x"], 1)
    with pytest.raises(UserError, match="not finite"):
        checked_encode(Bad([[1, 2, float("nan")]]), ["x"], 1)


def test_equals_sentence_transformers_on_the_tiny_model(tiny_bert, tmp_path, plain):
    pytest.importorskip("sentence_transformers")
    from retrieval.encoders import SentenceTransformerEncoder

    for file in tiny_bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state(
        tmp_path,
        ["Transformer", "Pooling", "Normalize"],
        {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16},
        32,
    )
    texts = [text.replace("\ud800", "?") for text in TEXTS]
    theirs, ours = SentenceTransformerEncoder(tmp_path), load_encoder(tmp_path)
    assert isinstance(ours, TransformerEncoder)
    assert theirs.card.dim == ours.card.dim == 16
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    assert theirs.encode([]).shape == (0, 16)


@pytest.mark.demo
def test_equals_sentence_transformers_on_minilm():
    pytest.importorskip("sentence_transformers")
    from retrieval.encoders import SentenceTransformerEncoder
    from selfrag.demo import encoder_path

    try:
        directory = encoder_path()
    except UserError as error:
        pytest.skip(f"the packaged MiniLM cannot be had: {error}")
    texts = ["What is the capital of France?", "", "word " * 400, "Ünïcode 京", "short"]
    ours = TransformerEncoder(directory)
    assert (ours.card.dim, ours.card.normalized, ours.card.max_tokens) == (384, True, 256)
    np.testing.assert_allclose(ours.encode(texts), SentenceTransformerEncoder(directory).encode(texts), atol=1e-5)
