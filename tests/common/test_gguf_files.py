"""GGUF files become checkpoints: weights, configuration and tokenizer are those that the file was made of."""

import random
import shutil

import numpy as np
import pytest
import tiny
from json_files import read_json
from refusals import refused
from transformers import AutoTokenizer
from written_gguf import KINDS, write_gguf

from selfrag.common.errors import UserError
from selfrag.common.gguf_files import GGUFFile, convert
from selfrag.common.tensor_files import TensorFiles
from selfrag.loading import load_tokenizer


@pytest.mark.parametrize(
    ("kind", "far"), [(KINDS.F32, 4e-3), (KINDS.F16, 4e-3), (KINDS.Q8_0, 1e-2), (KINDS.Q4_0, 0.15)]
)  # fmt: skip
def test_a_checkpoint_comes_back_from_its_gguf(tiny_llama, tmp_path, kind, far):
    convert(GGUFFile.open(write_gguf(tiny_llama, tmp_path / "m.gguf", kind)), tmp_path)
    config, expected = (read_json(p / "config.json") for p in (tmp_path, tiny_llama))
    for name in "hidden_size vocab_size head_dim tie_word_embeddings".split():
        assert config[name] == expected[name]
    with TensorFiles(tmp_path) as ours, TensorFiles(tiny_llama) as theirs:
        assert set(ours) == set(theirs)
        for name in ours:
            gap = np.abs(ours.float32(name) - theirs.float32(name)).max()
            assert gap <= far * np.abs(theirs.float32(name)).max(), name


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece"])
def test_the_tokenizer_is_that_of_the_checkpoint(family, tmp_path):
    tiny.save_llama(tmp_path / "a", family=family)
    (tmp_path / "b").mkdir()
    convert(
        GGUFFile.open(write_gguf(tmp_path / "a", tmp_path / "m.gguf")), tmp_path / "b"
    )
    expected = AutoTokenizer.from_pretrained(tmp_path / "a")
    ours = load_tokenizer(tmp_path / "b")
    assert ours.get_vocab() == expected.get_vocab()
    for text in [*tiny.SENTENCES, "  é 北京 \U0001f600", "a[Relevant]b"]:
        encoding = ours.backend_tokenizer.encode(text)
        assert encoding.ids == expected(text)["input_ids"]
        assert ours.backend_tokenizer.decode(encoding.ids) == expected.decode(
            encoding.ids, skip_special_tokens=True
        )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"no GGUF file at .*m\.gguf"),
        (b"<html>not found</html>", "is not a GGUF file"),
        (b"GGUF", "cannot be read"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "cannot be read"),
        (b"GGUF\x09\0\0\0" + bytes(16), "cannot be used: version 9 of GGUF"),
        (b"GGUF\x03\0\0\0" + bytes(16), "holds a model of None"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with refused(said):
        convert(GGUFFile.open(path), tmp_path)


def test_a_file_that_is_cut_or_unknown_is_refused_in_one_line(tiny_llama, tmp_path):
    path = write_gguf(tiny_llama, tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with refused("cannot be read"):
        convert(GGUFFile.open(path), tmp_path)
    write_gguf(tiny_llama, path, tokenizer__ggml__pre="klingon")
    # another download would be no better
    with refused(r"cannot be used: its vocabulary cuts texts as 'klingon'.* unknown$"):
        convert(GGUFFile.open(path), tmp_path)
    write_gguf(tiny_llama, path, llama__rope__scaling__type="yarn")
    with refused("scales its rotary positions"):
        convert(GGUFFile.open(path), tmp_path)
    assert GGUFFile.open(path).metadata["llama.rope.scaling.type"] == "yarn"


def test_a_file_with_other_bytes_is_converted_or_refused_in_one_line(
    tiny_llama, tmp_path
):
    """Each byte of the header may be anything: sizes, kinds, counts, texts."""
    content = write_gguf(tiny_llama, tmp_path / "m.gguf").read_bytes()
    draw = random.Random(0)
    lines = []
    for number in range(150):
        changed = bytearray(content)
        for _ in range(3):
            place = draw.randrange(4, draw.choice((600, 6_000, 60_000)))
            changed[place] = draw.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(changed)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            convert(GGUFFile.open(path), folder)
        except UserError as error:
            lines.append(str(error))
        path.unlink()
        shutil.rmtree(folder)
    assert lines
    assert not any("\n" in line for line in lines)
