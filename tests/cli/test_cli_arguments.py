"""Bad arguments: exit code 2, one line on the error stream that names the value, nothing on the output."""

from __future__ import annotations

import pytest

from selfrag.cli.main import main

BAD = [
    (["ask"], "give a question or --conversation FILE"),
    (["ask", ""], "the question is empty"),
    (["ask", "  \n\t "], "the question is empty"),
    (["ask", "hi", "--unknown"], "--unknown"),
    (["ask", "hi", "--thresh", "0.5"], "--thresh"),  # no abbreviations
    (["ask", "hi", "there"], "there"),
    (["ask", "hi", "--threshold", "3"], "threshold=3.0"),
    (["ask", "hi", "--threshold", "high"], "--threshold"),
    (["ask", "hi", "--beam", "0"], "beam=0"),
    (["ask", "hi", "--passages", "-1"], "passages=-1"),
    (["ask", "hi", "--segments", "0"], "max_segments=0"),
    (["ask", "hi", "--w-rel", "nan"], "--w-rel=nan"),
    (["ask", "hi", "--mode", "sometimes"], "sometimes"),
    (["ask", "hi", "--policy", "mine"], "mine"),
    (["ask", "hi", "--require", "issup"], "'issup'"),
    (["ask", "hi", "--require", "issup=Maybe"], "'Maybe'"),
    (["ask", "hi", "--forbid", "mood=Good"], "'mood'"),
    (["ask", "hi", "--trace", "/nowhere/at/all.json"], "/nowhere/at"),
    (["answer", "hi"], "answer"),
    (["demo", "--out", "/dev/null/traces"], "/dev/null/traces"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=[" ".join(arguments)[:40] for arguments, _ in BAD])
def test_bad_arguments(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("selfrag: ")
    assert named in err


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_command_the_commands_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(arguments)
    shown = "".join(capsys.readouterr())
    for command in ("ask", "demo", "doctor", "index"):
        assert command in shown
