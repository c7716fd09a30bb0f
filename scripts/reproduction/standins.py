"""Stand-ins for a rehearsal: made-up files in the formats of the published ones, and tiny models of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from critic.cases import GROUPS, Case, LabelledCase
from retrieval.passage import Passage
from scripts.reproduction.steps import PUBLIC_FILES
from selfrag.common.atomic import write_json
from selfrag.common.jsonl import write_jsonl
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    write_rows,
)

ASQA_ITEMS = 20
"""Items of ASQA in a rehearsal; MAUVE needs as many."""
LABELS_EACH = 10
SHORT = 640
"""Context of the model with reflection tokens."""
ANSWER = "Goethe did. It is long."
TURNS = (("user", "What is Faust?"), ("agent", "A play."), ("user", "Who wrote it?"))
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_standins(folder: Path) -> None:
    """Write `files`, the models `model` (with reflection tokens) and `base`, unless they are there."""
    data = folder / "files"
    if not data.exists():
        write_samples(data, ASQA_ITEMS)
        write_intrinsics(data)
        write_training(data)
    for name, reflects in (("model", True), ("base", False)):
        if not (folder / name).exists():
            write_model(folder / name, reflects=reflects)


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


def write_intrinsics(data: Path) -> None:
    """Write the benchmarks of the intrinsics: SQuAD 2, MT-RAG, RAGTruth, MMLU, ALCE's ELI5 and LongBench-Cite."""
    mtrag = data / "mtrag"
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
    labels = ("ANSWERABLE", "UNANSWERABLE", "PARTIAL", "ANSWERABLE")
    tasks = [_task(number, label) for number, label in enumerate(labels)]
    for name in ("reference+RAG", "reference"):
        write_jsonl(mtrag / "generation_tasks" / f"{name}.jsonl", tasks)
    rewrites = (
        {"_id": task["task_id"], "text": "|user|: Who wrote Faust?"} for task in tasks
    )
    write_jsonl(mtrag / "retrieval_tasks" / "clapnq" / "clapnq_rewrite.jsonl", rewrites)
    judged = "".join(f"{task['task_id']}\td1\t1\n" for task in tasks)
    qrels = mtrag / "retrieval_tasks" / "clapnq" / "qrels" / "dev.tsv"
    qrels.parent.mkdir(parents=True)
    qrels.write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    texts = (
        "Goethe wrote Faust.",
        "Rome is a city.",
        "The Spree flows through Berlin.",
    )
    write_jsonl(
        mtrag / "corpus.jsonl",
        (
            {"_id": f"d{n}", "title": "", "text": text}
            for n, text in enumerate(texts, 1)
        ),
    )
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


def _task(number: int, label: str) -> dict[str, Any]:
    """Return a generation task of MT-RAG."""
    return {
        "task_id": f"c1<::>{number}",
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
    """Return a question of MMLU, of one of two subjects."""
    subject = ("abstract_algebra", "anatomy")[number % 2]
    choices = [str(value) for value in range(number, number + 4)]
    return {
        "question": f"1+{number}?",
        "subject": subject,
        "choices": choices,
        "answer": 1,
    }


def write_training(data: Path) -> None:
    """Write labelled cases of the critic, and rows of the generator."""
    labelled: list[LabelledCase] = []
    rows: list[TrainingRow] = []
    for number in range(LABELS_EACH):
        city, country, river = CITIES[number % len(CITIES)]
        passage = Passage(f"p{number}", f"{city} is the capital of {country}.", city)
        question = f"What is capital number {number} of {country}?"
        answer = f"It is {city} on the {river}."
        for group, labels in GROUPS.items():
            case = Case(
                group,
                question,
                "",
                answer,
                None if group in ("Retrieve", "IsUse") else passage,
            )
            label = labels.names[number % len(labels.names)]
            if group == "Retrieve":
                # without evidence, nothing can be continued
                label = labels.names[number % 2]
            labelled.append(LabelledCase(f"{group}-{number}", case, label))
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


def write_model(folder: Path, *, reflects: bool) -> None:
    """Write a tiny Llama of random weights with a chat template, and with reflection tokens if it `reflects`.

    A model that reflects has a short context, so that its answers, which never end, are short.
    """
    import torch

    from scripts.benchmarks.random_models import TINY_DEMO, make_model, make_tokenizer
    from scripts.benchmarks.speed.workload import Item
    from selfrag.training.expansion import add_tokens

    items = []
    for city, country, river in CITIES:
        passage = Passage(
            city, f"The {river} flows through {city}, the capital of {country}.", city
        )
        items.append(Item(f"Which river flows through {city}?", (passage,)))
    tokenizer = make_tokenizer(items)
    if reflects:
        add_tokens(tokenizer)
    tokenizer.chat_template = CHAT
    shape = replace(TINY_DEMO, context=SHORT if reflects else TINY_DEMO.context)
    make_model(shape, tokenizer, "cpu", torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)
