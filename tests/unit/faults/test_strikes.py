"""Which process a strike hits, where processes share connections."""

import os
import socket
import subprocess
import sys

import pytest

from tests.e2e.faults.strikes import owner_of_connection


def test_a_connection_belongs_to_the_process_that_opened_it_and_not_to_its_children() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        port, server_port = client.getsockname()[1], server.getsockname()[1]
        child = [sys.executable, "-c", "print('ready', flush=True); input()"]
        with subprocess.Popen(  # noqa: S603  # this interpreter, and no shell
            child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(client.fileno(),)
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            assert owner_of_connection(port, server_port) == os.getpid()
            client.close()
            assert owner_of_connection(port, server_port) == other.pid, "the child shares it"
            other.communicate(b"\n")


def test_the_same_port_towards_another_server_is_another_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        with pytest.raises(AssertionError, match="connected from port"):
            owner_of_connection(client.getsockname()[1], server.getsockname()[1] + 1)
