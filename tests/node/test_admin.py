"""Orders of operators: who may give them, and what the answers look like."""

import pytest
import trio
import trio.testing
from scripted import House

from vertumnusd.node.keys import Keys

SPLIT = "/v1/admin/split"
ORDER = {"workers": ["CP2[0-1]"]}


async def test_the_admin_socket_is_pass_enough(house: House) -> None:
    status, _, answer = await house.connect(trusted=True).post(SPLIT, ORDER)
    assert (status, answer["converted"][0]["outcome"]) == (200, "exposed")
    assert house.operator.told == [("split", ["CP2[0-1]"])]


async def test_a_dry_run_does_nothing(house: House) -> None:
    order = {**ORDER, "dry_run": True}
    _, _, answer = await house.connect(trusted=True).post("/v1/admin/merge", order)
    assert answer == {"planned": [{"kind": "merge", "before": ["CP2[0-1]"]}]}
    assert house.operator.told == []


@pytest.mark.parametrize(
    ("order", "status", "word"),
    [
        ({"workers": ["CP9[0-8]"], "dry_run": True}, 404, "CP9[0-8]"),
        ({"workers": "CP2[0-1]"}, 400, "workers"),
        ({}, 400, "workers"),
        ({**ORDER, "dryrun": True}, 400, "dryrun"),
    ],
)
async def test_a_wrong_order_says_what_is_wrong(house: House, order, status, word) -> None:
    found, _, answer = await house.connect(trusted=True).post(SPLIT, order)
    assert found == status
    assert word in answer["error"]["message"] + str(answer["error"]["param"])
    assert house.operator.told == []


@pytest.mark.parametrize("token", ["", "token"])
@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", "Bearer api-key"])
async def test_by_tcp_a_token_is_needed_and_an_api_key_is_none(house: House, token, key) -> None:
    house.set_up(keys=Keys(frozenset({"api-key"})), admin_token=token)
    assert (await house.connect().post(SPLIT, ORDER, Authorization=key))[0] == 401
    assert house.operator.told == []


async def test_the_token_is_enough_by_tcp_and_no_api_key(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"api-key"})), admin_token="token")
    assert (await house.connect().post(SPLIT, ORDER, Authorization="Bearer token"))[0] == 200
    assert (await house.connect().get("/v1/cluster", Authorization="Bearer token"))[0] == 401


async def test_an_operator_sees_the_cluster_without_a_key_but_works_with_one(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"api-key"})))
    operator = house.connect(trusted=True)
    assert (await operator.get("/v1/cluster"))[0] == 200
    assert (await operator.post("/v1/completions", {"prompt": "x"}))[0] == 401


@pytest.mark.parametrize("for_s", [0, 3])
async def test_nobody_ends_or_shortens_the_hold_of_a_shutdown(
    house: House, nursery: trio.Nursery, for_s
) -> None:
    order = {"for_s": for_s, "by": "ann"}
    operator = house.connect(trusted=True)
    assert (await operator.post("/v1/admin/hold", order))[0] == 200
    nursery.start_soon(house.doors.drain)
    await trio.testing.wait_all_tasks_blocked()
    status, _, answer = await house.connect(trusted=True).post("/v1/admin/hold", order)
    assert (status, answer["error"]["code"]) == (409, "not_possible")
    assert "shutting down" in answer["error"]["message"]
    assert house.operator.told == [("hold", [str(for_s), "ann"])]
