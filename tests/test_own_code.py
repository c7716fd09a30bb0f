"""No checkpoint's own code runs: hostile checkpoints under each library, with a standard input that says yes.

Every load goes through one helper; a test of the source makes sure of that. Each library is asked in a process of its
own, by directory and by hub name, and must neither run the code, nor ask, nor end in anything but a result or one line.
What trusts the code does run it, so the checkpoints are hostile indeed.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from json_files import read_json, write_json

ROOT = Path(__file__).parents[1]
OPTION = "trust_remote_code=True"

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
with (Path({marker!r})).open("a") as file:
    file.write(__name__ + chr(10))
class Config(LlamaConfig):
    model_type = "hostile"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
def generate(model, *args, **kwargs):
    return model
"""

MODELS = (
    "AutoModel AutoModelForCausalLM AutoModelForSeq2SeqLM AutoModelForSequenceClassification"
).split()

CHILD = """
import json, sys
from selfrag.common.errors import UserError
from selfrag.common.pretrained import load

def outcome(do):
    try:
        return do() or "loaded"
    except UserError as error:
        return f"UserError: {error}"
    except BaseException as error:
        return f"TRACEBACK {type(error).__name__}: {error}"

def engine(source, name, **options):
    from selfrag.engines import load_engine
    load_engine(name, source, max_model_len=128, **options).close()

def sentence_transformer(source):
    from retrieval.local_encoders import SentenceTransformerEncoder
    SentenceTransformerEncoder(source)

def doctor(source):
    from selfrag.cli.doctor import check_model
    return [str(one) for one in check_model(source)]

def kind(name):
    return lambda source: load(name, source) and None

TRANSFORMERS = {name: kind(name) for name in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")}
TRANSFORMERS |= {"engine": lambda s: engine(s, "transformers"), "doctor": doctor}
VLLM = {"engine": lambda s: engine(s, "vllm", kv_cache_gib=0.05)}
SENTENCES = {"sentence-transformers": sentence_transformer}
TRUSTING = {"engine": lambda s: engine(s, "transformers", trust_remote_code=True)}
loaders, sources = json.loads(sys.argv[1])
pairs = [(name, do, source) for source in sources for name, do in globals()[loaders].items()]
print("FOUND" + json.dumps({f"{name} {source}": outcome(lambda: do(source)) for name, do, source in pairs}))
"""


class Hostile:
    """A folder of hostile checkpoints, the same ones as if they came from the hub, and whether their code ran."""

    def __init__(self, home, llama):
        self.home, self.marker = home, home / "ran.txt"
        self.unknown = self._make(
            llama, "unknown-kind", config={"model_type": "hostile"}
        )
        self.known = self._make(llama, "known-kind", config={})
        made = (self.unknown, self.known, self._make(llama, "modules"))
        self.folders = [
            *made,
            self._make(llama, "tokenizer", tokenizer={"tokenizer_class": "Tokenizer"}),
        ]
        self.names = [self._on_the_hub(Path(folder)) for folder in self.folders]

    def _make(self, llama, name, config=None, tokenizer=None):
        folder = self.home / name
        shutil.copytree(llama, folder)
        (folder / "custom_generate").mkdir()
        for file in ("hostile.py", "custom_generate/generate.py"):
            (folder / file).write_text(CODE.format(marker=str(self.marker)))
        if name == "modules":
            modules = [{"idx": 0, "name": "0", "path": "", "type": "hostile.Model"}]
            write_json(folder / "modules.json", modules)
        models = dict.fromkeys(MODELS, "hostile.Model")
        for file, changes, added in (
            ("config.json", config, {"AutoConfig": "hostile.Config", **models}),
            (
                "tokenizer_config.json",
                tokenizer,
                {"AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"]},
            ),
        ):
            if changes is not None:
                settings = read_json(folder / file)
                write_json(folder / file, {**settings, **changes, "auto_map": added})
        return str(folder)

    def _on_the_hub(self, folder):
        """Put a checkpoint where a download of it would be."""
        place = self.home / f"hub/models--evil--{folder.name}"
        shutil.copytree(folder, place / "snapshots" / ("0" * 40))
        (place / "refs").mkdir()
        (place / "refs/main").write_text("0" * 40)
        return f"evil/{folder.name}"

    def under(self, loaders, *sources):
        """What loaders made of checkpoints."""
        caches = {
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_MODULES_CACHE": str(self.home / loaders / "modules"),
        }
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps([loaders, sources])],
            input="y\n" * 200,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=os.environ | caches,
        )
        assert "[y/N]" not in done.stdout + done.stderr, "it asked"
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rpartition("FOUND")[2])


@pytest.fixture(scope="module")
def hostile(tiny_llama, tmp_path_factory):
    return Hostile(tmp_path_factory.mktemp("hostile"), tiny_llama)


def check(hostile, found):
    assert not hostile.marker.exists(), f"code ran: {hostile.marker.read_text()}"
    assert found
    assert "TRACEBACK" not in str(found)
    for name, said in found.items():
        # Without code there is no such model; the tokenizer beside it needs none.
        if "unknown-kind" in name and name[:7] not in ("doctor ", "AutoTok"):
            assert said.startswith("UserError")
            assert "\n" not in said
            assert OPTION in said
            assert "unknown-kind" in said


@pytest.mark.engine
def test_transformers_runs_no_checkpoints_code_unless_it_is_trusted(hostile):
    found = hostile.under("TRANSFORMERS", *hostile.folders, *hostile.names)
    check(hostile, found)
    assert found[f"engine {hostile.known}"] == "loaded"  # a known kind needs no code
    assert any(OPTION in one for one in found[f"doctor {hostile.unknown}"])
    hostile.under("TRUSTING", hostile.unknown)
    assert hostile.marker.exists()
    hostile.marker.unlink()


@pytest.mark.engine
@pytest.mark.slow
def test_vllm_runs_no_checkpoints_code(hostile):
    pytest.importorskip("vllm")
    found = hostile.under("VLLM", hostile.unknown, hostile.known, hostile.names[0])
    check(hostile, found)
    assert found[f"engine {hostile.known}"] == "loaded"


@pytest.mark.engine
def test_sentence_transformers_runs_no_checkpoints_code(hostile):
    pytest.importorskip("sentence_transformers")
    check(hostile, hostile.under("SENTENCES", *hostile.folders, *hostile.names))


@pytest.mark.engine
def test_an_adapter_cannot_name_a_module_to_import(tiny_llama, tmp_path):
    """PEFT imports whatever `megatron_core` names when `megatron_config` is there."""
    from lora_on_the_spot import save_adapter

    from selfrag.common.errors import UserError
    from selfrag.common.pretrained import load, load_adapter
    from selfrag.engines import load_engine

    folder = save_adapter(tiny_llama, tmp_path / "adapter")
    settings = read_json(folder / "adapter_config.json")
    settings |= {"megatron_config": {"a": 1}, "megatron_core": "antigravity"}
    write_json(folder / "adapter_config.json", settings)
    with pytest.raises(UserError, match="megatron_config"):
        load_adapter(load("AutoModelForCausalLM", tiny_llama), folder)
    with pytest.raises(UserError, match="megatron_config"):
        load_engine("transformers", tiny_llama, adapters={"a": folder})
    assert "antigravity" not in sys.modules


FROM = ("from_pretrained", "from_config")
OWN = ("SelfRAG", "Library", "SearchTagModel")
OPEN = "from_config pipeline SentenceTransformer CrossEncoder".split()


def bare_loads(source):
    """Lines that load a checkpoint by themselves, or build a model of a configuration that may name code."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        value = getattr(node, "value", None)
        named = isinstance(node, ast.Constant) and value in FROM
        taken = isinstance(node, ast.Attribute) and node.attr in (FROM[0], "pipeline")
        ours = taken and getattr(value, "id", "") in OWN
        call = getattr(node, "func", None)  # of a call
        distrusting = any(
            word.arg == "trust_remote_code" and ast.unparse(word.value) == "False"
            for word in getattr(node, "keywords", ())
        )
        name = getattr(call, "attr", getattr(call, "id", ""))
        open_call = name in OPEN and not distrusting
        if named or (taken and not ours) or open_call:
            lines.append(node.lineno)
    return sorted(set(lines))


def test_the_rule_finds_a_planted_load():
    for planted in (
        "make = AutoModel.from_pretrained\nmake(path)",
        "getattr(AutoModel, 'from_pretrained')(path)",
        "AutoModelForCausalLM.from_config(config, trust_remote_code=True)",
        "SentenceTransformer(path, device=device)",
    ):
        assert bare_loads(planted), planted
    distrusted = "AutoModel.from_config(c, trust_remote_code=False)"
    assert bare_loads(f"SelfRAG.from_pretrained('demo')\n{distrusted}") == []


def test_checkpoints_are_loaded_in_one_place():
    files = [
        file
        for folder in "selfrag critic retrieval scripts".split()
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 100
    found = {
        str(file.relative_to(ROOT)): bare_loads(file.read_text()) for file in files
    }
    assert found.pop("selfrag/common/pretrained.py")
    assert {name: lines for name, lines in found.items() if lines} == {}
