"""`selfrag judge` and `selfrag interpret` from end to end: a tiny random model, and a server of chats."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import tiny
from chat_server import ChatServer, said
from grid_world import first_context, item
from intrinsic_rows import CHAT, save_chat_llama, turns

from selfrag.cli.main import main
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
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_llama(tmp_path_factory.mktemp("chat") / "tiny-chat")


def run(*arguments: object) -> int:
    return main(["judge", *map(str, arguments)])


@pytest.mark.engine
@pytest.mark.parametrize("kind", catalog(), ids=lambda kind: kind.name)
def test_every_intrinsic_answers(kind, chat_model, tmp_path, capsys):
    talk = turns(
        "Who wrote Faust?", *[RESPONSE] * ("assistant" in kind.needs.ends_with)
    )
    (tmp_path / "talk.json").write_text(
        json.dumps({"messages": talk, "documents": [FAUST]}), encoding="utf-8"
    )
    given = [
        "--conversation",
        tmp_path / "talk.json",
        "--model",
        chat_model,
        "--engine",
        "transformers",
    ]
    for argument in (*kind.needs.arguments, *kind.needs.optional):
        given += ["--argument", f"{argument}=be short"]
    assert run(kind.name, *given, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert "diagnostics" in result
    if kind.name in ("hallucination_detection", "citation_generation"):
        assert all(
            RESPONSE[one["begin"] : one["end"]] == one["text"]
            for one in result["sentences"]
        )
        assert all(0 < one["judgment"]["coverage"] <= 1 for one in result["sentences"])
    assert run(kind.name, *given) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "template"),
    [
        *((kind, None) for kind in catalog()),
        *(
            (find("query_rewrite"), text)
            for text in ("", "{% if", "{{ raise_exception('no') }}", "nothing", ENDLESS)
        ),
    ],
)
def test_a_model_without_a_usable_chat_template_is_one_line(
    kind, template, chat_model, tmp_path, capsys
):
    """Issue 45, section 5: `selfrag judge` exited with 0 and no result."""
    model = shutil.copytree(chat_model, tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    talk = turns(
        "Who wrote Faust?", *[RESPONSE] * ("assistant" in kind.needs.ends_with)
    )
    (tmp_path / "talk.json").write_text(
        json.dumps({"messages": talk, "documents": [FAUST]}), encoding="utf-8"
    )
    given = [
        "--conversation",
        tmp_path / "talk.json",
        "--model",
        model,
        "--engine",
        "transformers",
    ]
    for argument in (*kind.needs.arguments, *kind.needs.optional):
        given += ["--argument", f"{argument}=be short"]
    for extra in ([], ["--json"]):
        assert run(f"{kind.name}.prompt", *given, *extra) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "chat template" in err


def test_without_a_name_they_are_listed(capsys):
    assert run() == 0
    *listed, judges, dialects, published = capsys.readouterr().out.splitlines()
    assert run(*published.split()[-1:]) == 0
    assert [line.split()[0] for line in listed] == [kind.name for kind in catalog()]
    assert judges.startswith(
        "judges: tokens, combined, adapter, prompt, overlap, bm25, token_isrel, "
    )
    assert dialects.startswith("dialects: chat")


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
def guest(tmp_path, monkeypatch):
    """The metadata of a package with entry points, as an installed distribution has them."""
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (tmp_path / "guest_intrinsics.py").write_text(GUEST)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guest_intrinsics", raising=False)
    return info / "entry_points.txt"


@pytest.mark.engine
@pytest.mark.usefixtures("guest")
def test_other_packages_add_intrinsics_and_dialects(chat_model, capsys):
    """By entry points in the groups `selfrag.intrinsics` and `selfrag.dialects`."""
    assert intrinsics()[-3:] == ("broken", "other", "politeness")
    asked = codec_of(find("Politeness"), "shouted").encode(
        JudgeInput((Message("user", "Q?"),))
    )
    assert asked.prompt.messages[0].content.endswith("SAY IT IN SHOUTED")
    given = ["Q?", "--passage", "x", "--model", chat_model, "--engine", "transformers"]
    for name in ("politeness", "answerability"):
        assert run(name, *given, "--dialect", "shouted") == 0
        assert "answerable " in capsys.readouterr().out
    for name, message in {
        "other": "the entry point 'other' of selfrag.intrinsics names no Capability of that name",
        "broken": "the entry point 'broken' of selfrag.intrinsics cannot be loaded: ModuleNotFoundError",
        "none": "answer_relevance_rewriter, broken, other, politeness",
    }.items():
        assert run(name, *given) == 2
        assert message in capsys.readouterr().err


def test_other_packages_add_families_of_adapters(guest, tmp_path, capsys):
    assert run("published") == 0
    assert "somebody/adapters: answerability" in capsys.readouterr().out.splitlines()
    assert find_published("answerability", "owner/base") == (
        "somebody/adapters",
        "shouted",
    )
    assert (
        adapter_codecs({"answerability": str(tmp_path)})
        == checkpoint_codecs(tmp_path)
        == {}
    )
    for name in ("shout.txt", "shouts.txt"):
        (tmp_path / name).touch()
    assert adapter_codecs({"answerability": str(tmp_path)})[
        "answerability"
    ].task.startswith("SAY IT IN TEST_OTHER")
    assert checkpoint_codecs(tmp_path)["answerability"].task == "SAY IT IN INSIDE"
    (
        tmp_path / "intrinsic.json"
    ).touch()  # trained here, so its card says what it understands
    assert adapter_codecs({"answerability": str(tmp_path)}) == {}
    for named, message in {
        "LOST": r"'shouting' of selfrag\.adapter_families cannot be loaded: AttributeError",
        "shouted": r"'shouting' of selfrag\.adapter_families names no AdapterFamily, but <function",
    }.items():
        guest.write_text(POINTS.replace("intrinsics:FAMILY", f"intrinsics:{named}"))
        with pytest.raises(UserError, match=message):
            find_published("answerability", "owner/base")
    guest.write_text(
        POINTS.replace(
            "shouted = guest_intrinsics:shouted", "shouted = guest_intrinsics:FAMILY"
        )
    )
    with pytest.raises(
        UserError, match=r"'shouted' of selfrag\.dialects names no function, but <guest"
    ):
        codec_of(find("answerability"), "shouted")


@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("somebody", "is of somebody"),
        ("shouting", r"'shouting' of selfrag\.architectures names no Architecture"),
        ("nobody", "cannot be loaded"),
        (["somebody"], "cannot be loaded"),
    ],
)
def test_other_packages_add_architectures(model_type, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UserError, match=message) as error:
        load_engine("transformers", tmp_path)
    assert "\n" not in str(error.value)


@pytest.fixture
def rivers(tmp_path: Path) -> Path:
    """Six questions with several answers, in the schema of `eval` files."""
    rows = [
        {
            **{
                "id": one.id,
                "task": "list_qa",
                "instruction": one.query,
                "question": one.query,
            },
            **{
                "type": "simple" if number % 2 else "composition",
                "split": "train" if number < 2 else "dev",
            },
            "answers": [list(forms) for forms in one.answer_sets],
            "passages": [passage.as_dict() for passage in one.passages],
            "gold_passage_ids": sorted(one.gold),
        }
        for number, one in enumerate(map(item, range(6)))
    ]
    write_jsonl(tmp_path / "rivers.jsonl", rows)
    return tmp_path / "rivers.jsonl"


@pytest.mark.engine
def test_a_model_in_process_is_run_tested_and_judged(
    rivers, tmp_path, capsys, monkeypatch
):
    model = tiny.save_llama(
        tmp_path / "interpreted", context=4096
    )  # a chat model with reflection tokens
    (model / "chat_template.jinja").write_text(CHAT)
    answering = ["--model", str(model), "--engine", "transformers"]
    run = tmp_path / "run"
    begin = [
        "interpret",
        "run",
        str(rivers),
        "-o",
        str(run),
        *answering,
        "--cutoff",
        "2",
        "--order",
        "ranked",
    ]
    begin += ["--limit", "2", "--max-tokens", "8"]
    grid = [
        *begin,
        "--examples",
        "0",
        "--examples",
        "1",
        "--prompt",
        "basic",
        "--prompt",
        "counterfactual",
    ]
    assert main([*grid, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(
        "4 cells of 2 questions: 8 replies of at most "
    )
    assert not run.exists()
    assert main(grid) == 0
    shown, told = capsys.readouterr()
    assert "interpret: reply 8 of 8, k2-ranked-1-counterfactual, 0 s left" in told
    assert "### Prompt basic, beside Table 2" in shown
    assert "### Prompts against basic" in shown
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["identity"]["generator"]["layout"] == "selfrag"
    assert len(manifest["files"]) == 4
    records = read_records(run / "k2-ranked-1-counterfactual.jsonl")
    assert {record["id"] for record in records} < {
        "q2",
        "q3",
        "q4",
        "q5",
    }  # the first two are set aside
    assert all(
        record["error"] is None and record["usage"]["generated_tokens"] > 0
        for record in records
    )

    before = {path.name: path.read_bytes() for path in run.glob("k2*.jsonl")}
    assert main(["interpret", "faithfulness", str(run), *answering]) == 0
    assert "Faithfulness: another order of the contexts" in capsys.readouterr().out
    judged = ["interpret", "agree", str(run), *answering, "--cell", "*-0-basic"]
    assert main(judged) == 0
    assert (
        "Agreement with reflection tokens and citation intrinsic, prompt basic"
        in capsys.readouterr().out
    )
    with monkeypatch.context() as patched:  # what is judged needs no model
        patched.setattr("selfrag.engines.load_engine", None)
        assert main(judged) == 0
    capsys.readouterr()
    (name,) = [path for path in run.glob("*.agreement.jsonl") if "log" not in path.name]
    for record in read_records(name):
        assert [context["id"] for context in record["contexts"]] == [
            f"p{record['id'][1:]}a",
            f"p{record['id'][1:]}b",
        ]
        assert all(
            0 <= context["isrel"]["score"] <= 1 for context in record["contexts"]
        )
    assert {path: (run / path).read_bytes() for path in before} == before

    page = tmp_path / "page.md"
    assert main(["interpret", "table", str(run), "--answers", "-o", str(page)]) == 0
    assert page.read_text() == capsys.readouterr().out
    assert "(the answer alone)" in page.read_text()
    assert main([*begin, "--prompt", "basic", "--max-tokens", "9"]) == 2
    assert "holds a run with other generator" in capsys.readouterr().err


def test_an_endpoint_answers_and_one_failure_is_counted(
    rivers, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def answer(body):
        prompt = body["messages"][0]["content"]
        if "land 4" in prompt.rpartition("QUESTION:")[2]:
            return 500, {"error": {"message": "out of memory"}}
        return said(first_context(prompt))

    run = tmp_path / "run"
    grid = [
        "--examples",
        "2",
        "--cutoff",
        "5",
        "--order",
        "top-last",
        "--prompt",
        "basic",
        "--prompt",
        "direct",
    ]
    with ChatServer(answer) as server:
        asked = ["--endpoint", server.url, "--model", "gpt"]
        command = ["interpret", "run", str(rivers), "-o", str(run), *asked, *grid]
        assert main(command) == 0
        assert len(server.bodies) == 8
        assert all(
            body["temperature"] == 0 and body["model"] == "gpt"
            for body in server.bodies
        )
        assert all(
            body["messages"][0]["content"].count("(example)\nQUESTION:") == 2
            for body in server.bodies
        )
        shown, complained = capsys.readouterr()
        assert "2 failed, such as q4 of k5-top-last-2-basic: " in complained
        assert "out of memory" in complained
        assert shown.startswith(
            "# Self-interpretation: gpt\n\nendpoint, prompt as chat, 200 tokens at most; 4 of 4"
        )
        assert "Failed, which counts as wrong: k5-top-last-2-basic 1." in shown
        assert "0.375" in shown  # three of four questions, one of two answers each
        assert (
            f"{published()[GridCell(5, 'top-last', 2, 'direct')]['answer_recall']:.3f}"
            in shown
        )
        assert main([*command, "--retry-failed"]) == 0
        assert len(server.bodies) == 10
        assert (
            main(["interpret", "faithfulness", str(run), *asked, "--cell", "*-direct"])
            == 0
        )
    manifest = (run / "manifest.json").read_text()
    assert "127.0.0.1" not in manifest
    assert "sk-secret" not in manifest
    records = read_records(run / "k5-top-last-2-direct.jsonl")
    assert [record["id"] for record in records] == ["q2", "q3", "q4", "q5"]
    assert records[2]["error"]
    assert records[0]["answer"] == "Brenta [p2b]."
    assert records[0]["explanation"] == "I think so because context p2b says it."
