"""Open Assistant 1 as trees (`.._ready.trees.jsonl.gz`): each accepted first reply of an initial prompt is a pair.

{"message_tree_id": "..", "tree_state": "ready_for_export", "prompt": {"message_id": "..", "role": "prompter",
 "lang": "en", "text": "..", "deleted": false, "replies": [{"message_id": "..", "role": "assistant", "rank": 0,
 "review_result": true, "deleted": false, "text": "..", "replies": [..]}]}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from critic.sources.fields import identifier, mapping, objects, text
from critic.sources.raw import Outcome, Raw, Skipped, UnusableError, make_pair
from retrieval.errors import UserError

PROMPTER, ASSISTANT = "prompter", "assistant"


def read(rows: Iterable[Raw], dataset: str, language: str | None) -> Iterator[Outcome]:
    """Pairs of each tree, replies in their order.

    Raises:
        UserError: a tree is malformed.
    """
    for raw in rows:
        with raw.blamed():
            outcomes = list(_tree(raw, dataset, language))
        yield from outcomes


def _tree(raw: Raw, dataset: str, language: str | None) -> Iterator[Outcome]:
    prompt = mapping(raw.record, "prompt")
    try:
        check_prompt(prompt, language)
        if not prompt.get("replies"):
            raise UnusableError("no output")
    except UnusableError as error:
        yield Skipped(raw.place, str(error))
        return
    for reply in objects(prompt, "replies"):
        yield reply_outcome(raw.place, dataset, text(prompt, "text"), reply)


def check_prompt(prompt: Mapping[str, Any], language: str | None) -> None:
    """Check the message that a tree begins with.

    Raises:
        UserError: it is not by a prompter.
        UnusableError: it was deleted, or is in another language.
    """
    if text(prompt, "role") != PROMPTER:
        raise UserError(f"a tree begins with a {PROMPTER}, not with {prompt['role']!r:.60}")
    if prompt.get("deleted"):
        raise UnusableError("a deleted prompt")
    if language is not None and text(prompt, "lang") != language:
        raise UnusableError(f"not in {language!r}")


def reply_outcome(place: str, dataset: str, instruction: str, reply: Mapping[str, Any]) -> Outcome:
    """The pair of a prompt and one reply to it, filed under the reply's id.

    Raises:
        UserError: the reply is malformed.
    """
    if text(reply, "role") != ASSISTANT:
        raise UserError(f"a {PROMPTER} is answered by an {ASSISTANT}, not by {reply['role']!r:.60}")
    try:
        if reply.get("deleted") or reply.get("review_result") is False:
            raise UnusableError("a reply that was deleted or did not pass review")
        key = f"{dataset}-{identifier(reply, 'message_id')}"
        return make_pair(key, dataset, "instruction", instruction, text(reply, "text"))
    except UnusableError as error:
        return Skipped(place, str(error))
