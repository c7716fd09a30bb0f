"""Where the figures of a run come from, in a few words: system, model, engine, code, data. Reads manifests leniently.

A manifest may be of another version or of others; what it does not say is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHORT = 12
"""Digits of a checksum that are shown."""


def run_origin(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Kind of system, model, engine, code, time and packages of one run."""
    identity, about = mapping(manifest.get("identity")), mapping(manifest.get("about"))
    packages = ", ".join(f"{name} {version}" for name, version in mapping(about.get("versions")).items())
    commit = str(about.get("commit") or "-")
    return {
        "kind": str(mapping(identity.get("system")).get("kind", "-")),
        "model": fingerprint(identity.get("model")),
        "engine": str(identity.get("engine") or "-"),
        "code": commit[:SHORT] + ("+changes" if commit.endswith("+changes") else ""),
        "made": str(about.get("time") or "-"),
        "packages": packages or "-",
    }


def file_origin(entry: Any) -> dict[str, str]:
    """Kind of task, number of items, sample and checksum of one file of a run."""
    settings = mapping(mapping(entry).get("settings"))
    limit = settings.get("limit")
    return {
        "kind": str(mapping(settings.get("task")).get("kind", "-")),
        "items": str(settings.get("items", "-")),
        "of": str(settings.get("rows", "-")),
        "sample": "all" if limit is None else f"{limit}, seed {settings.get('seed')}",
        "sha256": str(settings.get("sha256", "-"))[:SHORT],
    }


def fingerprint(model: Any) -> str:
    """A short name of a model: the first digits of the checksums of its weights, or what the manifest says."""
    if not isinstance(model, Mapping):
        return str(model or "-")[:80]
    weights = sorted(name for name in model if str(name).endswith((".safetensors", ".bin", ".gguf")))
    return ", ".join(f"{name} {str(model[name])[:SHORT]}" for name in (weights or sorted(model))[:3]) or "-"


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
