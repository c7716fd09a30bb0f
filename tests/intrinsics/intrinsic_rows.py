"""A few rows of each kind, as the data files have them, and a tiny chat model."""

import json

import pytest
import tiny

FAUST = {
    "doc_id": "d1",
    "title": "Faust",
    "text": "Faust is a play. Goethe wrote it in 1808. It is in verse.",
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def turns(*said):
    """User and assistant in turn."""
    return [
        {"role": ("user", "assistant")[at % 2], "content": text}
        for at, text in enumerate(said)
    ]


def answerable(number):
    label = ("answerable", "unanswerable")[number % 2]
    document = FAUST | {"title": f"Faust {number}"}
    return {
        "id": f"a{number}", "dataset": "d", "conversation": turns(f"Who wrote part {number}?"), "documents": [document],
        "label": label,
    }  # fmt: skip


def rewritten(number):
    return {
        "id": f"q{number}", "dataset": "d", "conversation": turns(f"Who wrote play {number}?", "Goethe.", "When?"),
        "rewrite": f"When did Goethe write play {number}?", "changed": True,
    }  # fmt: skip


def judged(number):
    said = f"Goethe wrote part {number}. It is prose."
    first = len(f"Goethe wrote part {number}.")
    return {
        "id": f"h{number}", "dataset": "d", "conversation": turns("Who wrote it?", said),
        "documents": [FAUST | {"title": f"Faust {number}"}], "label_level": "sentence",
        "sentences": [
            {"begin": 0, "end": first, "text": said[:first], "label": "faithful"},
            {"begin": first + 1, "end": len(said), "text": said[first + 1 :], "label": "unfaithful"},
        ],
    }  # fmt: skip


def cited(number):
    said = f"It was Goethe, says source {number}. That is all."
    begin = FAUST["text"].index("Goethe")
    return {
        "id": f"c{number}", "dataset": "d", "conversation": turns("Who wrote it?", said),
        "documents": [FAUST | {"title": f"Faust {number}"}],
        "citations": [
            {"response_begin": 7, "response_end": 13, "doc_id": "d1", "doc_begin": begin, "doc_end": begin + 6,
             "text": "Goethe"}
        ],
    }  # fmt: skip


def question_row(number):
    return {
        "id": f"u{number}", "dataset": ("x", "y")[number % 2], "question": f"What is {number} plus {number % 7}?",
        "options": [str(number + number % 7), f"{number} apples", "nothing", "a river"], "label": "A",
    }  # fmt: skip


MAKERS = {
    "query_rewrite": ("query_rewrite", rewritten),
    "answerability": ("answerability", answerable),
    "hallucination_detection": ("hallucination", judged),
    "citation_generation": ("citations", cited),
    "uncertainty": ("uncertainty", question_row),
}


def write_data(folder, count=20, questions=200):
    """Training and development files of all five."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, make in MAKERS.values():
        for part, start in (("train", 0), ("dev", 1000)):
            rows = [
                make(start + number)
                for number in range(questions if stem == "uncertainty" else count)
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{stem}_{part}.jsonl").write_text(text, encoding="utf-8")
    return folder


def save_chat_llama(path, context=2048):
    """A tiny Llama whose tokenizer has a chat template."""
    model = tiny.save_llama(path, reflection=False, tie=True, context=context)
    (model / "chat_template.jinja").write_text(CHAT)
    return model


@pytest.fixture(scope="session")
def chat_llama(tmp_path_factory):
    """Directory of a tiny chat model."""
    return save_chat_llama(tmp_path_factory.mktemp("chat") / "tiny-chat")
