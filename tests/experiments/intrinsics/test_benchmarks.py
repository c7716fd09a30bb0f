"""Public benchmarks in their published schemas, as rows of the intrinsics."""

from pathlib import Path

import pytest
from chat_server import ChatServer, said
from json_files import parse_table, read_json, read_lines, write_json, write_lines
from tiny_judges import Ruled

from selfrag.cli.main import main
from selfrag.evaluation.task_files import read_task
from selfrag.experiments.intrinsics.benchmarks import parse, write_rows
from selfrag.judges.entailment import ENTAILMENT
from selfrag.judges.external import FunctionJudge
from selfrag.training.intrinsics.rows import read_labelled

SAMPLES = read_json(Path(__file__).with_name("benchmark_samples.json"))
"""A row of each file as it is published."""
RECORD = SAMPLES["record"]


def task(number, label, **more):
    """A generation task of MT-RAG; its files hold NaN."""
    return {
        "task_id": f"c1<::>{number}",
        "Answerability": [label],
        "Multi-Turn": float("nan"),
        **SAMPLES["mtrag"],
        **more,
    }


def lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, records)
    return path


def made(folder, *sources, part="dev"):
    """The rows that the command makes of files, each of which was checked as it was written."""
    line = f"eval rows {' '.join(sources)} -o {folder}/rows --part {part}"
    assert main(line.split()) == 0
    (file,) = (folder / "rows").iterdir()
    return read_lines(file)


def test_answerability(tmp_path, capsys):
    articles = {"version": "v2.0", "data": [SAMPLES["squad2_article"]]}
    squad = write_json(tmp_path / "dev-v2.0.json", articles)
    hub = lines(tmp_path / "hub.jsonl", SAMPLES["squad2_hub"])
    rows = made(tmp_path, f"squad2={squad}", f"squad2={hub}")
    assert "squad2: 2 rows in" in capsys.readouterr().out
    labels = {"squad2-5a": "answerable", "squad2-5b": "unanswerable"}
    labels["squad2-5c"] = "answerable"
    assert {row["id"]: row["label"] for row in rows} == labels
    assert rows[2]["documents"][0]["title"] == "Goethe in Rome"

    tasks = [
        task(1, "PARTIAL"),
        task(2, "UNANSWERABLE"),
        task(3, "CONVERSATIONAL"),
        task(4, "ANSWERABLE", contexts=[]),
    ]
    file = lines(tmp_path / "reference+RAG.jsonl", *tasks)
    rows = made(tmp_path / "mtrag", f"mtrag={file}")
    labels = {"c1<::>1": "answerable", "c1<::>2": "unanswerable"}
    assert {row["id"]: row["label"] for row in rows} == labels
    roles = [turn["role"] for turn in rows[0]["conversation"]]
    assert roles == ["user", "assistant", "user"]
    left = "left out: a question that is CONVERSATIONAL: 1; no passages: 1"
    assert left in capsys.readouterr().out


def test_rewrites_with_their_passages(tmp_path):
    lines(
        tmp_path / "generation_tasks/reference.jsonl",
        task(1, "ANSWERABLE"),
        task(2, "ANSWERABLE"),
    )
    folder = tmp_path / "retrieval_tasks/clapnq"
    texts = {"c1<::>1": "|user|: Who wrote Faust?", "c1<::>2": "|user|: Who wrote it?"}
    rows = ({"_id": key, "text": text} for key, text in texts.items())
    file = lines(folder / "clapnq_rewrite.jsonl", *rows)
    (folder / "qrels").mkdir()
    (folder / "qrels/dev.tsv").write_text(
        "query-id\tcorpus-id\tscore\nc1<::>1\td1\t1\nc1<::>1\td2\t0\n"
    )
    first, second = made(tmp_path, f"mtrag_rewrite={file}")
    wanted = {"rewrite": "Who wrote Faust?", "dataset": "mtrag clapnq"}
    wanted |= {"relevant": ["d1"], "changed": True, "answers": ["Goethe."]}
    assert first.items() >= wanted.items()
    assert not second["changed"]
    assert second["relevant"] == []


def test_faithfulness(tmp_path, capsys):
    sources = {"9": ("QA", SAMPLES["ragtruth_source"]), "8": ("Summary", "A text.")}
    known = (
        {"source_id": key, "task_type": kind, "source_info": info}
        for key, (kind, info) in sources.items()
    )
    lines(tmp_path / "source_info.jsonl", *known)
    responses = [SAMPLES["ragtruth"], *SAMPLES["ragtruth_others"]]
    file = lines(tmp_path / "response.jsonl", *responses)
    (row,) = made(tmp_path / "train", f"ragtruth={file}", part="train")
    assert row["id"] == "ragtruth-4"
    (row,) = made(tmp_path / "dev", f"ragtruth={file}")
    assert [part["text"] for part in row["documents"]] == ["Goethe did.", "In 1808."]
    labels = [(part["begin"], part["end"], part["label"]) for part in row["sentences"]]
    assert row["id"] == "ragtruth-1"
    assert labels == [(0, 19, "faithful"), (20, 28, "unfaithful")]
    left = "a response of quality truncated: 1; a response of Summary: 1"
    assert left in capsys.readouterr().out

    record = RECORD | {"text": "Goethe did. In 1700. Or did he?"}
    answers = parse(f"answers={lines(tmp_path / 'nq.jsonl', record)}")

    def rule(known, said):
        return None if "?" in said else "Goethe" in said and "By Goethe." in known

    judge = Ruled(rule)
    write_rows([answers], tmp_path / "judged", "train", judge)
    (row,) = read_lines(tmp_path / "judged/hallucination_train.jsonl")
    graded = [(part.get("score"), part.get("label")) for part in row["sentences"]]
    assert graded == [(1.0, None), (0.0, None), (None, "NA")]
    # Between them the probability of entailment gives the range (intrinsics, 4.3).
    shares = lambda states: [(0.34, 0.66)] * len(states)  # noqa: E731
    judge = FunctionJudge("nli", ENTAILMENT, shares)
    write_rows([answers], tmp_path / "graded", "train", judge)
    path = tmp_path / "graded/hallucination_train.jsonl"
    (read_back,) = read_labelled(path, "hallucination_detection")
    assert {label for _, label in read_back.spans} == {"0.3-0.4"}


def test_cited_answers(tmp_path):
    write_json(tmp_path / "run.json", {"args": {}, "data": [SAMPLES["alce"]]})
    contexts, predicted = (
        [
            {"idx": idx, "language": language} | sample
            for idx, language in enumerate(("en", "zh"), 3)
        ]
        for sample in (SAMPLES["longbench"], SAMPLES["longbench_replies"])
    )
    write_json(tmp_path / "LongBench-Cite.json", contexts)
    write_json(tmp_path / "preds.json", predicted)
    files = (f"alce={tmp_path}/run.json", f"longbench_cite={tmp_path}/preds.json")
    alce, long = made(tmp_path, *files)

    def cited(row):
        said = row["conversation"][-1]["content"]
        texts = {document["doc_id"]: document["text"] for document in row["documents"]}
        return [
            (
                said[c["response_begin"] : c["response_end"]],
                texts[c["doc_id"]][c["doc_begin"] : c["doc_end"]],
            )
            for c in row["citations"]
        ]

    assert alce["conversation"][-1]["content"] == "Goethe did. It is long."
    assert cited(alce) == parse_table("""
Goethe did. | By Goethe.
It is long. | By Goethe.
It is long. | A city.
""")
    said = long["conversation"][-1]["content"]
    statements = [said[begin:end] for begin, end in long["statements"]]
    told = [
        one["statement"].strip() for one in SAMPLES["longbench_replies"]["statements"]
    ]
    assert statements == [*filter(None, told)]
    assert long["dataset"] == "hotpotqa"
    assert cited(long) == [("Goethe did.", "By Goethe.")]


def test_questions_of_certainty(tmp_path, capsys):
    (tmp_path / "anatomy_test.csv").write_text(
        '"Bones, how many?",105,206,300,"400, about",B\n'
    )
    hub = lines(tmp_path / "mmlu.jsonl", SAMPLES["mmlu"])
    csv = tmp_path / "anatomy_test.csv"
    first, second = made(tmp_path, f"mmlu={hub}", f"mmlu={csv}")
    wanted = {"dataset": "abstract_algebra", "options": [*"1234"], "label": "B"}
    assert first.items() >= wanted.items()
    assert second["dataset"] == "anatomy"
    assert second["label"] == "B"
    assert second["options"][3] == "400, about"

    records = [
        RECORD,
        RECORD | {"id": "q2", "error": "gone"},
        RECORD | {"id": "q3", "scores": {"f1": [0, 1]}},
        RECORD | {"id": "q4", "scores": {"contains": [0, 1], "rouge_l": [0.31, 1]}},
    ]
    file = lines(tmp_path / "nq_dev.jsonl", *records)
    row, free = made(tmp_path / "run", f"run={file}", part="train")
    wanted = {"id": "q1", "dataset": "nq_dev", "answer": "Goethe", "score": 2.5}
    assert row.items() >= wanted.items()
    assert row["right"] is free["right"] is True
    assert [document["text"] for document in row["documents"]] == ["By Goethe."]
    assert (
        "an item without an answer: 1; an answer that neither `contains` nor `rouge_l` scores: 1"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", SAMPLES["choices"])
def test_multiple_choice_of_the_hub(name, tmp_path, capsys):
    record, question, options = SAMPLES["choices"][name]
    nothing_right = {"goal": "Q", "sol1": "a", "sol2": "b", "label": -1}
    file = lines(tmp_path / f"{name}.jsonl", record, nothing_right)
    (row,) = made(tmp_path, f"choices={file}", part="train")
    assert row["dataset"] == name
    assert row["question"] == question
    assert row["label"] == "B"
    assert len(row["options"]) == options
    assert "a question without one right option: 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", SAMPLES["written"])
def test_questions_with_written_answers_of_the_hub(name, tmp_path):
    """`selfrag eval run` reads them, and `run` makes rows of its answers."""
    record, question, passages = SAMPLES["written"][name]
    (item,) = read_task(lines(tmp_path / f"{name}.jsonl", record)).items
    assert item.instruction == question
    assert set(item.answers) == {"A"}
    assert [passage.text for passage in item.passages] == passages


def test_a_checker_leaves_out_rows_whose_label_it_does_not_give(tmp_path, capsys):
    tasks = [
        task(number, label)
        for number, label in enumerate(("ANSWERABLE", "UNANSWERABLE", "ANSWERABLE"))
    ]
    tokens = [("answerable", {"answerable": -0.1, "unanswerable": -2.5})]
    file = lines(tmp_path / "reference+RAG.jsonl", *tasks)
    with ChatServer(
        lambda body: said("answerable", tokens if body.get("logprobs") else None)
    ) as server:
        line = f"eval rows mtrag={file} -o {tmp_path} --check m@{server.url}/v1"
        assert main(line.split()) == 0
    rows = read_lines(tmp_path / "answerability_dev.jsonl")
    assert [row["id"] for row in rows] == ["c1<::>0", "c1<::>2"]
    assert "left out, as m does not give their label: 1 row" in capsys.readouterr().out


@pytest.mark.parametrize(
    "source, record, said",
    [
        (
            "squad",
            SAMPLES["squad2_hub"],
            "unknown format 'squad'; known: squad2, mtrag",
        ),
        (
            "mtrag",
            task(1, "ANSWERABLE", input=[{"speaker": "ghost", "text": "Boo"}]),
            "unknown speaker 'ghost'",
        ),
        (
            "mtrag",
            task(1, "CONVERSATIONAL"),
            "no row for mtrag; a question that is CONVERSATIONAL: 1",
        ),
        ("ragtruth", SAMPLES["ragtruth"], "source_info.jsonl"),
        (
            "mmlu",
            SAMPLES["mmlu"] | {"answer": 9},
            "label 'J' names none of the 4 options",
        ),
        ("run", RECORD | {"trace": None}, "run with --traces"),
        ("choices", {"question": "Q"}, "no multiple choice in a row with 'question'"),
        (
            "answers",
            RECORD,
            "answers of a run have no labels; give a judge with --load-judge",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, refusal, source, record, said):
    file = lines(tmp_path / "file.jsonl", record)
    command = f"selfrag eval rows {source}={file} -o {tmp_path}/rows"
    assert said in refusal(command)
    assert not list((tmp_path / "rows").glob("*.jsonl"))
