"""Every ``async def`` test here runs under trio; ``house`` is a set of doors to knock on."""

import pytest
import trio
from pytest_trio.enable_trio_mode import *  # noqa: F403 - this is how pytest-trio is switched on
from scripted import House


@pytest.fixture
def house(nursery: trio.Nursery) -> House:
    return House(nursery)
