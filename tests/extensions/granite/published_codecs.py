"""Codecs of the published dialects, for tests."""

from __future__ import annotations

from wire_help import find

from selfrag.extensions.granite.registry import DIALECTS, codec, intrinsics_of


def published(dialect, intrinsic):
    """The codec whose requests are exactly those that were published, with the splitter above."""
    return codec(dialect, intrinsic, exact=False, find=find)


def exact(dialect, intrinsic):
    """The codec that scores labels as slots."""
    return codec(dialect, intrinsic, find=find)


ALL = {
    f"{dialect} {name} {make.__name__}": make(dialect, name)
    for dialect in DIALECTS
    for name in intrinsics_of(dialect)
    for make in (exact, published)
}
"""Every codec there is."""
