"""What chat clients ask behind the user's back: titles, tags and the like, which no document answers.

Open WebUI names the JSON that it expects after `### Task:`; LibreChat asks for a title in words. The reply has that
form, and neither the model nor the index is prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace

NOTE = "a task of the chat client, such as a title; answered without the model and the documents"
_TASK = re.compile(r"\s*### Task:.*?\{\s*\"(\w+)\"\s*:.*<chat_history>", re.DOTALL)
_TITLE = re.compile(
    r"\s*(?:Provide|Please generate) a concise, 5-word-or-less title for the conversation"
)
_TOOLS = re.compile(r"\s*Available Tools: .*\"tool_calls\"", re.DOTALL)
_FACE = re.compile(r"\s*Your task is to reflect the speaker's likely facial expression")
_HISTORY = re.compile(r"(?:<chat_history>|Conversation:)\s*(.*)", re.DOTALL)
_SAID = re.compile(r"^(?:USER|User): (.+)", re.MULTILINE)
_MOST_WORDS = 6


def answer_task(
    question: str | Sequence[Mapping[str, str]], decoding: Decoding
) -> Answer | None:
    """Return the reply to a task of a chat client; None for a question of a person."""
    turns = question
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    prompt = turns[-1]["content"]
    text = _reply(prompt)
    if text is None and any(_TOOLS.match(turn["content"]) for turn in turns):
        text = json.dumps({"tool_calls": []})
    if text is None:
        return None
    trace = Trace(prompt, decoding, (), (), None)
    return Answer(prompt, text, (), Usage(), trace, note=NOTE)


def _reply(prompt: str) -> str | None:
    if _FACE.match(prompt):
        return "\U0001f642"
    if _TITLE.match(prompt):
        return _topic(prompt)
    task = _TASK.match(prompt)
    if task is None:
        return None
    neutral: dict[str, Any] = {
        "title": _topic(prompt),
        "tags": ["General"],  # what the prompt asks for where nothing is clear
        "follow_ups": [],
        "queries": [],
        "text": "",
        "prompt": _topic(prompt),
    }
    if task[1] not in neutral:
        return None
    return json.dumps({task[1]: neutral[task[1]]}, ensure_ascii=False)


def _topic(prompt: str) -> str:
    """Return the first words of the user in the conversation that a task quotes."""
    history = _HISTORY.search(prompt)
    said = _SAID.search(history[1]) if history else None
    if said is None:
        return "Conversation"
    words = said[1].strip('"').split()
    return " ".join(words[:_MOST_WORDS]).rstrip("?!.,;:")
