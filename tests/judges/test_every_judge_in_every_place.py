"""Every judge in every place, with real runs on a tiny random model; a cell that cannot be is refused in one line."""

import io
import json
import math
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import tiny_judges
from chat_server import ChatServer, said
from intrinsic_rows import CHAT, turns
from json_files import table, write_json
from lora_on_the_spot import save_adapter
from refusals import refused
from starlette.testclient import TestClient

from critic.augment.algorithm import AugmentOptions
from critic.augment.run import augment_locally, augment_pairs
from critic.baselines import lexical_critic
from critic.cases import Case
from critic.judging import Critic, group_of
from critic.pairs import Pair, PairSource
from critic.student.judge import StudentJudge
from critic.student.prompt import PromptCodec
from critic.teacher.run import JudgeTeacher, label_questions
from retrieval.passage import Passage
from selfrag import SelfRAG, Weights
from selfrag.cli.main import main
from selfrag.common.jsonl import write_jsonl
from selfrag.decoding.segments import LEAST_COVERAGE
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.judging import Record, judge_judgments
from selfrag.evaluation.metrics.entailment import entails
from selfrag.intrinsics import (
    Answerability,
    ContextRelevance,
    HallucinationDetection,
    Uncertainty,
)
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.intrinsics.named import open_named
from selfrag.judges.asking import JudgeScorer
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.entailment import CODEC, ENTAILMENT
from selfrag.judges.external import FunctionJudge
from selfrag.judges.learned import ScoreCalibrator, TraceCertainty
from selfrag.judges.prompted import PromptedJudge
from selfrag.loading import load_tokenizer
from selfrag.reflection.judge import Scope
from selfrag.reflection.judgment import JudgmentSource
from selfrag.reflection.labels import ISSUP, Role
from selfrag.runtime import finish
from selfrag.serving.app import create_app
from selfrag.serving.service import Service

pytestmark = pytest.mark.engine
RADIUM = Passage(
    "radium", "Radium was discovered by Marie and Pierre Curie. It glows.", "Radium"
)
TEA = Passage("tea", "Green tea is brewed at 80 degrees.", "Tea")
QUESTION, REPLY = "Who discovered radium?", "Marie Curie discovered radium."
TURNS = turns(QUESTION, REPLY)
JUDGES = """token_isrel
token_issup
prompt_isrel
prompt_issup
hallucination_detection.prompt
hallucination_detection.adapter
hallucination_detection.overlap
context_relevance.prompt
answerability.overlap
uncertainty.prompt
adapter
nli
endpoint
critic-issup
critic-isrel
function
shouting
certainty""".splitlines()
PAGE = (Path(__file__).parents[2] / "docs/guides/judges.md").read_text(encoding="utf-8")
OWN = PAGE.split('title="own_judge.py"\n')[1].split("```")[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model with reflection tokens, a chat template and an adapter; and a judge of every kind."""
    folder = tmp_path_factory.mktemp("world")
    model = tiny.save_llama(folder / "model", tie=True, context=2048)
    (model / "chat_template.jinja").write_text(CHAT)
    adapter = save_adapter(model, folder / "adapter")
    card = AdapterCard.of(HallucinationDetection.chat, rank=4, base={}, invocation=())
    write_json(adapter / AdapterCard.FILE, card.as_dict())
    nli = tiny_judges.save_classifier(folder / "nli")
    (folder / "own_judge.py").write_text(OWN)
    names = [name for name in JUDGES[:10] if "adapter" not in name]
    with (
        pytest.MonkeyPatch.context() as patch,
        ChatServer(lambda body: said("yes")) as server,
    ):
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.delenv("OPENAI_API_KEY", raising=False)
        loaded = [
            *names,
            f"nli=nli:{nli}",
            f"endpoint=judge:m@{server.url}/v1",
            "own_judge:SHOUTING",
        ]
        rag = SelfRAG.from_pretrained(
            model,
            engine="transformers",
            judges=loaded,
            adapters={"faith": str(adapter)},
        )
        codec = PromptCodec.from_tokenizer(load_tokenizer(model))
        critics = [
            StudentJudge(group, codec, rag.engine) for group in ("IsSup", "IsRel")
        ]
        executor = EngineExecutor(rag.engine, load_tokenizer(model))
        faith = HallucinationDetection.on(
            executor, adapter="faith", name="hallucination_detection.adapter"
        )
        asked = PromptedJudge(executor, CODEC, ENTAILMENT, adapter="faith")
        asked.name = "adapter"
        function = FunctionJudge(
            "function", ISSUP, lambda inputs: [(0.7, 0.2, 0.1) for _ in inputs]
        )
        certainty = TraceCertainty(ScoreCalibrator((0.0, 3.0), (0.1, 0.9)))
        certainty.name = "certainty"
        rag.judges = (*rag.judges, *critics, faith, asked, function, certainty)
        yield {
            "rag": rag,
            "model": model,
            "nli": nli,
            "url": server.url,
            "folder": folder,
        }
        rag.close()


def of(world, name):
    (judge,) = [judge for judge in world["rag"].judges if judge.name == name]
    return judge


MADE_IN_PYTHON = {
    "hallucination_detection.adapter",
    "adapter",
    "critic-issup",
    "critic-isrel",
    "function",
    "certainty",
}


def alone(world, judge, tmp_path):
    reflection = world["rag"].judge(judge, TURNS, [RADIUM])
    if judge.scope is Scope.FINISHED:
        assert reflection.reason  # no answer of a decoder to judge
        return
    assert reflection.judgments, reflection.reason
    assert all(
        math.fsum(one.distribution) == pytest.approx(1) for one in reflection.judgments
    )


def on_the_command_line(world, judge, tmp_path):
    """A judge that was made in Python has no name there, and is refused in one line."""
    specs = {
        "nli": f"nli:{world['nli']}",
        "endpoint": f"judge:m@{world['url']}/v1",
        "shouting": "own_judge:SHOUTING",
    }
    spec = specs.get(judge.name, judge.name)
    before_answer = judge.role in (Role.RELEVANCE, Role.ANSWERABLE)
    response = [] if before_answer else ["--response", REPLY]
    given = [spec, QUESTION, *response, "--passage", RADIUM.text]
    printed, refused = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(refused):
        # Judges with a model of their own refuse the options of another.
        model = f"--model {world['model']} --engine transformers".split()
        code = main(
            ["judge", *given, *([] if judge.name in specs else model), "--json"]
        )
    if judge.name in MADE_IN_PYTHON:
        assert (code, len(refused.getvalue().splitlines())) == (2, 1)
        return
    assert code == 0, refused.getvalue()
    assert json.loads(printed.getvalue())


def over_http(world, judge, tmp_path):
    body = {
        "judge": judge.name,
        "messages": TURNS,
        "passages": [{"id": "radium", "text": RADIUM.text}],
    }
    service = Service(world["rag"])
    reply = TestClient(create_app(service), base_url="http://127.0.0.1").post(
        "/v1/judge", json=body
    )
    assert reply.status_code == 200, reply.text
    here = world["rag"].judge(judge, TURNS, [Passage("radium", RADIUM.text)]).as_dict()
    there = reply.json()
    assert there.pop("judge") == judge.name
    close(there, here)


def close(one, other):
    """The same, up to what the size of a batch changes in the last digits."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            close(one[name], other[name])
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):
            close(mine, theirs)
    else:
        assert one == (
            pytest.approx(other, abs=1e-4) if isinstance(other, float) else other
        )


def typed(world, judge, tmp_path):
    kinds = {
        Role.SUPPORT: HallucinationDetection,
        Role.RELEVANCE: ContextRelevance,
        Role.ANSWERABLE: Answerability,
        Role.CERTAINTY: Uncertainty,
    }
    for role, kind in kinds.items():
        if role is not judge.role:
            with refused("needs a judge of"):
                kind(judge)
            continue
        task = kind(judge)
        said = TURNS if "assistant" in kind.needs.ends_with else TURNS[:1]
        engine = judge.engine or world["rag"].engine
        (reflection,) = finish(task.judge([kind.state(said, [RADIUM])]), engine)
        assert task.result(reflection).as_dict()["judge"] == judge.name


def generated(world, **options):
    settings = {"mode": "always", "max_segments": 1, "segment_tokens": 8, "passages": 2}
    return world["rag"].generate(QUESTION, evidence=[RADIUM, TEA], **settings | options)


def as_a_term(world, judge, tmp_path):
    name = judge.name
    answer = generated(world, judges=[name], weights=Weights(judges={name: 2.0}))
    plain = generated(world).trace.nodes
    nodes = [node for node in answer.trace.nodes if node.text.strip()]
    assert nodes
    for node in nodes:
        known = node.judges[name]
        assert known is not None or name in node.undefined
        if known is not None:
            expected = expected_score(node, (2.0, known))
            assert node.score == pytest.approx(expected)
        assert plain[node.id].text == node.text


def expected_score(node, *extra):
    """Eq. 4 by hand: the likelihood, and every defined critique times its weight, scaled to the sum of all weights."""
    weights = {Role.RELEVANCE: 1.0, Role.SUPPORT: 1.0, Role.UTILITY: 0.5}
    terms = [(weights[role], one) for role, one in node.judgments.items() if one]
    known = [(weight, one) for weight, one in (*terms, *extra) if seen(one)]
    total = sum(weights.values()) + sum(weight for weight, _ in extra)
    score = sum(weight * one.score for weight, one in known) * total
    return node.likelihood + score / (sum(weight for weight, _ in known) or 1)


def seen(judgment):
    """Whether the model expected a reflection token there at all."""
    return (
        judgment.source is not JudgmentSource.TOKEN
        or judgment.coverage >= LEAST_COVERAGE
    )


def in_place_of_a_critique(world, judge, tmp_path):
    places = {Role.SUPPORT: "issup", Role.RELEVANCE: "isrel"}
    role = places.get(judge.role, "isuse")
    answer = generated(world, judges=[f"{judge.name}={role}"])
    nodes = [node for node in answer.trace.nodes if node.text.strip()]
    assert nodes
    for node in nodes:
        judgment = node.judgments[Role(role)]
        if judgment is None:
            assert judge.name in node.undefined
        else:
            assert judgment.labels == judge.labels
            assert node.score == pytest.approx(expected_score(node))


def as_a_guardrail(world, judge, tmp_path):
    answer = generated(world, guardrails=[f"{judge.name}<2:drop"])
    decisions = answer.trace.decisions
    assert any(
        name == judge.name for decision in decisions for name, _ in decision.guardrails
    )
    assert answer.abstained  # no score reaches 2, so every passage is left out


def as_a_critic(world, judge, tmp_path):
    critic = Critic(lexical_critic().judges, world["rag"].engine).replaced([judge])
    pair = Pair("p1", "made", QUESTION, REPLY, "short_qa", (RADIUM,))

    write_jsonl(tmp_path / "pairs.jsonl", [pair.as_dict()])
    options = AugmentOptions(gold="only")
    source = PairSource(tmp_path / "pairs.jsonl")
    manifest = augment_pairs(
        source, tmp_path / "out", augment_locally(critic, None, options), options
    )
    assert manifest["counts"]["items"] == 1
    written = (tmp_path / "out/provenance.jsonl").read_text()
    if judge.name.startswith(MAYBE_NA) and not written:
        return
    (segment,) = json.loads(written)["segments"]
    assert segment["candidates"]


def as_a_labeller(world, judge, tmp_path):
    group = group_of(judge)
    case = Case.of(group, QUESTION, "", "" if group == "IsRel" else REPLY, RADIUM)
    teacher = JudgeTeacher(Critic({group: judge}, judge.engine or world["rag"].engine))
    rows = label_questions([replace(case, id="q1")], teacher, tmp_path / "labels").rows
    if judge.name.startswith(MAYBE_NA) and not rows:
        return
    (row,) = rows
    assert row.label in case.labels.names
    assert row.label_source == judge.name


def as_a_metric(world, judge, tmp_path):
    # token judges have no engine of their own
    judge.engine = judge.engine or world["rag"].engine
    item = Item("i1", QUESTION, answers=("Curie",), task="short_qa")
    record = Record(item, Output(REPLY, read=("radium",)), {"radium": RADIUM})
    judged = judge_judgments([record], judge)
    values = [part for column in judged.parts.values() for part in column.values()]
    numbers = [value[0] for value in values if value is not None]
    assert all(map(math.isfinite, numbers))
    assert numbers or judge.name.startswith(MAYBE_NA)
    if judge.role is Role.SUPPORT:
        assert entails(judge, [(RADIUM.text, REPLY)])[0] in (True, False, None)


def as_a_reranker(world, judge, tmp_path):
    ((radium, tea),) = JudgeScorer(judge, world["rag"].engine)(
        [QUESTION], [[RADIUM, TEA]]
    )
    assert math.isfinite(radium)
    assert math.isfinite(tea)


MAYBE_NA = ("hallucination_detection.prompt", "hallucination_detection.adapter")
"""A random model may find that there is nothing to judge."""
PLACES = {
    "alone": alone,
    "command line": on_the_command_line,
    "http": over_http,
    "typed intrinsic": typed,
    "score term": as_a_term,
    "in place": in_place_of_a_critique,
    "guardrail": as_a_guardrail,
    "critic augment": as_a_critic,
    "critic label": as_a_labeller,
    "metric": as_a_metric,
    "reranker": as_a_reranker,
}


def refusal_of(place, judge):
    """Return why a judge cannot take this place; None if it can."""
    finished = judge.scope is Scope.FINISHED
    if place in ("score term", "in place", "guardrail") and finished:
        return "of a finished answer"
    if place == "guardrail" and judge.role is Role.SUPPORT:
        return "judges what is written"
    if "critic" in place and judge.role not in (Role.SUPPORT, Role.RELEVANCE):
        return r"judges \w+, which is none of Retrieve"
    if place == "metric" and finished:
        return "no figure of an answer"
    if place == "reranker" and judge.scope is not Scope.PASSAGE:
        return "judges what is written"
    return None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_takes_its_place_or_is_refused_in_one_line(
    name, place, world, tmp_path
):
    judge = of(world, name)
    why = refusal_of(place, judge)
    with nullcontext() if why is None else refused(why):
        PLACES[place](world, judge, tmp_path)


def test_a_judge_that_cannot_take_part_is_refused_before_a_model_loads(refusal):
    ask = "selfrag ask Who? --model demo --judge"
    assert "finished answer" in refusal(f"{ask} uncertainty")
    assert "neither ranks nor guards" in refusal(f"{ask} query_rewrite")


UNKNOWN = """
oracle | unknown judge 'oracle'; known: true, nli:MODEL
answerability | of which model
json:loads | is no judge
no_such_module:JUDGE | cannot be imported
nli:/nowhere/none | no model at
"""


@pytest.mark.parametrize("spec, message", table(UNKNOWN))
def test_judges_by_name(spec, message):
    with refused(message):
        open_named(spec)
    assert open_named("words=answerability.overlap").name == "words"
