"""What operators read when a daemon goes away below their orders."""

import socket
import threading

from vertumnusd.__main__ import main


def test_a_daemon_that_ends_before_it_answers_is_one_line_and_exit_1(tmp_path, capsys):
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)

        def leave() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(4096)

        thread = threading.Thread(target=leave)
        thread.start()
        status = main(["split", "CP2[0-1]", "--socket", str(path)])
        thread.join()
    assert status == 1
    assert capsys.readouterr().err == (
        f"vertumnusd split: the daemon at {path} ended before it answered\n"
    )
