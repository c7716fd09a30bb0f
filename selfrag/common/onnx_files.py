"""Graphs for ONNX Runtime, written as protocol buffers without the package `onnx`, which is large."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfrag.common.errors import EngineError

GRAPH = "model.onnx"
_DATA = "model.onnx.data"
_INLINE = 1024
"""Bytes of a constant up to which it stands in the graph itself; larger ones follow each other in the other file."""
_ALIGNED = 64
_CONTRIB = "com.microsoft"
"""Operators of ONNX Runtime beside the standard's."""
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}
"""ONNX's numbers for types of numpy."""
_FLOAT, _INT = 1, 2  # kinds of attributes


class GraphWriter:
    """Writes a graph and its weights node by node, in the order of the computation.

    Args:
        folder: an empty one to write into; None keeps all in memory.

    Attributes:
        weights: large constants, where all is in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._data = None if folder is None else (folder / _DATA).open("wb")
        self.weights: dict[str, NDArray[Any]] = {}
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """Write weights, and return their name."""
        values = np.asarray(values, order="C")
        dims = [_field(1, size) for size in values.shape]
        kind = _field(2, _TYPES[values.dtype.name])
        parts = [*dims, kind, _field(8, name)]
        if values.nbytes <= _INLINE:
            parts.append(_field(9, values.tobytes()))
        else:
            offset = self._write(name, values)
            place = {"location": _DATA, "offset": offset, "length": values.nbytes}
            for key, value in place.items():
                parts.append(_field(13, _field(1, key) + _field(2, str(value))))
            parts.append(_field(14, 1))
        self._constants.append(_field(5, b"".join(parts)))
        return name

    def _write(self, name: str, values: NDArray[Any]) -> int:
        """Write or keep a large constant, and return where it begins."""
        if self._data is None:
            self.weights[name] = values
            return 0
        self._data.write(bytes(-self._data.tell() % _ALIGNED))
        offset = self._data.tell()
        self._data.write(values.data)
        return offset

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        *outputs: str,
        contrib: bool = False,
        **attributes: float,
    ) -> None:
        """Add an operation; a name that is empty is an input or output left out."""
        parts = [_field(1, name) for name in inputs]
        parts += [_field(2, name) for name in outputs]
        parts.append(_field(4, kind))
        for name, value in attributes.items():
            if isinstance(value, float):
                stated = _field(2, value) + _field(20, _FLOAT)
            else:
                stated = _field(3, value) + _field(20, _INT)
            parts.append(_field(5, _field(1, name) + stated))
        if contrib:
            parts.append(_field(7, _CONTRIB))
        self._nodes.append(_field(1, b"".join(parts)))

    def input(self, name: str, kind: str, shape: Sequence[str | int]) -> None:
        """Declare what a run is given; a size that varies has a name."""
        self._inputs.append(_field(11, _declaration(name, kind, shape)))

    def output(self, name: str, kind: str, shape: Sequence[str | int]) -> None:
        """Declare what a run gives."""
        self._outputs.append(_field(12, _declaration(name, kind, shape)))

    def finish(self) -> bytes:
        """Write the graph itself into the folder, if there is one, and return it."""
        parts = [*self._nodes, _field(2, "graph"), *self._constants]
        graph = b"".join([*parts, *self._inputs, *self._outputs])
        standard = _field(2, 21)
        contributed = _field(1, _CONTRIB) + _field(2, 1)
        model = _field(1, 10) + _field(7, graph)
        model += _field(8, standard) + _field(8, contributed)
        if self._folder is not None and self._data is not None:
            self._data.close()
            (self._folder / GRAPH).write_bytes(model)
        return model


def _declaration(name: str, kind: str, shape: Sequence[str | int]) -> bytes:
    sizes = b"".join(
        _field(1, _field(1 if isinstance(size, int) else 2, size)) for size in shape
    )
    tensor = _field(1, _TYPES[kind]) + _field(2, sizes)
    return _field(1, name) + _field(2, _field(1, tensor))


def _field(number: int, value: float | str | bytes) -> bytes:
    """Return a field of a protocol buffer."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def open_session(
    graph: Path | bytes,
    threads: int | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Any:
    """Return the session of ONNX Runtime that runs a graph.

    Args:
        graph: the file of a graph, or a graph in memory.
        threads: of one run; None is one for each core.
        weights: large constants of a graph in memory.

    Raises:
        EngineError: it cannot be loaded.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or os.cpu_count() or 1
    # A thread that waits in a loop takes the core of the one that it waits for, where other work runs: half as fast.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if weights:
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
        options.add_external_initializers(list(weights), list(values))
    try:
        return onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of many types of its own
        name = graph if isinstance(graph, Path) else "the graph"
        raise EngineError(f"{name} cannot be loaded: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of what ONNX Runtime says."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
