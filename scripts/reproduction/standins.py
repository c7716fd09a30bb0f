"""Stand-ins for a rehearsal: made-up files in the formats of the published ones. The model is the demo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

from critic.cases import GROUPS, Case
from retrieval.passage import Passage
from scripts.reproduction.steps import PUBLIC_FILES
from selfrag.common.atomic import write_json, write_text
from selfrag.common.jsonl import write_jsonl
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    write_rows,
)

DOMAINS = ("clapnq", "cloud", "fiqa", "govt")
"""Of MT-RAG."""
ASQA_ITEMS = 20
"""Items of ASQA in a rehearsal; MAUVE needs as many."""
LABELS_EACH = 10
ANSWER = "Goethe did. It is long."
TURNS = (("user", "What is Faust?"), ("agent", "A play."), ("user", "Who wrote it?"))


def write_standins(data: Path) -> None:
    """Write the files of a rehearsal, unless they are there."""
    if not data.exists():
        write_samples(data, ASQA_ITEMS)
        write_qampari(data)
        write_intrinsics(data)
        write_training(data)


_OFFERED = re.compile(r"Reply with one word: (\w+).* or (?:else )?(\w+)\.")
_CONTEXT_ID = re.compile(r"Context ID: (\S+)")


class StandInGrader(BaseHTTPRequestHandler):
    """A chat model that grades with the first and the last word in turn, or 07, and answers with a citation.

    It cites the first passage; asked for reasons, also what was not given and, as its reason, the second passage.
    """

    place = cycle((1, 2))  # of the word in `_OFFERED`

    def do_POST(self) -> None:
        """Answer a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = str(body["messages"][-1]["content"])
        first, second, *_ = [*_CONTEXT_ID.findall(question), "1", "2"]
        text = "07" if "two digits" in question else f"It is Paris [{first}]."
        if "You are also asked" in question:
            text = f"Paris on the Seine [{first}] [none].\n\nSo says [{second}]."
        if offered := _OFFERED.search(question):
            text = offered[next(self.place)]
        choice = {
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        reply = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serve_grader() -> Iterator[str]:
    """Serve the stand-in of the grader on this machine; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInGrader) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


CITIES = (
    ("Paris", "France", "Seine"),
    ("Rome", "Italy", "Tiber"),
    ("Prague", "Czechia", "Vltava"),
)


def write_samples(folder: Path, asqa_items: int = len(CITIES)) -> dict[str, Path]:
    """Write the six files under the names of the public ones, three items each but for ASQA; return them by task."""
    makers = {
        "popqa": _popqa,
        "triviaqa": _triviaqa,
        "pubhealth": _claim,
        "arc-challenge": _multiple_choice,
        "biographies": _biography,
        "asqa": _asqa,
    }
    paths = {}
    for task, make in makers.items():
        count = asqa_items if task == "asqa" else len(CITIES)
        rows = [make(number, *CITIES[number % len(CITIES)]) for number in range(count)]
        paths[task] = folder / PUBLIC_FILES[task]
        if paths[task].suffix == ".json":  # ALCE publishes one array
            _json(paths[task], rows)
        else:
            write_jsonl(paths[task], rows)
    return paths


def _passages(city: str, country: str, river: str) -> list[dict[str, Any]]:
    texts = {
        f"{city} is the capital of {country}.": city,
        f"The {river} flows through {city}.": city,
        "Bread is made of flour.": "Bread",
        "Bread is baked.": "Bread",
        "Rye bread is dark.": "Bread",
    }
    return [
        {"id": f"{city}-{i}", "title": title, "text": text}
        for i, (text, title) in enumerate(texts.items())
    ]


def _popqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    question = f"What is the capital of {country}?"
    return {
        "id": number,
        "question": question,
        "possible_answers": json.dumps([city]),
        "answers": [city],
        "ctxs": _passages(city, country, river),
    }


def _triviaqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    question = f"Which river flows through {city}?"
    passages = _passages(city, country, river)
    return {
        "q_id": f"tqa-{number}",
        "question": question,
        "answers": [river, f"River {river}"],
        "ctxs": passages,
    }


def _claim(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    true = number % 2 == 0
    claim = f"{city} is the capital of {country if true else 'Peru'}."
    passages = _passages(city, country, river)
    return {
        "claim_id": str(number),
        "question": claim,
        "answers": ["true" if true else "false"],
        "ctxs": passages,
    }


def _multiple_choice(
    number: int, city: str, country: str, river: str
) -> dict[str, Any]:
    texts = [city, "Lima", "Quito", "Cusco"]
    return {
        "id": f"arc-{number}",
        "question": f"Which city is the capital of {country}?",
        "choices": {"text": texts, "label": ["A", "B", "C", "D"]},
        "answerKey": "A",
        "ctxs": _passages(city, country, river),
    }


def _biography(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    passages = _passages(city, country, river)
    return {
        "topic": city,
        "input": f"Question: Tell me a bio of {city}.",
        "output": "",
        "ctxs": passages,
    }


def _asqa(number: int, city: str, country: str, river: str) -> dict[str, Any]:
    answer = f"{city} is the capital of {country}, and the {river} flows through it."
    pairs = [
        {"question": f"What is the capital of {country}?", "short_answers": [city]},
        {"question": f"Which river flows through {city}?", "short_answers": [river]},
    ]
    return {
        "sample_id": f"asqa-{number}",
        "question": f"What is {country} known for?",
        "qa_pairs": pairs,
        "annotations": [{"long_answer": answer, "knowledge": []}],
        "answer": answer,
        "docs": _passages(city, country, river),
    }


def write_qampari(data: Path) -> None:
    """Write six questions of QAMPARI, as ALCE publishes them."""
    rows = []
    for number in range(6):
        city, country, river = CITIES[number % len(CITIES)]
        row = {
            "id": f"q{number}__wikidata_simple__dev",
            "question": f"Which places of {country} are known, number {number}?",
            "answers": [[city], [river]],
            "docs": _passages(city, country, river),
        }
        rows.append(row)
    _json(data / "qampari_eval_gtr_top100.json", rows)


def write_mtrag(data: Path) -> None:
    """Write MT-RAG in the folders of its repository: a conversation in each of the four domains.

    Every other question stands alone, and every other one has no passage that a search finds.
    """
    folder = data / "mt-rag-benchmark" / "mtrag-human"
    corpora = data / "mt-rag-benchmark" / "corpora" / "passage_level"
    labels = ("ANSWERABLE", "UNANSWERABLE", "PARTIAL", "ANSWERABLE")
    texts = ["Goethe wrote Faust.", "Faust is a play by Goethe."]
    texts += [f"Goethe wrote Faust, says page {number}." for number in range(22)]
    tasks = []
    for number, (domain, label) in enumerate(zip(DOMAINS, labels, strict=True)):
        searched = [_task(f"{domain}<::>{turn}", label) for turn in (1, 2)]
        tasks += [*searched, _task(f"{domain}<::>3", "UNANSWERABLE")]
        question = "Who wrote Faust?" if number % 2 else TURNS[-1][1]
        rewrites = (
            {"_id": task["task_id"], "text": f"|user|: {question}"} for task in searched
        )
        place = folder / "retrieval_tasks" / domain
        write_jsonl(place / f"{domain}_rewrite.jsonl", rewrites)
        relevant = (f"{domain}-0", f"{domain}-bread")
        judged = ""
        for task, passage in zip(searched, relevant, strict=True):
            judged += f"{task['task_id']}\t{passage}\t1\n"
        (place / "qrels").mkdir(parents=True)
        write_text(place / "qrels" / "dev.tsv", f"query-id\tcorpus-id\tscore\n{judged}")
        passages = [
            {"_id": f"{domain}-{n}", "title": "", "text": text}
            for n, text in enumerate(texts)
        ]
        passages.append({"_id": f"{domain}-bread", "title": "", "text": "Rye bread."})
        write_jsonl(corpora / f"{domain}.jsonl", passages)
    for name in ("reference+RAG", "reference"):
        write_jsonl(folder / "generation_tasks" / f"{name}.jsonl", tasks)


def write_intrinsics(data: Path) -> None:
    """Write the benchmarks of the intrinsics: SQuAD 2, MT-RAG, RAGTruth, MMLU, ALCE's ELI5 and LongBench-Cite."""
    questions = [_squad(number) for number in range(3)]
    articles = [
        {
            "title": "Goethe",
            "paragraphs": [
                {"context": "Goethe went to Rome in 1786.", "qas": questions}
            ],
        }
    ]
    _json(data / "dev-v2.0.json", {"version": "v2.0", "data": articles})
    write_mtrag(data)
    source = {
        "question": "who wrote faust",
        "passages": "passage 1:Goethe did.\n\npassage 2:In 1808.\n\n",
    }
    write_jsonl(
        data / "ragtruth" / "source_info.jsonl",
        [{"source_id": "9", "task_type": "QA", "source_info": source}],
    )
    write_jsonl(
        data / "ragtruth" / "response.jsonl", (_response(number) for number in range(4))
    )
    write_jsonl(data / "mmlu_test.jsonl", (_choice(number) for number in range(12)))
    documents = [
        {"title": "Faust", "text": "By Goethe."},
        {"title": "Rome", "text": "A city."},
    ]
    cited = {
        "question": "Who wrote Faust?",
        "output": "Goethe did [1]. It is long [1][2].",
        "docs": documents,
    }
    _json(data / "alce" / "run.json", {"args": {}, "data": [cited]})
    context = {
        "idx": 3,
        "language": "en",
        "dataset": "hotpotqa",
        "query": "Who?",
        "answer": "",
    }
    _json(
        data / "longbench" / "LongBench-Cite.json",
        [{**context, "context": "Faust. By Goethe. 1808."}],
    )
    cite = [{"st_sent_idx": 1, "end_sent_idx": 1, "cite": "By Goethe."}]
    statements = [
        {"statement": "Goethe did.", "citation": cite},
        {"statement": "Who knows.", "citation": []},
    ]
    predicted = {
        "idx": 3,
        "dataset": "hotpotqa",
        "query": "Who?",
        "statements": statements,
    }
    _json(data / "longbench" / "preds.json", [predicted])


def _squad(number: int) -> dict[str, Any]:
    impossible = number == 1
    answers = [] if impossible else [{"text": "1786", "answer_start": 23}]
    return {
        "id": f"5{number}",
        "question": "When?",
        "is_impossible": impossible,
        "answers": answers,
    }


def _task(name: str, label: str) -> dict[str, Any]:
    """Return a generation task of MT-RAG."""
    return {
        "task_id": name,
        "Answerability": [label],
        "contexts": [
            {
                "document_id": "d1",
                "title": "Faust",
                "text": "Goethe wrote it.",
                "score": 27.7,
            }
        ],
        "input": [
            {"speaker": speaker, "text": text, "metadata": {}}
            for speaker, text in TURNS
        ],
        "targets": [{"speaker": "agent", "text": "Goethe."}],
    }


def _response(number: int) -> dict[str, Any]:
    """Return a response of RAGTruth; every other one has a conflict."""
    conflict = {
        "start": 12,
        "end": 23,
        "text": "It is long.",
        "label_type": "Evident Conflict",
    }
    return {
        "id": str(number),
        "source_id": "9",
        "split": "test",
        "quality": "good",
        "response": ANSWER,
        "labels": [conflict] if number % 2 else [],
    }


def _choice(number: int) -> dict[str, Any]:
    """Return a question of MMLU, of one of two subjects; each letter is right as often."""
    answer = number % 4
    first = 1 + number - answer
    return {
        "question": f"1+{number}?",
        "subject": ("abstract_algebra", "anatomy")[number // 4 % 2],
        "choices": [str(first + place) for place in range(4)],
        "answer": answer,
    }


def write_training(data: Path) -> None:
    """Write labelled cases of the critic, and rows of the generator."""
    labelled: list[Case] = []
    rows: list[TrainingRow] = []
    for number in range(LABELS_EACH):
        city, country, river = CITIES[number % len(CITIES)]
        passage = Passage(f"p{number}", f"{city} is the capital of {country}.", city)
        question = f"What is capital number {number} of {country}?"
        answer = f"It is {city} on the {river}."
        for group, labels in GROUPS.items():
            label = labels.names[number % len(labels.names)]
            if group == "Retrieve":
                # without evidence, nothing can be continued
                label = labels.names[number % 2]
            case = Case.of(
                group,
                question,
                "",
                answer,
                None if group in ("Retrieve", "IsUse") else passage,
                id=f"{group}-{number}",
                label=label,
            )
            labelled.append(case)
        supported = (
            TargetToken("[Relevant]"),
            TargetText(answer),
            TargetToken("[Fully supported]"),
            TargetToken("[Utility:5]"),
        )
        target = (TargetToken("[Retrieval]"), TargetEvidence(passage), *supported)
        rows.append(TrainingRow(f"row-{number}", "stand-in", question, target))
    write_jsonl(data / "critic_labels.jsonl", (row.as_dict() for row in labelled))
    write_rows(data / "generator_rows.jsonl", rows)


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)
