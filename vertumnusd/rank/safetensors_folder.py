"""A folder of safetensors files, one or many, read a few rows at a time."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vertumnusd.checkpoint.errors import CheckpointError, need_one
from vertumnusd.checkpoint.hub_config import INDEX, WEIGHTS

DTYPES = ("F32", "BF16", "F16")  # others are codes that mean nothing without a table of scales


class SafetensorsFolder:
    """All tensors of a checkpoint folder, whichever file they are in."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, safe_open] = {}
        try:
            for file in _files(folder):
                opened = safe_open(folder / file, framework="pt")
                self._files |= dict.fromkeys(opened.keys(), opened)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot be read: {error}") from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors. CheckpointError for a dtype that is not a plain float."""
        shapes = {}
        for name, file in self._files.items():
            tensor = file.get_slice(name)
            need_one(f"dtype of tensor {name}", tensor.get_dtype(), DTYPES)
            shapes[name] = tuple(tensor.get_shape())
        return shapes

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows ``start`` … ``stop - 1`` of a tensor, in the dtype it is stored in."""
        rows: Tensor = self._files[name].get_slice(name)[start:stop]
        return rows


def _files(folder: Path) -> list[str]:
    index = folder / INDEX
    if not index.is_file():
        return [WEIGHTS]
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{INDEX} has no weight_map of file names") from error
    # The index names its neighbours; a path out of the folder is an attempt at something else.
    strange = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if strange:
        raise CheckpointError(f"{INDEX} names {strange[0]!r}, which is no file of the folder")
    return names
