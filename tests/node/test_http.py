"""The HTTP door's manners: status codes, headers, keep-alive, limits."""

from __future__ import annotations

import re

import pytest
import trio
from scripted import Client, House

from vertumnusd.node.keys import Keys


async def test_an_unknown_path_is_404(house: House) -> None:
    status, _, body = await house.connect().get("/v1/nothing")
    assert status == 404
    assert body["error"]["code"] == "not_found"
    assert body["error"]["type"] == "invalid_request_error"


async def test_a_wrong_method_is_405_and_names_the_right_one(house: House) -> None:
    status, headers, _ = await house.connect().get("/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    status, headers, _ = await house.connect().post("/health", {})
    assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_head_answers_without_a_body(house: House) -> None:
    client = house.connect()
    status, headers, body = await client.request("HEAD", "/live", None)
    assert (status, body) == (200, "")
    assert headers["content-length"] == "18"
    assert (await client.get("/live"))[0] == 200


async def test_a_connection_serves_one_request_after_another(house: House) -> None:
    client = house.connect()
    for _ in range(3):
        assert (await client.get("/live"))[0] == 200
        assert (await client.post("/v1/completions", {"prompt": "hi"}))[0] == 200
        assert (await client.get("/nothing"))[0] == 404


async def test_pipelined_requests_are_answered_in_order(house: House) -> None:
    client = house.connect()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    bodies = [b'{"prompt": "one"}', b'{"prompt": ""}', b'{"prompt": "three"}']
    await client.stream.send_all(b"".join(request % (len(body), body) for body in bodies))
    raw = b""
    while raw.count(b"HTTP/1.1") < 3 or not raw.endswith(b"}"):
        raw += await client.stream.receive_some()
    assert re.findall(rb"HTTP/1.1 (\d+)", raw) == [b"200", b"400", b"200"]
    assert [len(job.tokens) for job in house.service.jobs] == [3, 5]


async def test_the_request_id_is_echoed(house: House) -> None:
    _, headers, _ = await house.connect().get("/live", x_request_id="mine-1")
    assert headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("bad", ["", "x" * 129, "caf\u00e9"])
async def test_a_useless_request_id_is_replaced(house: House, bad: str) -> None:
    _, headers, _ = await house.connect().get("/live", x_request_id=bad)
    assert headers["x-request-id"].startswith("req_")


async def test_the_query_is_not_part_of_the_path(house: House) -> None:
    assert (await house.connect().get("/live?probe=1"))[0] == 200


async def test_a_body_over_the_limit_is_413_before_it_is_read(house: House) -> None:
    house.set_up(message_bytes=100)
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n"
    )
    status, headers, body = await client.receive()
    assert (status, headers["connection"]) == (413, "close")
    assert body["error"]["code"] == "request_too_large"


async def test_a_chunked_body_over_the_limit_is_413(house: House) -> None:
    house.set_up(message_bytes=100)
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"40\r\n%b\r\n" % (b"x" * 64) * 2
    )
    assert (await client.receive())[0] == 413


async def test_a_chunked_body_is_read(house: House) -> None:
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'9\r\n{"prompt"\r\n6\r\n:"hi"}\r\n0\r\n\r\n'
    )
    assert (await client.receive())[0] == 200


async def test_a_post_without_length_is_411(house: House) -> None:
    client = house.connect()
    await client.stream.send_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.receive())[0] == 411


async def test_a_client_that_waits_for_100_gets_it(house: House) -> None:
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
    await client.stream.send_all(b'{"prompt":"hi"}')
    assert (await client.receive())[0] == 200


async def test_a_refused_body_is_not_asked_for(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})))
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 401 ")


async def test_a_header_that_arrives_too_slowly_is_408(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    client = house.connect()
    await client.stream.send_all(b"GET /live HT")
    status, headers, _ = await client.receive()
    assert (status, headers["connection"]) == (408, "close")
    assert trio.current_time() < 30


async def test_a_body_that_arrives_too_slowly_is_408(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    client = house.connect()
    await client.stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"
    )
    assert (await client.receive())[0] == 408


async def test_silence_closes_a_connection(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    client = house.connect()
    assert await client.stream.receive_some() == b""
    served = house.connect()
    assert (await served.get("/live"))[0] == 200
    assert await served.stream.receive_some() == b""


async def test_connections_of_one_address_are_limited(house: House) -> None:
    house.set_up(connections_per_address=2)
    port = await house.listen()
    first = Client(await trio.open_tcp_stream("127.0.0.1", port))
    assert (await first.get("/live"))[0] == 200
    async with await trio.open_tcp_stream("127.0.0.1", port) as second:
        assert (await Client(second).get("/live"))[0] == 200
        async with await trio.open_tcp_stream("127.0.0.1", port) as third:
            refusal = b"".join([data async for data in third])
    assert refusal.startswith(b"HTTP/1.1 503 ")
    assert b"connection_limit_reached" in refusal
    assert (await first.get("/live"))[0] == 200  # by now the server has seen the others go
    async with first.stream, await trio.open_tcp_stream("127.0.0.1", port) as fourth:
        assert (await Client(fourth).get("/live"))[0] == 200


async def test_a_client_that_stops_reading_is_closed(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        await near.send_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        await house.assert_alive()
    assert trio.current_time() >= 30


async def test_a_stream_that_nobody_reads_is_cancelled(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        await Client(near).send("POST", "/v1/completions", b'{"prompt":"x","stream":true}')
    assert len(house.service.cancelled) == 1
    assert 30 <= trio.current_time() <= 40


async def test_keys_are_asked_for_where_they_matter(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})))
    for path in ("/v1/models", "/v1/cluster"):
        status, headers, body = await house.connect().get(path)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert body["error"]["code"] == "invalid_api_key"
        assert (await house.connect().get(path, authorization="Bearer wrong"))[0] == 401
        assert (await house.connect().get(path, authorization="Basic sesame"))[0] == 401
        assert (await house.connect().get(path, authorization="Bearer sesame"))[0] == 200
    for path in ("/live", "/health", "/version", "/metrics"):
        assert (await house.connect().get(path))[0] == 200


async def test_tenants_have_salts_of_their_own(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"one", "two"})))
    for key in ("one", "two", "one"):
        await house.connect().post(
            "/v1/completions", {"prompt": "hi"}, authorization=f"Bearer {key}"
        )
    salts = [job.salt for job in house.service.jobs]
    assert salts[0] == salts[2] != salts[1]
    assert all(salts)


async def test_a_web_page_of_another_site_is_refused_where_there_are_no_keys(house: House) -> None:
    elsewhere = {"origin": "http://evil.example"}
    status, _, body = await house.connect().post("/v1/completions", {"prompt": "x"}, **elsewhere)
    assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
    assert (await house.connect().get("/v1/models", origin="http://test"))[0] == 200
    house.set_up(keys=Keys(frozenset({"sesame"})))
    headers = elsewhere | {"authorization": "Bearer sesame"}
    assert (await house.connect().get("/v1/models", **headers))[0] == 200


async def test_requests_in_flight_of_one_key_are_limited(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"one", "two"})), in_flight_per_key=1)
    house.service.hold_after = 1
    first = house.connect()
    await first.send("POST", "/v1/completions", b'{"prompt":"x"}', authorization="Bearer one")
    await house.service.until(lambda: bool(house.service.jobs))
    status, headers, body = await house.connect().post(
        "/v1/completions", {"prompt": "x"}, authorization="Bearer one"
    )
    assert (status, headers["retry-after"]) == (429, "1")
    assert body["error"]["type"] == "rate_limit_error"
    house.service.release.set()
    assert (await first.receive())[0] == 200
    assert (
        await house.connect().post("/v1/completions", {"prompt": "x"}, authorization="Bearer one")
    )[0] == 200


async def test_an_unready_node_takes_no_work_and_says_why(house: House) -> None:
    house.service.unready = "loading weights"
    status, headers, body = await house.connect().post("/v1/completions", {"prompt": "x"})
    assert (status, headers["retry-after"]) == (503, "1")
    assert "loading weights" in body["error"]["message"]
    assert (await house.connect().get("/health"))[0] == 503
    assert (await house.connect().get("/health"))[2]["reason"] == "loading weights"
    assert (await house.connect().get("/live"))[0] == 200
    house.service.unready = ""
    assert (await house.connect().get("/health"))[2] == {"status": "ready"}


async def test_draining_lets_answers_end_and_refuses_new_work(house: House) -> None:
    house.service.hold_after = 2
    busy, idle = house.connect(), house.connect()
    assert (await idle.get("/live"))[0] == 200
    await busy.send("POST", "/v1/completions", b'{"prompt":"x"}')
    await house.service.until(lambda: bool(house.service.jobs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.drain)
        await trio.testing.wait_all_tasks_blocked()
        status, headers, body = await idle.post("/v1/completions", {"prompt": "x"})
        assert (status, headers["connection"]) == (503, "close")
        assert "draining" in body["error"]["message"]
        assert (await house.connect().get("/health"))[2]["reason"] == "draining"
        assert len(nursery.child_tasks) == 1
        house.service.release.set()
        assert (await busy.receive())[2]["choices"][0]["text"] == "Hello"


async def test_a_client_that_leaves_cancels_its_request(house: House) -> None:
    house.service.hold_after = 1
    client = house.connect()
    await client.send("POST", "/v1/completions", b'{"prompt":"x"}')
    await house.service.until(lambda: bool(house.service.running))
    await client.stream.aclose()
    await house.service.until(lambda: bool(house.service.cancelled))
    assert not house.service.running
    await house.assert_alive()


async def test_a_fault_of_ours_is_500_and_ends_nothing_else(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.service.script = lambda job: [1 / 0]
    client = house.connect()
    status, _, body = await client.post("/v1/completions", {"prompt": "x"})
    assert (status, body["error"]["code"]) == (500, "server_error")
    house.service.script = lambda job: []
    assert (await client.post("/v1/completions", {"prompt": "x"}))[0] == 500
    await house.assert_alive()


async def test_status_endpoints(house: House) -> None:
    client = house.connect()
    assert (await client.get("/version"))[2]["version"]
    assert (await client.get("/v1/cluster"))[2] == {"workers": [{"name": "CP2[0-1]"}]}
    models = (await client.get("/v1/models"))[2]
    assert [model["id"] for model in models["data"]] == ["tiny"]
    assert (await client.get("/v1/models/tiny"))[2]["object"] == "model"
    assert (await client.get("/v1/models/other"))[0] == 404


async def test_refusing_a_small_request_keeps_the_connection(house: House) -> None:
    house.service.unready = "loading"
    client = house.connect()
    for _ in range(2):
        status, headers, _ = await client.post("/v1/completions", {"prompt": "x"})
        assert status == 503
        assert "connection" not in headers
    assert not house.service.jobs


async def test_metrics_count_from_zero(house: House) -> None:
    client = house.connect()
    _, headers, text = await client.get("/metrics")
    assert headers["content-type"].startswith("text/plain")
    refused = 'vertumnus_admission_rejections_total{reason="service_unavailable"}'
    assert f"{refused} 0.0" in text
    house.service.unready = "loading"
    await client.post("/v1/completions", {"prompt": "x"})
    assert f"{refused} 1.0" in (await client.get("/metrics"))[2]
