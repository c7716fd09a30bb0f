"""Where the adapters of the public libraries are on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from selfrag.interface import PublishedAdapter, count_of


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository of the Hugging Face hub."""

    name: str  # `owner/name`
    dialect: str  # wire format of its adapters; those that bring an `io.yaml` say it themselves
    bases: tuple[str, ...]  # base models, without their owner `ibm-granite`
    # what the adapter of an intrinsic is called there, by the intrinsic's name
    adapters: Mapping[str, str]
    # of an adapter; empty for the repository itself
    folder: str = "{adapter}/{base}/{kind}"
    revision: str | None = None  # commit; None where no source names one
    licence: str | None = None  # of the weights; None where it was not seen
    embedded: bool = False  # whether Granite Switch checkpoints hold its adapters, too

    @property
    def pinned(self) -> str:
        """Return its name with the commit, as adapters are named by `selfrag.loading.resolve_adapter`."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    def adapter(self, intrinsic: str, base: str, *, activated: bool = False) -> str:
        """Return where an adapter is, for `adapters=` of `Library.from_pretrained`; not each has an activated one."""
        kind = "alora" if activated else "lora"
        folder = self.folder.format(
            adapter=self.adapters[intrinsic], base=base, kind=kind
        )
        return f"{self.pinned}/{folder}" if folder else self.pinned


_DATA = json.loads(
    files(__package__).joinpath("data", "published.json").read_text(encoding="utf-8")
)

REPOSITORIES: tuple[Repository, ...] = tuple(
    Repository(**{**row, "bases": tuple(row["bases"])}) for row in _DATA["repositories"]
)
"""Where the adapters of the public libraries are, with the commits that mellea 0.8.0 pins."""

SWITCHES: tuple[str, ...] = tuple(_DATA["switches"])
"""Granite Switch checkpoints; no source names a commit."""

EMBEDDED: Mapping[str, str] = MappingProxyType(
    {
        intrinsic: name
        for repository in REPOSITORIES
        if repository.embedded
        for intrinsic, name in repository.adapters.items()
    }
)
"""What the adapters inside these checkpoints are called, by the intrinsic's name."""


def listed() -> Iterator[str]:
    """Yield a line for each repository and checkpoint."""
    for repository in REPOSITORIES:
        pin = (
            "not pinned"
            if repository.revision is None
            else f"commit {repository.revision[:8]}"
        )
        content = f"{', '.join(repository.adapters)} for {', '.join(repository.bases)}"
        yield f"{repository.name} ({pin}; {repository.licence or 'licence on its card'}): {content}"
    for name in SWITCHES:
        yield f"{name} (not pinned; Apache-2.0): {count_of(len(EMBEDDED), 'adapters')} inside, dialect granite-switch"


def published(intrinsic: str) -> dict[str, PublishedAdapter]:
    """Return the plain LoRA adapter of an intrinsic by the name of its base model; of several the one listed first."""
    adapters: dict[str, PublishedAdapter] = {}
    for repository in REPOSITORIES:
        if intrinsic in repository.adapters:
            for base in repository.bases:
                adapters.setdefault(
                    base,
                    PublishedAdapter(
                        repository.adapter(intrinsic, base), repository.dialect
                    ),
                )
    return adapters
