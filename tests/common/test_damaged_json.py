"""JSON beside checkpoints, adapters, runs and studies, damaged in any way: one line, from every reader of it."""

import pytest
from refusals import refused

from critic.augment.run import _finished
from critic.student.card import CARD as CRITIC_CARD
from critic.student.card import read_card
from selfrag.common.errors import UserError
from selfrag.common.reading import parse_json
from selfrag.decoding.trace import Trace
from selfrag.engines.adapters import is_activated, read_adapter
from selfrag.engines.http import HTTPConfig, _vocab_size
from selfrag.evaluation.items import item_of, read_items
from selfrag.evaluation.judging import read_judged
from selfrag.evaluation.metrics.factscore import read_output
from selfrag.evaluation.records import read_manifest
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.training import journal, records
from selfrag.training.export import _read_reflection

DAMAGED = {
    "deep": "[" * 100_000,
    "list": "[]",
    "other": '{"a": 1}',
    "null": "null",
    "half": '{"config": {"seed',
    "types": '{"config": 1, "files": [], "format": {}, "decisions": 0, "vocab_size": "many", "text_config": "x"}',
    "empty": "",
    "binary": "\0\x01",
}


def said_by(found, expected):
    """For those that raise nothing."""
    assert found is expected
    raise UserError("it says so")


READERS = {
    "run": ("manifest.json", read_manifest),
    "training": ("manifest.json", records.recorded),
    "labelling": (
        "manifest.json",
        lambda folder: _finished(
            folder / "manifest.json", {"command": "augment"}, [], 1
        ),
    ),
    "judged": ("rows.judged.x.json", lambda folder: read_judged(folder, "rows")),
    "factscore": (
        "factscore.json",
        lambda folder: read_output(folder / "factscore.json", []),
    ),
    "adapter": ("adapter_config.json", lambda folder: read_adapter("a", folder)),
    "activated adapter": (
        "adapter_config.json",
        lambda folder: said_by(is_activated(folder), False),
    ),
    "intrinsic": (AdapterCard.FILE, AdapterCard.read),
    "critic": (CRITIC_CARD, lambda folder: read_card(folder, None)),
    "reflection": ("reflection.json", _read_reflection),
    "model of a server": (
        "config.json",
        lambda folder: _vocab_size(
            HTTPConfig("http://127.0.0.1:9", model_dir=str(folder)), "m"
        ),
    ),
    "trace": (
        "trace.json",
        lambda folder: Trace.from_json((folder / "trace.json").read_text()),
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_json_file_is_one_line(reader, damage, tmp_path):
    name, read = READERS[reader]
    (tmp_path / name).write_text(DAMAGED[damage])
    (tmp_path / "study.md").write_text("# Study")
    with refused():
        read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x02c__main__\nNone\nq\x00."]
)
def test_a_damaged_state_of_a_training_is_one_line(content, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged"):
        journal.read_state(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(
    "written, read",
    [
        (r'"\ud800"', "\ufffd"),
        (
            r'{"\uDFFF": ["\ud83d", {"a": "x\uDe00y"}]}',
            {"\ufffd": ["\ufffd", {"a": "x\ufffdy"}]},
        ),
        (r'"\ud83d\ude00 \uD83D\uDE00"', "\U0001f600 \U0001f600"),
        (r'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"),
        (r'"\\ud800 \\\ud800 \\\\ud800"', "\\ud800 \\\ufffd \\\\ud800"),
    ],
)
def test_issue_19_halves_of_characters_in_json_are_replaced_on_request(written, read):
    assert parse_json(written, "here", mended=True) == read


def test_issue_19_items_have_no_halves_of_characters(tmp_path):
    row = '{"id": "\\udc00", "task": "short_qa", "answers": [], "instruction": "Who\\ud83d?"}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    (item,) = read_items(tmp_path / "rows.jsonl", item_of)
    assert item.id == "\ufffd"
    assert item.instruction == "Who\ufffd?"
    (tmp_path / "rows.json").write_text('[{"id": "\\udc00\\ud83d\\ude00"}]')
    assert read_items(tmp_path / "rows.json", dict) == [{"id": "\ufffd\U0001f600"}]
