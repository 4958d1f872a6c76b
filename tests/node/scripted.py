"""A scripted node behind the doors, and clients in front of them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import h11
import trio
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, RejectConnection, Request, TextMessage

from vertumnusd.messages import Answer, Failed, Finished, ModelInfo, Placed, Token
from vertumnusd.node.admin import Admin, AdminToken
from vertumnusd.node.doors import Doors
from vertumnusd.node.errors import RequestError
from vertumnusd.node.feed import Feed
from vertumnusd.node.keys import Keys
from vertumnusd.node.limits import Limits
from vertumnusd.node.metrics import Metrics
from vertumnusd.node.service import Job
from vertumnusd.node.tokens import Tokens

CONTEXT = 512
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_tokenizer() -> Tokenizer:
    """One token for each byte, so that token counts can be read off the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    return tokenizer


TOKENIZER = _byte_tokenizer()
STOP = TOKENIZER.token_to_id("<|im_end|>")
VOCAB = TOKENIZER.get_vocab_size()


def byte_tokens(template: str = CHATML) -> Tokens:
    return Tokens(
        TOKENIZER, begin=[], stop_tokens=(STOP,), template=template, variables={"eos_token": "x"}
    )


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def placed(job: Job, cached_tokens: int = 4) -> Placed:
    return Placed(
        term=1,
        epoch=1,
        request=job.request,
        worker="CP2[0-1]",
        degree=2,
        preferred_degree=2,
        input_tokens=len(job.tokens),
        cached_tokens=cached_tokens,
        queue_s=0.25,
        service_s=0.5,
        gpu_price_s=0.0,
        cost_s=0.75,
    )


def finished(job: Job, reason: str, output_tokens: int) -> Finished:
    return Finished(
        reason=reason,
        worker="CP2[0-1]",
        degree=2,
        input_tokens=len(job.tokens),
        cached_tokens=4,
        output_tokens=output_tokens,
        queue_s=0.25,
        predicted_s=0.5,
        prefill_s=0.5,
        ttft_s=0.75,
        handoff_ttft_s=0.8,
        total_s=1.0,
    )


def saying(text: str) -> Callable[[Job], list[Answer]]:
    """A script that answers ``text``, then the stop token; cut at the job's maximum."""

    def script(job: Job) -> list[Answer]:
        if job.max_new_tokens == 0:
            return [placed(job), finished(job, "prefilled", 0)]
        drawn = [*ids(text), STOP][: job.max_new_tokens]
        reason = "stop" if drawn[-1] == STOP else "length"
        return [
            placed(job),
            *(Token(token) for token in drawn),
            finished(job, reason, len(drawn)),
        ]

    return script


def failing(failed: Failed, after: str | None = None) -> Callable[[Job], list[Answer]]:
    """A script that fails, at once or after saying something."""

    def script(job: Job) -> list[Answer]:
        begun = [] if after is None else [placed(job), *(Token(token) for token in ids(after))]
        return [*begun, failed]

    return script


class ScriptedService:
    """Implements ``Service``: plays ``script(job)``, and stops where ``hold_after`` events are out
    until ``release`` is set."""

    def __init__(self) -> None:
        self.model = ModelInfo(
            name="tiny",
            architecture="llama",
            layers=1,
            hidden=8,
            heads=1,
            kv_heads=1,
            head_dim=8,
            intermediate=8,
            vocab=VOCAB,
            context_tokens=CONTEXT,
            norm_eps=1e-5,
            rope_theta=1e4,
            tied_embeddings=True,
            dtype="float32",
        )
        self.kv_capacity_tokens = 10 * CONTEXT
        self.unready = ""
        self.script: Callable[[Job], Iterable[Answer]] = saying("Hello")
        self.hold_after: int | None = None
        self.release = trio.Event()
        self.jobs: list[Job] = []
        self.running: set[str] = set()
        self.most_running = 0
        self.cancelled: list[str] = []
        self.changed = trio.Event()

    def unready_reason(self) -> str:
        return self.unready

    def cluster(self) -> dict[str, Any]:
        return {"workers": [{"name": "CP2[0-1]"}]}

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[AsyncIterator[Answer]]:
        self.jobs.append(job)
        self.running.add(job.request)
        self.most_running = max(self.most_running, len(self.running))
        self._note()
        done: list[bool] = []
        try:
            async with aclosing(self._play(job, done)) as answer:
                yield answer
        finally:
            self.running.discard(job.request)
            if not done:
                self.cancelled.append(job.request)
            self._note()

    async def _play(self, job: Job, done: list[bool]) -> AsyncGenerator[Answer, None]:
        for index, event in enumerate(self.script(job)):
            if index == self.hold_after:
                await self.release.wait()
            await trio.lowlevel.checkpoint()
            if isinstance(event, Finished | Failed):
                done.append(True)
            yield event

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds after some answer began or ended."""
        while not condition():
            await self.changed.wait()

    def _note(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class ScriptedOperator:
    """Implements ``Operator``: notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    def plan(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        if "CP9[0-8]" in workers:
            raise RequestError(404, "unknown_worker", "there is no worker 'CP9[0-8]'")
        return [{"kind": kind, "before": workers}]

    async def convert(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        self.told.append((kind, list(workers)))
        await trio.lowlevel.checkpoint()
        return [{"kind": kind, "before": workers, "outcome": "exposed"}]

    def hold(self, for_s: float, by: str) -> None:
        self.told.append(("hold", [f"{for_s:g}", by]))


class House:
    """Doors in front of a scripted service."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.service = ScriptedService()
        self.metrics = Metrics()
        self.operator = ScriptedOperator()
        self._nursery = nursery
        self.set_up()

    def set_up(
        self,
        *,
        keys: Keys | None = None,
        template: str = CHATML,
        admin_token: str = "",
        **limits: Any,
    ) -> None:
        """Put new doors in place, with other keys, template or limits."""
        self.feed = Feed(self.service.cluster, trio.current_time, lambda: 0.0)
        self.doors = Doors(
            self.service,
            byte_tokens(template),
            keys or Keys(),
            self.metrics,
            Limits(**limits),
            Admin(self.feed, AdminToken(admin_token), self.operator),
        )

    def connect(self, trusted: bool = False) -> Client:
        """A client over memory: works with a clock that jumps."""
        near, far = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.doors.serve_stream, far, trusted)
        return Client(near)

    async def websocket(self, **headers: str) -> WebsocketClient:
        client = WebsocketClient(self.connect().stream)
        assert await client.open(**headers) == 101
        return client

    async def listen(self) -> int:
        """A real port on loopback."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await self._nursery.start(self.doors.serve, listeners)
        return int(listeners[0].socket.getsockname()[1])

    async def assert_alive(self) -> None:
        """Another client is served as if nothing had happened."""
        status, _, body = await self.connect().get("/live")
        assert (status, body) == (200, {"status": "alive"})


class Client:
    """A well-behaved HTTP client; its stream is there for the others."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], Any]:
        return await self.request("GET", path, None, **headers)

    async def post(
        self, path: str, content: object, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        return await self.request("POST", path, json.dumps(content).encode(), **headers)

    async def request(
        self, method: str, path: str, body: bytes | None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers, and the body: parsed if it is JSON, else text."""
        await self.send(method, path, body, **headers)
        return await self.receive()

    async def send(self, method: str, path: str, body: bytes | None, **headers: str) -> None:
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        fields = [(b"Host", b"test")]
        for name, value in headers.items():
            fields.append((name.replace("_", "-").encode(), value.encode("latin-1")))
        if body is not None:
            fields.append((b"Content-Length", b"%d" % len(body)))
        request = h11.Request(method=method, target=path, headers=fields)
        events = [request, h11.Data(data=body or b""), h11.EndOfMessage()]
        await self.stream.send_all(b"".join(self._h11.send(event) or b"" for event in events))

    async def receive(self) -> tuple[int, dict[str, str], Any]:
        response = await self.head()
        body = b"".join([data async for data in self.data()])
        headers = {name.decode(): value.decode() for name, value in response.headers}
        is_json = headers.get("content-type") == "application/json" and body
        return response.status_code, headers, json.loads(body) if is_json else body.decode()

    async def head(self) -> h11.Response:
        event = await self._next_event()
        assert isinstance(event, h11.Response), event
        return event

    async def data(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)
        assert isinstance(event, h11.EndOfMessage), event

    async def _next_event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(bytes(await self.stream.receive_some(65536)))
        return event


def events(stream: str) -> list[Any]:
    """The data of server-sent events."""
    data = [line[6:] for line in stream.split("\n") if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]


class WebsocketClient:
    """A well-behaved websocket client of /v1/responses; its stream is there for the others."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: deque[Any] = deque()

    async def open(self, path: str = "/v1/responses", **headers: str) -> int:
        """The status of the handshake: 101 if it succeeded."""
        fields = [(name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()]
        await self._send(Request(host="test", target=path, extra_headers=fields))
        event = await self.next()
        return event.status_code if isinstance(event, RejectConnection) else 101

    async def send(self, content: object) -> None:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        await self._send(Message(data=text))

    async def create(self, text: str = "hi", **fields: Any) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def receive(self) -> dict[str, Any]:
        event = await self.next()
        assert isinstance(event, TextMessage), event
        assert event.message_finished
        return json.loads(event.data)

    async def response(self) -> list[dict[str, Any]]:
        """All events up to the end of a response; for connections that make one at a time."""
        events = [await self.receive()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.receive())
        return events

    async def closed(self) -> int:
        """Read up to the server's close, answer it, and tell its code; 1006 if there was none."""
        while True:
            event = await self.next()
            if isinstance(event, CloseConnection):
                if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                    with suppress(trio.BrokenResourceError):
                        await self._send(event.response())
                return int(event.code)
            if event is None:
                return 1006

    async def next(self) -> Any:
        """The next event of the protocol, ``None`` at the end of the stream."""
        while not self._events:
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                return None
            self._protocol.receive_data(bytes(data))
            self._events.extend(self._protocol.events())
        return self._events.popleft()

    async def _send(self, event: Any) -> None:
        await self.stream.send_all(self._protocol.send(event))


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
