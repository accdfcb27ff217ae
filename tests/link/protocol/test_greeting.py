"""Who is taken for what it says, by a side that knows its cluster or does not."""

from __future__ import annotations

import pytest

from polonaise.errors import (
    NotOwner,
    PolonaiseError,
    ProtocolError,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
)
from polonaise.link.protocol.greeting import ANY_CLUSTER, PeerGreeting, hello
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    ROLE_CLIENT,
    ROLE_SERVER,
    ROLE_STORAGE,
    Flush,
    Hello,
    Ping,
    Refused,
)

KEY, OTHER = bytes(range(16)), bytes(15) + b"x"
CAROL = hello(ROLE_CLIENT, "carol", cluster_key=KEY, node=7)


def server(key: bytes = KEY, *, accepted: bool = True, tells: tuple[int, ...] = ()) -> PeerGreeting:
    return PeerGreeting(
        hello(ROLE_SERVER, "sam", cluster_key=key),
        (ROLE_CLIENT, ROLE_STORAGE),
        accepted=accepted,
        tells_strangers=tells,
    )


def refused(greeting: PeerGreeting, message: Message) -> PolonaiseError | None:
    said = greeting.hear(message)
    return greeting.admit(said) if isinstance(said, Hello) else said


def test_a_peer_is_known_by_its_hello_once_it_was_admitted() -> None:
    greeting = server()
    assert greeting.hear(CAROL) is CAROL
    assert (greeting.peer, greeting.peer_role, greeting.peer_name) == (None, 0, "a peer that has not said hello")
    assert greeting.admit(CAROL) is None
    assert (greeting.peer, greeting.peer_role, greeting.peer_name) == (CAROL, ROLE_CLIENT, "carol")


@pytest.mark.parametrize("message", [Flush(), Ping(), Refused(0, "fenced", "")], ids=lambda each: type(each).__name__)
def test_nothing_counts_before_the_hello(message: Message) -> None:
    error = refused(server(), message)
    assert type(error) is ProtocolError
    assert error.text == f"the peer sent {type(message).__name__} before its hello"


def with_versions(low: int, high: int, role: int = ROLE_CLIENT) -> Hello:
    return Hello(low, high, role, 1, OTHER, "other version")


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        pytest.param(
            with_versions(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3),
            UnsupportedVersion,
            f"speaks protocol {PROTOCOL_VERSION + 1} to {PROTOCOL_VERSION + 3}, this side "
            f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}: upgrade the older one",
            id="future version",
        ),
        pytest.param(with_versions(0, PROTOCOL_VERSION_MIN - 1), UnsupportedVersion, "upgrade", id="past version"),
        pytest.param(with_versions(0, 0, 77), UnsupportedVersion, "upgrade", id="past version with a role of then"),
        pytest.param(
            hello(ROLE_SERVER, "lost", cluster_key=OTHER),
            WrongRole,
            "the peer is a server, not a client or storage node: check the address",
            id="wrong role, and another cluster",
        ),
        pytest.param(Hello(1, 1, 77, 1, KEY, "who"), WrongRole, "the peer is a stranger, not a client", id="no role"),
        pytest.param(hello(ROLE_CLIENT, "lost", cluster_key=OTHER), WrongClusterKey, "another cluster", id="cluster"),
    ],
)
def test_who_does_not_belong_here_learns_the_first_reason(said: Hello, error: type[PolonaiseError], why: str) -> None:
    greeting = server()
    reason = refused(greeting, said)
    assert type(reason) is error
    assert why in reason.text
    assert greeting.peer is None


def test_who_reached_the_directory_of_another_cluster_is_told_to_keep_it() -> None:
    storage = PeerGreeting(hello(ROLE_STORAGE, "stan", cluster_key=KEY), (ROLE_SERVER,), accepted=True)
    reason = refused(storage, hello(ROLE_SERVER, "sam", cluster_key=OTHER))
    assert reason is not None
    assert "Keep that directory" in reason.text
    assert (storage.peer_role, storage.peer_name) == (ROLE_SERVER, "sam"), "who was refused is known"


def test_a_barred_peer_is_refused_whatever_its_hello_says() -> None:
    greeting = server()
    greeting.barred = NotOwner("shutting down")
    assert refused(greeting, with_versions(0, 0)) is greeting.barred
    assert isinstance(refused(greeting, Flush()), ProtocolError), "who says no hello is told nothing else"


@pytest.mark.parametrize(
    ("mine", "theirs", "accepted", "tells", "fits"),
    [
        pytest.param(KEY, KEY, True, (), True, id="the same cluster"),
        pytest.param(KEY, OTHER, True, (ROLE_CLIENT,), False, id="another cluster"),
        pytest.param(ANY_CLUSTER, KEY, True, (), True, id="this side has none yet"),
        pytest.param(KEY, ANY_CLUSTER, False, (), True, id="the side connected to has none yet"),
        pytest.param(KEY, ANY_CLUSTER, True, (), False, id="a stranger connects"),
        pytest.param(
            KEY, ANY_CLUSTER, True, (ROLE_STORAGE,), False, id="a stranger connects, in a role that is not told"
        ),
        pytest.param(KEY, ANY_CLUSTER, True, (ROLE_CLIENT,), True, id="a stranger connects, and is told"),
    ],
)
def test_the_cluster_has_to_fit(mine: bytes, theirs: bytes, accepted: bool, tells: tuple[int, ...], fits: bool) -> None:
    greeting = server(mine, accepted=accepted, tells=tells)
    assert (refused(greeting, hello(ROLE_CLIENT, "carol", cluster_key=theirs)) is None) == fits


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("evil\nCRITICAL all is lost\x1b[2J", "evil\\nCRITICAL all is lost\\x1b[2J"),
        ("x" * 500, "x" * 99 + "…"),
        ("", "a client"),
    ],
    ids=["control characters", "long", "none"],
)
def test_a_peers_name_cannot_write_into_the_logs(name: str, called: str) -> None:
    greeting = server()
    assert refused(greeting, hello(ROLE_CLIENT, name, cluster_key=KEY)) is None
    assert greeting.peer_name == called
