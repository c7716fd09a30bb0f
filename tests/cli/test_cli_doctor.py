"""The doctor: every fault it is there for, made on the spot."""

import json
import shutil

import pytest

from selfrag.cli import doctor as packages
from selfrag.cli.doctor import (
    GB,
    DoctorFinding,
    check_checkpoint,
    check_fit,
    check_machine,
    check_model,
)
from selfrag.cli.main import main
from selfrag.reflection.labels import TOKENS


def broken(findings):
    return [finding for finding in findings if finding.status == "broken"]


@pytest.fixture
def checkpoint(tiny_llama, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    shutil.copytree(tiny_llama, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def distribution(folder, name, version, *requires):
    """An installed distribution, as far as its metadata go."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, before all others here and in child processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_companion_that_does_not_import_gets_the_exact_line(site):
    distribution(site, "torchvision", "0.28.0")
    (site / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (fault,) = packages._check_companions()
    assert fault.status == "broken"
    assert fault.fix == "pip uninstall -y torchvision"


def test_extensions_are_those_of_the_metadata(site):
    distribution(site, "selfrag", "9.9")
    points = site / "selfrag-9.9.dist-info/entry_points.txt"
    points.write_text(
        "[selfrag.x]\na = selfrag.extensions.gone.here:A\nb = critic.cli.train:train\n"
    )
    (finding,) = packages.check_extensions()
    detail = "registered, but there is no selfrag.extensions.gone"
    assert finding == DoctorFinding("extension gone", detail, "note")


def test_versions_are_held_against_the_metadata_of_vllm(site):
    needs = "wanted<2,>=1.5|absent|other; python_version < '3'|torchvision".split("|")
    distribution(site, "needy", "1.0", *needs)
    distribution(site, "wanted", "2.1")
    faults = {finding.subject: finding for finding in packages._check_required("needy")}
    assert set(faults) == {"wanted", "absent"}
    assert "2.1 is installed" in faults["wanted"].detail
    assert faults["wanted"].fix == "pip install 'wanted<2,>=1.5'"


@pytest.mark.engine
def test_a_whole_checkpoint_passes(tiny_llama, tiny_gpt2_untied):
    for folder in (tiny_llama, tiny_gpt2_untied):
        findings = list(check_checkpoint(str(folder), folder))
        assert broken(findings) == []
        assert [finding.subject for finding in findings][:1] == ["reflection tokens"]
        assert "rows" in [finding.subject for finding in findings]


@pytest.mark.engine
@pytest.mark.parametrize(
    "change, said",
    [("equal", "never trained"), ("long", "untrained"), ("short", "resized")],
)
def test_rows_that_were_not_trained(checkpoint, change, said):
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(checkpoint).convert_tokens_to_ids(list(TOKENS))
    (file,) = checkpoint.glob("*.safetensors")
    tensors = load_file(file)
    name = next(key for key in tensors if key.endswith("embed_tokens.weight"))
    if change == "equal":
        tensors[name][ids] = tensors[name][: min(ids)].mean(dim=0)
    elif change == "long":
        tensors[name][ids[3]] *= 1000
    else:
        tensors[name] = tensors[name][: max(ids)].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    faults = broken(check_checkpoint("changed", checkpoint))
    assert any(said in fault.detail for fault in faults)


@pytest.mark.engine
@pytest.mark.parametrize(
    "file, content, said",
    [
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{", "cannot be read"),
        ("model.safetensors", None, "no weights"),
        ("config.json", b'{"model_type": "unheard-of"}', "unheard-of"),
        ("config.json", b"[]", "holds no object"),
    ],
)
def test_damaged_files_are_findings(checkpoint, file, content, said):
    (checkpoint / file).unlink()
    if content is not None:
        (checkpoint / file).write_bytes(content)
    faults = broken(check_model(str(checkpoint)))
    assert any(said in fault.detail for fault in faults)
    assert all(fault.fix and "\n" not in fault.detail for fault in faults)


@pytest.mark.engine
def test_the_exit_code_tells(tiny_llama_plain, capsys):
    assert main(["doctor", str(tiny_llama_plain)]) == 1
    out = capsys.readouterr().out
    for section in ("packages", "machine", "engine", f"model {tiny_llama_plain}"):
        assert section in out.replace("\n", "")
    assert "broken  reflection tokens" in out
    (fault,) = broken(check_model(str(tiny_llama_plain)))
    said = f"{fault.detail} {fault.fix}"
    assert "neither reflection tokens nor a chat template" in said


def test_a_cache_that_cannot_be_written_is_in_the_way_of_the_demo_only(
    tmp_path, monkeypatch
):
    """os.access is replaced, since root may write anywhere."""
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages.os, "access", lambda *_: False)
    cache = next(finding for finding in check_machine() if finding.subject == "cache")
    assert cache.status == "note"
    assert "cannot be written" in cache.fix
    assert "cannot be written" in broken(check_model("demo"))[0].fix


def test_a_disk_that_is_full_is_in_the_way_of_the_demo(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "_FIRST_RUN_BYTES", 1 << 60)
    assert "another disk" in broken(check_model("demo"))[0].fix


def test_a_gpu_that_torch_does_not_see_is_a_note(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.touch()
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    notes = {f.subject: f for f in check_machine() if f.status == "note"}
    assert "does not see it" in notes["gpu"].detail


def test_weights_are_held_against_the_free_memory_in_their_number_format(tiny_llama):
    for free, status in ((None, "ok"), (3 * GB, "ok"), (GB, "broken")):
        assert check_fit(tiny_llama, "float32", free).status == status
    # as bfloat16 these weights of float32 take half
    (file,) = tiny_llama.glob("*.safetensors")
    free = 2 * GB + file.stat().st_size - 1
    assert check_fit(tiny_llama, "float32", free).status == "broken"
    assert check_fit(tiny_llama, "bfloat16", free).status == "ok"


@pytest.mark.parametrize("name", ["demo", "demo-base"])
def test_a_demo_model_that_is_not_there_is_a_note(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    assert [finding.status for finding in check_model(name)] == ["note"]


def test_the_report_as_json(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["packages", "machine", "engine", f"model {tmp_path}"]
    assert report[f"model {tmp_path}"][-1]["status"] == "broken"
