"""What a perfect and a blind model score; baselines by hand; examples in the prompt; follow-ups."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from chat_server import ChatServer, said
from intrinsic_rows import MAKERS, asked
from oracle import Deaf, First, Oracle

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.errors import DecodingError, UserError
from selfrag.evaluation.metrics.citations import Cites
from selfrag.evaluation.metrics.classification import Outcome
from selfrag.experiments.intrinsics.flows import (
    BM25,
    Collection,
    Turn,
    _outcomes,
    read_collection,
    sample,
    turns,
)
from selfrag.experiments.intrinsics.measures import (
    evaluate_answerability,
    evaluate_certainty,
    evaluate_citations,
    evaluate_hallucination,
)
from selfrag.experiments.intrinsics.rewriting import evaluate_rewrite
from selfrag.experiments.intrinsics.subjects import ALONE, Beside, FewShot, Subject, worked
from selfrag.intrinsics.contract import Completion
from selfrag.intrinsics.flows.progress import taken
from selfrag.intrinsics.state import Message, State
from selfrag.training.intrinsics.certainty import Answered, parse_question
from selfrag.training.intrinsics.job import ADAPTERS, AdapterJob, RowSelection, run, teachable
from selfrag.training.intrinsics.rows import parser, without_evidence
from selfrag.training.recipes import read_recipe
from selfrag.training.settings import Lora, Reach


def rows(name, count=6):
    return [parser(name)(MAKERS[name][1](number)) for number in range(count)]


def subjects(name):
    known = rows(name)
    gone = [found for row in known if (found := without_evidence(row)) is not None]
    return [Subject("adapter", Oracle(name, [*known, *gone]), {name: "x"}), Subject("untrained", First())]


def value(figures, *path):
    for key in path:
        figures = figures[key]
    return figures["value"]


def test_answerability_of_a_perfect_and_of_a_blind_model():
    found = evaluate_answerability(rows("answerability"), subjects("answerability"), [], 0).figures
    assert value(found, "adapter", "all rows", "weighted_f1") == 1.0
    assert value(found, "adapter", "all rows", "auc") == 1.0
    # The first label is answerable: recall 1, precision one half; the majority baseline is the same.
    for system in ("untrained", "majority"):
        classes = found[system]["all rows"]["classes"]
        assert value(classes, "answerable", "f1") == pytest.approx(2 / 3)
        assert value(classes, "unanswerable", "f1") == 0.0
        assert value(found, system, "all rows", "auc") == 0.5
    assert found["adapter"]["d"] == found["adapter"]["all rows"]


def test_flagged_responses_and_labels_of_sentences():
    name = "hallucination_detection"
    section = evaluate_hallucination(rows(name), subjects(name), rows(name), 0)
    found = section.figures
    # All six responses hold an unfaithful sentence.
    assert value(found, "adapter", "responses", "classes", "hallucinated", "f1") == 1.0
    assert value(found, "adapter", "sentences", "accuracy") == 1.0
    assert value(found, "untrained", "responses", "classes", "hallucinated", "recall") == 0.0
    assert value(found, "untrained", "sentences", "accuracy") == 0.5  # the first label is faithful
    assert section.items[0]["adapter"]["labels"] == ["faithful", "unfaithful"]
    assert section.tables[-1].rows[-1] == ("Granite 3.2-8b LoRA", "67.6", "77.4", "72.2")
    record = MAKERS[name][1](0)
    for sentence, score in zip(record["sentences"], (0.95, 0.04), strict=True):  # steps of a tenth count as grades
        sentence.pop("label")
        sentence["score"] = score
    scored = [parser(name)(record)]
    found = evaluate_hallucination(scored, [Subject("adapter", Oracle(name, scored), {name: "x"})], scored, 0).figures
    assert value(found, "adapter", "responses", "classes", "hallucinated", "f1") == 1.0
    assert value(found, "adapter", "sentences", "accuracy") == 1.0


def test_citations_by_sentence_and_passage():
    name = "citation_generation"
    found = evaluate_citations(rows(name), [*subjects(name), Subject("deaf", Deaf())], [], 0).figures
    for level in ("sentence", "passage"):
        assert value(found, "adapter", level, "f1") == 1.0
    # The first surface is `none`: no citation at all.
    assert value(found, "untrained", "sentence", "recall") == 0.0
    # First sentence for both response sentences: the passage is right once of two, the sentence never.
    assert value(found, "first sentence", "passage", "recall") == 1.0
    assert value(found, "first sentence", "passage", "precision") == 0.5
    assert value(found, "first sentence", "sentence", "recall") == 0.0
    # "It was Goethe, says source 0." shares "it", "goethe" with "Goethe wrote it in 1808."
    assert value(found, "most words in common", "sentence", "recall") == 1.0
    # After the evidence was cut out: the first never cites anything, the deaf one's undefined is not nothing.
    nothing = {system: value(found, system, "nothing") for system in ("adapter", "untrained", "first sentence", "deaf")}
    assert nothing == {"adapter": 1.0, "untrained": 1.0, "first sentence": 0.0, "deaf": 0.0}


def own_answers(count, right):
    """Answers of the model itself, sure of the first option where that is right, else of the second."""
    for number in range(count):
        question = parse_question(asked(number))
        sure, other = (-0.1, -3.0) if right(number, question) else (-3.0, -0.1)
        yield Answered(question.id, question, (sure, other, -3.0, -3.0))


def test_certainty_of_own_answers():
    answers = list(own_answers(40, lambda number, _: number % 4 != 0))
    section = evaluate_certainty(answers, [Subject("untrained", First())], 0.75, 0)
    found = section.figures
    assert value(found, "always the training accuracy", "after", "ece") == pytest.approx(0.0)
    assert value(found, "always the training accuracy", "after", "auc") == 0.5
    # The first decile, 5%, where 75% are right; the expectation is a little more.
    assert value(found, "untrained", "after", "ece_decile") == pytest.approx(0.7)
    assert 0.6 < value(found, "untrained", "before", "ece") < 0.7
    assert set(section.reliability) == set(found)
    assert section.items[0]["right"] is False


def test_calibration_by_data_set_and_accuracy_with_the_adapter():
    """`x` is right always, `y` never; the first surface is 5%, and the letter A, which is right."""
    answers = list(own_answers(8, lambda _, question: question.dataset == "x"))
    section = evaluate_certainty(answers, [Subject("adapter", First(), {"uncertainty": "u"})], 0.5, 0)
    by_set = section.figures["adapter"]["after"]["ece_by_data_set"]
    assert by_set == {"x": pytest.approx(0.95), "y": pytest.approx(0.05)}
    (table,) = [one for one in section.tables if one.title.startswith("Calibration by data set, after")]
    assert ("adapter", "0.500", "0.950", "x") in table.rows
    for system in ("without an adapter", "with adapter"):
        assert value(section.figures, system, "accuracy", "data sets") == 1.0


def test_citations_by_entailment_are_of_passages():
    name = "citation_generation"
    known = rows(name)

    def entails(pairs):  # the passage says who, and nothing else
        return ["Goethe" in claim for _, claim in pairs]

    found = evaluate_citations(known, subjects(name), [], 0, Beside(entails)).figures
    for system in ("the rows themselves", "adapter"):
        figures = found[system]["entailment"]["all rows"]
        assert (figures["recall"]["value"], figures["precision"]["value"]) == (0.5, 1.0)  # one sentence of two
        assert figures["f1"] == pytest.approx(2 / 3)
    assert found["first sentence"]["entailment"]["all rows"]["precision"]["value"] == 0.5
    assert found["untrained"]["entailment"]["all rows"]["recall"]["value"] == 0.0  # it cites nothing


COLLECTION = Collection(
    {
        "p1": Passage("p1", "Goethe wrote Faust in Weimar.", "Faust (play)"),
        "p2": Passage("p2", "Berlin is on the Spree.", "Berlin"),
        "p3": Passage("p3", "A river.", "Spree"),
    },
    {
        "a": ("Where did Goethe write the Faust?", ("Weimar",)),
        "b": ("Which river is Berlin's?", ()),
        "c": ("Who was it?", ()),
    },
    {"a": frozenset({"p1"}), "b": frozenset({"p2", "gone"}), "c": frozenset({"p3"})},
)


def test_follow_ups_are_made_from_questions_that_name_their_passage():
    found = turns(COLLECTION)
    assert [(one.id, one.standalone) for one in found] == [("a/follow-up", False), ("b/follow-up", False), ("b", True)]
    first, second, third = found
    assert [one.content for one in first.state.messages] == ["Tell me about Faust.", "Where did Goethe write it?"]
    assert first.gold == "Where did Goethe write the Faust?"
    assert second.state.query == "Which river is its?"
    assert second.relevant == {"p2"}
    assert [one.content for one in third.state.messages] == ["Tell me about Faust.", "Which river is Berlin's?"]
    assert sample(found, 2) == [first, third]


def test_rewrites_against_people_and_by_what_they_find():
    name = "query_rewrite"
    followups = turns(COLLECTION)

    class Both(Oracle):
        def _answer(self, request):
            gold = {one.state.messages: one.gold for one in followups}
            if request.state.messages not in gold:
                return super()._answer(request)
            return Completion(f'{{"rewritten_question": "{gold[request.state.messages]}"}}', "stop")

    search = BM25(list(COLLECTION.passages.values()))
    given = [Subject("adapter", Both(name, rows(name)), {name: "x"}), Subject("untrained", First())]
    section = evaluate_rewrite(rows(name), followups, search, given, 0)
    found = section.figures
    assert value(found, "adapter", "exact_match") == 1.0
    assert value(found, "no rewrite", "exact_match") == 0.0
    assert value(found, "untrained", "rewritten") == 0.0
    assert found["untrained"]["undefined"] == 6
    full = {system: value(found[system], "retrieval", "full", "recall@5") for system in ("adapter", "gold rewrite")}
    assert full["adapter"] == full["gold rewrite"] == 1.0
    assert value(found, "adapter after the question", "retrieval", "full", "recall@5") == 1.0
    assert value(found["adapter"], "retrieval", "standalone", "ndcg@10") == 1.0
    assert search(["Where is Weimar?", "Spree"], 2)[0][0].id == "p1"


def test_a_bad_collection_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no corpus\.jsonl"):
        read_collection(tmp_path, "dev")
    (tmp_path / "corpus.jsonl").write_text('{"id": "p", "text": "t"}\n')
    (tmp_path / "queries.jsonl").write_text('{"id": "q", "text": "t", "split": "dev"}\n')
    (tmp_path / "qrels.tsv").write_text("head\nq\tp\n")
    with pytest.raises(UserError, match=r"qrels\.tsv:2"):
        read_collection(tmp_path, "dev")


def test_examples_stand_before_the_request_and_nothing_else_changes():
    codec = teachable("answerability")
    shots = worked(rows("answerability"), codec, 2)
    assert [one.role for one in shots] == ["user", "assistant"] * 2
    assert {one.content for one in shots[1::2]} == {"answerable", "unanswerable"}
    plain = codec.encode(rows("answerability")[0].state)
    shown = FewShot(codec, shots).encode(rows("answerability")[0].state)
    assert shown.prompt.messages == (*shots, *plain.prompt.messages)
    assert shown.slots == plain.slots


def test_a_flow_that_wrote_nothing_has_not_abstained():
    class Silent:
        def ask(self, name, states):
            assert (name, states) == ("hallucination_detection", [])
            return []

    turn = Turn("q", State((Message("user", "Q?"),)), "Q?", frozenset({"p"}), standalone=True)
    said = taken("Q?", "I don't know the answer", ())
    assert _outcomes([turn, turn], [DecodingError("nothing"), said], Silent(), ALONE) == [None, Outcome(False, False)]


@pytest.fixture(scope="module")
def adapters(data, chat_llama, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapters")
    small = {"lora": Lora(8, 8), "reach": Reach(token_rows=False), "max_steps": 1, "max_length": 2000}
    for name in ("answerability", "uncertainty"):
        config = replace(read_recipe("demo", ADAPTERS, name).config, **small)
        run(AdapterJob(name, data, chat_llama, out / name, config, RowSelection(held_out=0.2)))
    return out


@pytest.mark.engine
def test_the_command_measures_what_there_is(data, chat_llama, adapters, tmp_path, capsys):
    command = ["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), "--engine", "transformers"]
    command += ["--adapters", str(adapters), "--limit", "3", "--shots", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for title in (
        "Rewrites against people's (3",
        "Certainty, after the answer (3",
        "Hallucinated responses",
        "Answerability, all rows (3)",
        "Citations against annotated ones (3",
        "Published: Table 8",
        "Published: tables 2 to 4, MT-RAG, standalone",
    ):
        assert title in printed
    out = tmp_path / "out"
    figures = json.loads((out / "figures.json").read_text())
    assert set(figures["figures"]["answerability"]) == {
        "majority", "adapter", "untrained", "prompted", "overlap", "bm25",
    }  # fmt: skip
    assert set(figures["figures"]["citation_generation"]) == {
        "first sentence", "most words in common", "untrained", "prompted", "overlap", "bm25",
    }  # fmt: skip
    assert "always the training accuracy" in figures["figures"]["uncertainty"]
    assert set(figures["manifest"]["adapters"]) == {"answerability", "uncertainty"}
    assert len(json.loads((out / "items.json").read_text())["answerability"]) == 3
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.md").read_text().count("###") > 10


@pytest.fixture
def command(data, chat_llama):
    """The beginning of a command line."""
    return ["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), "--engine", "transformers"]


@pytest.mark.engine
def test_judges_can_be_chosen_beside_a_rival_behind_an_endpoint(command, tmp_path, capsys):
    tokens = [("answerable", {"answerable": -0.1, "unanswerable": -2.5})]
    command = [*command, "--limit", "4", "--only", "answerability"]
    with ChatServer(lambda body: said("answerable", tokens if body.get("logprobs") else None)) as server:
        words = ["--execution", "overlap", "--out", str(tmp_path), "--rival", f"mixtral@{server.url}/v1"]
        assert main([*command, *words]) == 0
        assert {body["model"] for body in server.bodies} == {"mixtral"}
    assert "answerability: overlap: row 4 of 4" in capsys.readouterr().err  # not a terminal
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]["answerability"]
    assert set(figures) == {"majority", "overlap", "rival mixtral"}
    assert figures["rival mixtral"]["all rows"]["classes"]["answerable"]["recall"]["value"] == 1.0
    assert main([*command, "--execution", "tokens"]) == 2
    assert "the model has no reflection tokens" in capsys.readouterr().err


@pytest.mark.engine
def test_an_adapter_without_a_card_is_asked_in_the_dialect_that_is_named(command, adapters, tmp_path, capsys):
    shutil.copytree(adapters / "answerability" / "adapter", tmp_path / "answerability")
    (tmp_path / "answerability" / "intrinsic.json").unlink()
    command += ["--adapters", str(tmp_path), "--only", "answerability", "--execution", "adapter", "--limit", "3"]
    assert main(command) == 2
    assert "has no intrinsic.json that says which prompts it was trained with; name its dialect: chat, granite-3.2" in (
        capsys.readouterr().err
    )
    assert main([*command, "--dialect", "granite-3.2", "--out", str(tmp_path / "out")]) == 0
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert figures["manifest"]["settings"]["dialect"] == "granite-3.2"


def test_a_judge_of_entailment_says_how_faithful_a_flow_is():
    turn = Turn("q", State((Message("user", "Q?"),)), "Q?", frozenset({"p"}), standalone=True)
    answer = taken("Q?", "Goethe wrote it. It is long.", (Passage("p", "Goethe.", "Faust"),))

    def entails(pairs):
        assert {premise for premise, _ in pairs} == {"Title: Faust\nGoethe."}
        return ["Goethe" in claim for _, claim in pairs]

    assert _outcomes([turn], [answer], None, Beside(entails)) == [Outcome(True, True, 0.5)]

    class Judge:
        def abstained(self, states):
            assert [state.response for state in states] == [answer.text] * 2
            return [True, None]  # where it does not say, the words decide

    graded = _outcomes([turn, turn], [answer, answer], None, Beside(entails, Judge()))
    assert graded == [Outcome(True, False), Outcome(True, True, 0.5)]


def test_snippets_of_neighbouring_sentences_are_graded_as_one():
    name = "citation_generation"
    record = MAKERS[name][1](0)
    text = record["documents"][0]["text"]
    whole = {"response_begin": 0, "response_end": 5, "doc_id": "d1", "doc_begin": 0, "doc_end": len(text)}
    row = parser(name)(record | {"citations": [whole]})

    class Judge:
        def cites(self, questions, responses):
            assert questions == ["Who wrote it?"]
            if responses[0][0].passages and len(responses[0][0].passages[0]) == len(text):
                return [Cites(1.0, 0.5)]
            return [None]

    section = evaluate_citations([row], [], [], 0, Beside(grader=Judge()))
    figures = section.figures["the rows themselves"]["grades"]["all rows"]
    assert (figures["recall"]["value"], figures["f1"]) == (1.0, pytest.approx(2 / 3))
    assert section.figures["first sentence"]["grades"]["all rows"]["f1"] is None


@pytest.mark.engine
def test_flows_search_and_abstain(command, adapters, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    titles = ["Weimar", "Berlin", "Faust", "Hamburg", "Leipzig", "Jena"]
    lines = [{"id": f"p{at}", "title": one, "text": f"{one} is a thing."} for at, one in enumerate(titles)]
    (corpus / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    queries = [{"id": f"q{at}", "text": f"What is {one}?", "split": "dev"} for at, one in enumerate(titles)]
    (corpus / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    (corpus / "qrels.tsv").write_text("h\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(len(titles))))
    command += ["--adapters", str(adapters), "--corpus", str(corpus)]
    flows = [*command, "--only", "flows", "--flows", "2"]
    assert main([*flows, "--out", str(tmp_path / "out")]) == 0
    assert "Flows (2 questions, 5 passages)" in capsys.readouterr().out
    items = json.loads((tmp_path / "out" / "items.json").read_text())["flows"]
    assert len(items) == 8
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())["figures"]["flows"]
    assert figures["none"]["jafs_gain"]["value"] == 0
    assert figures["none"]["tokens"] < figures["qr"]["tokens"] < figures["qr+ad"]["tokens"]
    tokens = [("unknown", {"unknown": -0.1, "answer": -2.5})]
    with ChatServer(lambda body: said("unknown", tokens if body.get("logprobs") else None)) as server:
        assert main([*flows, "--grader", f"m@{server.url}/v1", "--out", str(tmp_path / "graded")]) == 0
    graded = json.loads((tmp_path / "graded" / "items.json").read_text())["flows"]
    assert not any(one["answered"] for one in graded)
    assert "decided by a grader" in capsys.readouterr().out
    rewriting = ["--only", "query_rewrite", "--execution", "prompt", "--answers", "2", "--out"]
    assert main([*command, *rewriting, str(tmp_path / "answers")]) == 0
    assert "Answers after rewrites, full (2)" in capsys.readouterr().out
    found = json.loads((tmp_path / "answers" / "items.json").read_text())["query_rewrite"]
    assert {one["searched by"] for one in found if "searched by" in one} == {
        "no rewrite", "untrained", "untrained after the question", "prompted", "prompted after the question",
        "gold rewrite",
    }  # fmt: skip
    assert {one["flow"] for one in items} == {"none", "qr", "ad", "qr+ad"}
    assert all(one["error"] is None for one in items)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "poetry"], "nothing to measure under 'poetry'"),
        (["--dialect", "elvish"], "unknown dialect 'elvish'"),
        (["--only", "flows"], "give --corpus FOLDER"),
        (["--adapters", "."], "holds no adapter"),
        (["--corpus", "."], "has no corpus.jsonl"),
        (["--answers", "2", "--only", "query_rewrite"], "answers search: give --corpus FOLDER"),
        (["--judge", "oracle:x", "--only", "citation_generation"], "unknown judge 'oracle:x'"),
    ],
)
def test_bad_input_is_one_line(arguments, said, data, chat_llama, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
