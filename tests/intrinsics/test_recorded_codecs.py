"""Requests, targets and readings of the own dialect are those recorded in `recorded_codecs.json`, byte for byte.

Adapters that were trained here know these prompts only. Running this file records again.
"""

import json
from pathlib import Path

import pytest
from json_files import read_json
from wire_help import CHAT, digest, said

FILE = Path(__file__).with_name("recorded_codecs.json")


def test_all_codecs_are_recorded():
    assert list(CHAT) == list(read_json(FILE))


@pytest.mark.parametrize("name", CHAT)
def test_what_a_codec_writes_and_reads_is_as_recorded(name):
    recorded = read_json(FILE)[name]
    assert digest(CHAT[name]) == recorded, json.dumps(list(said(CHAT[name])), indent=1)[
        :20_000
    ]


if __name__ == "__main__":
    FILE.write_text(
        json.dumps({name: digest(codec) for name, codec in CHAT.items()}, indent=1)
        + "\n"
    )
