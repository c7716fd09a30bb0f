"""Make empty faiss indexes and read stored ones, from factory strings and files that may be damaged or crafted.

faiss checks most of what it reads, but some sizes that contradict each other end the process at the next search. So the
header of a file is compared with that of an empty index of the same factory string, and the sizes of its arrays are
compared with both. What remains unchecked are codes and centroids: any value of those is a valid one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.errors import UserError, count_of, require

_FACTORY_CHARACTERS = 200
# of a factory string; indexes of more vectors may have as large a number
_MIN_LARGEST_NUMBER = 1 << 16
# of a code, the number after `x`: faiss allocates 2^bits centroids at once
_MAX_BITS = 16
_SPARE_BYTES = 4096  # faiss demands that an array is smaller than the limit

# Header fields that neither training nor adding changes. Kinds of index have some of them each.
_FIELDS_NAMES = (
    "d d_in d_out metric_type metric_arg code_size is_similarity have_bias norm eigen_power "
    "nlist nprobe by_residual type n_per_block block_size M M2 nbits nb_bits ksub dsub bbs qb "
    "qbs skip centered encode_signs bits qtype rangestat search_type tot_bits norm_bits "
    "total_codebook_size only_8bit nsplits max_beam_size use_beam_LUT efSearch efConstruction "
    "R K search_L k_factor"
)
_FIELDS = tuple(_FIELDS_NAMES.split())
# Parts that hold such fields themselves.
_PARTS_NAMES = (
    "index base_index refine_index storage quantizer invlists direct_map pq sq aq rq lsq prq "
    "plsq rabitq hnsw nsg"
)
_PARTS = tuple(_PARTS_NAMES.split())
_READING = threading.Lock()  # the limits of faiss belong to the process


def empty_index(factory: str, dim: int, rows: int) -> Any:
    """Return an empty index of faiss, untrained, for `rows` vectors of length `dim`.

    Raises:
        UserError: the factory string would take unbounded memory, or is not one.
    """
    faiss = require("faiss", extra="cpu")
    largest = max(rows, _MIN_LARGEST_NUMBER)
    if len(factory) > _FACTORY_CHARACTERS:
        raise UserError(
            f"kind={factory!r:.80}..: longer than {_FACTORY_CHARACTERS} characters"
        )
    for digits in re.findall(r"\d+", factory):
        if not 1 <= int(digits) <= largest:
            raise UserError(
                f"kind={factory!r:.80}: a number in it is not 1 to {largest}, which {count_of(rows, 'vectors')} can use"
            )
    if any(int(digits) > _MAX_BITS for digits in re.findall(r"x(\d+)", factory)):
        raise UserError(f"kind={factory!r:.80}: codes of more than {_MAX_BITS} bits")
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, AssertionError, MemoryError) as error:
        raise UserError(
            f"kind={factory!r:.80}: faiss cannot build it of vectors of {dim}: {reason(error)}"
        ) from error


def reason(error: BaseException) -> str:
    """Return what an exception of faiss says, without its place in the source."""
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{lines[0].rpartition('Error: ')[2]:.200}"


def read_faiss(file: Path, factory: str, dim: int, rows: int) -> Any:
    """Return the index of a file that was built by a factory string and holds `rows` vectors.

    Raises:
        UserError: the file does not hold such an index, or contradicts itself.
    """
    faiss = require("faiss", extra="cpu")
    if not hasattr(faiss, "set_deserialization_loop_limit"):
        raise UserError(
            f"faiss {faiss.__version__} cannot read files safely; install faiss-cpu 1.15 or later"
        )
    expected = empty_index(factory, dim, rows)
    try:
        with _bounded_reading(max(file.stat().st_size, _table_bytes(expected))):
            index = faiss.read_index(str(file))
        _check_part(index, expected, rows)
    except (RuntimeError, MemoryError, OSError) as error:
        raise UserError(
            f"{file} is not a readable faiss index ({reason(error)}); build the index again"
        ) from error
    except _DamagedError as error:
        raise UserError(
            f"{file} is not the {factory:.80} index of these vectors ({error}); build it again"
        ) from error
    return index


def _table_bytes(index: Any) -> int:
    """Return the bytes of the table that faiss may make beside an index of product-quantised lists, else 0."""
    import faiss

    lists = _typed(faiss.try_extract_index_ivf(index))
    if lists is None or not hasattr(lists, "pq"):
        return 0
    return int(4 * lists.nlist * lists.pq.M * lists.pq.ksub)


class _DamagedError(Exception):
    """A part of an index does not fit the rest."""


@contextmanager
def _bounded_reading(largest: int) -> Iterator[None]:
    """Keep faiss from allocating an array of more bytes, or reading more lists, than the largest array can have."""
    import faiss

    with _READING:
        byte_limit = faiss.get_deserialization_vector_byte_limit()
        loop_limit = faiss.get_deserialization_loop_limit()
        faiss.set_deserialization_vector_byte_limit(largest + _SPARE_BYTES)
        faiss.set_deserialization_loop_limit(largest + _SPARE_BYTES)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(byte_limit)
            faiss.set_deserialization_loop_limit(loop_limit)


def _check_part(part: Any, expected: Any, rows: int) -> None:
    """Compare a part of an index with that of an empty one; `rows` is the number of vectors that it must hold."""
    import faiss

    part, expected = _typed(part), _typed(expected)
    name = type(expected).__name__
    # faiss reads some classes as their base, as OPQ is read as a linear transform, and some as a subclass.
    if not (isinstance(part, type(expected)) or isinstance(expected, type(part))):
        raise _DamagedError(f"it holds a {type(part).__name__} in place of a {name}")
    for field in _FIELDS:
        expected_value = getattr(expected, field, None)
        value = getattr(part, field, expected_value)
        if (
            isinstance(expected_value, bool | int | float | str)
            and value != expected_value
        ):
            raise _DamagedError(f"{name}.{field} is {value}, not {expected_value}")
    if isinstance(part, faiss.Index):
        _check_filled(part, name, rows)
    if name.endswith("InvertedLists"):
        _check_lists(part, rows)
    if hasattr(part, "chain"):
        if part.chain.size() != expected.chain.size():
            raise _DamagedError(
                f"{name} has {count_of(part.chain.size(), 'transforms')}, not {expected.chain.size()}"
            )
        for number in range(part.chain.size()):
            _check_part(part.chain.at(number), expected.chain.at(number), rows)
    for field in _PARTS:
        inner = getattr(expected, field, None)
        if inner is None:
            continue
        if getattr(part, field, None) is None:
            raise _DamagedError(f"{name} has no {field}")
        _check_part(
            getattr(part, field),
            inner,
            expected.nlist if field == "quantizer" else rows,
        )


def _typed(part: Any) -> Any:
    """Return a part as the class that it is of."""
    import faiss

    if isinstance(part, faiss.Index):
        return faiss.downcast_index(part)
    if isinstance(part, faiss.VectorTransform):
        return faiss.downcast_VectorTransform(part)
    if isinstance(part, faiss.InvertedLists):
        return faiss.downcast_InvertedLists(part)
    return part


def _check_filled(index: Any, name: str, rows: int) -> None:
    """Check that an index is trained and holds the codes of `rows` vectors."""
    if not index.is_trained or index.ntotal != rows:
        raise _DamagedError(
            f"{name} holds {count_of(index.ntotal, 'vectors')}, not {rows}"
        )
    if not hasattr(index, "codes"):
        return
    size = rows * index.code_size
    if hasattr(index, "ntotal2"):  # codes in blocks of `bbs` vectors
        blocks = -(-rows // index.bbs)
        if index.ntotal2 != blocks * index.bbs:
            raise _DamagedError(
                f"{name} has room for {count_of(index.ntotal2, 'vectors')}, not {blocks * index.bbs}"
            )
        size = blocks * index.get_block_stride()
    if index.codes.size() != size:
        raise _DamagedError(
            f"{name} has {count_of(index.codes.size(), 'bytes')} of codes, not {size}"
        )


def _check_lists(lists: Any, rows: int) -> None:
    """Check that inverted lists hold each of the rows once."""
    import faiss

    present = np.zeros(rows, bool)
    total = 0
    for number in range(lists.nlist):
        size = lists.list_size(number)
        total += size
        if not size:
            continue
        if total > rows:
            break
        ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
        if ids.min() < 0 or ids.max() >= rows:
            raise _DamagedError("a list names rows that no passage has")
        present[ids] = True
    if total != rows or not present.all():
        raise _DamagedError(
            f"its lists do not hold each of {count_of(rows, 'rows')} once"
        )
