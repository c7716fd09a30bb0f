"""The keywords of `SelfRAG.generate` and others are the fields of `Decoding`, and a type checker knows them."""

import inspect
from typing import get_type_hints

import pytest
from mypy import api

from selfrag import Decoding, SelfRAG
from selfrag.decoding.keywords import DecodingFields
from selfrag.decoding.terms import Guardrail, ScoreTerm

WIDER = {
    "decoding": Decoding,
    "judges": (ScoreTerm, str),
    "guardrails": (Guardrail, str),
}
"""Keywords that take more than the field holds: whole settings, and judges as strings."""


def test_the_keywords_are_the_fields():
    keywords, fields = get_type_hints(DecodingFields), get_type_hints(Decoding)
    assert keywords.keys() == fields.keys() | {"decoding"}
    assert {
        name for name in fields if keywords[name] != fields[name]
    } == WIDER.keys() - {"decoding"}
    for name in ("generate", "agenerate", "stream", "astream", "choose"):
        options = inspect.signature(getattr(SelfRAG, name)).parameters["options"]
        kinds = (
            "Unpack[DecodingFields]",
            "Unpack[CallOptions]",
        )  # the other adds to it
        assert options.annotation in kinds


def test_settings_have_no_order():
    with pytest.raises(TypeError, match="positional"):
        Decoding("never")


@pytest.mark.slow
def test_a_type_checker_refuses_wrong_keywords(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from selfrag import Answer, SelfRAG\n"
        "def ask(rag: SelfRAG) -> None:\n"
        "    one: Answer = rag.generate('Who?', max_segments=2, judges=['citations'])\n"
        "    many: list[Answer] = rag.generate(['Who?'], mode='always')\n"
        "    rag.generate('Who?', max_segments='two')\n"
        "    rag.stream('Who?', max_segmets=2)\n"
        "    rag.choose('Who?', ['a', 'b'], mode='sometimes')\n"
    )
    report, _, _ = api.run(
        [str(program), "--no-error-summary", "--follow-imports=silent"]
    )
    lines = [
        int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line
    ]
    assert sorted(set(lines)) == [5, 6, 7], report
