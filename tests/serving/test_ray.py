"""Two replicas on a local Ray cluster, by the command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import tiny

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_replicas_share_the_work_and_a_file_of_answers(tmp_path):
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed")
    tiny.save_llama(tmp_path / "model")
    command = f"{sys.executable} -m selfrag serve --ray local --replicas 2 --port 0 --model {tmp_path}/model"
    command += f" --engine transformers --set mode=never --segments 1 --keep {tmp_path}/answers.sqlite"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray kills a proxy that is not ready after five seconds, which a busy machine needs.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command.split(), env=environment, cwd=tmp_path, **pipes)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving model at http://127.0.0.1:"), line + str(
            process.communicate(timeout=60)
        )
        with httpx.Client(base_url=line.split()[-1], timeout=60) as client:

            def ask(number, **fields):
                turns = [{"role": "user", "content": f"question {number}"}]
                return client.post(
                    "/v1/chat/completions",
                    json={"model": "model", "messages": turns, **fields},
                )

            names = [ask(number).json()["selfrag"]["id"] for number in range(6)]
            # Whichever replica is asked, it finds what any of them has kept.
            assert [
                client.get(f"/v1/answers/{name}").status_code for name in names * 2
            ] == [200] * 12
            *_, last, done = [
                line for line in ask(0, stream=True).text.splitlines() if line
            ]
            assert json.loads(last[6:])["choices"][0]["finish_reason"] in (
                "stop",
                "length",
            )
            assert done == "data: [DONE]"
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
