"""Every ``async def`` test here runs under trio."""

from pytest_trio.enable_trio_mode import *  # noqa: F403 - this is how pytest-trio is switched on
