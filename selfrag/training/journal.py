"""The directory of a run: manifest, log and checkpoint. A killed run resumes without repeated lines."""

from __future__ import annotations

import hashlib
import io
import json
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from selfrag.common.atomic import locked_directory, write_bytes
from selfrag.common.errors import UserError
from selfrag.common.provenance import commit, versions
from selfrag.common.reading import read_json
from selfrag.common.runs import RunLog, check_same_run
from selfrag.training.export import WEIGHTS
from selfrag.training.records import read_manifest

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from selfrag.training.settings import Lora, TrainingConfig

CHECKPOINT = "checkpoint.pt"
_VERSIONS = ("torch", "transformers", "peft", "tokenizers", "accelerate", "deepspeed")


def fingerprint(*paths: Path) -> str:
    """SHA-256 of the content of files, one after the other.

    Raises:
        UserError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Read what a training wrote to resume from, or to keep.

    Raises:
        UserError: it cannot be read.
    """
    try:
        state = torch.load(path, weights_only=True)
        return {**state, "parameters": dict(state["parameters"])}
    except Exception as error:  # torch raises what its archives, their pickles or their values make of it
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); remove {path.parent} and train again"
        ) from error


class TrainingJournal:
    """The directory of one run, which may hold an interrupted one of the same configuration and inputs.

    Use it as a context manager: the directory is locked until it is closed, since a run that continues cuts its log.
    `inputs` are fingerprints of all that the run reads; `facts` are worth knowing and not compared; `setting` has
    further settings that decide the result, such as the number of processes.

    Raises:
        UserError: `run_dir` holds another run, or another process trains there.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainingConfig,
        inputs: Mapping[str, str],
        facts: Mapping[str, Any],
        setting: Mapping[str, Any] | None = None,
    ) -> None:
        self._checkpoint = run_dir / CHECKPOINT
        self._best = run_dir / "best.pt"
        self._lines: list[dict[str, Any]] = []
        settings = asdict(config) | dict(setting or {})
        identity = {"config": settings, "inputs": dict(inputs)}
        path = run_dir / "manifest.json"
        with ExitStack() as stack:
            stack.enter_context(locked_directory(run_dir))
            self._log = stack.enter_context(
                RunLog(run_dir / "log.jsonl", None, self._lines.append)
            )
            if path.exists():
                manifest = read_manifest(path)
                # A manifest older than a setting was written when that setting had its default.
                known = asdict(type(config)(precision="bf16")) | manifest["config"]
                before = {name: known.get(name) for name in settings}
                recorded_inputs = manifest.get("inputs", {})
                check_same_run(
                    run_dir, {"config": before, "inputs": recorded_inputs}, identity
                )
            else:
                manifest = {
                    **identity,
                    "facts": dict(facts),
                    "versions": versions(_VERSIONS),
                    "python": platform.python_version(),
                    "commit": commit(),
                }
                write_bytes(path, json.dumps(manifest, indent=2).encode())
            self._open = stack.pop_all()

    def __enter__(self) -> TrainingJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            UserError: the disk is full.
        """
        self._log.append(record)
        self._lines.append(dict(record))

    def save(
        self,
        step: int,
        parameters: Mapping[str, Parameter],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Replace the checkpoint by the state after `step` steps; without an optimizer, the best parameters so far.

        The file before stays until the new one is complete.

        Raises:
            UserError: the disk is full.
        """
        detached = {name: value.detach() for name, value in parameters.items()}
        state: dict[str, Any] = {"step": step, "parameters": detached}
        path = self._best
        if optimizer is not None:
            path = self._checkpoint
            state["optimizer"] = optimizer.state_dict()
            state["rng"] = torch.get_rng_state()
        content = io.BytesIO()
        torch.save(state, content)
        write_bytes(path, content.getbuffer())

    def load_best(self, parameters: Mapping[str, Parameter]) -> bool:
        """Set parameters to the best ones; False if none were kept."""
        if not self._best.exists():
            return False
        set_parameters(parameters, read_state(self._best)["parameters"])
        return True

    def records(self, steps: int | None = None) -> list[dict[str, Any]]:
        """Return the lines of the log, of the first `steps` steps if given."""
        return self._lines[:steps]

    def resume(
        self, parameters: Mapping[str, Parameter], optimizer: torch.optim.Optimizer
    ) -> int:
        """Load the checkpoint if there is one, cut the log back to it, and return the steps already done."""
        if not self._checkpoint.exists():
            self.cut(0)
            self._best.unlink(missing_ok=True)
            return 0
        state = read_state(self._checkpoint)
        set_parameters(parameters, state["parameters"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        done = int(state["step"])
        self.cut(done)
        return done

    def cut(self, steps: int) -> None:
        """Leave the log's first `steps` lines; what comes after them is done again."""
        self._log.cut(steps)
        del self._lines[steps:]


def set_parameters(
    parameters: Mapping[str, Parameter], values: Mapping[str, torch.Tensor]
) -> None:
    """Copy `values`, which have the same names and shapes."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


def stage_file(start: Path) -> Path:
    """Return what holds the parameters of an earlier stage: the checkpoint of a run, or the weights of an adapter.

    Raises:
        UserError: there is neither.
    """
    for name in (CHECKPOINT, WEIGHTS):
        if (start / name).is_file():
            return start / name
    raise UserError(
        f"{start} holds neither {CHECKPOINT} nor {WEIGHTS}; give the folder of a run, or of an adapter"
    )


def load_parameters(
    start: Path, parameters: Mapping[str, Parameter], lora: Lora
) -> str:
    """Set parameters to those of an earlier stage, and return the fingerprint of the file that they came from.

    `start` is a directory of a run, or of an adapter (in bf16: rounded once more than a run) of the size `lora`.

    Raises:
        UserError: `start` holds neither, or that of a model of another shape.
    """
    path = stage_file(start)
    if path.name == CHECKPOINT:
        values = read_state(path)["parameters"]
    else:
        values = _adapter(path, lora)
        # as PEFT names them
        parameters = {
            name.replace(".default", ""): value for name, value in parameters.items()
        }
    if _shapes(values) != _shapes(parameters):
        raise UserError(
            f"{path} is of another model, method or adapter size; start from one of the same kind"
        )
    set_parameters(parameters, values)
    return fingerprint(path)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _adapter(path: Path, lora: Lora) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    settings = path.parent / "adapter_config.json"
    try:
        alpha = read_json(settings)["lora_alpha"]
        tensors: dict[str, Tensor] = load_file(path)
    except (
        UserError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        SafetensorError,
    ) as error:
        raise UserError(
            f"{path.parent} holds no adapter that can be read: {error}"
        ) from error
    if alpha != lora.alpha:
        raise UserError(
            f"{settings} has lora_alpha {alpha}, this training {lora.alpha}; start from one of the same size"
        )
    return tensors
