"""How hosts meet: the first one's channel, and connections that say the right or the wrong thing."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from smdp.sagemaker.connection import Connection
from smdp.sagemaker.first_host import FirstHost
from smdp.sagemaker.host_channel import Hello

HOSTS = ("algo-1", "algo-2")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def first(port: int) -> Iterator[FirstHost]:
    channel = FirstHost(Hello("algo-1", HOSTS, 1), port)
    yield channel
    channel.close()


def next_message(connection: Connection) -> dict[str, Any]:
    end = time.monotonic() + 20
    while (message := next(connection.receive(), None)) is None:
        assert connection.is_open and time.monotonic() < end, "nothing was said"
        time.sleep(0.01)
    return message


def connect(port: int) -> Connection:
    return Connection(socket.create_connection(("127.0.0.1", port)))


def introduce(connection: Connection, **changes: object) -> None:
    """As algo-2 with two ranks does, but for what is changed."""
    challenge = str(next_message(connection)["challenge"])
    connection.send(hello={**Hello("algo-2", HOSTS, 2).message(challenge), **changes})


def let_in(first: FirstHost, port: int) -> Connection:
    member = connect(port)
    first._welcome()
    introduce(member)
    while not first._members:
        first._welcome()
    return member


@pytest.mark.parametrize("ranks", ["2", 0, -1, 1 << 70, True, 2.0, None, [2]])
def test_a_wrong_number_of_ranks_is_no_hello_and_ends_nothing(
    ranks: object, first: FirstHost, port: int
) -> None:
    places = []
    meeting = Thread(target=lambda: places.append(first.meet(30)))
    meeting.start()
    stranger = connect(port)
    introduce(stranger, ranks=ranks)
    assert next_message(stranger) == {"refused": "[smdp] this is not a valid hello"}
    member = connect(port)
    introduce(member)
    assert next_message(member) == {"go": [1, 3]}
    meeting.join()
    assert places == [(0, 3)]
    stranger.close()
    member.close()


def test_a_host_that_comes_again_at_once_is_let_in(first: FirstHost, port: int) -> None:
    """Its old connection is gone, which nobody has looked at yet."""
    let_in(first, port).close()
    new = connect(port)
    first._welcome()
    introduce(new)
    (waiting,) = (connection.sock for connection, _ in first._strangers)
    assert select.select([waiting], [], [], 10)[0]
    first._welcome()
    assert first.meet(10) == (0, 3)
    assert next_message(new) == {"go": [1, 3]}
    new.close()


def test_two_hosts_of_one_name_are_told_so(first: FirstHost, port: int) -> None:
    member, double = let_in(first, port), connect(port)
    first._welcome()
    introduce(double)
    while first._strangers:
        first._welcome()
    assert next_message(double) == {
        "refused": "[smdp] there is already a host named algo-2; names of hosts must be unique"
    }
    member.close()
    double.close()
