"""Text to token ids and back, for the served model.

The tokenizer never reads a control token out of text (``encode_special_tokens``): control tokens
come only from the chat template, whose output is cut at them (``chat_template.py``). Long inputs
are tokenised in a thread; ``encode_batch_fast`` releases the GIL, ``encode`` does not.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio
from tokenizers import Tokenizer, decoders

from vertumnusd.checkpoint import eos_token_ids
from vertumnusd.gguf_file import GGUFError, GGUFFile
from vertumnusd.node.chat_template import ChatTemplate, Message
from vertumnusd.node.detokenizer import ByteTable, Detokenizer
from vertumnusd.node.errors import invalid
from vertumnusd.node.gguf_tokenizer import TokenizerError, tokenizer_from_gguf

INLINE_CHARACTERS = 8 * 1024  # take about 2 ms; longer texts go to a thread
NO_TOKEN = 2**32 - 1  # an id that no vocabulary has
NORMALISING = 4  # characters that Unicode normalisation makes one of, at most
THREADS = 2  # that tokenise at the same time

_T = TypeVar("_T")


class TooManyTokens(Exception):
    """A text has ``count`` tokens at least, more than were allowed. Their ids were not made."""

    def __init__(self, count: int) -> None:
        super().__init__(f"at least {count} tokens")
        self.count = count


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation as the model has seen it, so that it can go on from exactly there.

    Tokens that a model draws are not always those that its text would be cut into. A conversation
    that continues from the drawn ones finds its whole past in the prefix cache.
    """

    rendered: str  # up to the end of the answer, if any
    ids: array[int]


class Tokens:
    """Tokenizer and chat template of one checkpoint."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        begin: Sequence[int],
        stop_tokens: tuple[int, ...],
        template: str,
        variables: dict[str, str],
    ) -> None:
        """``begin``: ids that stand before every text. ``template``: "" if the model has none."""
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            raise TokenizerError("only byte-level BPE tokenizers are supported")
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._begin = list(begin)
        self._table = ByteTable(tokenizer)
        self._limiter = trio.CapacityLimiter(THREADS)
        self._added = tokenizer.get_added_tokens_decoder()
        control = {added.content: id for id, added in self._added.items() if added.special}
        self._template = ChatTemplate(template, control, variables) if template else None
        self.stop_tokens = stop_tokens

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """From a ``.gguf`` file or a hub folder. Raises :class:`TokenizerError`."""
        try:
            return _from_gguf(path) if path.suffix == ".gguf" else _from_folder(path)
        except (OSError, ValueError, GGUFError, TokenizerError) as error:
            raise TokenizerError(f"{path}: {error}") from error

    async def encode(self, text: str, *, most: int, begin: bool = True) -> list[int]:
        """Ids of ``text``, after the model's begin token unless ``begin`` is false.

        Raises :class:`TooManyTokens` if they were more than ``most``.
        """
        prefix = self._begin if begin else []
        return await self._off_loop(len(text), lambda: prefix + self._ids([text], most))

    async def chat(
        self, messages: Sequence[Message], *, most: int, told: Told | None = None
    ) -> Told:
        """The conversation, rendered by the chat template up to where the answer begins.

        ``told`` is what the model has seen of it before; its ids are kept where the conversation
        still begins with it. Raises :class:`TooManyTokens`, or :class:`RequestError` for
        conversations that the template refuses.
        """
        if self._template is None:
            raise invalid(
                "this model has no chat template; use /v1/completions", code="no_chat_template"
            )
        size = sum(len(message["content"]) for message in messages)
        template = self._template
        return await self._off_loop(size, lambda: self._chat(template, messages, most, told))

    def answered(self, told: Told, answer: str, drawn: Sequence[int]) -> Told:
        """``told`` and the answer to it; ``drawn`` without the token that ended it."""
        assert self._template is not None
        ids = array("I", told.ids)
        ids.extend(drawn)
        return Told(told.rendered + self._template.guard(answer), ids)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self._table)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, control tokens included."""
        known = [id for id in ids if self._tokenizer.id_to_token(id) is not None]
        return self._tokenizer.decode(known, skip_special_tokens=False)

    async def _off_loop(self, size: int, work: Callable[[], _T]) -> _T:
        if size <= INLINE_CHARACTERS:
            return work()
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)

    def _chat(
        self, template: ChatTemplate, messages: Sequence[Message], most: int, told: Told | None
    ) -> Told:
        rendered = template.render(messages)
        if told is None or not rendered.startswith(told.rendered):
            told = Told("", array("I"))
        pieces = list(template.split(rendered[len(told.rendered) :]))
        ids = told.ids + array("I", self._ids(pieces, most - len(told.ids)))
        return Told(rendered, ids)

    def _ids(self, pieces: Sequence[str | int], most: int) -> list[int]:
        """Plain text is encoded, ids stand for themselves. Raises :class:`TooManyTokens`."""
        texts = [piece for piece in self._stripped(pieces) if isinstance(piece, str)]
        # Tokenising a text that cannot fit would cost seconds: its length says enough.
        least = sum(map(len, texts)) // (self._table.longest * NORMALISING)
        if least > most:
            raise TooManyTokens(least)
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        count = sum(map(len, encodings)) + len(pieces) - len(texts)
        if count > most:
            raise TooManyTokens(count)
        plain = iter(encodings)
        ids: list[int] = []
        for piece in pieces:  # those of plain text are the encoded ones, in order
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(next(plain).ids)
        return ids

    def _stripped(self, pieces: Sequence[str | int]) -> list[str | int]:
        """Some control tokens swallow the white space beside them."""
        stripped = list(pieces)
        for at, piece in enumerate(pieces):
            if isinstance(piece, str):
                continue
            added = self._added[piece]
            before, after = at - 1, at + 1
            if added.lstrip and before >= 0 and isinstance(text := stripped[before], str):
                stripped[before] = text.rstrip()
            if added.rstrip and after < len(pieces) and isinstance(text := stripped[after], str):
                stripped[after] = text.lstrip()
        return stripped


def _from_gguf(path: Path) -> Tokens:
    metadata = GGUFFile(path).metadata
    tokenizer = tokenizer_from_gguf(metadata)
    variables: dict[str, str] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = tokenizer.id_to_token(metadata.get(f"tokenizer.ggml.{key}_token_id", NO_TOKEN))
        if token is not None:
            variables[f"{name}_token"] = token
    begin = []
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        begin = [metadata["tokenizer.ggml.bos_token_id"]]
    return Tokens(
        tokenizer,
        begin=begin,
        stop_tokens=eos_token_ids(path),
        template=metadata.get("tokenizer.chat_template", ""),
        variables=variables,
    )


def _from_folder(path: Path) -> Tokens:
    file = path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{file.name} cannot be used: {error}") from error
    config = _read_json(path / "tokenizer_config.json")
    return Tokens(
        tokenizer,
        begin=tokenizer.encode("", add_special_tokens=True).ids,
        stop_tokens=eos_token_ids(path),
        template=_template_source(path, config),
        variables=_template_variables(config),
    )


def _template_source(path: Path, config: dict[str, Any]) -> str:
    beside = path / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text("utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    return str(template)


def _template_variables(config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and its like; each is a string or a description with ``content``."""
    variables = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            variables[name] = token
    return variables


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise TokenizerError(f"{path.name} is not a JSON object")
    return content
