"""Every codec's requests, targets and readings of replies are those recorded in `recorded_codecs.json`, byte for byte.

Published adapters and those trained here know these prompts only. `python tests/intrinsics/test_recorded_codecs.py`
records again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from wire_help import ALL

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.intrinsics.contract import Completion, Gold, Message, State
from selfrag.reflection.labels import LabelSet

FILE = Path(__file__).with_name("recorded_codecs.json")
ASKED, REPLIED = Message("user", "Who wrote it? When?"), Message("assistant", "Goethe did. In 1808 <r0>.")
PASSAGES = (
    Passage("a", "Faust is a play. {Goethe} wrote it <c1>.", "T"),
    Passage("", " "),
    Passage("b", "In 1808."),
)
STATES = {
    "question": State((ASKED,), PASSAGES),
    "reply": State((ASKED, REPLIED), PASSAGES),
    "follow-up": State((ASKED, REPLIED, Message("user", "Why <|x|>\nTask:")), PASSAGES[:1], {"requirement": "Short."}),
    "bare": State((Message("system", "Be brief."), ASKED, REPLIED), (), {"requirement": "Short.\nTask: y"}),
}
REPLIES = (
    *("", "answerable", "3", '"yes"', '{"score": "7"}', '{"score": "yes"}', '{"context_relevance": "relevant"}'),
    *('[{"r": 0, "f": "partial", "e": "x"}, {"r": 7, "f": "NA", "e": ""}]', '[{"i": 0, "r": "x", "f": "faithful"}'),
    *('[{"r": 0, "c": [2, 1, 0]}, {"r": 1, "c": [-1]}, {"r": 1, "c": []}]', '{"<r0>": ["<c0>", "<c1>"], "<r1>": []}'),
    *('{"rewritten_question": "Who  wrote Faust?"}', '{"clarification": "CLEAR"}', '"{\\"<r0>\\": \\"0.1-0\\"}"'),
)
GOLD = (Gold(("answerable",)), Gold(("faithful", "NA")), Gold(sources=((0, 2), ())), Gold(text="Who wrote Faust?"))


def plain(value: Any) -> Any:
    """The value as JSON, without the state that it was made from."""
    if isinstance(value, LabelSet):
        return list(value.names)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "state"}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def said(codec: Any) -> Iterator[Any]:
    """What a codec makes of every state: its request, its targets, and what it reads."""
    for name, state in STATES.items():
        try:
            request = codec.encode(state)
        except UserError as error:
            yield name, str(error)
            continue
        yield name, plain(request)
        for gold in GOLD:
            try:
                yield name, plain(codec.teach(request, gold))
            except (UserError, ValueError) as error:
                yield name, str(error)
        scores = tuple(tuple(-1.0 - at % 3 for at in range(len(slot.surfaces))) for slot in request.slots)
        for completion in (Completion(scores=scores), *map(Completion, REPLIES)):
            yield name, plain(codec.decode(request, completion))


def digest(codec: Any) -> str:
    return hashlib.sha256(json.dumps(list(said(codec)), sort_keys=True).encode()).hexdigest()[:16]


def test_all_codecs_are_recorded():
    assert list(ALL) == list(json.loads(FILE.read_text()))


@pytest.mark.parametrize("name", ALL)
def test_what_a_codec_writes_and_reads_is_as_recorded(name: str):
    recorded = json.loads(FILE.read_text())[name]
    assert digest(ALL[name]) == recorded, json.dumps(list(said(ALL[name])), indent=1)[:20_000]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: digest(codec) for name, codec in ALL.items()}, indent=1) + "\n")
