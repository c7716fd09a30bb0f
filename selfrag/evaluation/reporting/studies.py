"""`Study`: the Markdown that a command wrote about its figures, taken into the results page as it is.

Sweeps, ablations, grids and evaluations write a text with a JSON file beside it that says where its figures come from.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json, write_text, writing
from retrieval.reading import read_json
from selfrag.errors import UserError

PICTURE = re.compile(r"!\[([^\]\n]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(?:```|~~~)")
ABOUT = ("time", "commit", "versions")
"""What the page says about where a study comes from."""


@dataclass(frozen=True, slots=True)
class Study:
    """A text with its origin.

    Attributes:
        name: of its files.
        text: Markdown; pictures lie beside it.
        about: time, commit and versions.
    """

    name: str
    text: str
    about: dict[str, Any]


def keep_study(source: Path, folder: Path) -> Path:
    """Copy a text, its pictures and its origin into the folder of kept studies.

    Args:
        source: `NAME.md` as a command wrote it, with `NAME.json`, `figures.json` or `manifest.json` beside it.
        folder: of kept studies.

    Raises:
        UserError: a file is missing or is no such text.
    """
    parent = source.resolve().parent.name
    name = source.stem if parent == source.stem else f"{parent}-{source.stem}"
    about = _about(source)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{source}: cannot be read: {error}") from error
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for _, target in PICTURE.findall(text):
            picture = (source.parent / target).resolve()
            if source.parent.resolve() not in picture.parents or not picture.is_file():
                raise UserError(f"{source}: the picture {target!r} is not beside it")
            shutil.copyfile(picture, folder / f"{name}-{picture.name}")
    kept = PICTURE.sub(lambda found: f"![{found[1]}]({name}-{Path(found[2]).name})", text)
    write_text(folder / f"{name}.md", kept)
    write_json(folder / f"{name}.about.json", about)
    return folder / f"{name}.md"


def read_study(path: Path) -> Study:
    """Read a kept study.

    Raises:
        UserError: a file is missing or damaged.
    """
    try:
        about = read_json(path.with_suffix(".about.json"), nan=True)
        return Study(path.stem, path.read_text(encoding="utf-8"), {**about, "commit": about["commit"]})
    except (UserError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no study that was kept: {error}") from error


def section(study: Study, folder: str) -> str:
    """The text as a part of a larger page: headings a level lower, pictures by their way from there.

    The study's name stands for its title, which is also that of other studies of the kind.
    """
    body, fenced = [], False
    for line in study.text.splitlines():
        fenced ^= FENCE.match(line) is not None
        if fenced or not line.startswith("#"):
            body.append(line)
        elif not line.startswith("# "):
            body.append(f"#{line}")
    text = PICTURE.sub(lambda found: f"![{found[1]}]({folder}/{found[2]})", "\n".join(body)).strip()
    return f"## {study.name.replace('-', ' ').replace('_', ' ').capitalize()}\n\n{text}\n"


def _about(source: Path) -> dict[str, Any]:
    """Time, commit and versions, wherever in its JSON the command puts them."""
    for name in (f"{source.stem}.json", "figures.json", "manifest.json"):
        path = source.with_name(name)
        if not path.is_file():
            continue
        values = read_json(path, nan=True)
        parts = [values, *(values.get(key) for key in ("about", "manifest"))] if isinstance(values, dict) else []
        for part in parts:
            if isinstance(part, dict) and "commit" in part:
                return {key: part[key] for key in ABOUT if key in part}
    raise UserError(f"{source}: no JSON file beside it says where its figures come from")
