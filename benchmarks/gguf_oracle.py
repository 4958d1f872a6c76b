"""SmolLM2 in transformers, from the same GGUF file that the engine reads: the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def gguf_oracle(path: Path) -> PreTrainedModel:
    """The model in float32, as ``from_pretrained(gguf_file=…)`` would fill it.

    That function insists on a further package for placing weights on devices; the two calls below
    are what it comes to without one.
    """
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=shape)["tensors"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    keys = model.load_state_dict(tensors, strict=False)
    assert keys.unexpected_keys == []
    assert keys.missing_keys == ["lm_head.weight"]  # tied to the embedding
    model.tie_weights()
    return model


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@torch.inference_mode()
def last_logits(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    return model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].numpy()


def logits_error(logits: np.ndarray, oracle: np.ndarray) -> float:
    """The largest difference, relative to the largest |logit|."""
    return float(np.abs(logits - oracle).max() / np.abs(oracle).max())
