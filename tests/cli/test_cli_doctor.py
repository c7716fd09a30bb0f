"""The doctor: every fault it is there for, made on the spot."""

import json
import shutil

import pytest
from transformers import AutoConfig

from selfrag.cli import doctor as packages
from selfrag.cli.doctor import (
    GB,
    GPU,
    DoctorFinding,
    ModelSize,
    check_checkpoint,
    check_fit,
    check_machine,
    check_model,
    model_size,
    read_gpus,
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
    (folder / f"{name}-{version}.dist-info").mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(
        "\n".join(lines) + "\n"
    )


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
    points = site / "selfrag-9.9.dist-info" / "entry_points.txt"
    points.write_text(
        "[selfrag.x]\na = selfrag.extensions.gone.here:A\nb = critic.cli.train:train\n"
    )
    (finding,) = packages.check_extensions()
    detail = "registered, but there is no selfrag.extensions.gone"
    assert finding == DoctorFinding(
        "extension gone", detail, "note", "install selfrag again"
    )


def test_versions_are_held_against_the_metadata_of_vllm(site):
    distribution(
        site,
        "needy",
        "1.0",
        "wanted<2,>=1.5",
        "absent",
        "other; python_version < '3'",
        "torchvision",
    )
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
    assert (
        "neither reflection tokens nor a chat template" in f"{fault.detail} {fault.fix}"
    )


def test_a_cache_that_cannot_be_written_is_in_the_way_of_the_demo_only(
    tmp_path, monkeypatch
):
    """os.access is replaced, since root may write anywhere."""
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages.os, "access", lambda *_: False)
    cache = next(finding for finding in check_machine() if finding.subject == "cache")
    assert (cache.status, "cannot be written" in cache.detail) == ("note", True)
    assert "cache cannot be written" in broken(check_model("demo"))[0].detail


NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 550.54, 81559, 81000'\necho 'NVIDIA A30, 550.54, [N/A], [N/A]'\n"


def test_gpus_are_read_from_the_driver(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpu = GPU("NVIDIA H100 80GB HBM3", "550.54", 81559 * 2**20, 81000 * 2**20)
    assert read_gpus() == [gpu]
    told = {finding.subject: finding.detail for finding in check_machine()}
    assert told["gpu 0"] == "NVIDIA H100 80GB HBM3, driver 550.54, 79.1 of 79.6 GB free"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert read_gpus() == []


def test_the_size_of_a_checkpoint_is_that_of_its_number_format(tiny_llama):
    config = AutoConfig.from_pretrained(tiny_llama)
    float32, bfloat16 = (
        model_size(tiny_llama, config, name) for name in ("float32", "bfloat16")
    )
    assert float32.weights == 2 * bfloat16.weights
    assert float32.token == 2 * bfloat16.token


@pytest.mark.parametrize(
    "size, gpus, free, said",
    [
        ((14, 0.001, 4000), [24], None, "it fits"),
        ((14, 0.001, 32000), [24], None, "--engine-set max_model_len=6144"),
        ((26, 0.001, 4000), [24, 24], None, "--engine-set tensor_parallel_size=2"),
        ((26, 0.001, 4000), [24], None, "take a quantised checkpoint"),
        ((26, 0.001, 4000), [], 16, "--dtype bfloat16 halves float32"),
        ((4, 0.001, 4000), [], 16, "it fits"),
        ((4, 0.001, 4000), [], None, "4.0 GB of weights"),
    ],
)
def test_what_fits_and_what_to_set(size, gpus, free, said):
    model = ModelSize(int(size[0] * GB), int(size[1] * GB), int(size[2]))
    cards = [GPU("card", "1", gigabytes * GB, gigabytes * GB) for gigabytes in gpus]
    fit = check_fit(model, cards, None if free is None else free * GB)
    assert said in f"{fit.detail} {fit.fix}"
    assert (fit.status == "ok") == (not fit.fix or "max_model_len" in fit.fix)


@pytest.mark.parametrize("name", ["demo", "demo-base"])
def test_a_demo_model_that_is_not_there_is_a_note(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    assert [finding.status for finding in check_model(name)] == ["note"]


def test_the_report_as_json(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["packages", "machine", "engine", f"model {tmp_path}"]
    assert report[f"model {tmp_path}"][-1]["status"] == "broken"
