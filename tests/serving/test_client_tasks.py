"""Prompts that chat clients send by themselves, in their own words: openings of the templates of today.

Open WebUI: `backend/open_webui/config.py` of open-webui/open-webui. LibreChat: `src/utils/title.ts` of
danny-avila/agents, and its older `titleInstruction`.
"""

import json

import pytest
from served import events, random_rag

from selfrag.serving.client_tasks import NOTE

HISTORY = (
    "### Chat History:\n<chat_history>\n"
    "USER: At what temperature is green tea brewed, please?\nASSISTANT: 80 degrees. [1]\n</chat_history>"
)
SAID = "Conversation:\nUser: At what temperature is green tea brewed, please?\nAI: 80 degrees."
TOPIC = "At what temperature is green tea"
PROMPTS = [
    (
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
        f'### Output:\nJSON format: {{ "title": "your concise title here" }}\n{HISTORY}',
        {"title": TOPIC},
    ),
    (
        "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, along with 1-3 more "
        f'specific subtopic tags.\n\n### Output:\nJSON format: {{ "tags": ["tag1", "tag2", "tag3"] }}\n\n{HISTORY}',
        {"tags": ["General"]},
    ),
    (
        "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next\n"
        f'### Output:\nJSON format: {{ "follow_ups": ["Question 1?", "Question 2?"] }}\n{HISTORY}"',
        {"follow_ups": []},
    ),
    (
        "### Task:\nAnalyze the chat history to determine the necessity of generating search queries, in the given "
        f'language.\n- respond in the format: {{ "queries": ["query1", "query2"] }}\n{HISTORY}',
        {"queries": []},
    ),
    (
        "### Task:\nYou are an autocompletion system. Continue the text in `<text>`\n"
        f'5. If unsure, return: `{{ "text": "" }}`.\n### Context:\n{HISTORY}\n<text>Who</text>\n#### Output:',
        {"text": ""},
    ),
    (
        "### Task:\nGenerate a detailed prompt for am image generation task based on the given language and context.\n"
        f'Strictly return in JSON format:\n{{\n    "prompt": "Your detailed description here."\n}}\n\n{HISTORY}',
        {"prompt": TOPIC},
    ),
    (
        "Your task is to reflect the speaker's likely facial expression through a fitting emoji.\n\nMessage: ```Hi```",
        "\U0001f642",
    ),
    (
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. "
        f"Only return the title itself.\n\n{SAID}",
        TOPIC,
    ),
    (
        "Please generate a concise, 5-word-or-less title for the conversation, using its same language, "
        f"with no punctuation.\n\n{SAID}\n\nTitle: ",
        TOPIC,
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt, expected", PROMPTS)
def test_a_task_of_a_client_is_not_answered_from_the_documents(
    serve, prompt, expected, stream
):
    running = serve()
    reply = running.chat(prompt, stream=stream)
    assert running.service.rag.engine.requests == []
    if stream:
        chunks = events(reply)
        about = chunks[-1]["selfrag"]
        text = "".join(
            chunk["choices"][0]["delta"].get("content", "") for chunk in chunks
        )
    else:
        about = reply.json()["selfrag"]
        text = reply.json()["choices"][0]["message"]["content"]
    assert (json.loads(text) if text.startswith("{") else text) == expected
    assert about["note"] == NOTE
    assert about["citations"] == []
    assert about["usage"]["searches"] == 0
    assert not about["abstained"]


def test_the_choice_of_tools_is_left_to_nobody(serve):
    system = 'Available Tools: [{"name": "search"}]\n\nan empty array: \n {\n "tool_calls": []\n }'
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": 'Query: History:\nUSER: """Hi"""\nQuery: Hi'},
    ]
    reply = serve().chat(messages=messages).json()
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"tool_calls": []}


@pytest.mark.parametrize(
    "question",
    [
        "Generate a concise title for my essay.",
        "### Task: Who painted Guernica?",
        'What does {"title": "x"} mean in ### Task: of <chat_history>?',
        '### Task:\nExplain { "colour": 1 } <chat_history>',
        "Provide a title.",
    ],
)
def test_questions_of_people_are_answered(serve, question):
    about = serve().chat(question).json()
    expected = random_rag().generate(question).cited_text()
    assert about["choices"][0]["message"]["content"] == expected
    assert about["selfrag"]["note"] is None
