"""``vertumnusd status`` says what is wrong in one line, whatever answers at the address."""

import socket
import threading

import pytest

from vertumnusd.__main__ import main


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"SSH-2.0-x\r\n", "no vertumnusd"),
        (b"", "no vertumnusd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "no vertumnusd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", "no vertumnusd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not a cluster"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "HTTP 401"),
    ],
)
def test_a_stranger_at_the_address_is_one_line_and_exit_1(reply, words, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(4096)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        status = main(["status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"])
        thread.join()
    assert status == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["localhost:8000", "", "http://[::1", "http://127.0.0.1:1"])
def test_an_address_without_a_node_is_one_line_and_exit_1(url, capsys):
    assert main(["status", "--url", url]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("url", ["localhost:8000", "", "node-1"])
def test_what_is_no_address_is_told_what_one_looks_like(url, capsys):
    assert main(["status", "--url", url]) == 1
    assert "an address like http://127.0.0.1:8000 is expected" in capsys.readouterr().err
