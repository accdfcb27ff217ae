"""Lists of servers, `polonaise://…`, that are wrong, and servers that are not what the list says."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import polonaise
from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.errors import (
    BadOption,
    CertificateRefused,
    ConnectionLost,
    CoordinatorUnavailable,
    DeadlineExceeded,
    Overloaded,
    PolonaiseError,
    TlsNotSpoken,
    TlsRequired,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
)
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.node.addresses import servers_at
from polonaise.pipelines.job import full_address
from polonaise.spark.options import read_options
from polonaise.testing.memory import KEY, MemoryHost
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, ROLE_STORAGE, Hello
from rigs.faults import raises_code
from rigs.shell import Shell

QUICK = ClientSettings(connect_s_max=0.2)
OTHER_KEY = b"another cluster!"

WRONG = [
    ("polonaise:127.0.0.1:7000", "polonaise://HOST:PORT"),
    ("polonaise:///", "names no server"),
    ("polonaise://", "names no server"),
    ("polonaise:///payments", "names no server"),
    ("polonaise://127.0.0.1:7000/pay ments", "invalid name of a topic 'pay ments'"),
    ("polonaise://a:1,b:2/x/y", "invalid name of a topic 'x/y'"),
    ("polonaise://a:1,,b:2", "commas"),
    ("polonaise://a:1,", "commas"),
    ("polonaise://,a:1", "commas"),
    ("polonaise://a:1, b:2", "without blanks"),
    ("polonaise://127.0.0.1", "has no port"),
    ("polonaise://a:1,b", "'b' has no port"),
    ("polonaise://[::1]", "'\\[::1\\]' has no port"),
    ("polonaise://::1:7000", "brackets"),
    ("polonaise://a:", "port 0 to 65535"),
    ("polonaise://a:x", "port 0 to 65535"),
    ("polonaise://a:65536", "port 0 to 65535"),
    ("polonaise://:7000", "write host:port"),
    ("polonaise://a:0", "port 0"),
    ("polonaise://a:1,b:2,a:1", "twice"),
    ("polonaise://[::1]:1,[::1]:1", "twice"),
    ("polonaise://unix:run.socket", "no HOST:PORT"),
    ("polonaise://a:1?wait=3", "no HOST:PORT"),
    ("polonaise://user@a:1", "no HOST:PORT"),
    ("polonaise://user:sesame@a:1", "no HOST:PORT"),
]


@pytest.mark.parametrize(("address", "says"), WRONG)
async def test_a_list_of_servers_that_is_wrong(address: str, says: str) -> None:
    with pytest.raises(BadOption, match=says) as refused:
        async with polonaise.connect(address):
            pass
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "servers"),
    [
        ("polonaise://127.0.0.1:7000", ("127.0.0.1:7000",)),
        ("polonaise://a:1,b:2/", ("a:1", "b:2")),
        ("polonaise://[::1]:7000,[fe80::1]:7001", ("[::1]:7000", "[fe80::1]:7001")),
    ],
)
def test_a_list_of_servers_that_is_right(address: str, servers: tuple[str, ...]) -> None:
    assert servers_at(address) == servers
    assert full_address(address) == address
    assert read_options({"cluster": address}).cluster == address


def test_servers_in_place_of_a_servers_coordinator(shell: Shell) -> None:
    run = ("server", "run", "--coordinator", "polonaise://127.0.0.1:7000", "--storage", "127.0.0.1:7100")
    shell.refuses(*run, code="bad_option", naming="needs the coordinator itself")


# ---------------------------------------------------------------------- what listens there


@asynccontextmanager
async def listening(says: bytes | None) -> AsyncIterator[str]:
    """Listen as something that is no Polonaise: it says this to what it is sent, and nothing for None."""

    ended: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.append(task)
        await reader.read(10)
        if says is not None:
            writer.write(says)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the client has closed
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        await asyncio.gather(*ended)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


async def test_a_list_whose_servers_are_all_gone_names_each_with_its_reason() -> None:
    gone = closed_port()
    async with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web, listening(None) as silent:
        with raises_code("servers_unavailable") as refused:
            async with polonaise.connect(f"polonaise://{gone},{web},{silent}", settings=QUICK):
                pass
    for reason in (
        f"{gone}.*refused|{gone}.*Connect call failed",
        f"{web} sent no hello",
        f"{silent} did not answer within 0.2",
    ):
        assert re.search(reason, refused.value.text), reason


async def test_a_port_of_something_that_hangs_up_on_a_hello_is_said_to_be_no_node() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        host, port = other.sockets[0].getsockname()
        with raises_code("servers_unavailable", match=f"{host}:{port}: the other side closed .*may be no node of Pol"):
            async with polonaise.connect(f"polonaise://{host}:{port}", settings=QUICK):
                pass


async def test_a_name_that_no_host_has_is_a_reason() -> None:
    with raises_code("servers_unavailable", match=r"nobody\.invalid:7000"):
        async with polonaise.connect("polonaise://nobody.invalid:7000", settings=QUICK):
            pass


async def test_servers_that_are_gone_are_waited_for_as_long_as_is_said() -> None:
    gone = closed_port()
    with pytest.raises(DeadlineExceeded, match=f"servers_unavailable.*{gone}"):
        async with polonaise.connect(f"polonaise://{gone}", settings=QUICK, wait=0.3):
            pass


def accepting(host: MemoryHost, address: str, said: Hello, peers: tuple[int, ...] = (ROLE_CLIENT,)) -> None:
    def accept() -> Connection:
        return Connection(
            host,
            hello=said,
            peer_roles=peers,
            on_message=lambda *_: None,
            accepted=True,
            tells_strangers=peers,
        )

    host.wires.listening[address] = accept


def server(key: bytes = KEY) -> Hello:
    return hello(ROLE_SERVER, "server", cluster_key=key)


def older(said: Hello) -> Hello:
    said.version_max = 1
    return said


Wrong = tuple[str, Callable[[], Hello], tuple[int, ...], type[PolonaiseError], str]
STORAGE: Wrong = ("storage node", lambda: hello(ROLE_STORAGE, "s"), (ROLE_SERVER,), WrongRole, "is no server")
OLDER: Wrong = ("older", lambda: older(server()), (ROLE_CLIENT,), UnsupportedVersion, "coordinator's address")


@pytest.mark.parametrize(("what", "says", "peers", "error", "reason"), [STORAGE, OLDER], ids=lambda each: str(each)[:8])
async def test_a_list_of_nothing_but(
    what: str, says: Callable[[], Hello], peers: tuple[int, ...], error: type[PolonaiseError], reason: str
) -> None:
    host = MemoryHost()
    for address in ("a:1", "b:2"):
        accepting(host, address, says(), peers)
    discovery = ServerDiscovery(host, ["a:1", "b:2"], QUICK)
    with pytest.raises(error, match=f"a:1 .*{reason}.*b:2 .*{reason}"):
        await discovery.describe()
    await discovery.close()


async def test_a_server_of_another_cluster_in_the_list_is_refused_once_one_has_answered() -> None:
    host = MemoryHost()
    accepting(host, "ours:1", server())
    discovery = ServerDiscovery(host, ["ours:1", "theirs:2"], QUICK)
    troubles: dict[str, PolonaiseError] = {}
    address, connection = await discovery._connected(troubles)
    assert address == "ours:1"
    accepting(host, "theirs:2", server(OTHER_KEY))
    host.wires.listening.pop("ours:1")
    connection.close()
    with raises_code("servers_unavailable", match="theirs:2 is a server of another cluster"):
        await discovery.describe()
    accepting(host, "ours:1", server(OTHER_KEY))
    with pytest.raises(WrongClusterKey, match="ours:1 is a server of another cluster; theirs:2 is"):
        await discovery.describe()
    await discovery.close()


def failing(host: MemoryHost, address: str, error: PolonaiseError) -> None:
    """Listen at an address where each connection fails with this error."""

    def accept() -> Connection:
        raise error

    host.wires.listening[address] = accept


TLS = [TlsRequired("a:1 takes TLS only"), TlsNotSpoken("a:1 speaks no TLS"), CertificateRefused("a:1 is of another CA")]


@pytest.mark.parametrize("beside", [None, ConnectionLost("b:2 is down"), CertificateRefused("b:2 is not trusted")])
@pytest.mark.parametrize("error", TLS, ids=lambda error: error.code)
async def test_a_list_of_servers_with_which_tls_fails_says_so(
    error: PolonaiseError, beside: PolonaiseError | None
) -> None:
    host = MemoryHost()
    failing(host, "a:1", error)
    failing(host, "b:2", beside or type(error)("b:2 does as a:1"))
    discovery = ServerDiscovery(host, ["a:1", "b:2"], QUICK)
    kinds = (type(error), *((CertificateRefused,) if isinstance(beside, CertificateRefused) else ()))
    with pytest.raises(kinds, match=f"{error.text}.*b:2"):
        await discovery.describe()
    await discovery.close()


def another_role(host: MemoryHost) -> None:
    accepting(host, "wrong:1", hello(ROLE_STORAGE, "s"), (ROLE_SERVER,))


def bad_certificate(host: MemoryHost) -> None:
    failing(host, "wrong:1", CertificateRefused("the certificate of wrong:1 has expired"))


@pytest.mark.parametrize(
    ("wrong", "warning"), [(another_role, "wrong:1 is no server"), (bad_certificate, "wrong:1 has expired")]
)
async def test_a_wrong_entry_beside_a_right_one_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, wrong: Callable[[MemoryHost], None], warning: str
) -> None:
    host = MemoryHost(seed=3)
    wrong(host)
    accepting(host, "server:2", server())
    discovery = ServerDiscovery(host, ["wrong:1", "server:2"], QUICK)
    for _ in range(10):
        address, connection = await discovery._connected({})
        assert address == "server:2"
        connection.close()
        discovery._failed.clear()  # as after another answer of both
    assert len([record.message for record in caplog.records if warning in record.message]) == 1
    await discovery.close()


async def test_a_server_that_answers_otherwise_beside_one_with_a_bad_certificate_is_no_matter_of_tls() -> None:
    host = MemoryHost()
    failing(host, "a:1", TLS[0])
    failing(host, "b:2", Overloaded("b:2 has no room"))
    discovery = ServerDiscovery(host, ["a:1", "b:2"], QUICK)
    with raises_code("servers_unavailable", match=r"takes TLS only.*no room"):
        await discovery.describe()
    failing(host, "b:2", CoordinatorUnavailable("server 2 got no id"))
    with pytest.raises(CoordinatorUnavailable, match=r"takes TLS only.*got no id"):
        await discovery.describe()
    await discovery.close()


def test_spark_rows_with_nowhere_to_be_staged() -> None:
    from polonaise.spark.staging import staging_of

    with pytest.raises(BadOption, match="option staging"):
        staging_of("polonaise://127.0.0.1:7000")
    with pytest.raises(BadOption, match="option staging"):
        staging_of("zookeeper://127.0.0.1:2181/bank")
