"""`selfrag judge` and `selfrag interpret` from end to end: a tiny random model, and a server of chats."""

import json
import shutil
from dataclasses import replace

import pytest
import tiny
from chat_server import ChatServer, said
from grid_world import first_context, item
from intrinsic_rows import CHAT, save_chat_llama, turns
from json_files import parse_table, read_json, write_json
from refusals import refused

from selfrag import chat_templates
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.engines import load_engine
from selfrag.evaluation.records import read_records
from selfrag.experiments.self_interpretation.grid import GridCell
from selfrag.experiments.self_interpretation.report import published
from selfrag.intrinsics.catalog import catalog, codec_of, find, intrinsics
from selfrag.intrinsics.families import (
    adapter_codecs,
    checkpoint_codecs,
    find_published,
)
from selfrag.reflection.inputs import JudgeInput, Message

FAUST = {
    "doc_id": "d1",
    "text": "Faust is a play by Goethe. It has two parts.",
    "title": "Faust",
}
ENDLESS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
)
RESPONSE = "Goethe wrote it. <|im_end|> It is\na play."


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return save_chat_llama(tmp_path_factory.mktemp("chat") / "tiny-chat")


def judging(kind, model, tmp_path):
    """Options of an intrinsic: a conversation that it can judge, and its arguments."""
    response = [RESPONSE] * ("assistant" in kind.needs.ends_with)
    talk = {"messages": turns("Who wrote Faust?", *response), "documents": [FAUST]}
    write_json(tmp_path / "talk.json", talk)
    line = f"--conversation {tmp_path}/talk.json --model {model} --engine transformers"
    for argument in (*kind.needs.arguments, *kind.needs.optional):
        line += f" --argument '{argument}=be short'"
    return line


@pytest.mark.engine
@pytest.mark.parametrize("kind", catalog(), ids=lambda kind: kind.name)
def test_every_intrinsic_answers(kind, chat_model, tmp_path, command):
    line = f"selfrag judge {kind.name} {judging(kind, chat_model, tmp_path)}"
    result = json.loads(command(line, "--json")[0])
    assert "diagnostics" in result
    if kind.name in ("hallucination_detection", "citation_generation"):
        for sentence in result["sentences"]:
            span = slice(sentence["begin"], sentence["end"])
            assert RESPONSE[span] == sentence["text"]
            assert 0 < sentence["judgment"]["coverage"] <= 1
        assert command(line)[0].strip()


TEMPLATES = (None, "", "{% if", "{{ raise_exception('no') }}", "nothing", ENDLESS)


@pytest.mark.engine
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_model_without_a_usable_chat_template_is_one_line(
    template, chat_model, tmp_path, command, monkeypatch
):
    """Issue 45, section 5: `selfrag judge` exited with 0 and no result."""
    limits = replace(chat_templates._LIMITS, seconds=1)
    monkeypatch.setattr(chat_templates, "_LIMITS", limits)
    kind = find("query_rewrite")
    model = shutil.copytree(chat_model, tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    line = f"selfrag judge {kind.name}.prompt {judging(kind, model, tmp_path)}"
    out, err = command(line, "--json", code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert "chat template" in err


def test_without_a_name_they_are_listed(command):
    *listed, judges, dialects, published = command("selfrag judge")[0].splitlines()
    assert [line.split()[0] for line in listed] == [kind.name for kind in catalog()]
    assert judges.startswith("judges: tokens, ")
    assert dialects.startswith("dialects: chat")
    command("selfrag judge", published.split()[-1])


GUEST = """
from dataclasses import replace
from selfrag.common.errors import UserError
from selfrag.engines.base import Architecture
from selfrag.intrinsics.questions import Answerability

class Politeness(Answerability):
    name, summary = "politeness", "is the question polite?"
    chat = replace(Answerability.chat, intrinsic="politeness", task="Reply: answerable or unanswerable.")

def shouted(dialect, intrinsic):
    return replace(Answerability.chat, intrinsic=intrinsic, task=f"SAY IT IN {dialect.upper()}")

class Family:
    def listed(self):
        return ["somebody/adapters: answerability"]

    def published(self, intrinsic):
        return {"base": ("somebody/adapters", "shouted"), "granite-4.1-3b": ("somebody/granite", "shouted")}

    def adapter_codec(self, folder, intrinsic):
        return shouted(folder.name, intrinsic) if (folder / "shout.txt").exists() else None

    def checkpoint_codecs(self, folder):
        return {"answerability": shouted("inside", "answerability")} if (folder / "shouts.txt").exists() else {}

FAMILY = Family()

def refuse(name):
    raise UserError(f"{name} is of somebody")

ARCHITECTURE = Architecture(refuse)
"""
POINTS = """
[selfrag.intrinsics]
politeness = guest_intrinsics:Politeness
other = guest_intrinsics:Politeness
broken = guest_intrinsics_missing:X
[selfrag.dialects]
shouted = guest_intrinsics:shouted
[selfrag.architectures]
somebody = guest_intrinsics:ARCHITECTURE
shouting = guest_intrinsics:FAMILY
[selfrag.adapter_families]
gone = guest_intrinsics_missing:FAMILY
shouting = guest_intrinsics:FAMILY
"""


@pytest.fixture
def guest(install):
    return install(POINTS, guest_intrinsics=GUEST)


@pytest.mark.engine
@pytest.mark.usefixtures("guest")
def test_other_packages_add_intrinsics_and_dialects(chat_model, command):
    """By entry points in the groups `selfrag.intrinsics` and `selfrag.dialects`."""
    assert intrinsics()[-3:] == ("broken", "other", "politeness")
    asked = codec_of(find("Politeness"), "shouted").encode(
        JudgeInput((Message("user", "Q?"),))
    )
    assert asked.prompt.messages[0].content.endswith("SAY IT IN SHOUTED")
    options = f"Q? --passage x --model {chat_model} --engine transformers"
    for name in ("politeness", "answerability"):
        out, _ = command(f"selfrag judge {name} {options} --dialect shouted")
        assert "answerable " in out
    for name, error in {
        "other": "'other' of selfrag.intrinsics names no Capability",
        "broken": "'broken' of selfrag.intrinsics cannot be loaded: ModuleNotFoundError",
        "none": "answer_relevance_rewriter, broken, other, politeness",
    }.items():
        assert error in command(f"selfrag judge {name} {options}", code=2)[1]


def test_other_packages_add_families_of_adapters(guest, tmp_path, command):
    out, _ = command("selfrag judge published")
    assert "somebody/adapters: answerability" in out.splitlines()
    place = ("somebody/adapters", "shouted")
    assert find_published("answerability", "owner/base") == place
    folders = {"answerability": str(tmp_path)}
    assert adapter_codecs(folders) == checkpoint_codecs(tmp_path) == {}
    for name in ("shout.txt", "shouts.txt"):
        (tmp_path / name).touch()
    codec = adapter_codecs(folders)["answerability"]
    assert codec.task.startswith("SAY IT IN TEST_OTHER")
    assert checkpoint_codecs(tmp_path)["answerability"].task == "SAY IT IN INSIDE"
    # Trained here, so its card says what it understands.
    (tmp_path / "intrinsic.json").touch()
    assert adapter_codecs(folders) == {}
    for name, error in {"LOST": "AttributeError", "shouted": "names no Adap"}.items():
        guest.write_text(POINTS.replace("intrinsics:FAMILY", f"intrinsics:{name}"))
        with pytest.raises(
            UserError, match=f"'shouting' of .*adapter_families.*{error}"
        ):
            find_published("answerability", "owner/base")
    dialect = "shouted = guest_intrinsics:"
    guest.write_text(POINTS.replace(f"{dialect}shouted", f"{dialect}FAMILY"))
    with pytest.raises(
        UserError, match=r"'shouted' of selfrag\.dialects names no func"
    ):
        codec_of(find("answerability"), "shouted")


@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(
    "model_type, message",
    parse_table(r"""
somebody | is of somebody
shouting | 'shouting' of selfrag\.architectures names no Architecture
nobody | cannot be loaded
["somebody"] | cannot be loaded
"""),
)
def test_other_packages_add_architectures(model_type, message, tmp_path):
    write_json(tmp_path / "config.json", {"model_type": model_type})
    with refused(message):
        load_engine("transformers", tmp_path)


@pytest.fixture
def rivers(tmp_path):
    """Six questions with several answers, in the schema of `eval` files."""
    rows = [
        {
            "id": question.id,
            "task": "list_qa",
            "instruction": question.query,
            "question": question.query,
            "type": "simple" if number % 2 else "composition",
            "split": "train" if number < 2 else "dev",
            "answers": question.answer_sets,
            "passages": [passage.as_dict() for passage in question.passages],
            "gold_passage_ids": [*question.gold],
        }
        for number, question in enumerate(map(item, range(6)))
    ]
    write_jsonl(tmp_path / "rivers.jsonl", rows)
    return tmp_path / "rivers.jsonl"


@pytest.mark.engine
def test_a_model_in_process_is_run_tested_and_judged(
    rivers, tmp_path, command, monkeypatch
):
    # A chat model with reflection tokens.
    model = tiny.save_llama(tmp_path / "interpreted", context=4096)
    (model / "chat_template.jinja").write_text(CHAT)
    answering = f"--model {model} --engine transformers"
    run = tmp_path / "run"
    begin = f"selfrag interpret run {rivers} -o {run} {answering} --cutoff 2"
    begin += " --order ranked --limit 2 --max-tokens 8 --prompt basic"
    grid = f"{begin} --examples 0 --examples 1 --prompt counterfactual"
    out, _ = command(f"{grid} --dry-run")
    assert out.startswith("4 cells of 2 questions: 8 replies")
    assert not run.exists()
    out, err = command(grid)
    assert "reply 8 of 8, k2-ranked-1-counterfactual" in err
    assert "### Prompt basic\n" in out
    assert "### Prompts against basic" in out
    manifest = read_json(run / "manifest.json")
    assert manifest["identity"]["generator"]["layout"] == "selfrag"
    assert len(manifest["files"]) == 4
    records = read_records(run / "k2-ranked-1-counterfactual.jsonl")
    # The first two are set aside.
    assert {record["id"] for record in records} < set("q2 q3 q4 q5".split())
    for record in records:
        assert record["error"] is None
        assert record["usage"]["generated_tokens"] > 0

    before = {path.name: path.read_bytes() for path in run.glob("k2*.jsonl")}
    out, _ = command(f"selfrag interpret faithfulness {run} {answering}")
    assert "Faithfulness: another order" in out
    judged = f"selfrag interpret agree {run} {answering} --cell *-0-basic"
    assert "Agreement with reflection tokens" in command(judged)[0]
    with monkeypatch.context() as patched:  # what is judged needs no model
        patched.setattr("selfrag.engines.load_engine", None)
        command(judged)
    (name,) = [path for path in run.glob("*.agreement.jsonl") if "log" not in path.name]
    for record in read_records(name):
        ids = [context["id"] for context in record["contexts"]]
        assert ids == [f"p{record['id'][1:]}{letter}" for letter in "ab"]
        for context in record["contexts"]:
            assert 0 <= context["isrel"]["score"] <= 1
    assert {path: (run / path).read_bytes() for path in before} == before

    page = tmp_path / "page.md"
    out, _ = command(f"selfrag interpret table {run} --answers-alone -o {page}")
    assert page.read_text() == out
    assert "(the answer alone)" in out
    _, err = command(f"{begin} --max-tokens 9", code=2)
    assert "other generator" in err


def test_an_endpoint_answers_and_one_failure_is_counted(
    rivers, tmp_path, command, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def answer(body):
        prompt = body["messages"][0]["content"]
        if "land 4" in prompt.rpartition("QUESTION:")[2]:
            return 500, {"error": {"message": "out of memory"}}
        return said(first_context(prompt))

    run = tmp_path / "run"
    grid = "--examples 2 --cutoff 5 --order top-last --prompt basic --prompt direct"
    with ChatServer(answer) as server:
        asked = f"--endpoint {server.url} --model gpt"
        line = f"selfrag interpret run {rivers} -o {run} {asked} {grid}"
        out, err = command(line)
        assert len(server.bodies) == 8
        for body in server.bodies:
            assert body["temperature"] == 0
            assert body["model"] == "gpt"
            prompt = body["messages"][0]["content"]
            assert prompt.count("(example)\nQUESTION:") == 2
        assert ", k5-top-last-2-basic: 1 of 4 failed: " in err
        assert "out of memory" in err
        assert out.startswith("# Self-interpretation: gpt\n\nendpoint, prompt as chat")
        assert "k5-top-last-2-basic 1." in out
        assert "0.375" in out  # three of four questions, one of two answers each
        table = published()[GridCell(5, "top-last", 2, "direct")]
        assert f"{table['answer_recall']:.3f}" not in out
        assert "left out: it is of qampari, not of such data" in out
        command(f"{line} --retry-failed")
        assert len(server.bodies) == 10
        command(f"selfrag interpret faithfulness {run} {asked} --cell *-direct")
    manifest = (run / "manifest.json").read_text()
    assert "127.0.0.1" not in manifest
    assert "sk-secret" not in manifest
    records = read_records(run / "k5-top-last-2-direct.jsonl")
    assert [record["id"] for record in records] == "q2 q3 q4 q5".split()
    assert records[2]["error"]
    assert records[0]["answer"] == "Brenta [p2b]."
    assert records[0]["explanation"] == "I think so because context p2b says it."
