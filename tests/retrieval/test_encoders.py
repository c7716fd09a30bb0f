"""Text encoders: their vectors, what a directory states of them, and what cannot be one."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from json_files import read_json, write_json
from refusals import refused
from tables import each

from retrieval import Passage, UserError, index_passages, open_index
from retrieval.encoder_files import (
    EncoderSettings,
    UnsupportedModulesError,
    canonical_source,
    stated_settings,
)
from retrieval.encoders import EncoderCard, checked_encode
from retrieval.local_encoders import (
    OnnxEncoder,
    TransformerEncoder,
    load_alike,
    load_encoder,
    token_batches,
)
from selfrag.loading import load_index

TEXTS = [
    "a cat sat.",
    "",
    "x" * 5000,
    "the quick brown fox jumps over a lazy dog",
    "ü \ud800 京",
    "b",
]


def state(directory, modules, pooling=None, length=None):
    """Write what sentence-transformers writes beside a model."""
    entries = [
        {
            "idx": number,
            "name": str(number),
            "type": f"sentence_transformers.models.{name}",
            "path": f"{number}_{name}" * (number > 0),
        }
        for number, name in enumerate(modules)
    ]
    write_json(directory / "modules.json", entries)
    (directory / "1_Pooling").mkdir(exist_ok=True)
    pooling = pooling or {"pooling_mode_mean_tokens": True}
    write_json(directory / "1_Pooling" / "config.json", pooling)
    if length:
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": length})


@pytest.fixture(scope="module")
def plain(tiny_bert):
    return TransformerEncoder(tiny_bert)


def copied(directory, target, *, without=()):
    shutil.copytree(directory, target)
    for name in without:
        (target / name).unlink(missing_ok=True)
    return target


def changed(directory, target, change):
    """A copy of an encoder with other weights."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory)
    with torch.no_grad():
        for parameter in model.parameters():
            change(parameter)
    model.save_pretrained(copied(directory, target))
    return target


def test_order_and_values_do_not_depend_on_the_batch(plain, tiny_bert):
    alone = np.stack([plain.encode([text])[0] for text in TEXTS])
    for tokens in (1, 80, 10_000):
        encoder = TransformerEncoder(tiny_bert, batch_tokens=tokens)
        together = encoder.encode(TEXTS)
        assert together.dtype == np.float32
        np.testing.assert_allclose(together, alone, atol=1e-5)
        first, nothing, last = encoder.encode_blocks([TEXTS[:2], [], TEXTS[2:]])
        np.testing.assert_array_equal(first, encoder.encode(TEXTS[:2]))
        np.testing.assert_array_equal(last, encoder.encode(TEXTS[2:]))
        assert nothing.shape == encoder.encode([]).shape == (0, 16)


@pytest.mark.parametrize(
    "lengths, most, batches",
    [
        ([], 10, []),
        ([3, 5, 4], 100, [[1, 2, 0]]),
        ([3, 5, 4], 10, [[1, 2], [0]]),  # two of 5 with padding are 10 tokens
        ([3, 5, 4], 1, [[1], [2], [0]]),  # a text alone may have more
        ([2, 2, 2, 2], 6, [[0, 1, 2], [3]]),
    ],
)
def test_a_batch_holds_a_budget_of_tokens_with_padding(lengths, most, batches):
    assert list(token_batches([[0] * length for length in lengths], most)) == batches


def test_blocks_are_read_while_the_model_runs_and_their_faults_arrive(plain):
    def blocks():
        yield ["a"]
        raise UserError("a bad block")

    vectors = plain.encode_blocks(blocks())
    assert next(vectors).shape == (1, 16)
    with refused("a bad block"):
        next(vectors)


@pytest.mark.parametrize(
    "options", [{"batch_tokens": 0}, {"precision": "int4"}, {"device": "nowhere"}]
)
def test_options_that_cannot_be_are_refused(tiny_bert, options):
    with refused(next(iter(options))):
        load_encoder(tiny_bert, **options)


def test_settings_are_obeyed_and_the_fingerprint_is_that_of_weights_and_settings(
    tiny_bert, plain, tmp_path
):
    unit = TransformerEncoder(tiny_bert, settings=EncoderSettings(normalize=True))
    np.testing.assert_allclose(np.linalg.norm(unit.encode(TEXTS), axis=1), 1, atol=1e-5)
    first = TransformerEncoder(tiny_bert, settings=EncoderSettings(pooling="cls"))
    assert not np.allclose(first.encode(TEXTS[:1]), plain.encode(TEXTS[:1]))
    short = TransformerEncoder(tiny_bert, settings=EncoderSettings(max_tokens=5))
    np.testing.assert_array_equal(short.encode(["abc def"]), short.encode(["abc xyz"]))
    weights = changed(tiny_bert, tmp_path / "other", lambda weight: weight.add_(1e-3))
    encoders = (unit, first, short, plain, TransformerEncoder(weights))
    assert len({encoder.card.fingerprint for encoder in encoders}) == 5


def test_an_encoder_without_tokenizer_files_is_refused(tiny_bert, tmp_path):
    """transformers makes a tokenizer without words where there is none: every text would have one vector."""
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    bare = copied(tiny_bert, tmp_path / "bare", without=names)
    with refused("tokenizer files are missing"):
        load_encoder(bare)
    with refused("tokenizer files are missing"):
        index_passages([Passage("a", "one")], tmp_path / "index", encoder=bare)
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
    if find_spec("sentence_transformers"):
        from retrieval.local_encoders import SentenceTransformerEncoder

        with refused(r"tokens|cannot be loaded"):
            SentenceTransformerEncoder(bare)


@pytest.mark.parametrize(
    "value, fault",
    [(0.0, "gives (zeros|the same vector)"), (float("nan"), "not finite")],
)
def test_an_encoder_with_weights_of_one_value_is_refused(
    tiny_bert, tmp_path, value, fault
):
    flat = changed(tiny_bert, tmp_path / "flat", lambda weight: weight.fill_(value))
    with refused(fault):
        load_encoder(flat)


FILES = """
config.json → []
config.json → {"num_hidden_layers": "two"}
config.json → {"hidden_size": -16}
config.json → {
tokenizer.json → {"added_tokens": [{"id": -1}], "model": 5}
tokenizer.json → DEEP
tokenizer_config.json → null
modules.json → 5
modules.json → [{"type": "x.Transformer", "path": 5}]
sentence_bert_config.json → {"max_seq_length": "a"}
sentence_bert_config.json → {"max_seq_length": 2}
"""


@each("name, content", FILES)
def test_a_settings_file_that_holds_something_else_is_one_line(
    tiny_bert, tmp_path, name, content
):
    folder = copied(tiny_bert, tmp_path / "encoder")
    if name == "sentence_bert_config.json":
        state(folder, ["Transformer", "Pooling"])
    if name == "config.json" and ":" in content:
        content = json.dumps(read_json(folder / name) | json.loads(content))
    (folder / name).write_text(content.replace("DEEP", "[" * 100_000))
    with refused("encoder"):
        load_encoder(folder)


def test_one_encoder_has_one_source_however_it_is_spelled(
    tiny_bert, tmp_path, monkeypatch
):
    (tmp_path / "link").symlink_to(tiny_bert)
    monkeypatch.setenv("HOME", str(tiny_bert.parent))
    monkeypatch.chdir(tiny_bert.parent)
    name = tiny_bert.name
    up = f"../{tiny_bert.parent.name}/{name}"
    for spelled in (f"{tiny_bert}/", f"./{name}/.", up, tmp_path / "link", f"~/{name}"):
        assert canonical_source(spelled) == str(tiny_bert)


def test_a_hub_name_and_its_snapshot_are_one_encoder(
    tiny_bert, tmp_path, monkeypatch, animals
):
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--owner--tiny-bert"
    snapshot = copied(tiny_bert, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    by_name = TransformerEncoder("owner/tiny-bert")
    by_folder = TransformerEncoder(snapshot)
    assert by_name.card == by_folder.card
    assert by_name.card.source == by_name.card.name == "owner/tiny-bert"
    index_passages(animals, tmp_path / "index", encoder=snapshot)
    assert str(tmp_path) not in (tmp_path / "index" / "manifest.json").read_text()
    assert len(load_index(tmp_path / "index")(["dog"], 2)[0]) == 2
    # an older snapshot is not what the name gives
    (repository / "refs" / "main").write_text("f" * 40)
    assert TransformerEncoder(snapshot).card.source == str(snapshot)


@pytest.mark.parametrize(
    "modules, pooling, length, stated",
    [
        (["Normalize"], None, 256, EncoderSettings("mean", True, 256)),
        ([], {"pooling_mode_cls_token": True}, None, EncoderSettings("cls")),
        ([], {"pooling_mode": "mean"}, None, EncoderSettings("mean")),
    ],
)
def test_statements_of_sentence_transformers_are_read(
    tmp_path, modules, pooling, length, stated
):
    assert stated_settings(tmp_path) == EncoderSettings()
    state(tmp_path, ["Transformer", "Pooling", *modules], pooling, length)
    assert stated_settings(tmp_path) == stated
    state(tmp_path, ["Transformer", "Pooling", "Dense"])
    with pytest.raises(UnsupportedModulesError, match="Dense"):
        stated_settings(tmp_path)


def test_what_cannot_be_loaded_is_named(tmp_path, tiny_bert):
    (tmp_path / "empty").mkdir()
    cut = copied(tiny_bert, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for source, fault in (
        (tmp_path / "missing", "no encoder directory .*missing"),
        ("nobody/no-such", "no encoder 'nobody/no-such': not a directory here"),
        (tmp_path / "empty", r"it has no config\.json"),
        (cut, "cannot be loaded"),
    ):
        with refused(fault):
            load_encoder(source)


def test_an_encoder_of_the_users_own_is_checked(encoder):
    assert load_encoder(encoder) is encoder

    def bad(value):
        card = EncoderCard("bad", "0", 3)
        return SimpleNamespace(card=card, encode=lambda texts: value)

    with refused(r"'bad' returned shape \(1, 2\)"):
        checked_encode(bad([[1, 2]]), ["x"])
    with refused("not finite"):
        checked_encode(bad([[1, 2, float("nan")]]), ["x"])


def test_equals_sentence_transformers_on_the_tiny_model(tiny_bert, tmp_path, plain):
    pytest.importorskip("sentence_transformers")
    from retrieval.local_encoders import SentenceTransformerEncoder

    path = copied(tiny_bert, tmp_path / "encoder")
    pooling = {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16}
    state(path, ["Transformer", "Pooling", "Normalize"], pooling, 32)
    texts = [text.replace("\ud800", "?") for text in TEXTS]
    theirs, ours = SentenceTransformerEncoder(path), load_encoder(path)
    assert isinstance(ours, OnnxEncoder)
    assert theirs.card.dim == ours.card.dim == 16
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    assert theirs.encode([]).shape == (0, 16)


def test_an_index_that_was_encoded_in_int8_is_searched_in_float32(tiny_bert):
    card = replace(load_encoder(tiny_bert).card, precision="int8")
    assert load_alike(tiny_bert, card).card.precision == "float32"


def test_another_precision_gives_near_vectors_and_opens_the_same_index(
    tmp_path, tiny_bert, animals
):
    exact = load_encoder(tiny_bert)
    fast = load_encoder(tiny_bert, precision="bfloat16", device="auto")
    assert exact.card.precision == "float32"
    assert exact.card.identity() == fast.card.identity()
    texts = [passage.text for passage in animals]
    first, second = exact.encode(texts), fast.encode(texts)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    assert ((first * second).sum(1) / lengths).min() > 0.99
    built = index_passages(animals, tmp_path / "index", encoder=fast)
    opened = open_index(tmp_path / "index")
    # queries as the passages
    assert opened.encoder.card.precision == fast.card.precision == "bfloat16"
    ours, theirs = ([p.id for p in each(["honey"], 5)[0]] for each in (opened, built))
    assert ours == theirs


@pytest.mark.parametrize("modules", [[], ["Transformer", "Pooling", "Normalize"]])
def test_onnx_gives_the_vectors_and_the_card_of_torch(tiny_bert, tmp_path, modules):
    path = copied(tiny_bert, tmp_path / "encoder")
    if modules:
        state(path, modules, {"pooling_mode_cls_token": True}, 20)
    onnx, torch = load_encoder(path, batch_tokens=30), TransformerEncoder(path)
    assert isinstance(onnx, OnnxEncoder)
    assert onnx.card == torch.card
    np.testing.assert_allclose(onnx.encode(TEXTS), torch.encode(TEXTS), atol=1e-5)
    assert onnx.long_texts == torch.long_texts == bool(modules)


def test_onnx_refuses_an_encoder_without_weights_in_one_line(tiny_bert, tmp_path):
    from safetensors.numpy import load_file, save_file

    path = copied(tiny_bert, tmp_path / "encoder")
    weights = load_file(path / "model.safetensors")
    del weights["embeddings.LayerNorm.bias"]
    save_file(weights, path / "model.safetensors")
    with refused("lacks weights .embeddings.LayerNorm.bias.*fetch it again"):
        load_encoder(path)
