"""Reads a GGUF file: its metadata, and its tensors a few rows at a time.

The ``gguf`` package does the dequantising; its reader is not used, since it takes seconds for a
vocabulary of usual size. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_SCALARS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<?")))
_SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9


class GGUFError(Exception):
    """The file is not a GGUF file that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """``shape`` has rows first; ``offset`` counts from the start of the file."""

    shape: tuple[int, ...]
    type: int  # a gguf.GGMLQuantizationType
    offset: int


class GGUFFile:
    """An open GGUF file. ``metadata`` and ``tensors`` go by the names used in the file."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            cursor = _Cursor(self._bytes)
            self.metadata, self.tensors = _header(cursor)
        except OSError as error:
            raise GGUFError(str(error.strerror)) from error
        except ValueError as error:  # an empty file cannot be mapped; a broken one not be parsed
            raise GGUFError(str(error)) from error

    def check_types(self) -> None:
        """Raise GGUFError for a tensor of a type that cannot be dequantised."""
        readable = readable_types()
        for name, tensor in self.tensors.items():
            if tensor.type not in readable:
                found = _type_name(tensor.type)
                allowed = ", ".join(readable.values())
                raise GGUFError(f"tensor {name} has the type {found}; supported are {allowed}")

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``start`` … ``stop - 1`` of a matrix, or elements of a vector, as float32.

        The matrices of a stack lie behind one another, and their rows are counted through.
        """
        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.type)
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        row_shape = tensor.shape[-1:] if len(tensor.shape) > 1 else ()
        row_bytes = math.prod(row_shape) * block_bytes // block_elements
        first = tensor.offset + start * row_bytes
        size = (stop - start) * row_bytes
        raw = np.frombuffer(bytearray(self._bytes[first : first + size]), np.uint8)
        if len(raw) < size:
            raise GGUFError(f"the file ends inside tensor {name}")
        flat: NDArray[np.float32] = dequantize(raw, kind)
        return flat.reshape(stop - start, *row_shape)


@functools.cache
def readable_types() -> dict[int, str]:
    """The names of the types that ``gguf`` dequantises, by number."""
    readable = {}
    for kind, (_, block_bytes) in GGML_QUANT_SIZES.items():
        try:
            dequantize(np.zeros(block_bytes, np.uint8), kind)
        except NotImplementedError:
            continue
        readable[int(kind)] = kind.name
    return readable


def _type_name(number: int) -> str:
    known = {int(kind): kind.name for kind in GGMLQuantizationType}
    return known.get(number, str(number))


class _Cursor:
    """Reads values one after another; ValueError where the file ends too soon."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self.position : self.position + count]
        if len(taken) < count:
            raise ValueError("the file ends inside its header")
        self.position += count
        return taken

    def unpack(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.take(self.unpack("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.unpack("<I"), self.unpack("<Q"))
        return self.scalars(kind, 1)[0]

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        return self.scalars(kind, count)

    def scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise ValueError(f"the header has a value of the unsupported type {kind}")
        form = np.dtype(_SCALARS[kind])
        values: list[Any] = np.frombuffer(self.take(count * form.itemsize), form).tolist()
        return values


def _header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    if cursor.take(len(MAGIC)) != MAGIC:
        raise ValueError("not a GGUF file")
    version = cursor.unpack("<I")
    if version not in VERSIONS:
        raise ValueError(f"GGUF version {version}; {VERSIONS} can be read")
    tensor_count, value_count = cursor.unpack("<Q"), cursor.unpack("<Q")
    metadata = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unpack("<I"))
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}; a positive number is needed")
    data = -(-cursor.position // alignment) * alignment
    tensors = {name: GGUFTensor(shape, kind, data + offset) for name, shape, kind, offset in infos}
    return metadata, tensors


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    # The file has the fastest dimension first.
    shape = tuple(reversed(cursor.array(10, cursor.unpack("<I"))))
    return name, shape, cursor.unpack("<I"), cursor.unpack("<Q")
