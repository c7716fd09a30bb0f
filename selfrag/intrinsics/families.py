"""Adapters that others published: where they are, and which codecs they need by the files that they bring.

A package that knows a family of them registers an `AdapterFamily` by an entry point of `selfrag.adapter_families`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

from selfrag.common.errors import UserError
from selfrag.common.plugins import load_present, names
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.judges.wire import Codec

FAMILIES = "selfrag.adapter_families"
"""Group of entry points."""
PUBLISHED = "published"
"""In place of an adapter's folder: the published one for the intrinsic and the model."""


class PublishedAdapter(NamedTuple):
    """Where an adapter is, and what it understands."""

    name: str  # as `selfrag.loading.resolve_adapter` takes it
    dialect: str  # one of `selfrag.intrinsics.catalog.dialects`


@runtime_checkable
class AdapterFamily(Protocol):
    """What a package knows of a family of published adapters.

    Example:
        >>> class OurAdapters:
        ...     def listed(self):
        ...         return ["our-house/adapters: answerability for Llama 3"]
        ...     def published(self, intrinsic):
        ...         return {"llama-3": PublishedAdapter("our-house/adapters/answerability", "chat")}
        ...     def adapter_codec(self, folder, intrinsic):
        ...         return None  # `intrinsic.json` of the folder says what it understands
        ...     def checkpoint_codecs(self, folder):
        ...         return {}
        >>> isinstance(OurAdapters(), AdapterFamily)
        True
    """

    def listed(self) -> Iterable[str]:
        """Return a line for people about each place where adapters are published."""

    def published(self, intrinsic: str) -> Mapping[str, PublishedAdapter]:
        """Return the adapters of an intrinsic by the base model, which is named without its owner."""

    def adapter_codec(self, folder: Path, intrinsic: str) -> Codec | None:
        """Return the codec of an adapter by the files beside it; None if it is none of this family."""

    def checkpoint_codecs(self, folder: Path) -> Mapping[str, Codec]:
        """Return the codecs of the adapters inside a checkpoint, by intrinsic; empty if it is none of this family."""


def families() -> list[AdapterFamily]:
    """Return what other packages and the extensions registered, in order of their names.

    Raises:
        UserError: an entry point cannot be loaded, or names no family.
    """
    registered: list[AdapterFamily] = []
    for name in names(FAMILIES):
        family = load_present(FAMILIES, name)
        if family is None:
            continue
        if not isinstance(family, AdapterFamily):
            raise UserError(
                f"the entry point {name!r} of {FAMILIES} names no AdapterFamily, but {family!r:.80}"
            )
        registered.append(family)
    return registered


def listed() -> Iterator[str]:
    """Yield the lines of all families."""
    for family in families():
        yield from family.listed()


def find_published(intrinsic: str, model: str) -> PublishedAdapter:
    """Return the plain LoRA adapter of an intrinsic for a model, by the last part of its name.

    Raises:
        UserError: no family knows one.
    """
    adapters: dict[str, PublishedAdapter] = {}
    for family in families():
        adapters = {**family.published(intrinsic), **adapters}
    base = PurePosixPath(model).name
    if base in adapters:
        return adapters[base]
    raise UserError(
        f"no published adapter of {intrinsic} for {model!r:.80} is known; for: {', '.join(adapters) or 'no model'}"
    )


def adapter_codecs(folders: Mapping[str, str]) -> dict[str, Codec]:
    """Return the codecs of adapters that were not trained here, as far as a family knows them, by intrinsic."""
    codecs: dict[str, Codec] = {}
    for intrinsic, folder in folders.items():
        if (Path(folder) / AdapterCard.FILE).is_file():
            continue
        for family in families():
            codec = family.adapter_codec(Path(folder), intrinsic)
            if codec is not None:
                codecs[intrinsic] = codec
    return codecs


def checkpoint_codecs(folder: Path) -> dict[str, Codec]:
    """Return the codecs of the adapters inside a checkpoint, by intrinsic."""
    codecs: dict[str, Codec] = {}
    for family in families():
        codecs |= family.checkpoint_codecs(folder)
    return codecs
