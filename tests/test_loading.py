"""Names that another package registers by entry points, and what the program makes of them."""

import json
from importlib.metadata import EntryPoint

import pytest
import tiny
from json_files import parse_table
from refusals import refused

from retrieval import build_index
from selfrag.cli.options import decoding, judge_names
from selfrag.common import plugins
from selfrag.common.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.engines import load_engine
from selfrag.engines.adapters import shipped_adapters
from selfrag.loading import (
    DEMO,
    index_directory,
    is_plugin,
    load_index,
    load_retriever,
    resolve_encoder,
    resolve_model,
)
from selfrag.reflection.requests import Generate, Generated
from selfrag.reflection.weights import Weights

TEXT = '{"id": "p1", "title": "Tea", "text": "Green tea wants 80 degrees."}\n'


@pytest.fixture
def registered(monkeypatch, tmp_path):
    """A package registers `mine` in every group; the folder that holds its things."""
    tiny.save_bert(tmp_path / "bert")
    (tmp_path / "model").mkdir()
    (tmp_path / "passages.jsonl").write_text(TEXT)
    build_index(
        [tmp_path / "passages.jsonl"],
        tmp_path / "index",
        encoder=str(tmp_path / "bert"),
    )
    module = tmp_path / "house_names.py"
    module.write_text(
        f"from pathlib import Path\nHERE = Path({str(tmp_path)!r})\n"
        "def model(): return HERE / 'model'\ndef index(): return HERE / 'index'\n"
        f"def encoder(): return Path({str(tmp_path / 'bert')!r})\n"
        "def adapters(): return {'answerability': HERE / 'adapter'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds = {
        "models": "model",
        "indexes": "index",
        "encoders": "encoder",
        "adapters": "adapters",
    }
    points = [
        EntryPoint("mine", f"house_names:{name}", f"selfrag.{kind}")
        for kind, name in kinds.items()
    ]

    def of_group(group, name=None):
        return [
            point
            for point in points
            if point.group == group and name in (None, point.name)
        ]

    monkeypatch.setattr(plugins, "entry_points", of_group)
    return tmp_path


def test_registered_names_are_found_and_others_are_what_they_were(registered):
    assert resolve_model("mine") == registered / "model"
    assert shipped_adapters("mine") == {"answerability": registered / "adapter"}
    assert index_directory("mine") == registered / "index"
    assert resolve_encoder("mine") == str(registered / "bert")
    assert load_index("mine", "mine")(["tea"], 1)[0][0].id == "p1"
    assert index_directory(registered) == registered
    assert resolve_encoder("owner/encoder") == "owner/encoder"
    assert shipped_adapters("other") == {}
    for name in ("nowhere", DEMO):  # without the entry points of this package
        with pytest.raises(UserError, match=f"no model at {name}"):
            resolve_model(name)


PARTS = """
from selfrag.decoding.policy import Decoding
from scripted import ScriptedEngine, ScriptedReply

def engine(model, *, text=5):
    return ScriptedEngine(lambda request: ScriptedReply((text, 2)), eos_id=2)

def careful(**changes):
    return Decoding(**{'threshold': 0.05, 'forbid': {'isrel': 'Irrelevant'}} | changes)
"""
POINTS = """
[selfrag.engines]
house = house_parts:engine
[selfrag.policies]
careful = house_parts:careful
"""


def test_an_engine_of_an_installed_package_answers(install, tmp_path, command):
    install(POINTS, house_parts=PARTS)
    engine = load_engine("house", tmp_path, text=7)
    engine.submit(Generate((1, 2, 3), 4))
    [(_, result)] = engine.step()
    assert isinstance(result, Generated)
    assert result.token_ids == (7, 2)
    with pytest.raises(UserError, match=r"'home'; known: .*house"):
        load_engine("home", tmp_path)
    model = tiny.save_llama(tmp_path / "llama")
    options = f"--engine house --model {model} --set mode=never --segments 1 --json"
    out, _ = command(f"selfrag ask Q {options}")
    assert json.loads(out)["usage"]["generated_tokens"] == 2


def test_a_policy_of_an_installed_package_is_a_preset(install, command):
    install(POINTS, house_parts=PARTS)
    policy = decoding("careful", {"beam": 1, "weights": "isrel=2"})
    fields = {"threshold": 0.05, "forbid": {"isrel": "Irrelevant"}, "beam": 1}
    assert policy == Decoding(weights=Weights(isrel=2.0), **fields)
    _, err = command("selfrag ask Q --policy careless", code=2)
    assert "'--policy': 'careless'" in err
    assert "'careful'" in err


@pytest.mark.parametrize("name", "google http searxng/index demo".split())
def test_a_folder_that_is_named_like_a_scheme_is_no_address(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    assert not is_plugin(name)
    assert is_plugin(f"google:{name}")


SEARCH = """
from retrieval.passage import Passage

def search(queries, k):
    return [[Passage("tea", "Green tea is brewed at 80 degrees.")][:k] for _ in queries]

def at(text):
    return lambda queries, k: [[Passage("tea", text)] for _ in queries]
"""
SEARCHES = """
[selfrag.retrievers]
notes = found_notes:search
told = found_notes:at
"""


def test_a_retriever_is_one_contract(install, refusal, tmp_path):
    """`NAME` is a retriever, `NAME:TEXT` what a function makes of the text, `MODULE:NAME` a retriever."""
    install(SEARCHES, found_notes=SEARCH)
    for name, text in (
        ("notes", "Green tea is brewed at 80 degrees."),
        ("told:Rome", "Rome"),
        ("found_notes:search", "Green tea is brewed at 80 degrees."),
    ):
        [[passage]] = load_retriever(name, demo=False)(["?"], 3)
        assert passage.text == text
    for name, message in parse_table("""
told | is not a function of queries and k; give told:TEXT
notes:x | is not a function of a text; give notes without a text
found_notes:at | is not a function of queries and k
nowhere | no index at nowhere, and no retriever of that name
"""):
        with refused(message):
            load_retriever(name, demo=False)
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answers": ["!"]}\n')
    for option in ("--index", "--retriever"):
        line = f"selfrag eval run {tmp_path}/rows.jsonl --out {tmp_path}/runs"
        assert "give told:TEXT" in refusal(f"{line} {option} told")


BREVITY = """
from selfrag.judges.external import FunctionJudge
from selfrag.reflection.labels import ISUSE

BREVITY = FunctionJudge("brevity", ISUSE, lambda inputs: [[0, 0, 0, 0, 1.0] for _ in inputs])
"""


def test_a_loaded_judge_is_known_by_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "short_judges.py").write_text(BREVITY)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = Decoding(judges=("brevity",))
    loaded = ["short_judges:BREVITY"]
    assert judge_names("demo", policy, loaded=loaded) == loaded
    with refused("unknown intrinsic 'brevity'"):
        judge_names("demo", policy)
