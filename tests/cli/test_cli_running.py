"""Commands whose output, disk or terminal fails, or that are interrupted: one line, and nothing half-done."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from full_disk import LIMITED

from selfrag.cli.main import main
from selfrag.cli.running import run as run_command
from selfrag.common.errors import UserError


def process(*arguments, through=(), **settings):
    program = "import sys; from selfrag.cli.main import main; sys.exit(main())"
    command = [*through, sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **settings)


WRITERS = [["--help"], ["eval", "tasks", "popqa"], ["data", "list"]]
"""Commands that write by the parser, by rich, and by themselves."""


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_a_full_output_is_one_line(arguments):
    with Path("/dev/full").open("wb") as full:
        run = process(*arguments, stdout=full)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert err.count(b"\n") == 1
    assert b"standard output" in err


@pytest.mark.parametrize("arguments", WRITERS[:2], ids=" ".join)
def test_an_output_that_nobody_reads_is_no_error_line(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    run = process(*arguments, stdout=writer)
    os.close(writer)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 141
    assert err == b""


@pytest.mark.parametrize(
    "closing, line",
    [(">&-", b"output is closed; open it\n"), ("<&-", b"question is empty")],
)
def test_closed_streams_are_one_line(closing, line):
    # By a shell: in a fork of this process, gRPC would write lines of its own.
    run = process("ask", "-", through=["sh", "-c", f'exec "$@" {closing}', "sh"])
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert err.count(b"\n") == 1
    assert line in err


def test_what_is_loaded_is_said_first_and_quiet_silences_it(monkeypatch, capsys):
    """A log of a server that loads for minutes says so at its first line."""

    def stop(*_, **__):
        raise UserError("stopped")

    monkeypatch.setattr("selfrag.api.SelfRAG.from_pretrained", stop)
    for command in (["ask", "Who?"], ["chat"], ["serve", "--port", "0"]):
        assert main(command) == 2
        assert capsys.readouterr().err == "loading demo ..\nselfrag: stopped\n"
        assert main([*command, "--model", "demo-base"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("loading demo-base without an index ..\n")
        assert main([*command, "--quiet"]) == 2
        assert capsys.readouterr().err == "selfrag: stopped\n"


def test_a_model_on_a_server_is_served_under_its_name(monkeypatch, capsys):
    """At 6f744378 it was called as the end of the address, `v1`."""
    url = "http://127.0.0.1:9/v1"

    def stop(*_, name, **others):
        raise UserError(name)

    monkeypatch.setattr("selfrag.serving.app.Served", stop)
    monkeypatch.setattr("selfrag.cli.source_checks.check_sources", lambda *_: None)
    assert main(["serve", "--model", f"owner/m@{url}", "--port", "0", "-q"]) == 2
    assert capsys.readouterr().err == "selfrag: m\n"


FULL = f"""
import sys
from selfrag.cli.main import main
{LIMITED.format(size=64)}
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.engine
def test_a_full_disk_costs_the_trace_and_not_the_answer(tiny_llama, tmp_path):
    line = f"ask hi --model {tiny_llama} --engine transformers --set mode=never --segments 1"
    line += f" --json --trace {tmp_path}/trace.json"
    program = [sys.executable, "-c", FULL, *line.split()]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["question"] == "hi"
    assert done.stderr.count("\n") == 2
    assert "trace.json" in done.stderr.splitlines()[1]
    assert list(tmp_path.iterdir()) == []


def interruptible():
    """In the child: take Ctrl-C even where the test runner was started in the background and ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_in_the_middle_of_the_first_download(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        own = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index}
        own["SELFRAG_CACHE"] = str(tmp_path / "cache")
        child = process(
            "ask",
            "Who?",
            stdout=subprocess.PIPE,
            env=os.environ | own,
            start_new_session=True,
            preexec_fn=interruptible,
        )
        silent.settimeout(300)
        connection, _ = silent.accept()  # pip waits for an answer that never comes
        with connection:
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=300)
    said = b"loading demo ..\nselfrag: interrupted\n"
    assert child.returncode == 130
    assert out == b""
    assert err == said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_control_c_that_compiled_code_turns_into_its_own_error_is_one_line(capsys):
    """As pybind11 does, while it converts arguments."""
    app = typer.Typer()

    @app.command()
    def draw() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("incompatible function arguments") from None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_command(app, "selfrag", []) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "selfrag: interrupted\n"


TEXT = "### Figures\n\n| name | share |\n| --- | ---: |\n| [a](https://evil.example) | 1.0 |\n"
SHOW = f"from selfrag.cli.options import show_markdown; show_markdown({TEXT!r} + chr(27) + '[31m')"


def test_markdown_is_laid_out_on_a_terminal_without_links_and_stays_markdown_in_a_pipe():
    program = [sys.executable, "-c", SHOW]
    assert subprocess.check_output(program, text=True) == TEXT + "\ufffd[31m"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run(program, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "Figures" in shown
    # the third begins a link that a terminal opens
    for absent in ("| --- |", "###", "\x1b]8", "\x1b[31m"):
        assert absent not in shown
