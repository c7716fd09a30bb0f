"""What a perfect and a blind model score; baselines by hand; examples in the prompt; follow-ups; the command."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from chat_server import ChatServer, said
from intrinsic_rows import MAKERS, question_row, save_chat_llama, write_data
from json_files import parse_table, read_json, write_lines
from refusals import refused

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.common.errors import DecodingError
from selfrag.common.jsonl import write_jsonl
from selfrag.evaluation import published
from selfrag.evaluation.metrics.alce import Cites
from selfrag.evaluation.metrics.classification import FlowOutcome
from selfrag.experiments.intrinsics.answerability import evaluate_answerability
from selfrag.experiments.intrinsics.certainty import _lettered, evaluate_certainty
from selfrag.experiments.intrinsics.citations import evaluate_citations
from selfrag.experiments.intrinsics.conversations import (
    JudgedTurn,
    PassageSearch,
    QueryCollection,
    assign_collections,
    read_collection,
    read_collections,
    sample,
    search_each,
    turns,
)
from selfrag.experiments.intrinsics.flows import _outcomes
from selfrag.experiments.intrinsics.hallucination import evaluate_hallucination
from selfrag.experiments.intrinsics.rewrites import evaluate_rewrite
from selfrag.experiments.intrinsics.subjects import (
    ALONE,
    Beside,
    FewShot,
    Subject,
    worked,
)
from selfrag.experiments.report_tables import markdown
from selfrag.intrinsics.flows.progress import taken
from selfrag.judges.wire import Completion, Executor, ModelRequest
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.training.intrinsics.certainty import ChoiceAnswer, parse_question
from selfrag.training.intrinsics.job import (
    ADAPTERS,
    AdapterJob,
    RowSelection,
    run,
    teachable,
)
from selfrag.training.intrinsics.rows import gold_of, parser, without_evidence
from selfrag.training.recipes import read_recipe
from selfrag.training.settings import Lora, Reach

TOKENS = [("answerable", {"answerable": -0.1, "unanswerable": -2.5})]


@dataclass
class Says(Executor):
    """An executor whose replies are computed."""

    reply: Callable[[ModelRequest], Completion]

    def steps(self, requests):
        return [self.reply(request) for request in requests]
        yield  # nothing of an engine


def first(request):
    """Always the first surface; nothing that can be read."""
    scores = (
        [math.log(0.9 if at == 0 else 0.01) for at in range(len(slot.surfaces))]
        for slot in request.slots
    )
    return Completion("no JSON at all", "stop", scores=tuple(map(tuple, scores)))


def oracle(intrinsic, rows):
    """Answers as a perfect model would; 0.9 of the probability on the gold."""
    codec, known = teachable(intrinsic), {}
    for row in rows:
        request = codec.encode(row.state)
        known[row.state.messages, row.state.passages] = codec.teach(
            request, gold_of(row, request)
        )

    def reply(request):
        targets, scores = known[request.state.messages, request.state.passages], []
        for slot in request.slots:
            right = {t.text for t in targets if t.prefill == slot.prefill}
            wrong = 0.1 / len(slot.surfaces)
            shares = (0.9 / len(right) if s in right else wrong for s in slot.surfaces)
            scores.append(tuple(map(math.log, shares)))
        text = "" if request.slots else targets[0].text
        return Completion(text, "stop", scores=tuple(scores))

    return Says(reply)


UNTRAINED = Subject("untrained", Says(first))


def rows(name, count=6):
    return [parser(name)(MAKERS[name][1](number)) for number in range(count)]


def subjects(name):
    known = rows(name)
    gone = [cut_row for row in known if (cut_row := without_evidence(row)) is not None]
    return [Subject("adapter", oracle(name, [*known, *gone]), {name: "x"}), UNTRAINED]


def value(figures, path):
    for key in path.split("/"):
        figures = figures[key]
    return figures["value"]


def test_answerability_of_a_perfect_and_of_a_blind_model():
    figures = evaluate_answerability(
        rows("answerability"), subjects("answerability"), [], 0
    ).figures
    assert (
        value(figures, "adapter/all rows/weighted_f1")
        == value(figures, "adapter/all rows/auc")
        == 1.0
    )
    # The first label is answerable: recall 1, precision one half; the majority baseline is the same.
    for system in ("untrained", "majority"):
        classes = figures[system]["all rows"]["classes"]
        assert value(classes, "answerable/f1") == pytest.approx(2 / 3)
        assert value(classes, "unanswerable/f1") == 0.0
        assert value(figures, f"{system}/all rows/auc") == 0.5
    assert figures["adapter"]["d"] == figures["adapter"]["all rows"]


def test_flagged_responses_and_labels_of_sentences():
    name = "hallucination_detection"
    section = evaluate_hallucination(rows(name), subjects(name), rows(name), 0)
    figures = section.figures
    # All six responses hold an unfaithful sentence, and the first label is faithful.
    assert value(figures, "adapter/responses/classes/hallucinated/f1") == 1.0
    assert value(figures, "untrained/responses/classes/hallucinated/recall") == 0.0
    assert [
        value(figures, f"{system}/sentences/accuracy")
        for system in ("adapter", "untrained")
    ] == [1.0, 0.5]
    assert section.items[0]["adapter"]["labels"] == ["faithful", "unfaithful"]


def test_citations_by_sentence_by_passage_and_by_entailment():
    name = "citation_generation"
    deaf = Subject(
        "deaf",
        Says(lambda request: Completion(scores=tuple(None for _ in request.slots))),
    )
    # the passage says who, nothing else
    entails = Beside(lambda pairs: ["Goethe" in claim for _, claim in pairs])
    by_system = evaluate_citations(
        rows(name), [*subjects(name), deaf], [], 0, entails
    ).figures
    for level in ("sentence", "passage"):
        assert value(by_system, f"adapter/{level}/f1") == 1.0
    # The first surface is `none`: no citation at all.
    assert value(by_system, "untrained/sentence/recall") == 0.0
    # First sentence for both response sentences: the passage is right once of two, the sentence never.
    assert value(by_system, "first sentence/passage/recall") == 1.0
    assert value(by_system, "first sentence/passage/precision") == 0.5
    assert value(by_system, "first sentence/sentence/recall") == 0.0
    # "It was Goethe, says source 0." shares "it", "goethe" with "Goethe wrote it in 1808."
    assert value(by_system, "most words in common/sentence/recall") == 1.0
    # After the evidence was cut out: the first never cites anything, the deaf one's undefined is not nothing.
    nothing = {
        system: value(by_system, f"{system}/nothing")
        for system in "adapter|untrained|first sentence|deaf".split("|")
    }
    assert list(nothing.values()) == [1.0, 1.0, 0.0, 0.0]
    for system in ("the rows themselves", "adapter"):
        figures = by_system[system]["entailment"]["all rows"]
        # one sentence of two
        assert figures["recall"]["value"] == 0.5
        assert figures["precision"]["value"] == 1.0
        assert figures["f1"] == pytest.approx(2 / 3)
    assert value(by_system, "first sentence/entailment/all rows/precision") == 0.5
    # it cites nothing
    assert value(by_system, "untrained/entailment/all rows/recall") == 0.0


def test_snippets_of_neighbouring_sentences_are_graded_as_one():
    record = MAKERS["citation_generation"][1](0)
    text = record["documents"][0]["text"]
    citation = dict.fromkeys(("response_begin", "doc_begin"), 0)
    citation |= {"response_end": 5, "doc_id": "d1", "doc_end": len(text)}
    row = parser("citation_generation")(record | {"citations": [citation]})

    def cites(questions, responses):
        assert questions == ["Who wrote it?"]
        snippets = responses[0][0].passages
        return [Cites(1.0, 0.5) if snippets and len(snippets[0]) == len(text) else None]

    by_system = evaluate_citations(
        [row], [], [], 0, Beside(grader=SimpleNamespace(cites=cites))
    ).figures
    figures = by_system["the rows themselves"]["grades"]["all rows"]
    assert figures["recall"]["value"] == 1.0
    assert figures["f1"] == pytest.approx(2 / 3)
    assert by_system["first sentence"]["grades"]["all rows"]["f1"] is None


def test_statements_of_whoever_wrote_an_answer_are_graded_in_place_of_our_sentences():
    """Intrinsics, 6.2.2: the splitting of the model's output stays."""
    record = MAKERS["citation_generation"][1](0)
    said = record["conversation"][-1]["content"]
    row = parser("citation_generation")(record | {"statements": [[0, len(said)]]})
    graded = []

    def cites(questions, responses):
        graded.append([claim.text for claim in responses[0]])
        return [Cites(1.0, 1.0)]

    evaluate_citations([row], [], [], 0, Beside(grader=SimpleNamespace(cites=cites)))
    assert graded
    assert all(texts == [said] for texts in graded)


def test_the_published_figures_of_table_8_stand_beside_rows_of_ragtruth(monkeypatch):
    """Those of the baselines are of the RAGTruth paper, from which the intrinsics paper has them, too."""
    record = MAKERS["hallucination_detection"][1](0)
    row = parser("hallucination_detection")(record)
    bare = evaluate_hallucination([row], [], [], 0).tables[-1]
    assert bare.head == ()
    assert bare.rows == ()
    assert "left out: it is of ragtruth, not of such data" in markdown(bare)
    monkeypatch.setitem(published.OF["intrinsics-8"]["ragtruth"], "items", [1])
    row = replace(row, source="ragtruth/QA")
    table = evaluate_hallucination([row], [], [], 0).tables[-1]
    lines = {line[0]: line[1:4] for line in table.rows}
    assert lines["SelfCheckGPT"] == ("35.0", "58.0", "43.7")
    assert lines["LMvLM"] == ("18.7", "76.9", "30.1")
    assert lines["Granite 3.2-8b LoRA"] == ("67.6", "77.4", "72.2")


def own_answers(count, right):
    """Answers of the model itself, sure of the first option where that is right, else of the second."""
    for number in range(count):
        question = parse_question(question_row(number))
        sure, unsure = (-0.1, -3.0) if right(number, question) else (-3.0, -0.1)
        yield ChoiceAnswer(question.id, question, (sure, unsure, -3.0, -3.0))


def test_certainty_of_own_answers():
    answers = list(own_answers(40, lambda number, _: number % 4 != 0))
    figures = evaluate_certainty(answers, [UNTRAINED], 0.75, 0).figures
    assert value(figures, "always the training accuracy/after/ece") == pytest.approx(
        0.0
    )
    assert value(figures, "always the training accuracy/after/auc") == 0.5
    # The first decile, 5%, where 75% are right; the expectation is a little more.
    assert value(figures, "untrained/after/ece_decile") == pytest.approx(0.7)
    assert 0.6 < value(figures, "untrained/before/ece") < 0.7

    # `x` is right always, `y` never; the first surface is 5%, and the letter A, which is right.
    answers = list(own_answers(8, lambda _, question: question.dataset == "x"))
    section = evaluate_certainty(
        answers, [Subject("adapter", Says(first), {"uncertainty": "u"})], 0.5, 0
    )
    by_set = section.figures["adapter"]["after"]["ece_by_data_set"]
    assert by_set == {"x": pytest.approx(0.95), "y": pytest.approx(0.05)}
    (table,) = [
        section_table
        for section_table in section.tables
        if section_table.title.startswith("Calibration by data set, after")
    ]
    assert ("adapter", "0.500", "0.950", "x") in table.rows
    for system in ("without an adapter", "with adapter"):
        assert value(section.figures, f"{system}/accuracy/data sets") == 1.0


def test_the_options_are_shown_when_the_model_answers_and_when_it_is_asked():
    """Section 3.2: accuracy, own answer and certainty are of one question."""
    row = json.loads("""{"id": "q",
 "dataset": "x",
 "question": "Which is right?",
 "options": ["One", "Both"],
 "label": "B"}""")
    question = parse_question(row)
    shown = (
        "Which is right?\nA. One\nB. Both\nReply with the letter of the right answer."
    )
    answered = ChoiceAnswer("q", question, (-3.0, -0.1))
    after, before = (answered.state(after=after).messages for after in (True, False))
    assert [turn.content for turn in after] == [shown, "B"]
    assert [turn.content for turn in before] == [shown]
    assert _lettered(question).prompt.messages[0].content == shown


PASSAGES = [
    Passage(*texts)
    for texts in parse_table("""
p1 | Goethe wrote Faust in Weimar. | Faust (play)
p2 | Berlin is on the Spree. | Berlin
p3 | A river. | Spree
""")
]
COLLECTION = QueryCollection(
    {passage.id: passage for passage in PASSAGES},
    {
        "a": ("Where did Goethe write the Faust?", ("Weimar",)),
        "b": ("Which river is Berlin's?", ()),
        "c": ("Who was it?", ()),
    },
    {"a": frozenset({"p1"}), "b": frozenset({"p2", "gone"}), "c": frozenset({"p3"})},
)


def test_follow_ups_are_made_from_questions_that_name_their_passage():
    made = turns(COLLECTION)
    told = [
        [turn.id, turn.standalone, *(said.content for said in turn.state.messages)]
        for turn in made
    ]
    begin = "Tell me about Faust."
    assert told[0] == ["a/follow-up", False, begin, "Where did Goethe write it?"]
    assert told[1][:2] == ["b/follow-up", False]
    assert told[2] == ["b", True, begin, "Which river is Berlin's?"]
    first, second, third = made
    assert first.gold == "Where did Goethe write the Faust?"
    assert second.state.query == "Which river is its?"
    assert second.relevant == {"p2"}
    assert sample(made, 2) == [first, third]


def test_rewrites_against_people_and_by_what_they_find():
    name, followups = "query_rewrite", turns(COLLECTION)
    known = oracle(name, rows(name))
    gold = {turn.state.messages: turn.gold for turn in followups}

    def reply(request):
        if request.state.messages not in gold:
            return known.reply(request)
        rewrite = {"rewritten_question": gold[request.state.messages]}
        return Completion(json.dumps(rewrite), "stop")

    search = PassageSearch(PASSAGES)
    adapter = Subject("adapter", Says(reply), {name: "x"})
    figures = evaluate_rewrite(
        rows(name), followups, {"": search}, [adapter, UNTRAINED], 0
    ).figures
    assert value(figures, "adapter/exact_match") == 1.0
    assert value(figures, "no rewrite/exact_match") == 0.0
    assert value(figures, "untrained/rewritten") == 0.0
    assert figures["untrained"]["undefined"] == 6
    for system in ("adapter", "gold rewrite", "adapter after the question"):
        assert value(figures, f"{system}/retrieval/full/recall@5") == 1.0
    assert value(figures["adapter"], "retrieval/standalone/ndcg@10") == 1.0
    assert search(["Where is Weimar?", "Spree"], 2)[0][0].id == "p1"


def test_each_question_is_searched_in_its_own_collection(tmp_path):
    """As MT-RAG: a file a domain; a question without passages is of the domain of its conversation."""
    for name in ("cloud", "govt"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": f"{name}-1", "text": "Faust."}])
    collections = read_collections(tmp_path)
    names = {name: list(of) for name, of in collections.items()}
    assert names == {"cloud": ["cloud-1"], "govt": ["govt-1"]}
    state, nothing = JudgeInput((Message("user", "Faust?"),)), frozenset()
    asked = []
    for name, source in parse_table("""
a | mtrag govt/changed
b | mtrag cloud/changed
a | mtrag/unanswerable
"""):
        key = f"{name}<::>{len(asked)}"
        asked.append(JudgedTurn(key, state, "Faust?", nothing, False, source=source))
    assigned = assign_collections(asked, collections)
    assert [turn.collection for turn in assigned] == ["govt", "cloud", "govt"]
    searches = {
        name: PassageSearch(list(of.values())) for name, of in collections.items()
    }
    hits = search_each(searches, assigned, ["Faust"] * 3, 5)
    found = [hit.id for ranking in hits for hit in ranking]
    assert found == ["govt-1", "cloud-1", "govt-1"]
    with refused("c<::>0: no file of the corpus is known for it"):
        assign_collections([replace(asked[2], id="c<::>0")], collections)


def test_a_bad_collection_is_named(tmp_path):
    with refused(r"no corpus\.jsonl"):
        read_collection(tmp_path, "dev")
    (tmp_path / "corpus.jsonl").write_text('{"id": "p", "text": "t"}\n')
    (tmp_path / "queries.jsonl").write_text(
        '{"id": "q", "text": "t", "split": "dev"}\n'
    )
    (tmp_path / "qrels.tsv").write_text("head\nq\tp\n")
    with refused(r"qrels\.tsv:2"):
        read_collection(tmp_path, "dev")


def test_examples_stand_before_the_request_and_nothing_else_changes():
    codec, known = teachable("answerability"), rows("answerability")
    shots = worked(known, codec, 2)
    assert [message.role for message in shots] == ["user", "assistant"] * 2
    assert {message.content for message in shots[1::2]} == {
        "answerable",
        "unanswerable",
    }
    seen, alone = [], codec.encode(known[0].state)
    executor = Says(lambda request: seen.append(request) or first(request))
    FewShot(executor, shots).run([alone])
    messages = (*shots, *alone.prompt.messages)
    assert seen == [replace(alone, prompt=replace(alone.prompt, messages=messages))]


def test_what_becomes_of_a_flow():
    state = JudgeInput((Message("user", "Q?"),))
    turn = JudgedTurn("q", state, "Q?", frozenset({"p"}), standalone=True)

    def none(name, states):
        assert name == "hallucination_detection"
        assert states == []
        return []

    # the first has not abstained
    silent = [DecodingError("nothing"), taken("Q?", "I don't know the answer", ())]
    assert _outcomes([turn] * 2, silent, SimpleNamespace(ask=none), ALONE) == [
        None,
        FlowOutcome(False, False),
    ]

    def entails(pairs):
        assert {premise for premise, _ in pairs} == {"Title: Faust\nGoethe."}
        return ["Goethe" in claim for _, claim in pairs]

    answer = taken(
        "Q?", "Goethe wrote it. It is long.", (Passage("p", "Goethe.", "Faust"),)
    )
    grader = SimpleNamespace(
        # where it does not say, the words decide
        abstained=lambda states: [True, None],
        statements=lambda states: [["Goethe wrote it.", "It is long."]] * len(states),
    )
    graded = _outcomes([turn] * 2, [answer] * 2, None, Beside(entails, grader))
    assert graded == [FlowOutcome(True, False), FlowOutcome(True, True, 0.5)]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The beginning of a command line: a tiny chat model, and rows of all five intrinsics."""
    folder = tmp_path_factory.mktemp("measured")
    model = save_chat_llama(folder / "tiny-chat")
    data = write_data(folder / "intrinsics", count=12)
    return (
        f"eval intrinsics --model {model} --data {data} --engine transformers".split()
    )


@pytest.fixture(scope="module")
def adapters(command, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapters")
    small = {"lora": Lora(8, 8), "reach": Reach(token_rows=False)}
    small |= {"max_steps": 1, "max_length": 2000}
    model, data = (type(out)(command[at]) for at in (3, 5))
    for name in ("answerability", "uncertainty"):
        config = replace(read_recipe("demo", ADAPTERS, name).config, **small)
        rows = RowSelection(held_out=0.2)
        run(AdapterJob(name, data, model, out / name, config, rows))
    return out


def written(out, file="figures"):
    return read_json(out / f"{file}.json")


@pytest.mark.engine
def test_the_command_measures_what_there_is(command, adapters, tmp_path, capsys):
    more = f"--adapters {adapters} --limit 3 --shots 1 --out {tmp_path}".split()
    assert main([*command, *more]) == 0
    printed = capsys.readouterr().out
    for title in (
        "Rewrites against people's (3|Certainty, after the answer (3|Hallucinated responses|"
        "Answerability, all rows (3)|Citations against annotated ones (3|Published: Table 8|"
        "Published: tables 2 to 4, MT-RAG, full"
    ).split("|"):
        assert title in printed
    figures, manifest = written(tmp_path)["figures"], written(tmp_path)["manifest"]
    common = {"untrained", "prompted", "overlap"}
    assert set(figures["answerability"]) == common | {"majority", "adapter"}
    assert set(figures["citation_generation"]) == common | {
        "first sentence",
        "most words in common",
    }
    assert "always the training accuracy" in figures["uncertainty"]
    assert set(manifest["adapters"]) == {"answerability", "uncertainty"}
    assert len(written(tmp_path, "items")["answerability"]) == 3
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.md").read_text().count("###") > 10


@pytest.mark.engine
def test_judges_rivals_and_dialects_can_be_chosen(command, adapters, tmp_path, capsys):
    command = [*command, "--limit", "4", "--only", "answerability"]
    with ChatServer(
        lambda body: said("answerable", TOKENS if body.get("logprobs") else None)
    ) as server:
        words = f"--by overlap --out {tmp_path} --rival mixtral@{server.url}/v1".split()
        assert main([*command, *words]) == 0
        assert {body["model"] for body in server.bodies} == {"mixtral"}
    # not a terminal
    assert "answerability: overlap: row 4 of 4" in capsys.readouterr().err
    figures = written(tmp_path)["figures"]["answerability"]
    assert set(figures) == {"majority", "overlap", "rival mixtral"}
    assert value(figures, "rival mixtral/all rows/classes/answerable/recall") == 1.0
    assert main([*command, "--by", "tokens"]) == 2
    assert "the model has no reflection tokens" in capsys.readouterr().err

    shutil.copytree(adapters / "answerability/adapter", tmp_path / "answerability")
    (tmp_path / "answerability/intrinsic.json").unlink()
    command += f"--adapters {tmp_path} --by adapter".split()
    assert main(command) == 2
    assert (
        "has no intrinsic.json that says which prompts it was trained with; name its dialect: chat"
        in (capsys.readouterr().err)
    )
    assert main([*command, *f"--dialect chat --out {tmp_path}/out".split()]) == 0
    assert written(tmp_path / "out")["manifest"]["settings"]["dialect"] == "chat"


@pytest.mark.engine
def test_flows_search_and_abstain(command, adapters, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    titles = "Weimar Berlin Faust Hamburg Leipzig Jena".split()
    write_lines(
        corpus / "corpus.jsonl",
        (
            {"id": f"p{at}", "title": title, "text": f"{title} is a thing."}
            for at, title in enumerate(titles)
        ),
    )
    write_lines(
        corpus / "queries.jsonl",
        (
            {"id": f"q{at}", "text": f"What is {title}?", "split": "dev"}
            for at, title in enumerate(titles)
        ),
    )
    relevant = "".join(f"q{at}\tp{at}\t1\n" for at in range(6))
    (corpus / "qrels.tsv").write_text(f"h\n{relevant}")
    command = [*command, *f"--adapters {adapters} --corpus {corpus}".split()]
    flows = [*command, "--only", "flows", "--flows", "2"]
    assert main([*flows, "--out", str(tmp_path / "out")]) == 0
    assert "Flows (2 questions, 5 passages)" in capsys.readouterr().out
    items = written(tmp_path / "out", "items")["flows"]
    assert {title["flow"] for title in items} == set("none qr ad qr+ad".split())
    assert [title["error"] for title in items] == [None] * 8
    figures = written(tmp_path / "out")["figures"]["flows"]
    assert figures["none"]["jafs_gain"]["value"] == 0
    assert (
        figures["none"]["tokens"] < figures["qr"]["tokens"] < figures["qr+ad"]["tokens"]
    )
    tokens = [("unknown", {"unknown": -0.1, "answer": -2.5})]
    with ChatServer(
        lambda body: said("unknown", tokens if body.get("logprobs") else None)
    ) as server:
        graded = f"--grader m@{server.url}/v1 --out {tmp_path}/graded"
        assert main([*flows, *graded.split()]) == 0
    items = written(tmp_path / "graded", "items")["flows"]
    assert not any(item["answered"] for item in items)
    assert "decided by a grader" in capsys.readouterr().out
    rewriting = "--only query_rewrite --by prompt --answers 2 --out".split()
    assert main([*command, *rewriting, str(tmp_path / "answers")]) == 0
    assert "Answers after rewrites, full (2)" in capsys.readouterr().out
    measured = written(tmp_path / "answers", "items")["query_rewrite"]
    searched = {title["searched by"] for title in measured if "searched by" in title}
    assert searched == set(
        "untrained|untrained after the question|prompted|prompted after the question|no rewrite|gold rewrite".split(
            "|"
        )
    )
