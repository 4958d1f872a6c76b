"""Options of the tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--storms", default="0-2", help="seeds of the storm on real ranks: 0-49")
