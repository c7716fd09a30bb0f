"""The functions of the public library: requests, typed results, adapters, and adapters inside a checkpoint."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import yaml
from answering import scoring, writing
from intrinsic_rows import judged
from json_files import read_json, write_json
from lora_on_the_spot import save_adapter
from refusals import refused

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.common.errors import MissingExtraError
from selfrag.engines.adapters import resolve_adapter
from selfrag.extensions.granite import registry
from selfrag.extensions.granite.published import EMBEDDED, REPOSITORIES
from selfrag.extensions.granite.registry import codec, switch_codecs
from selfrag.intrinsics import (
    Answerability,
    AnswerRelevanceClassifier,
    AnswerRelevanceRewriter,
    ContextAttribution,
    FactualityCorrection,
    FactualityDetection,
    Guardian,
    HallucinationDetection,
    Library,
    PolicyGuardrails,
)
from selfrag.intrinsics.catalog import codec_of, dialects, find
from selfrag.intrinsics.criteria import CRITERIA, guardian_arguments
from selfrag.intrinsics.families import find_published
from selfrag.judges.openai_wire import ConstraintMode, body
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import Completion
from selfrag.loading import load_training_tokenizer
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.training.intrinsics.job import teachable
from selfrag.training.intrinsics.rows import gold_of, parser

pytest.importorskip(
    "nltk", reason="the splitter of the published adapters is in the extra granite"
)

RECORDED = read_json(Path(__file__).with_name("recorded_switch.json"))["bodies"]
PAST = (
    Message("user", "Let us talk about plays."),
    Message("assistant", "Gladly. Which one?"),
    Message("user", "Who wrote Faust?"),
)
TALK = (*PAST, Message("assistant", "Goethe did. It has three parts."))
DOCUMENTS = (
    Passage("7", "Faust is a play by Goethe. It has two parts."),
    Passage("8", "It rains."),
)
ARGUMENTS = {"requirement": "The reply names a year.", "policy_text": "Name no author."}


def recorded_state(name, sent):
    """What the public library was asked about."""
    intrinsic, criterion, *last = (*name.split(), "")[:3]
    kind = find(intrinsic)
    turns = PAST if last == ["user"] or kind.needs.ends_with == ("user",) else TALK
    arguments = {
        argument: ARGUMENTS[argument]
        for argument in kind.needs.arguments
        if argument in ARGUMENTS
    }
    documents = DOCUMENTS if sent.get("documents") else ()
    # it has no sense without passages, so only the codec takes it
    if criterion == "context_relevance":
        return JudgeInput(
            turns, documents, guardian_arguments(criterion, "assistant_response")
        )
    return kind.state(
        turns, documents, **arguments, **({"criteria": criterion} if criterion else {})
    )


def test_every_adapter_inside_a_switch_is_recorded():
    assert {name.split()[0] for name in RECORDED} == set(EMBEDDED)
    assert {name.split()[1] for name in RECORDED if " " in name} == set(CRITERIA) - {
        "sexual_content"
    }


@pytest.mark.parametrize("name", RECORDED)
def test_requests_to_a_switch_are_those_of_the_public_library(name):
    sent = {
        key: value
        for key, value in RECORDED[name].items()
        if value is not None and value != []
    }
    request = codec("granite-switch", name.split()[0]).encode(
        recorded_state(name, sent)
    )
    made = body(
        replace(request, adapter=None), "tiny-switch", ConstraintMode.STRUCTURED
    )
    assert made | {"max_completion_tokens": made.pop("max_tokens")} == sent


RELEVANCE = {
    "answer_relevance_analysis": "It names no play.",
    "answer_relevance_category": "Too vague or generic",
    "answer_relevance_judgment": False,
}
REWRITER = {
    key: str(value) for key, value in RELEVANCE.items() if "judgment" not in key
}
PERTINENT = REWRITER | {"answer_relevance_category": "Pertinent"}


@pytest.mark.parametrize(
    "kind, arguments, reply, expected",
    [
        (FactualityDetection, {}, {"score": "yes"}, {"risk": 1.0}),
        (
            PolicyGuardrails,
            {"policy_text": "No names."},
            {"score": "Ambiguous"},
            {"compliant": 0.0},
        ),
        (
            FactualityCorrection,
            {},
            {"correction": "Two parts."},
            {"rewrite": "Two parts.", "changed": True},
        ),
        (
            FactualityCorrection,
            {},
            {"correction": "none"},
            {"rewrite": TALK[-1].content, "changed": False},
        ),
        (
            AnswerRelevanceClassifier,
            {},
            RELEVANCE,
            {"relevant": 0.0, "category": "Too vague or generic"},
        ),
        (
            AnswerRelevanceRewriter,
            REWRITER,
            {"answer_relevance_rewrite": "Goethe."},
            {"rewrite": "Goethe."},
        ),
        (Guardian, {"criteria": "Jailbreak"}, {"score": "no"}, {"risk": 0.0}),
        (Guardian, {"criteria": "It speaks of rain."}, {"score": "yes"}, {"risk": 1.0}),
    ],
)
def test_what_an_adapter_writes_as_a_typed_result(kind, arguments, reply, expected):
    published = codec("mellea", kind.name, exact=False)
    result = kind.on(writing(json.dumps(reply)), published)(
        TALK, DOCUMENTS, **arguments
    )
    assert expected.items() <= result.as_dict().items()
    if kind is AnswerRelevanceClassifier:
        assert not result
        assert result.arguments == REWRITER
        request = codec("mellea", "answer_relevance_rewriter").encode(
            AnswerRelevanceRewriter.state(TALK, DOCUMENTS, **result.arguments)
        )
        assert (
            "by providing more crisp and to-the-point answer"
            in request.prompt.messages[-1].content
        )


def test_attributions_are_in_passages_and_earlier_turns_the_most_important_first():
    reply = json.dumps([{"r": 0, "c": [3, 0]}, {"r": 1, "c": []}])
    published = codec("mellea", "context_attribution", exact=False)
    first, second = ContextAttribution.on(writing(reply), published)(
        TALK, DOCUMENTS
    ).sentences
    assert [citation.site.text for citation in first.citations] == [
        "Let us talk about plays.",
        "Faust is a play by Goethe.",
    ]
    assert second.is_cited is False
    prompted = ContextAttribution.on(scoring(**{"04": 1.0}))(TALK, DOCUMENTS)
    row = prompted.records[0]
    assert (row["attribution_msg_index"], row["attribution_doc_id"]) == (0, None)
    assert (row["attribution_text"], prompted.lines()[1]) == (
        PAST[0].content,
        f"- [turn 1] {PAST[0].content}",
    )


@pytest.mark.parametrize(
    "kind, turns, arguments, message",
    [
        (
            Guardian,
            PAST,
            {"criteria": "harmm"},
            "unknown criterion 'harmm'; known: harm, social_bias",
        ),
        (
            Guardian,
            PAST,
            {"criteria": "groundedness"},
            "groundedness: the last turn must be of role assistant",
        ),
        (
            Guardian,
            TALK,
            {"criteria": "groundedness"},
            "guardian, groundedness: there are no passages",
        ),
        (Guardian, TALK, {}, "the argument 'criteria' is missing"),
        (
            AnswerRelevanceRewriter,
            TALK,
            PERTINENT,
            "no correction_method for 'Pertinent'; give one",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(kind, turns, arguments, message):
    documents = DOCUMENTS if kind is AnswerRelevanceRewriter else None
    with refused(message):
        kind.state(turns, documents, **arguments)


def test_a_gate_of_the_beam_is_told_its_criterion():
    executor = scoring(yes=0.75, no=0.25)
    with refused("'criteria'; .*arguments="):
        Guardian.on(executor).reflections([JudgeInput(TALK)])
    (reflection,) = Guardian.on(executor, arguments={"criteria": "harm"}).reflections(
        [JudgeInput(TALK)]
    )
    assert reflection.judgments[0].score == pytest.approx(0.25)
    assert CRITERIA["harm"].text in executor.requests[0].prompt.messages[0].content


TEMPLATE = """
{%- set known = {'guardian-core': ['<|guardian-core|>', 'alora', '<guardian>'], 'citations': ['<|citations|>', 'lora'],
    'uncertainty': ['<|uncertainty|>', 'alora', '<certainty>'],
    'answerability': ['<|answerability|>', 'alora', 'none']} %}
{%- set ns = namespace(last=none) %}
{%- set it = known.get(adapter_name, ['', '']) if adapter_name is defined else ['', ''] %}
{%- if it[1] == 'lora' %}{{- it[0] }}{%- endif %}
{%- if it[1] == 'alora' %}
    {%- for m in messages if m.role == 'user' and it[2] in m.content %}{%- set ns.last = m %}{%- endfor %}
{%- endif %}
{%- for d in documents or [] %}{{- d.text + '\\n' }}{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m is sameas ns.last %}
        {%- set parts = m.content.rsplit(it[2], 1) %}{{- parts[0] + it[0] + it[2][CUT:] + parts[1] }}
    {%- else %}{{- m.content }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{%- if it[1] == 'alora' and ns.last is none %}{{- it[0] }}{%- endif %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Control tokens as granite-switch places them: first of all, before the invocation text, or before the reply."""


def written(spec, **changes):
    """The `io.yaml` of a contract, without its output rules."""
    fields = {
        "model": None,
        "response_format": json.dumps(dict(spec.schema)),
        "instruction": spec.instruction,
    }
    further = {
        "parameters": dict(spec.parameters),
        "sentence_boundaries": dict(spec.tags),
        "transformations": None,
    }
    return yaml.safe_dump({**fields, **further, **changes})


@pytest.fixture(
    scope="module",
    params=["0", "1"],
    ids=["token before the word", "token in place of its beginning"],
)
def switch(request, tmp_path_factory):
    """A tiny checkpoint with the files of a Granite Switch; its architecture is plain, so its adapters do nothing."""
    from transformers import LlamaForCausalLM

    folder = tiny.save_llama(
        tmp_path_factory.mktemp("switch") / "tiny", reflection=False, context=2048
    )
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    names = (
        "guardian-core",
        "citations",
        "uncertainty",
        "answerability",
        "somebody-elses",
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [f"<|{name}|>" for name in names]}
    )
    tokenizer.chat_template = TEMPLATE.replace("CUT", request.param)
    tokenizer.save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    known, entries = {adapter: intrinsic for intrinsic, adapter in EMBEDDED.items()}, []
    for name in names:
        file = folder / "io_configs" / name / "io.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(written(codec("mellea", known.get(name, "guardian")).spec))
        technology = "lora" if name == "citations" else "alora"
        entries.append(
            {
                "adapter_name": name,
                "io_config": f"io_configs/{name}/io.yaml",
                "technology": technology,
            }
        )
    write_json(folder / "adapter_index.json", {"adapters": entries})
    return folder


@pytest.mark.engine
@pytest.mark.parametrize(
    "name", ["guardian", "citation_generation", "uncertainty", "answerability"]
)
def test_a_checkpoint_is_prompted_with_the_ids_of_its_own_template(switch, name):
    tokenizer = load_training_tokenizer(switch)
    kind = find(name)
    made = switch_codecs(switch)[name]
    hostile = Message(
        "user", "Is <guardian> or <certainty> or <|answerability|> magic?"
    )
    turns = (hostile, *(PAST[1:] if kind.needs.ends_with == ("user",) else TALK[1:]))
    state = kind.state(
        turns, DOCUMENTS, **({"criteria": "harm"} if name == "guardian" else {})
    )
    sent = made.wire(state)
    rendered = tokenizer.apply_chat_template(
        sent["messages"],
        documents=sent["extra_body"].get("documents"),
        tokenize=False,
        add_generation_prompt=True,
        adapter_name=EMBEDDED[name],
    )
    ids = list(Renderer.of(tokenizer).prompt(made.encode(state).prompt))
    assert tokenizer.decode(ids) == rendered
    # What a caller wrote is text, whatever it looks like: the control token is there once, and where it belongs.
    tail = rendered.split("<|answerability|> magic?")[1]
    expected_ids = tokenizer(tail, add_special_tokens=False)["input_ids"]
    assert ids[-len(expected_ids) + 1 :] == expected_ids[1:]
    control = tokenizer.convert_tokens_to_ids(f"<|{EMBEDDED[name]}|>")
    expected = (
        0
        if name == "citation_generation"
        else len(ids) - len(expected_ids) + expected_ids.index(control)
    )
    assert [at for at, token_id in enumerate(ids) if token_id == control] == [expected]


@pytest.mark.engine
def test_the_library_takes_the_adapters_of_a_checkpoint(switch):
    with Library.from_pretrained(switch, engine="transformers") as library:
        assert set(library.codecs) == {
            "guardian",
            "citation_generation",
            "uncertainty",
            "answerability",
        }
        result = library["guardian"](PAST, criteria="harm")
        assert (result.judge, result.judgment is not None) == (
            "activated adapter",
            True,
        )
        assert library["guardian.prompt"](PAST, criteria="harm").judge == "prompt"
        with refused("query_rewrite: .*adapter"):
            library["query_rewrite.adapter"](PAST)


@pytest.mark.engine
def test_damaged_checkpoints_are_refused_in_one_line(switch, tmp_path, monkeypatch):
    index = tmp_path / "adapter_index.json"
    assert switch_codecs(tmp_path) == {}
    for content, message in (
        ("[]", "lists no adapters"),
        ("{", "adapter_index.json"),
        (
            '{"adapters": [{"adapter_name": "citations", "io_config": "../x"}]}',
            "leaves the checkpoint",
        ),
        (
            '{"adapters": [{"adapter_name": "citations", "io_config": "io.yaml"}]}',
            "cannot be read as YAML",
        ),
    ):
        index.write_text(content)
        with refused(message):
            switch_codecs(tmp_path)
    index.unlink()
    unknown = codec("granite-switch", "query_rewrite").encode(JudgeInput(PAST)).prompt
    with refused("'query_rewrite'"):
        Renderer.of(load_training_tokenizer(switch)).prompt(unknown)
    (tmp_path / "config.json").write_text('{"model_type": "granite_switch"}')
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(switch / file, tmp_path)
    monkeypatch.setitem(sys.modules, "granite_switch.hf", None)
    with refused("pip install 'granite-switch"):
        Library.from_pretrained(tmp_path, engine="transformers")


def test_published_adapters_are_pinned_where_a_commit_is_known():
    assert find_published("guardian", "ibm-granite/granite-4.1-3b") == (
        "ibm-granite/granitelib-guardian-r1.0@773b254e98f993a605ec4b6259634906e0e64e8e/"
        "guardian-core/granite-4.1-3b/lora",
        "mellea",
    )
    for model, message in (
        ("demo", "for 'demo' is known; for: granite-4.0-micro"),
        ("granite-4.1-3b", "granite-3.3"),
    ):
        with refused(message):
            find_published(
                "context_relevance" if model != "demo" else "guardian", model
            )
    for repository in REPOSITORIES:
        for intrinsic in repository.adapters:
            assert codec_of(find(intrinsic), repository.dialect)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_published_adapter_is_fetched_at_its_commit_and_verified(
    damaged, tmp_path, monkeypatch
):
    """As the hub's cache has it: links to files that are named by their hashes."""
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    downloads = []

    def snapshot(repository, **options):
        downloads.append((repository, options))
        root = tmp_path / "snapshots" / options["revision"]
        folder = root / "guardian-core" / "granite-4.1-3b" / "lora"
        folder.mkdir(parents=True)
        for name, content in files.items():
            git = hashlib.sha1(b"blob 2\0{}").hexdigest()
            large = hashlib.sha256(content).hexdigest()
            blob = tmp_path / (git if name.endswith("json") else large)
            blob.write_bytes(
                content + b"!" * (damaged and name.endswith("safetensors"))
            )
            (folder / name).symlink_to(blob)
        return str(root)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    name, _ = find_published("guardian", "granite-4.1-3b")
    if damaged:
        with refused(r"adapter_model\.safetensors is damaged"):
            resolve_adapter(name)
    else:
        assert (resolve_adapter(name) / "adapter_config.json").read_text() == "{}"
    ((repository, options),) = downloads
    assert (repository, options["revision"][:8]) == (
        "ibm-granite/granitelib-guardian-r1.0",
        "773b254e",
    )
    assert options["allow_patterns"] == ["guardian-core/granite-4.1-3b/lora/*"]


@pytest.mark.engine
def test_an_adapter_with_an_io_yaml_needs_no_dialect(chat_llama, tmp_path):
    save_adapter(chat_llama, tmp_path)
    spec = codec("mellea", "guardian").spec
    (tmp_path / "io.yaml").write_text(written(spec, instruction="Is it {criteria}?"))
    with Library.from_pretrained(
        chat_llama, engine="transformers", adapters={"guardian": tmp_path}
    ) as library:
        judge = library.get(Guardian)
        request = judge.by.codec.encode(judge.state(PAST, criteria="harm"))
        assert request.prompt.messages[-1].content == f"Is it {CRITERIA['harm'].text}?"
        assert judge(PAST, criteria="harm").judge == "adapter"
        assert (
            judge.by.codec.decode(request, Completion(scores=((0.0, -9.0),)))
            .judgments[0]
            .label
            == "risk"
        )


TWO = (
    *PAST,
    Message("assistant", "Purple bumble fish are yellow.  Green fish are also yellow."),
)


def test_a_response_is_hallucinated_below_a_tenth():
    for label, hallucinated in (("0.1-0", True), ("0.1-0.2", False)):
        reply = json.dumps(json.dumps({"<r0>": label, "<r1>": "0.9-1.0"}))
        judge = HallucinationDetection.on(
            writing(reply), codec("granite-3.2", "hallucination_detection", exact=False)
        )
        assert judge(TWO, DOCUMENTS).is_hallucinated is hallucinated


def test_without_nltk_only_what_splits_sentences_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "nltk.tokenize.punkt", None)
    registry._tokenizer.cache_clear()
    for name in ("answerability", "query_rewrite"):
        assert (
            codec_of(find(name), "granite-3.2")
            .encode(JudgeInput((Message("user", "Who wrote Faust?"),)))
            .prompt
        )
    turns = (
        Message("user", "Who wrote Faust?"),
        Message("assistant", "Goethe did. In 1808."),
    )
    with pytest.raises(MissingExtraError, match="granite"):
        codec_of(find("hallucination_detection"), "granite-3.2").encode(
            JudgeInput(turns, (Passage("1", "A play."),))
        )
    registry._tokenizer.cache_clear()


def test_what_is_published_is_listed(capsys):
    assert main(["judge", "published"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ibm-granite/granitelib-rag-r1.0 (commit 2f0b2c79; ")
    assert last.startswith(
        "ibm-granite/granite-switch-4.1-30b-preview (not pinned; Apache-2.0)"
    )
    assert set(dialects()) >= {*registry.DIALECTS}


def test_tokens_judge_in_the_own_dialect_only():
    executor = SimpleNamespace(engine=SimpleNamespace(limits=None))
    assert (
        Library(executor, dialect="granite-3.2", prompting=object())
        .get(Answerability)
        .by.name
        == "prompt"
    )


@pytest.mark.parametrize(
    "grade, chat, granite",
    [
        # a score on a border is in the upper range
        (
            {"score": 0.3},
            "partial",
            "0.3-0.4",
        ),
        ({"score": 1}, "faithful", "0.9-1.0"),
        ({"score": 0.09}, "unfaithful", "0.1-0"),
        ({"label": "0.1-0.2"}, "partial", "0.1-0.2"),
        ({"label": "partial"}, "partial", "0.5-0.6"),
        ({"label": "unanswerable"}, "NA", "unanswerable"),
        ({"label": "NA"}, "NA", "NA"),
    ],
)
def test_each_dialect_learns_its_own_degrees_of_faithfulness(grade, chat, granite):
    record = judged(0)
    record["sentences"] = [
        {k: v for k, v in s.items() if k != "label"} | grade
        for s in record["sentences"]
    ]
    row = parser("hallucination_detection")(record)
    taught = []
    for dialect in ("granite-3.2", "mellea"):
        learning = teachable("hallucination_detection", dialect)
        request = learning.encode(row.state)
        taught += learning.teach(request, gold_of(row, request))
    paper, newest = taught
    assert json.loads(json.loads(paper.text)) == {"<r0>": granite, "<r1>": granite}
    assert [sentence["f"] for sentence in json.loads(newest.text)] == [chat, chat]
