"""Loads a checkpoint into the shared weights file, tensor after tensor, a few rows at a time.

The names and shapes are those that ``models/llama.py`` computes with: q, k, v of a layer lie behind
one another as one matrix, and so do gate and up, because one large product beats several small
ones. Matrices are (out, in). Only safetensors and GGUF are read: data, never code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vertumnusd.checkpoint import CheckpointError
from vertumnusd.gguf_file import GGUFError, GGUFFile
from vertumnusd.messages import ModelInfo, TensorSpec
from vertumnusd.rank.safetensors_folder import SafetensorsFolder
from vertumnusd.rank.weights import DTYPES, map_shared

ALIGNMENT = 64  # a cache line, and the widest vector
CHUNK_BYTES = (
    8 << 20
)  # dequantised at once: bounds memory, and the time between two progress reports

ROPE_TABLE = "rotary_emb.inv_freq"

_GGUF_NAMES = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_HUB_NAMES = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the checkpoint: a stretch of rows of one of ours. ``layer`` −1: of no layer."""

    layer: int
    name: str
    shape: tuple[int, ...]


Tensors = dict[str, tuple[Part, ...]]


class Source(Protocol):
    """Where parts come from, in the row order that Llama computes with."""

    def rows(self, part: Part, start: int, stop: int) -> Tensor: ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the checkpoint by the names used there."""
        ...

    def name(self, part: Part) -> str: ...


def tensor_parts(info: ModelInfo) -> Tensors:
    """The model's tensors in file order, and what each is made of."""
    hidden, inner = info.hidden, info.intermediate
    q_rows, kv_rows = info.heads * info.head_dim, info.kv_heads * info.head_dim

    def layer_parts(layer: int) -> Tensors:
        def part(name: str, *shape: int) -> Part:
            return Part(layer, name, shape)

        kv = (part("k", kv_rows, hidden), part("v", kv_rows, hidden))
        return {
            f"layers.{layer}.attn_norm": (part("attn_norm", hidden),),
            f"layers.{layer}.qkv": (part("q", q_rows, hidden), *kv),
            f"layers.{layer}.o": (part("o", hidden, q_rows),),
            f"layers.{layer}.mlp_norm": (part("mlp_norm", hidden),),
            f"layers.{layer}.gate_up": (part("gate", inner, hidden), part("up", inner, hidden)),
            f"layers.{layer}.down": (part("down", hidden, inner),),
        }

    tensors: Tensors = {"embed": (Part(-1, "embed", (info.vocab, hidden)),)}
    for layer in range(info.layers):
        tensors |= layer_parts(layer)
    tensors["norm"] = (Part(-1, "norm", (hidden,)),)
    if not info.tied_embeddings:
        tensors["head"] = (Part(-1, "head", (info.vocab, hidden)),)
    return tensors


def tensor_specs(info: ModelInfo) -> tuple[list[TensorSpec], int]:
    """Where each tensor lies in the weights file, and the size of that in bytes."""
    specs, offset = [], 0
    for name, parts in tensor_parts(info).items():
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        specs.append(TensorSpec(name, shape, offset))
        size_bytes = math.prod(shape) * DTYPES[info.dtype].itemsize
        offset += -(-size_bytes // ALIGNMENT) * ALIGNMENT
    return specs, offset


def load(path: Path, info: ModelInfo, weights_fd: int) -> Iterator[int]:
    """Fill the weights file; yields the bytes written so far. Raises CheckpointError."""
    try:
        source = _GGUFSource(path, info) if path.suffix == ".gguf" else _HubSource(path)
        _check(source, info)
        specs, size_bytes = tensor_specs(info)
        os.ftruncate(weights_fd, size_bytes)
        memory = map_shared(weights_fd, (size_bytes,), torch.uint8)
        for spec, parts in zip(specs, tensor_parts(info).values(), strict=True):
            stop = spec.offset + math.prod(spec.shape) * DTYPES[info.dtype].itemsize
            tensor = memory[spec.offset : stop].view(DTYPES[info.dtype]).view(spec.shape)
            yield from (
                spec.offset + written for written in _fill(tensor, source, parts, info.head_dim)
            )
    except (CheckpointError, GGUFError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _fill(tensor: Tensor, source: Source, parts: tuple[Part, ...], head_dim: int) -> Iterator[int]:
    """Read the parts into the tensor's rows, whole heads at a time; yields the bytes written."""
    row_bytes = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    chunk = max(1, CHUNK_BYTES // row_bytes // head_dim) * head_dim
    first = 0
    for part in parts:
        for start in range(0, part.shape[0], chunk):
            stop = min(start + chunk, part.shape[0])
            tensor[first + start : first + stop] = source.rows(part, start, stop)
            yield (first + stop) * row_bytes
        first += part.shape[0]


def _check(source: Source, info: ModelInfo) -> None:
    """Every tensor is there in its shape, and none that the model would not use.

    Two kinds without a meaning of their own are let pass: a head beside tied embeddings, and the
    table of RoPE frequencies that old checkpoints carry.
    """
    left = {n: shape for n, shape in source.shapes().items() if not n.endswith(ROPE_TABLE)}
    if info.tied_embeddings:
        left.pop(source.name(Part(-1, "head", ())), None)
    for parts in tensor_parts(info).values():
        for part in parts:
            name = source.name(part)
            if name not in left:
                raise CheckpointError(f"tensor {name} is missing")
            shape = left.pop(name)
            if shape != part.shape:
                raise CheckpointError(f"tensor {name} has shape {shape}; {part.shape} is needed")
    if left:
        raise CheckpointError(f"tensor {min(left)} is not of a plain {info.architecture} model")


class _GGUFSource:
    """A GGUF file. Its q and k rows are interleaved for another form of RoPE; undone here."""

    def __init__(self, path: Path, info: ModelInfo) -> None:
        self._file = GGUFFile(path)
        self._head_dim = info.head_dim

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    def name(self, part: Part) -> str:
        prefix = f"blk.{part.layer}." if part.layer >= 0 else ""
        return f"{prefix}{_GGUF_NAMES[part.name]}.weight"

    def rows(self, part: Part, start: int, stop: int) -> Tensor:
        rows = torch.from_numpy(self._file.rows(self.name(part), start, stop))
        if part.name not in ("q", "k"):
            return rows
        pairs = rows.view(-1, self._head_dim // 2, 2, rows.shape[-1])
        return pairs.transpose(1, 2).reshape(rows.shape)


class _HubSource:
    """A folder as on the model hub."""

    def __init__(self, path: Path) -> None:
        self._folder = SafetensorsFolder(path)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._folder.shapes()

    def name(self, part: Part) -> str:
        prefix = f"model.layers.{part.layer}." if part.layer >= 0 else ""
        return f"{prefix}{_HUB_NAMES[part.name]}.weight"

    def rows(self, part: Part, start: int, stop: int) -> Tensor:
        return self._folder.rows(self.name(part), start, stop)
