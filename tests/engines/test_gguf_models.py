"""GGUF files as models, in Python and on the command line: published checkpoints, chat models, the demo."""

import json

import pytest
import tiny
from json_files import read_json, write_json
from refusals import refused
from written_gguf import KINDS, write_gguf

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.common.tensor_files import TensorFiles
from selfrag.common.tensor_writing import write_tensors
from selfrag.demo import index_path, model_path
from selfrag.loading import local_model, resolve_model

pytestmark = pytest.mark.engine

QUESTION = "Where does the river flow?"
PASSAGES = [
    Passage("1", "The Seine flows through Paris.", "Seine"),
    Passage("2", "Water boils at 100 degrees.", "Water"),
]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own; the demo stays where it is."""
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))


def in_bf16(checkpoint):
    """Round the weights of a checkpoint as a conversion does."""
    with TensorFiles(checkpoint) as files:
        weights = {name: files.float32(name) for name in files}
    shapes = {name: values.shape for name, values in weights.items()}
    write_tensors(shapes, weights.__getitem__, checkpoint / "model.safetensors")
    return checkpoint


def answered(model, **options):
    """The answer to one question from given passages, and everything that was considered."""
    with SelfRAG.from_pretrained(model, **options) as rag:
        decoding = {"mode": "always", "max_segments": 2, "segment_tokens": 12}
        answer = rag.generate(QUESTION, evidence=PASSAGES, **decoding)
    nodes = [
        (node.text, node.passage, node.judgments, node.likelihood)
        for node in answer.trace.nodes
    ]
    return answer.cited_text(), nodes


@pytest.mark.parametrize("engine", ["onnx", "transformers"])
def test_a_file_in_the_published_format_answers_as_its_checkpoint(engine, tmp_path):
    """A Llama with a vocabulary of SentencePiece and the reflection tokens."""
    path = in_bf16(tiny.save_llama(tmp_path / "a", family="sentencepiece"))
    file = write_gguf(path, tmp_path / "m.gguf")
    options = {"engine": engine, "dtype": "float32"}
    assert answered(file, **options) == answered(path, **options)


@pytest.mark.parametrize("version", [2, 3])
def test_a_qwen_answers_as_its_checkpoint(version, tmp_path):
    path = in_bf16(tiny.save_qwen2(tmp_path / "a", version))
    file = write_gguf(path, tmp_path / "m.gguf")
    assert answered(file, engine="onnx") == answered(path, engine="onnx")


def test_a_chat_model_answers_by_its_own_template_as_its_checkpoint(tmp_path):
    path = in_bf16(tiny.save_chat(tmp_path / "a", "llama"))
    config = read_json(path / "config.json")
    write_json(path / "config.json", config | {"rope_parameters": LLAMA3})
    file = write_gguf(path, tmp_path / "m.gguf", tokenizer__ggml__pre="gpt-2")
    assert answered(str(file), engine="onnx") == answered(path, engine="onnx")
    stated = read_json(resolve_model(file) / "config.json")["rope_parameters"]
    assert stated == LLAMA3


def test_a_file_is_converted_once_and_again_when_it_changes(
    tiny_llama, tmp_path, capsys
):
    file = write_gguf(tiny_llama, tmp_path / "m.gguf")
    folder = resolve_model(file)
    assert folder == resolve_model(str(file))
    assert capsys.readouterr().err == f"converting {file} to {folder}, once ..\n"
    write_gguf(tiny_llama, file, KINDS.Q8_0)
    assert resolve_model(file) != folder


@pytest.mark.parametrize(
    "line", ["ask Who?", "chat", "mcp", "serve", "demo", "eval run rows.jsonl -o runs"]
)
def test_every_command_refuses_what_is_no_gguf_in_one_line(
    line, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    row = {"id": "1", "question": "Who?", "answers": ["Ann"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "page.gguf").write_text("<html>")
    for name, said in (
        ("page", "page.gguf is not a GGUF file"),
        ("no", "no GGUF file at "),
    ):
        _, err = command(f"selfrag {line} --model {tmp_path / name}.gguf", code=2)
        assert said in err
        assert err.count("\n") == 1


def test_a_folder_of_gguf_files_is_no_model(tmp_path):
    (tmp_path / "a.gguf").touch()
    with refused(r"holds GGUF files; give one, such as .*a\.gguf"):
        local_model(tmp_path)


@pytest.fixture(scope="module")
def demo():
    """The demo's checkpoint and index."""
    return model_path(), index_path()


@pytest.mark.demo
@pytest.mark.parametrize("kind", [KINDS.F16, KINDS.Q8_0, KINDS.Q4_0])
def test_the_demo_as_gguf_answers_and_cites(kind, demo, command, tmp_path):
    model, index = demo
    file = write_gguf(
        model, tmp_path / "demo.gguf", kind, tokenizer__ggml__pre="smollm"
    )
    line = f"ask --model {file} --engine onnx --index {index} --segments 1"
    out, _ = command(f"selfrag {line}", "Who painted Guernica?")
    assert out.startswith("Pablo Picasso [1]")
