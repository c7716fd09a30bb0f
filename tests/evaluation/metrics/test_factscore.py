"""FactScore by hand, the official tool's files, and facts found and checked by our own judges."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from answering import Answering, writing
from tiny_judges import Ruled

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.judging import Record, facts_judged
from selfrag.evaluation.metrics.factscore import (
    NAMES,
    Fact,
    Facts,
    PromptedSplitter,
    SentenceSplitter,
    check,
    load_splitter,
    parts,
    penalty,
    read_facts,
    read_output,
    write_input,
)
from selfrag.intrinsics.contract import Completion, Failed, Request


def facts(*supported: bool | None) -> Facts:
    return Facts(tuple(Fact(f"fact {at}", one) for at, one in enumerate(supported)))


def test_the_score_by_hand() -> None:
    # 3 of 4 facts, and exp(1 - 10 / 4) for so few.
    values = (0.75 * math.exp(-1.5), 0.75, 4.0, 1.0)
    assert parts(facts(True, True, False, True)) == {
        name: pytest.approx((value, 1.0)) for name, value in zip(NAMES, values, strict=True)
    }
    assert (penalty(10), penalty(11)) == (1.0, 1.0)
    # Abstentions and failed items count as such only, missing verdicts nowhere.
    assert parts(Facts()) == parts(None) == {**dict.fromkeys(NAMES), "responds": (0.0, 1.0)}
    assert parts(facts(True, None)) == parts(Facts(failed="no list")) == dict.fromkeys(NAMES)


BIOS = [Item(f"q{at}", f"Tell me a bio of {name}", True, topic=name) for at, name in enumerate(["Ann", "Bob", "Eve"])]


def test_the_official_tool_reads_our_file_and_we_read_its_own(tmp_path: Path) -> None:
    outputs = {"q0": Output("Ann wrote. Ann died."), "q1": Output("I do not know."), "q2": None}
    assert write_input(tmp_path / "in.jsonl", BIOS, outputs) == 3
    rows = [json.loads(line) for line in (tmp_path / "in.jsonl").read_text().splitlines()]
    wanted = [("Ann", "Ann wrote. Ann died."), ("Bob", ""), ("Eve", "")]
    assert [(row["topic"], row["output"]) for row in rows] == wanted
    decisions = [[{"atom": "Ann wrote.", "is_supported": True}, {"atom": "Ann died.", "is_supported": 0}], None, None]
    out = tmp_path / "in_factscore_output.json"
    out.write_text(json.dumps({"score": 0.1, "respond_ratio": 1 / 3, "decisions": decisions}))
    found = read_output(out, BIOS)
    assert found == {"q0": Facts((Fact("Ann wrote.", True), Fact("Ann died.", False))), "q1": Facts(), "q2": Facts()}
    judged = facts_judged([Record(item, outputs[item.id], {}) for item in BIOS], found, "official", {})
    assert judged.parts["factscore_unpenalised"] == {"q0": (0.5, 1.0), "q1": None, "q2": None}
    assert judged.parts["responds"] == {"q0": (1.0, 1.0), "q1": (0.0, 1.0), "q2": (0.0, 1.0)}
    with pytest.raises(UserError, match="item 'q' has no 'topic'"):
        write_input(tmp_path / "in.jsonl", [Item("q", "Who?", True)], {"q": Output("x")})
    with pytest.raises(UserError, match="no output for item 'q1'"):
        write_input(tmp_path / "in.jsonl", BIOS, {"q0": None})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "has no 'decisions'"),
        ('{"decisions": [null]}', "on 1 answers, the file 3 items"),
        ('{"decisions": [[{"atom": "x", "is_supported": "yes"}], null, null]}', "neither true nor false"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "out.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_output(tmp_path / "out.json", BIOS)


def test_splitting() -> None:
    assert read_facts("Sure:\n- Ann wrote.\n  * Ann died.\n2. Ann lived. \n\n-no\n") == (
        "Ann wrote.",
        "Ann died.",
        "Ann lived.",
    )
    assert load_splitter("sentences").split(["Ann wrote [1]. Ann died.", ""]) == [("Ann wrote.", "Ann died."), ()]
    prompted = PromptedSplitter(writing("- Ann wrote.\n- Ann was kind."), "facts by m", {"model": "m"})
    two = ("Ann wrote.", "Ann was kind.")
    assert prompted.split(["Ann, who was kind, wrote.", "", "Ann sang. Bob died."]) == [two, (), two * 2]
    assert PromptedSplitter(writing("Ann wrote."), "facts by m", {}).split(["Ann wrote."]) == [None]

    def fails(request: Request) -> Completion | Failed:
        return Failed("gone") if "rained" in request.prompt.messages[0].content else Completion("- fact")

    assert PromptedSplitter(Answering(fails), "facts by m", {}).split(["Ann. It rained.", "Ann."]) == [None, ("fact",)]


def search(queries: Sequence[str], k: int) -> list[list[Passage]]:
    """One passage on Ann, nothing on others."""
    return [[Passage("p", "Ann wrote", "Ann")][:k] if query.startswith("Ann ") else [] for query in queries]


def test_facts_are_looked_up_under_their_topic() -> None:
    judge = Ruled(lambda known, said: set(said.split()) <= set(known.split()))
    said = ["Ann wrote\n\nAnn died", "Ann wrote", "I do not know."]
    found = check(said, ["Ann", "Bob", "Eve"], SentenceSplitter(), search, judge)
    assert found == [
        Facts((Fact("Ann wrote", True), Fact("Ann died", False))),
        Facts((Fact("Ann wrote", False),)),  # nothing is found on Bob
        Facts(),
    ]
    assert judge.asked == [("Title: Ann\nAnn wrote", "Ann wrote"), ("Title: Ann\nAnn wrote", "Ann died")]
