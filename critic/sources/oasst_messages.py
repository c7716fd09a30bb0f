"""Open Assistant 1 as a table of messages (Hugging Face `OpenAssistant/oasst1`, `.messages.jsonl.gz`).

    {"message_id": "..", "parent_id": null, "message_tree_id": "..", "role": "prompter", "lang": "en", "text": "..",
     "deleted": false, "review_result": true, "rank": null, ..}

Messages of a tree follow each other, its prompt first; so one prompt at a time is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from critic.sources.fields import identifier, text
from critic.sources.oasst_trees import check_prompt, reply_outcome
from critic.sources.raw import Outcome, Raw, Skipped, UnusableError
from retrieval.errors import UserError


def read(rows: Iterable[Raw], dataset: str, language: str | None) -> Iterator[Outcome]:
    """Pairs of initial prompts and their first replies; later messages are skipped and counted.

    Raises:
        UserError: a message is malformed, or does not follow the prompt of its tree.
    """
    prompt: Raw | None = None
    refused, answered = "", True
    for raw in rows:
        outcome: Outcome | None = None
        with raw.blamed():
            if raw.record.get("parent_id") is None:
                if prompt is not None and not answered:
                    yield Skipped(prompt.place, "no output")
                prompt, refused = raw, _refusal(raw, language)
                answered = bool(refused)
                outcome = Skipped(raw.place, refused) if refused else None
            elif _first_reply(raw, prompt):
                outcome = Skipped(raw.place, f"a reply to a prompt that was left out ({refused})") if refused else None
                answered = True
            else:
                outcome = Skipped(raw.place, "a later message of a conversation")
            if outcome is None and prompt is not None and raw is not prompt:
                outcome = reply_outcome(raw.place, dataset, text(prompt.record, "text"), raw.record)
        if outcome is not None:
            yield outcome
    if prompt is not None and not answered:
        yield Skipped(prompt.place, "no output")


def _refusal(raw: Raw, language: str | None) -> str:
    identifier(raw.record, "message_id")
    try:
        check_prompt(raw.record, language)
    except UnusableError as error:
        return str(error)
    return ""


def _first_reply(raw: Raw, prompt: Raw | None) -> bool:
    tree = identifier(raw.record, "message_tree_id")
    if prompt is None or identifier(prompt.record, "message_tree_id") != tree:
        raise UserError(f"a message of tree {tree:.60} that does not follow its prompt; sort the file by trees")
    return bool(raw.record["parent_id"] == prompt.record["message_id"])
