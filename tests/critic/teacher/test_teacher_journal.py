"""The journal: whole lines only, one teacher, nothing lost, nothing doubled."""

from __future__ import annotations

import json
import sys

import pytest
from full_disk import disk_of
from hypothesis import given, settings
from hypothesis import strategies as st
from teaching_server import questions

from critic.teacher.base import Outcome, Reply
from critic.teacher.run import Journal
from retrieval.errors import UserError

TEACHER = {"teacher": "judge", "temperature": 0.0}
GOOD = Reply(Outcome.LABELLED, "Relevant", "[Relevant]\x00\x1b[31m \u2028", source="judge", distribution=(0.75, 0.25))
LINE = {"id": "q", "group": "IsRel", "case": "x", **dict.fromkeys(Reply.__slots__)}
BAD = Reply(Outcome.ASIDE, raw="Perhaps.", reason="0 labels", prompt_tokens=3, requests=1)


def test_replies_come_back_as_they_were(tmp_path) -> None:
    first, second = questions(2)
    with Journal(tmp_path / "j", TEACHER) as journal:
        journal.append(first, GOOD)
        journal.append(second, BAD)
    with Journal(tmp_path / "j", TEACHER) as journal:
        assert journal.reply(first) == GOOD
        assert journal.reply(second) == BAD
        assert (journal.prompt_tokens, journal.requests) == (3, 1)


@settings(max_examples=25)
@given(cut=st.integers(min_value=0, max_value=2_000))
def test_a_file_cut_anywhere_loses_the_torn_line_only(tmp_path_factory, cut) -> None:
    path = tmp_path_factory.mktemp("cut") / "j"
    rows = questions(4)
    with Journal(path, TEACHER) as journal:
        for row in rows:
            journal.append(row, GOOD)
    content = path.read_bytes()
    cut = min(cut, len(content))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    with Journal(path, TEACHER) as journal:
        known = [journal.reply(row) is not None for row in rows]
        assert known == [True] * max(0, whole - 1) + [False] * (4 - max(0, whole - 1))
        for row, there in zip(rows, known, strict=True):
            if not there:
                journal.append(row, GOOD)
    assert path.read_bytes() == content


def test_another_teacher_is_refused_with_what_differs(tmp_path) -> None:
    with Journal(tmp_path / "j", TEACHER):
        pass
    with pytest.raises(UserError, match=r"teacher with other temperature: give the same settings to resume"):
        Journal(tmp_path / "j", {**TEACHER, "temperature": 1.0})


def test_another_case_under_the_same_id_is_refused(tmp_path) -> None:
    [row] = questions(1)
    [other] = questions(1, fault="changed")
    with Journal(tmp_path / "j", TEACHER) as journal:
        journal.append(row, GOOD)
        with pytest.raises(UserError, match="'q0' was answered for another case"):
            journal.reply(other)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "{}",
        json.dumps({**LINE, "outcome": "maybe"}),
        json.dumps({**LINE, "outcome": "labelled", "label": "Fully supported"}),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line) -> None:
    with Journal(tmp_path / "j", TEACHER):
        pass
    with (tmp_path / "j").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"j:2: damaged .*remove this line"):
        Journal(tmp_path / "j", TEACHER)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_is_one_line_and_leaves_whole_lines(tmp_path, room) -> None:
    first, second = questions(2)
    with Journal(tmp_path / "j", TEACHER) as journal:
        journal.append(first, GOOD)
        before = (tmp_path / "j").read_bytes()
        with disk_of(len(before) + room), pytest.raises(UserError, match=r"no space left while writing .*run the same"):
            journal.append(second, GOOD)
        assert (tmp_path / "j").read_bytes() == before
        journal.append(second, GOOD)
    with Journal(tmp_path / "j", TEACHER) as journal:
        assert journal.reply(second) == GOOD
