"""Make the results page from runs and from what sweeps, ablations and grids wrote; no figure is typed by hand.

    python scripts/tools/make_results.py RUNS... sweep/sweep.md ablation/ablation.md --into docs/records/results.md
    python scripts/tools/make_results.py --into docs/records/results.md

Runs and studies are kept in a folder beside the page (docs/records/results/), without pictures, small enough to be
committed. The page is made from this folder. Without runs the page is made again from what is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from scripts.command import command
from selfrag.common.atomic import write_json, write_text, writing
from selfrag.common.errors import UserError
from selfrag.common.jsonl import json_line
from selfrag.common.reading import read_json
from selfrag.common.untrusted import printable
from selfrag.evaluation.comparison import Comparison, FileResult, SystemRun, comparable, compare, read_run, run_folders
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.public_data import public_sets
from selfrag.evaluation.records import read_manifest
from selfrag.evaluation.report import file_origin, run_origin
from selfrag.evaluation.tables import markdown
from selfrag.render.tables import compact, escape

PLAIN = tuple(field.name for field in fields(FileResult) if field.name != "scores")
LATER = ("judges",)
"""Fields that older digests do not have."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A finished run, digested."""

    manifest: Mapping[str, Any]  # of the run; data files by their names, without the folders of a machine
    run: SystemRun  # its scores

    @property
    def items(self) -> str:
        """A short mark of the files and items: equal for runs that can be compared."""
        data = {name: [found.data, found.ids] for name, found in self.run.files.items()}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Of the file: the same for the same system on the same items, so that a new run replaces an old one."""
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.run.name)
        return f"{safe}-{self.items}.json"


def digest(folder: Path) -> Digest:
    """Digest a finished run.

    Raises:
        UserError: the folder holds no finished run, or damaged records.
    """
    manifest = read_manifest(folder)
    files = {
        name: {**entry, "path": Path(str(entry["path"])).name} if "path" in entry else entry
        for name, entry in manifest["files"].items()
    }
    return Digest(manifest | {"files": files}, read_run(folder))


def write_digest(found: Digest, folder: Path) -> Path:
    """Write `folder/NAME.json`, the scores by column.

    Raises:
        UserError: the place cannot be written.
    """
    files = {
        name: {key: getattr(result, key) for key in PLAIN}
        | {"scores": {metric: [_short(part) for part in parts] for metric, parts in result.scores.items()}}
        for name, result in found.run.files.items()
    }
    values = {"manifest": found.manifest, "name": found.run.name, "files": files}
    path = folder / found.name
    write_text(path, json_line(values))
    return path


def read_digest(path: Path) -> Digest:
    """Read what `write_digest` wrote.

    Raises:
        UserError: the file is no digest.
    """
    try:
        values = read_json(path, nan=True)
        files = {str(name): _file(given) for name, given in values["files"].items()}
        return Digest(values["manifest"], SystemRun(str(values["name"]), path, files))
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no digest of a run: {type(error).__name__}: {error}") from error


def _file(given: Mapping[str, Any]) -> FileResult:
    values = {key: given[key] for key in PLAIN if key in given or key not in LATER}
    for name in ("metrics", "ids", "judged"):
        values[name] = tuple(map(str, values[name]))
    values["whole"] = {name: None if pair is None else (pair[0], pair[1]) for name, pair in values["whole"].items()}
    scores = {metric: tuple(_part(short) for short in parts) for metric, parts in given["scores"].items()}
    return FileResult(**values, scores=scores)


def _short(part: Part | None) -> Any:
    """One number for the usual part of a mean; whole numbers without a point."""
    if part is None:
        return None
    numbers = [int(number) if float(number).is_integer() else number for number in part]
    return numbers[0] if numbers[1] == 1 else numbers


def _part(short: Any) -> Part | None:
    if short is None:
        return None
    return (float(short[0]), float(short[1])) if isinstance(short, list) else (float(short), 1.0)


PICTURE = re.compile(r"!\[[^\]\n]*\]\([^)\s]+\)\n*")
FENCE = re.compile(r"^(?:```|~~~)")
ABOUT = ("time", "commit", "versions")
"""What the page says about where a study comes from."""


@dataclass(frozen=True, slots=True)
class Study:
    """A text with its origin."""

    name: str  # of its files
    text: str  # Markdown
    about: dict[str, Any]  # time, commit and versions


def keep_study(source: Path, folder: Path) -> Path:
    """Copy a text without its pictures, and its origin, into the folder of kept studies.

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
    write_text(folder / f"{name}.md", PICTURE.sub("", text))
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


def section(study: Study) -> str:
    """Return the text as a part of a larger page, its headings a level lower.

    The study's name stands for its title, which is also that of other studies of the kind.
    """
    body, fenced = [], False
    for line in study.text.splitlines():
        fenced ^= FENCE.match(line) is not None
        if fenced or not line.startswith("#"):
            body.append(line)
        elif not line.startswith("# "):
            body.append(f"#{line}")
    text = "\n".join(body).strip()
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


REFERENCE = "selfrag-adaptive"
"""System that others are compared with, where it is among them."""
HEADING = """# Results

Made by `make_results.py` from the runs in `{folder}/`; change nothing here by hand. Every figure comes with its
bootstrap 95% interval over items; what each run was is said below its tables.
"""


def keep(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Take runs and studies into a folder that can be committed.

    Args:
        sources: run directories, directories of them, or `.md` files that commands wrote.
        folder: made if missing; what is there of the same name is replaced.

    Returns:
        What was written.

    Raises:
        UserError: a source is neither.
    """
    texts = [path for path in sources if path.suffix == ".md"]
    runs = run_folders([path for path in sources if path.suffix != ".md"]) if len(texts) < len(sources) else []
    digests = [digest(run) for run in runs]  # all of them are read before the first is written
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [write_digest(one, folder) for one in digests]
    return [*written, *(keep_study(text, folder / "studies") for text in texts)]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of the same items."""

    digests: tuple[Digest, ...]  # of the runs
    comparison: Comparison  # of all of them
    # the average over the files that `selfrag data make` writes; None if these are all of the files, or one
    public: Comparison | None


def groups(folder: Path, *, against: str = REFERENCE) -> list[Group]:
    """What a folder keeps of runs, those of the same items of the same files together; larger groups first.

    Args:
        folder: as `keep` filled it.
        against: system that the others are compared with, where it is among them.

    Raises:
        UserError: a digest is damaged.
    """
    found: dict[str, list[Digest]] = {}
    for path in sorted(folder.glob("*.json")):
        one = read_digest(path)
        found.setdefault(one.items, []).append(one)
    ordered = sorted(found.values(), key=lambda group: (-len(group), sorted(group[0].run.files), group[0].name))
    return [_compared(group, against) for group in ordered]


def page(folder: Path, *, against: str = REFERENCE) -> str:
    """Return the results page of what a folder keeps.

    Raises:
        UserError: nothing is kept, or something of it is damaged.
    """
    kept = groups(folder, against=against)
    studies = [read_study(path) for path in sorted((folder / "studies").glob("*.md"))]
    if not kept and not studies:
        raise UserError(f"{folder} keeps no run and no study; give some run directories")
    parts = [HEADING.format(folder=folder.name), *(_section(group) for group in kept)]
    parts += [f"{section(study)}\n{_origin(study)}\n" for study in studies]
    return printable("\n".join(parts))


def _compared(group: Sequence[Digest], against: str) -> Group:
    runs = comparable([one.run for one in group])
    reference = against if len(runs) > 1 and against in [run.name for run in runs] else None
    public = [name for name in runs[0].files if name in public_sets()]
    average = None
    if 1 < len(public) < len(runs[0].files):
        kept = [replace(run, files={name: run.files[name] for name in public}) for run in runs]
        average = replace(compare(kept, against=reference), tables=())
    return Group(tuple(group), compare(runs, against=reference), average)


def _section(group: Group) -> str:
    files = list(group.digests[0].run.files)
    listed = ", ".join(files)
    systems = "1 system" if len(group.digests) == 1 else f"{len(group.digests)} systems"
    head = f"## {escape(f'{systems} on {listed}')}\n"
    ran = _lines([("system", *RUN), *((one.run.name, *run_origin(one.manifest).values()) for one in group.digests)])
    entries = group.digests[0].manifest["files"]
    read = _lines([("file", *FILE), *((name, *file_origin(entries.get(name)).values()) for name in files)])
    public = [] if group.public is None else ["Files that `selfrag data make` writes:\n", markdown(group.public)]
    tables = [markdown(group.comparison), *public]
    return "\n".join([head, *tables, "### Where this comes from\n", ran, read])


RUN = tuple(run_origin({}))
FILE = tuple(file_origin({}))


def _origin(study: Study) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in dict(study.about.get("versions") or {}).items())
    parts = [f"made {study.about.get('time', 'at an unknown time')}", f"code {str(study.about.get('commit'))[:12]}"]
    return escape("; ".join([*parts, *([versions] if versions else [])])) + "."


def _lines(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ([escape(cell) for cell in row] for row in rows)
    return compact(head, body)


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="*", metavar="SOURCE", help="runs, directories of runs, .md files")
    parser.add_argument("--into", type=Path, required=True, metavar="PAGE", help="the page; PAGE without .md is kept")
    parser.add_argument("--against", default=REFERENCE, help="system that the others are compared with, if it is there")
    arguments = parser.parse_args()
    if arguments.into.suffix != ".md":
        raise UserError(f"--into {arguments.into}: give a file that ends in .md")
    folder = arguments.into.with_suffix("")
    for path in keep(arguments.sources, folder):
        print(f"kept: {path}")
    write_text(arguments.into, page(folder, against=arguments.against))
    print(f"written: {arguments.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
