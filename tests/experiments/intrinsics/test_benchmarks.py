"""Public benchmarks in their published schemas, as rows of the intrinsics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, said
from tiny_judges import Ruled

from selfrag.cli.main import main
from selfrag.experiments.intrinsics.benchmarks import Labelling, parse, write_rows
from selfrag.training.intrinsics.certainty import read_questions
from selfrag.training.intrinsics.rows import read_labelled

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Goethe_in_Rome",
            "paragraphs": [
                {
                    "context": "Goethe went to Rome in 1786.",
                    "qas": [
                        {"id": "5a", "question": "When did he go?", "is_impossible": False,
                         "answers": [{"text": "1786", "answer_start": 23}]},
                        {"id": "5b", "question": "Why did he go?", "is_impossible": True, "answers": [],
                         "plausible_answers": [{"text": "Rome", "answer_start": 15}]},
                    ],
                }
            ],
        }
    ],
}  # fmt: skip
HUB = {
    "id": "5c", "title": "Goethe", "context": "Goethe wrote Faust.", "question": "Who wrote Faust?",
    "answers": {"text": ["Goethe"], "answer_start": [0]},
}  # fmt: skip


def task(number: int, label: str, **more: Any) -> dict[str, Any]:
    """A generation task of MT-RAG; its files hold NaN."""
    return {
        "conversation_id": "c1", "task_id": f"c1<::>{number}", "task_type": "rag", "turn": number,
        "contexts": [{"document_id": "d_7-9", "title": "Faust", "text": "Goethe wrote it.", "score": 27.7}],
        "input": [
            {"speaker": "user", "text": "What is Faust?", "metadata": {"author_type": "human"}},
            {"speaker": "agent", "text": "A play."},
            {"speaker": "user", "text": "Who wrote it?"},
        ],
        "targets": [{"speaker": "agent", "text": "Goethe."}], "Answerability": [label], "Multi-Turn": float("nan"),
        **more,
    }  # fmt: skip


RESPONSES = [
    {"id": "1", "source_id": "9", "model": "m", "temperature": 0.7, "split": "test", "quality": "good",
     "labels": [{"start": 21, "end": 25, "text": "1700", "label_type": "Evident Conflict", "implicit_true": False}],
     "response": "Goethe wrote Faust. In 1700."},
    {"id": "2", "source_id": "9", "split": "test", "quality": "truncated", "labels": [], "response": "Goe"},
    {"id": "3", "source_id": "8", "split": "test", "quality": "good", "labels": [], "response": "Short."},
    {"id": "4", "source_id": "9", "split": "train", "quality": "good", "labels": [], "response": "Goethe."},
]  # fmt: skip
SOURCES = [
    {"source_id": "9", "task_type": "QA", "source": "MARCO", "prompt": "..",
     "source_info": {"question": "who wrote faust", "passages": "passage 1:Goethe did.\n\npassage 2:In 1808.\n\n"}},
    {"source_id": "8", "task_type": "Summary", "source": "CNN/DM", "prompt": "..", "source_info": "A text."},
]  # fmt: skip
ALCE = {
    "args": {},
    "data": [
        {"question": "Who wrote Faust?", "answer": "Goethe", "claims": ["Goethe wrote it."],
         "docs": [{"title": "Faust", "text": "By Goethe.", "url": ".."}, {"title": "Rome", "text": "A city."}],
         "output": "Goethe did [1]. It is long [1][2][7].\nMore."},
    ],
}  # fmt: skip
LONG = [
    {"idx": 3, "dataset": "hotpotqa", "query": "Who?", "answer": "Goethe", "prediction": "..", "few_shot_scores": [],
     "statements": [
         {"statement": "Goethe did.", "citation": [{"st_sent_idx": 1, "end_sent_idx": 1, "cite": "By Goethe."}]},
         {"statement": "Who knows.", "citation": []},
     ]},
    {"idx": 4, "dataset": "dureader", "query": "?", "answer": "", "prediction": "", "statements": []},
]  # fmt: skip
ASKED = {"dataset": "hotpotqa", "query": "Who?", "context": "Faust. By Goethe. 1808.", "answer": ""}
CONTEXTS = [{"idx": 3, "language": "en", **ASKED}, {"idx": 4, "language": "zh", **ASKED}]
MMLU = {"question": "1+1?", "subject": "abstract_algebra", "choices": ["1", "2", "3", "4"], "answer": 1}


def lines(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def made(folder: Path, *given: str, part: str = "dev") -> Path:
    assert main(["eval", "rows", *given, "-o", str(folder / "rows"), "--part", part]) == 0
    return folder / "rows"


def test_squad_with_unanswerable_questions(tmp_path, capsys):
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(SQUAD))
    out = made(tmp_path, f"squad2={tmp_path}/dev-v2.0.json", f"squad2={lines(tmp_path / 'hub.jsonl', [HUB])}")
    assert "squad2: 2 rows in" in capsys.readouterr().out
    rows = read_labelled(out / "answerability_dev.jsonl", "answerability")
    assert [(row.id, row.label) for row in rows] == [
        ("squad2-5a", "answerable"), ("squad2-5b", "unanswerable"), ("squad2-5c", "answerable")
    ]  # fmt: skip
    assert rows[0].state.passages[0].title == "Goethe in Rome"


def test_conversations_of_mtrag(tmp_path, capsys):
    tasks = [task(1, "PARTIAL"), task(2, "UNANSWERABLE"), task(3, "CONVERSATIONAL"), task(4, "ANSWERABLE", contexts=[])]
    file = lines(tmp_path / "human" / "generation_tasks" / "reference+RAG.jsonl", tasks)
    rows = read_labelled(made(tmp_path, f"mtrag={file}") / "answerability_dev.jsonl", "answerability")
    assert [(row.id, row.label) for row in rows] == [("c1<::>1", "answerable"), ("c1<::>2", "unanswerable")]
    assert [message.role for message in rows[0].state.messages] == ["user", "assistant", "user"]
    said = capsys.readouterr().out
    assert "left out: a question that is CONVERSATIONAL: 1; no passages: 1" in said


def test_rewrites_of_mtrag_with_their_passages(tmp_path):
    human = tmp_path / "human"
    lines(human / "generation_tasks" / "reference.jsonl", [task(1, "ANSWERABLE"), task(2, "ANSWERABLE")])
    folder = human / "retrieval_tasks" / "clapnq"
    rewrites = [
        {"_id": "c1<::>1", "text": "|user|: Who wrote Faust?"},
        {"_id": "c1<::>2", "text": "|user|: Who wrote it?"},
    ]
    file = lines(folder / "clapnq_rewrite.jsonl", rewrites)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nc1<::>1\td1\t1\nc1<::>1\td2\t0\n")
    out = made(tmp_path, f"mtrag_rewrite={file}")
    first, second = read_labelled(out / "query_rewrite_dev.jsonl", "query_rewrite")
    assert (first.text, first.source, first.relevant) == ("Who wrote Faust?", "mtrag clapnq/changed", {"d1"})
    assert first.answers == ("Goethe.",)
    assert (second.source, second.relevant) == ("mtrag clapnq/unchanged", frozenset())


@pytest.mark.parametrize(("part", "ids"), [("dev", ["ragtruth-1"]), ("train", ["ragtruth-4"])])
def test_answers_of_ragtruth(tmp_path, capsys, part, ids):
    lines(tmp_path / "source_info.jsonl", SOURCES)
    out = made(tmp_path, f"ragtruth={lines(tmp_path / 'response.jsonl', RESPONSES)}", part=part)
    rows = read_labelled(out / f"hallucination_{part}.jsonl", "hallucination_detection")
    assert [row.id for row in rows] == ids
    assert [passage.text for passage in rows[0].state.passages] == ["Goethe did.", "In 1808."]
    if part == "dev":
        assert rows[0].spans == (((0, 19), "faithful"), ((20, 28), "unfaithful"))
        assert "a response of quality truncated: 1; a response of Summary: 1" in capsys.readouterr().out


def test_questions_of_mmlu_from_the_hub_and_from_a_csv_file(tmp_path):
    (tmp_path / "anatomy_test.csv").write_text('"Bones, how many?",105,206,300,"400, about",B\n')
    hub = lines(tmp_path / "mmlu.jsonl", [MMLU])
    out = made(tmp_path, f"mmlu={hub}", f"mmlu={tmp_path / 'anatomy_test.csv'}")
    first, second = read_questions(out / "uncertainty_dev.jsonl")
    assert (first.dataset, first.options, first.right) == ("abstract_algebra", ("1", "2", "3", "4"), 1)
    assert (second.dataset, second.options[3], second.right) == ("anatomy", "400, about", 1)


def test_cited_answers(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(ALCE))
    (tmp_path / "LongBench-Cite.json").write_text(json.dumps(CONTEXTS))
    (tmp_path / "preds.json").write_text(json.dumps(LONG))
    out = made(tmp_path, f"alce={tmp_path}/run.json", f"longbench_cite={tmp_path}/preds.json")
    alce, long = read_labelled(out / "citations_dev.jsonl", "citation_generation")
    assert alce.state.messages[-1].content == "Goethe did. It is long."
    assert [(alce.state.messages[-1].content[a:b], passage) for (a, b), passage, _ in alce.citations] == [
        ("Goethe did.", 0), ("It is long.", 0), ("It is long.", 1)
    ]  # fmt: skip
    assert long.source == "hotpotqa/cited"
    (((begin, end), _, (first, last)),) = long.citations
    assert long.state.messages[-1].content[begin:end] == "Goethe did."
    assert long.state.passages[0].text[first:last] == "By Goethe."


RECORD = {
    "id": "q1", "text": "Goethe", "error": None, "scores": {"contains": [1.0, 1.0]},
    "trace": {"question": "Who?", "best": 0, "nodes": [{"path_score": 2.5}],
              "decisions": [{"passages": [{"id": "p", "title": "Faust", "text": "By Goethe."}]}]},
}  # fmt: skip


def test_answers_of_a_run_are_rows_of_uncertainty(tmp_path, capsys):
    records = [RECORD, RECORD | {"id": "q2", "error": "gone"}, RECORD | {"id": "q3", "scores": {"rouge_l": [0, 1]}}]
    out = made(tmp_path, f"run={lines(tmp_path / 'nq_dev.jsonl', records)}", part="train")
    (row,) = read_questions(out / "uncertainty_train.jsonl")
    assert (row.id, row.dataset, row.text, row.score, row.is_right) == ("q1", "nq_dev", "Goethe", 2.5, True)
    assert [one.text for one in row.given.passages] == ["By Goethe."]
    assert "an item without an answer: 1; an answer that `contains` does not score: 1" in capsys.readouterr().out


ARC = {"id": "7", "question": "Q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
SOCIAL = {"context": "C.", "question": "Q", "answerA": "a", "answerB": "b", "answerC": "c", "label": "2"}
MEDICAL = {"question": "Q", "opa": "a", "opb": "b", "opc": "c", "opd": "d", "cop": 1}
CODAH = {"question_propmt": "Q", "candidate_answers": ["a", "b"], "correct_answer_idx": 1}
DREAM = {"dialogue": ["M: Hi."], "question": "Q", "choice": ["a", "b", "c"], "answer": "b"}
BIG = {"inputs": "Q", "multiple_choice_targets": ["a", "b"], "multiple_choice_scores": [0, 1]}


@pytest.mark.parametrize(
    ("record", "question", "options"),
    [
        (ARC, "Q", 2),
        ({"goal": "Q", "sol1": "a", "sol2": "b", "label": 1}, "Q", 2),
        (SOCIAL, "C. Q", 3),
        (MEDICAL, "Q", 4),
        (BIG, "Q", 2),
        (CODAH, "Q", 2),
        (DREAM, "M: Hi.\nQ", 3),
    ],
)
def test_multiple_choice_of_the_hub(tmp_path, record, question, options):
    hidden = {"goal": "Q", "sol1": "a", "sol2": "b", "label": -1}
    out = made(tmp_path, f"choices={lines(tmp_path / 'set.jsonl', [record, hidden])}", part="train")
    (row,) = read_questions(out / "uncertainty_train.jsonl")
    assert (row.dataset, row.question, len(row.options), row.options[row.right]) == ("set", question, options, "b")


def test_a_judge_labels_the_sentences_of_answers(tmp_path):
    file = lines(tmp_path / "nq_dev.jsonl", [RECORD | {"text": "Goethe did. In 1700. Or did he?"}])
    judge = Ruled(lambda known, said: None if "?" in said else "Goethe" in said and "By Goethe." in known)
    write_rows([parse(f"answers={file}")], tmp_path, "train", Labelling(judge=judge))
    (row,) = read_labelled(tmp_path / "hallucination_train.jsonl", "hallucination_detection")
    assert row.spans == (((0, 11), "faithful"), ((12, 20), "unfaithful"), ((21, 31), "NA"))


def test_a_checker_leaves_out_rows_whose_label_it_does_not_give(tmp_path, capsys):
    tasks = [task(number, label) for number, label in enumerate(("ANSWERABLE", "UNANSWERABLE", "ANSWERABLE"))]
    tokens = [("answerable", {"answerable": -0.1, "unanswerable": -2.5})]
    with ChatServer(lambda body: said("answerable", tokens if body.get("logprobs") else None)) as server:
        file = lines(tmp_path / "reference+RAG.jsonl", tasks)
        assert main(["eval", "rows", f"mtrag={file}", "-o", str(tmp_path), "--check", f"m@{server.url}/v1"]) == 0
    rows = read_labelled(tmp_path / "answerability_dev.jsonl", "answerability")
    assert [row.id for row in rows] == ["c1<::>0", "c1<::>2"]
    assert "left out, as m does not give their label: 1 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "record", "said"),
    [
        ("squad", HUB, "unknown format 'squad'; known: squad2, mtrag"),
        ("mtrag", task(1, "ANSWERABLE", input=[{"speaker": "ghost", "text": "Boo"}]), "unknown speaker 'ghost'"),
        ("mtrag", task(1, "CONVERSATIONAL"), "no row for mtrag; a question that is CONVERSATIONAL: 1"),
        ("ragtruth", RESPONSES[0], "source_info.jsonl"),
        ("mmlu", MMLU | {"answer": 9}, "label 'J' names none of the 4 options"),
        ("run", RECORD | {"trace": None}, "run with --traces"),
        ("choices", {"question": "Q"}, "no multiple choice in a row with 'question'"),
        ("answers", RECORD, "answers of a run have no labels; give a judge with --judge"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, given, record, said):
    file = lines(tmp_path / "file.jsonl", [record])
    assert main(["eval", "rows", f"{given}={file}", "-o", str(tmp_path / "rows")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "rows").glob("*.jsonl"))
