"""The results page: Markdown made from digests of runs and kept studies, and from nothing else.

The same files give the same page, so that a test can tell a page that was changed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.atomic import write_text, writing
from selfrag.errors import UserError
from selfrag.evaluation.compare import Comparison, compare
from selfrag.evaluation.compare_runs import comparable, run_folders
from selfrag.evaluation.markdown_table import compact, escape
from selfrag.evaluation.reporting.comparison_tables import markdown
from selfrag.evaluation.reporting.digest import Digest, digest, read_digest, write_digest
from selfrag.evaluation.reporting.origins import file_origin, run_origin
from selfrag.evaluation.reporting.plots import draw
from selfrag.evaluation.reporting.studies import Study, keep_study, read_study, section
from selfrag.plotting import save
from selfrag.untrusted import printable

REFERENCE = "selfrag-adaptive"
"""System that others are compared with, where it is among them."""
PLOTS = "plots"
HEADING = """# Results

Made by `scripts/make_results.py` from the runs in `{folder}/`; change nothing here by hand. Every figure comes with its
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
    """Runs of the same items.

    Attributes:
        digests: of the runs.
        comparison: of all of them.
    """

    digests: tuple[Digest, ...]
    comparison: Comparison

    @property
    def picture(self) -> str | None:
        """Name of its plots; None where there is nothing to draw."""
        drawn = any(row.figures[table.metrics[0]] for table in self.comparison.tables for row in table.rows)
        return f"{self.digests[0].items}.svg" if drawn else None


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
    """The results page of what a folder keeps; the page stands beside the folder.

    Raises:
        UserError: nothing is kept, or something of it is damaged.
    """
    return _page(folder, groups(folder, against=against))


def write_page(folder: Path, out: Path, *, against: str = REFERENCE) -> Path:
    """Write the results page, and its plots into the folder.

    Raises:
        UserError: as `page`, or `out` cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    found = groups(folder, against=against)
    text = _page(folder, found)
    for group in found:
        if group.picture is not None:
            with writing(folder / PLOTS):
                (folder / PLOTS).mkdir(exist_ok=True)
            save(draw(group.comparison), folder / PLOTS / group.picture)
    write_text(out, text)
    return out


def _page(folder: Path, found: Sequence[Group]) -> str:
    studies = [read_study(path) for path in sorted((folder / "studies").glob("*.md"))]
    if not found and not studies:
        raise UserError(f"{folder} keeps no run and no study; give some run directories")
    parts = [HEADING.format(folder=folder.name), *(_section(group, folder.name) for group in found)]
    parts += [f"{section(study, f'{folder.name}/studies')}\n{_origin(study)}\n" for study in studies]
    return printable("\n".join(parts))


def _compared(group: Sequence[Digest], against: str) -> Group:
    runs = comparable([one.run for one in group])
    reference = against if len(runs) > 1 and against in [run.name for run in runs] else None
    return Group(tuple(group), compare(runs, against=reference))


def _section(group: Group, folder: str) -> str:
    files = list(group.digests[0].run.files)
    listed = ", ".join(files)
    systems = "1 system" if len(group.digests) == 1 else f"{len(group.digests)} systems"
    head = f"## {escape(f'{systems} on {listed}')}\n"
    picture = f"![Headline, tokens and retrieval rate]({folder}/{PLOTS}/{group.picture})\n" if group.picture else ""
    ran = _lines([("system", *RUN), *((one.run.name, *run_origin(one.manifest).values()) for one in group.digests)])
    entries = group.digests[0].manifest["files"]
    read = _lines([("file", *FILE), *((name, *file_origin(entries.get(name)).values()) for name in files)])
    return "\n".join([head, picture, markdown(group.comparison), "### Where this comes from\n", ran, read])


RUN = tuple(run_origin({}))
FILE = tuple(file_origin({}))


def _origin(study: Study) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in dict(study.about.get("versions") or {}).items())
    parts = [f"made {study.about.get('time', 'at an unknown time')}", f"code {str(study.about.get('commit'))[:12]}"]
    return escape("; ".join([*parts, *([versions] if versions else [])])) + "."


def _lines(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ([escape(cell) for cell in row] for row in rows)
    return compact(head, body)
