"""Files of checkpoints that are damaged, hostile or quantised: one line that names the file and the field."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from json_files import parse_table, read_json, write_json

from selfrag.cli.main import main

ROW = '{"id": "1", "source": "own", "instruction": "Q?", "target": [{"token": "[No Retrieval]"}, {"text": "A."}]}\n'


@pytest.fixture
def checkpoint(tiny_llama, tmp_path):
    shutil.copytree(tiny_llama, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def change(checkpoint, **fields):
    file = checkpoint / "config.json"
    write_json(file, read_json(file) | fields)


def ask(checkpoint):
    options = "--engine transformers --set mode=never --segments 1 --quiet"
    return f"selfrag ask Q? --model {checkpoint} {options}"


NAMED = ("_heads", "_layers", "_eps", "_size", "_embeddings")
"""Ends of the names of fields that the error names."""
WRONG = [
    *({"num_attention_heads": value} for value in (0, True, 10**30)),
    {"num_hidden_layers": "two"},
    {"rms_norm_eps": "x"},
    {"vocab_size": 0},
    {"max_position_embeddings": -5},
    {"hidden_act": 7},
    {"rope_parameters": 7},
    json.loads('{"dtype": {"a": {"b": [1]}}, "text_config": {"a": {"b": [1]}}}'),
    {"pad_token_id": 10**6},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_a_config_with_a_wrong_value_is_one_line(checkpoint, tmp_path, capsys, fields):
    """Issue 45, section 5: zero heads, "two" layers."""
    (tmp_path / "rows.jsonl").write_text(ROW)
    change(checkpoint, **fields)
    train = (
        f"train generator {tmp_path}/rows.jsonl --base {checkpoint} -o out --dry-run"
    )
    for line in (ask(checkpoint), f"selfrag doctor {checkpoint}", f"selfrag {train}"):
        code = main(line.split()[1:])
        out, err = capsys.readouterr()
        assert code in (0, 1, 2)  # what a family does not read may hold anything
        assert err.count("\n") - err.count(" ..\n") == (code == 2), err
        name = next(iter(fields))
        if name.endswith(NAMED):
            assert code != 0
            assert f"config.json: {name}=" in out + err


@pytest.mark.parametrize(
    "line, method",
    parse_table("""
adapter rows.jsonl | bitsandbytes
generator rows.jsonl | gptq
merge adapter | null
"""),
)
def test_a_quantised_base_is_refused_before_anything_loads(
    checkpoint, command, method, line
):
    """Field audit T5: tracebacks for GPTQ and AWQ."""
    change(checkpoint, quantization_config={"quant_method": method, "bits": 4})
    _, err = command(f"selfrag train {line} --base {checkpoint} -o out", code=2)
    assert f"is quantised ({method or 'an unnamed method'})" in err
    assert err.count("\n") == 1


def test_a_base_that_bitsandbytes_saved_is_refused_and_an_adapter_in_4_bits_merges_into_the_plain_one(
    tiny_llama_plain, tmp_path, monkeypatch, command
):
    """Field audit T5: such a base was trained, and could not be merged."""
    pytest.importorskip("bitsandbytes")
    import transformers

    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(ROW)
    Path("nf4.toml").write_text('extends = "cpus"\n[training]\nquantize = "nf4"\n')
    four_bits = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_llama_plain, quantization_config=four_bits, device_map="cpu"
    )
    shutil.copytree(tiny_llama_plain, "saved")
    model.save_pretrained("saved")
    base = f"--base {tiny_llama_plain}"
    recipe = "--recipe nf4.toml --max-steps 1"
    command(f"selfrag train adapter rows.jsonl {base} -o run {recipe}")
    _, err = command("selfrag train merge run/adapter --base saved -o out", code=2)
    assert "saved is quantised (bitsandbytes)" in err
    transformers.utils.logging.enable_progress_bar()
    _, err = command(f"selfrag train merge run/adapter {base} -o merged")
    assert err == ""
    assert "quantization_config" not in read_json(Path("merged/config.json"))


@pytest.mark.parametrize("source", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", ["two", {"type": "x"}, [1, {}], True], ids=str)
def test_an_end_token_that_is_no_id_is_one_line(checkpoint, capsys, source, value):
    file = checkpoint / source
    fields = read_json(file) if file.exists() else {}
    write_json(file, fields | {"eos_token_id": value})
    code = main(ask(checkpoint).split()[1:])
    assert code in (0, 2)  # another file may name it too
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("\n") - err.count(" ..\n") <= 1


@pytest.mark.parametrize(
    "line, said",
    [
        ("ask Q? --model Größe", "PYTHONUTF8=1"),
        ("ask Q? --trace Größe.json", "can't encode"),
    ],
)
def test_letters_that_the_locale_does_not_have_are_no_traceback(line, said):
    """Issue 45, section 5: `PYTHONUTF8=0 LC_ALL=C`."""
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    code = "import sys; from selfrag.cli.main import main; sys.exit(main())"
    program = [sys.executable, "-c", code, *shlex.split(line)]
    done = subprocess.run(program, env=environment, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert done.returncode in (1, 2)
    assert said.encode() in done.stdout + done.stderr
