"""Loads a checkpoint into the shared weights file, tensor after tensor, a few rows at a time.

The names and shapes are those that ``models/`` compute with: q, k, v of a layer lie behind one
another as one matrix, and so do gate and up, because one large product beats several small ones. So
do the experts of a layer. Matrices are (out, in). Only safetensors and GGUF are read: data, never
code.
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

from vertumnusd.checkpoint.errors import CheckpointError
from vertumnusd.gguf_file import GGUFError, GGUFFile
from vertumnusd.messages import ModelInfo, TensorSpec
from vertumnusd.rank.safetensors_folder import SafetensorsFolder
from vertumnusd.rank.weights import DTYPES, map_shared

ALIGNMENT = 64  # a cache line, and the widest vector
CHUNK_BYTES = (
    8 << 20
)  # dequantised at once: bounds memory, and the time between two progress reports

ROPE_TABLES = ("rotary_emb.inv_freq", "rope_freqs.weight")

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
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "router": "ffn_gate_inp",
}
_GGUF_EXPERT_NAMES = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
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
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "router": "mlp.gate",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the checkpoint: a stretch of rows of one of ours.

    ``layer`` −1: of no layer. ``expert`` −1: of no expert.
    """

    layer: int
    name: str
    shape: tuple[int, ...]
    expert: int = -1


Tensors = dict[str, tuple[Part, ...]]


class Source(Protocol):
    """Where parts come from, in the row order that the model computes with."""

    def rows(self, part: Part, start: int, stop: int) -> Tensor: ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the checkpoint by the names used there."""
        ...

    def name(self, part: Part) -> str: ...


def tensor_parts(info: ModelInfo) -> Tensors:
    """The model's tensors in file order, and what each is made of."""
    tensors: Tensors = {"embed": (Part(-1, "embed", (info.vocab, info.hidden)),)}
    for layer in range(info.layers):
        sparse = info.experts is not None and layer in info.experts.layers
        parts = _attention(info, layer) | (_experts if sparse else _mlp)(info, layer)
        tensors |= {f"layers.{layer}.{name}": made_of for name, made_of in parts.items()}
    tensors["norm"] = (Part(-1, "norm", (info.hidden,)),)
    if not info.tied_embeddings:
        tensors["head"] = (Part(-1, "head", (info.vocab, info.hidden)),)
    return tensors


def _attention(info: ModelInfo, layer: int) -> Tensors:
    hidden, q_rows, kv_rows = info.hidden, info.heads * info.head_dim, info.kv_heads * info.head_dim
    rows = {"q": q_rows, "k": kv_rows, "v": kv_rows}
    parts: Tensors = {
        "attn_norm": (Part(layer, "attn_norm", (hidden,)),),
        "qkv": tuple(Part(layer, name, (count, hidden)) for name, count in rows.items()),
        "o": (Part(layer, "o", (hidden, q_rows)),),
        "mlp_norm": (Part(layer, "mlp_norm", (hidden,)),),
    }
    if info.qk_norm:
        parts |= {name: (Part(layer, name, (info.head_dim,)),) for name in ("q_norm", "k_norm")}
    return parts


def _mlp(info: ModelInfo, layer: int) -> Tensors:
    hidden, inner = info.hidden, info.intermediate
    return {
        "gate_up": tuple(Part(layer, name, (inner, hidden)) for name in ("gate", "up")),
        "down": (Part(layer, "down", (hidden, inner)),),
    }


def _experts(info: ModelInfo, layer: int) -> Tensors:
    """One expert behind another, each with its gate before its up."""
    assert info.experts is not None
    hidden, inner, experts = info.hidden, info.experts.intermediate, range(info.experts.count)
    return {
        "router": (Part(layer, "router", (len(experts), hidden)),),
        "experts_gate_up": tuple(
            Part(layer, name, (inner, hidden), expert)
            for expert in experts
            for name in ("gate", "up")
        ),
        "experts_down": tuple(Part(layer, "down", (hidden, inner), expert) for expert in experts),
    }


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

    Some without a meaning of their own are let pass: a head beside tied embeddings, and tables of
    RoPE frequencies, which old checkpoints carry, and GGUF files for the ModelInfo to tell of.
    """
    left = {n: shape for n, shape in source.shapes().items() if not n.endswith(ROPE_TABLES)}
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
    """A GGUF file.

    The q and k rows of a Llama are interleaved there for another form of RoPE; undone here. The
    experts of a layer are one stack of matrices: ``name[i]`` is its i-th.
    """

    def __init__(self, path: Path, info: ModelInfo) -> None:
        self._file = GGUFFile(path)
        self._head_dim = info.head_dim
        self._interleaved = ("q", "k") if info.architecture == "llama" else ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for name, tensor in self._file.tensors.items():
            if len(tensor.shape) == 3:
                stack, *matrix = tensor.shape
                found |= {f"{name}[{index}]": tuple(matrix) for index in range(stack)}
            else:
                found[name] = tensor.shape
        return found

    def name(self, part: Part) -> str:
        return self._tensor(part) + (f"[{part.expert}]" if part.expert >= 0 else "")

    def rows(self, part: Part, start: int, stop: int) -> Tensor:
        first = max(part.expert, 0) * part.shape[0]
        rows = torch.from_numpy(self._file.rows(self._tensor(part), first + start, first + stop))
        if part.name not in self._interleaved:
            return rows
        pairs = rows.view(-1, self._head_dim // 2, 2, rows.shape[-1])
        return pairs.transpose(1, 2).reshape(rows.shape)

    def _tensor(self, part: Part) -> str:
        prefix = f"blk.{part.layer}." if part.layer >= 0 else ""
        names = _GGUF_EXPERT_NAMES if part.expert >= 0 else _GGUF_NAMES
        return f"{prefix}{names[part.name]}.weight"


class _HubSource:
    """A folder as on the model hub."""

    def __init__(self, path: Path) -> None:
        self._folder = SafetensorsFolder(path)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._folder.shapes()

    def name(self, part: Part) -> str:
        prefix = f"model.layers.{part.layer}." if part.layer >= 0 else ""
        name = _HUB_NAMES[part.name]
        if part.expert >= 0:
            name = name.replace("mlp.", f"mlp.experts.{part.expert}.")
        return f"{prefix}{name}.weight"

    def rows(self, part: Part, start: int, stop: int) -> Tensor:
        return self._folder.rows(self.name(part), start, stop)
