"""Two replicas on a local Ray cluster, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import tiny

pytest.importorskip("ray.serve", reason="ray[serve] is not installed")

pytestmark = pytest.mark.engine


def test_replicas_share_the_work_and_a_file_of_answers(tmp_path: Path) -> None:
    tiny.save_llama(tmp_path / "model")
    command = [
        *(sys.executable, "-m", "selfrag", "serve", "--ray", "local", "--replicas", "2", "--port", "0"),
        *("--model", str(tmp_path / "model"), "--engine", "transformers", "--mode", "never", "--segments", "1"),
        *("--keep", str(tmp_path / "answers.sqlite")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving model at http://127.0.0.1:"), line + str(process.communicate(timeout=60))
        with httpx.Client(base_url=line.split()[-1], timeout=60) as client:
            names = []
            for number in range(6):
                turns = [{"role": "user", "content": f"question {number}"}]
                reply = client.post("/v1/chat/completions", json={"model": "model", "messages": turns})
                assert reply.status_code == 200, reply.text
                names.append(reply.json()["selfrag"]["id"])
            # Whichever replica is asked, it finds what any of them has kept.
            assert [client.get(f"/v1/answers/{name}").status_code for name in names * 2] == [200] * 12
            body = {"model": "model", "messages": turns, "stream": True}
            events = [line for line in client.post("/v1/chat/completions", json=body).text.splitlines() if line]
            assert events[-1] == "data: [DONE]"
            assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "stop"
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
