"""Maps memory files as tensors: the shared weights here, the KV pools and exchange areas elsewhere.

The files are created by the daemon and inherited as open descriptors, so all ranks of a host see
the same pages and nothing is copied or sent.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from vertumnusd.messages import TensorSpec

MADV_POPULATE_WRITE = 23  # madvise(2), since Linux 5.14
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def map_shared(fd: int, shape: Sequence[int], dtype: torch.dtype, populate: bool = False) -> Tensor:
    """A tensor over the first bytes of the file; what one rank writes, all see.

    ``populate``: take all its pages now. Taken one by one at the first write they cost thirteen
    times the copy itself, in the middle of somebody's prefill.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    mapping = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED)
    if populate:
        with contextlib.suppress(OSError):  # older kernels do not know the advice
            mapping.madvise(MADV_POPULATE_WRITE)
    return torch.frombuffer(mapping, dtype=dtype).view(*shape)


def map_weights(fd: int, tensors: Sequence[TensorSpec], dtype: str) -> dict[str, Tensor]:
    """The model's weights by name, over the shared file.

    The mapping is private: torch wants writable memory, and a stray write in one rank must not
    change the weights of the others.
    """
    torch_dtype = DTYPES[dtype]
    mapping = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return {
        spec.name: torch.frombuffer(
            mapping, dtype=torch_dtype, count=math.prod(spec.shape), offset=spec.offset
        ).view(*spec.shape)
        for spec in tensors
    }
