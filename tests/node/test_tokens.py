"""Tokens of real tokenizer files equal those of transformers, and user text stays text."""

from __future__ import annotations

import json
import random
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from vertumnusd.checkpoint import resolve
from vertumnusd.gguf_file import GGUFFile
from vertumnusd.node.gguf_tokenizer import TokenizerError, tokenizer_from_gguf
from vertumnusd.node.tokens import INLINE_CHARACTERS, Tokens, TooManyTokens

pytestmark = pytest.mark.ranks

PLENTY = 10**6
GGUF = resolve("SmolLM2-135M-Instruct")
PARTS = [
    *(
        "a",
        "Z",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "1",
        "23",
        "4567",
        "é",
        "日本",
        "🙂",
        "👩‍👧",
        "\u0301",
    ),
    *("'s", "'LL", "-", "...", "_", "x y", "ß", "\u00a0", "\u200d", "def f():", "<|im_end|>", "<"),
]


@cache
def tokens() -> Tokens:
    return Tokens.load(GGUF)


@cache
def oracle() -> Any:
    """transformers' tokenizer of the same file, with the pre-tokenizer that the file names.

    transformers does not read ``tokenizer.ggml.pre``: it takes GPT-2's cuts, where SmolLM2 was
    trained with single digits. The difference shows only where several spaces precede a digit.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(GGUF.parent), gguf_file=GGUF.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


@cache
def texts() -> list[str]:
    draw = random.Random(7)
    return ["", *("".join(draw.choices(PARTS, k=draw.randint(1, 30))) for _ in range(1000))]


def conversation(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]


async def test_ids_equal_transformers() -> None:
    for text in texts():
        if "<" not in text:
            assert await tokens().encode(text, most=PLENTY) == oracle()(text).input_ids, repr(text)


async def test_decoding_gives_the_text_back() -> None:
    for text in texts():
        ids = await tokens().encode(text, most=PLENTY)
        assert tokens().decode(ids) == text
        detokenizer = tokens().detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == text


async def test_control_strings_in_text_stay_text() -> None:
    control = set(oracle().all_special_ids)
    assert control
    for text in ("<|im_end|>", "x<|im_start|>system\n", "<|endoftext|><repo_name>"):
        assert not control & set(await tokens().encode(text, most=PLENTY))
        told = await tokens().chat(conversation(text), most=PLENTY)
        harmless = await tokens().chat(conversation("x"), most=PLENTY)
        assert [id for id in told.ids if id in control] == [
            id for id in harmless.ids if id in control
        ]


async def test_conversations_equal_transformers() -> None:
    for text in texts():
        if "<" in text:
            continue
        for messages in (
            conversation(text),
            conversation("hello", text, "more"),
            [{"role": "system", "content": text}, *conversation("hi")],
        ):
            told = await tokens().chat(messages, most=PLENTY)
            rendered = oracle().apply_chat_template(messages, add_generation_prompt=True)
            assert told.ids.tolist() == rendered["input_ids"], repr(text)


async def test_a_long_text_gets_the_same_ids_in_its_thread() -> None:
    text = "The quick brown fox jumps over 13 dogs.\n" * 1000
    assert len(text) > INLINE_CHARACTERS
    assert await tokens().encode(text, most=PLENTY) == oracle()(text).input_ids


async def test_too_many_tokens_are_counted_and_not_returned() -> None:
    with pytest.raises(TooManyTokens) as caught:
        await tokens().encode("one two three", most=2)
    assert caught.value.count == 3
    with pytest.raises(TooManyTokens):
        await tokens().chat(conversation("one two three"), most=5)


async def test_a_text_that_cannot_fit_is_not_tokenised() -> None:
    with pytest.raises(TooManyTokens) as caught:
        await tokens().encode(" " * 15_000_000, most=8192)
    assert 8192 < caught.value.count < 1_000_000


async def test_a_conversation_goes_on_from_the_drawn_tokens() -> None:
    asked = await tokens().chat(conversation("hi"), most=PLENTY)
    drawn = [*(await tokens().encode("He", most=9)), *(await tokens().encode("llo", most=9))]
    assert drawn != await tokens().encode("Hello", most=9)
    told = tokens().answered(asked, "Hello", drawn)
    longer = await tokens().chat(conversation("hi", "Hello", "and?"), most=PLENTY, told=told)
    assert longer.ids[: len(told.ids)] == asked.ids + array("I", drawn)
    fresh = await tokens().chat(conversation("hi", "Hello", "and?"), most=PLENTY)
    assert tokens().decode(longer.ids) == tokens().decode(fresh.ids)
    assert longer.ids != fresh.ids


async def test_another_conversation_does_not_use_what_was_told() -> None:
    told = await tokens().chat(conversation("hi"), most=PLENTY)
    other = conversation("something else")
    assert await tokens().chat(other, most=PLENTY, told=told) == await tokens().chat(
        other, most=PLENTY
    )


def test_the_stop_token_is_the_checkpoints() -> None:
    assert [tokens().decode([id]) for id in tokens().stop_tokens] == ["<|im_end|>"]


def hub_folder(path: Path, **config: object) -> Path:
    """The GGUF's tokenizer as a hub folder, as transformers writes it."""
    oracle().save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return path


async def test_a_hub_folder_gives_the_same_ids(tmp_path: Path) -> None:
    folder = Tokens.load(hub_folder(tmp_path))
    assert folder.stop_tokens == (2, 0)
    for text in texts()[:200]:
        assert await folder.encode(text, most=PLENTY) == await tokens().encode(text, most=PLENTY)
        messages = conversation("x", text, "y")
        ours = await tokens().chat(messages, most=PLENTY)
        assert (await folder.chat(messages, most=PLENTY)).ids == ours.ids


async def test_a_hub_folders_begin_token_stands_before_texts(tmp_path: Path) -> None:
    hub_folder(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = Tokens.load(tmp_path)
    assert (await folder.encode("a", most=PLENTY))[0] == 1
    assert (await folder.encode("a", most=PLENTY, begin=False))[0] != 1


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
async def test_other_pre_tokenizers_equal_transformers(pre: str) -> None:
    """Same vocabulary, cut by the rules of another model family."""
    metadata = GGUFFile(GGUF).metadata
    ours = tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": pre})
    theirs = _transformers_cuts(pre, metadata)
    for text in texts():
        if "<" not in text:
            assert ours.encode(text).ids == theirs.encode(text).ids, repr(text)


def _transformers_cuts(pre: str, metadata: dict[str, Any]) -> Tokenizer:
    vocab = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    if pre == "qwen2":
        from transformers import Qwen2Tokenizer

        return Qwen2Tokenizer(vocab=vocab, merges=merges).backend_tokenizer
    import inspect

    from tokenizers import Regex
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = inspect.signature(TikTokenConverter).parameters["pattern"].default
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def test_an_unknown_tokenizer_is_refused_by_name() -> None:
    metadata = GGUFFile(GGUF).metadata
    with pytest.raises(TokenizerError, match="pre-tokenizer 'viking'"):
        tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "viking"})
    with pytest.raises(TokenizerError, match="tokenizer model 'llama'"):
        tokenizer_from_gguf(metadata | {"tokenizer.ggml.model": "llama"})


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be used"):
        Tokens.load(tmp_path)
