"""Addresses of logs, coordinators, storage nodes and fragment stores, as options and `polonaise.connect` take them."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.topics import check_topic_name
from polonaise.errors import BadOption, ExtraMissing
from polonaise.host import Host
from polonaise.host.address import HostPort, parse_address
from polonaise.host.tls import TlsIdentity
from polonaise.redaction import redacted, redacted_address
from polonaise.terms import StorageId

MARKER: Final = "polonaise-embedded"
"""The file that marks a directory as an embedded log."""
COORDINATOR: Final = "coordinator"
"""The directory of an embedded log's coordinator."""
SOCKETS: Final = "sockets"
"""The directory of the sockets of an embedded log's nodes."""


SERVERS: Final = "polonaise"
"""The scheme of an address that names servers."""
LOG_SCHEMES: Final = ("embedded", "file", "zookeeper", SERVERS)
LOG_FORMS: Final = (
    "embedded:PATH, file:PATH[?topic=NAME], zookeeper://HOST:PORT,…/ROOT[?topic=NAME] or "
    "polonaise://HOST:PORT,…[/TOPIC]"
)
"""For messages."""
_SERVERS: Final = "write polonaise://HOST:PORT,HOST:PORT, the addresses of servers, without blanks"
_COORDINATORS: Final = "zookeeper://HOST:PORT,…/ROOT or file:PATH"
_ROOT_NAME: Final = re.compile(r"[\w.-]*[\w-]")
"""ZooKeeper refuses names that are only dots."""


def with_topic(address: str, topic: str) -> str:
    """Return the address of a topic in the cluster with this address: the reverse of `split_topic`."""
    if not topic:
        return address
    scheme = address.partition(":")[0]
    if scheme == SERVERS:
        return f"{address.rstrip('/')}/{topic}"
    return f"{address}{'&' if scheme == 'zookeeper' and '?' in address else '?'}topic={topic}"


def split_topic(address: str) -> tuple[str, str]:
    """Return the address of a cluster, and the topic that is named with it; an empty name without one.

    The topic is the path of `polonaise://HOST:PORT/TOPIC`, and the option `?topic=TOPIC` of `zookeeper://…` and
    `file:PATH`. Raises `BadOption` for a name that no topic may have, for two topics, and for one of an embedded log,
    which has none. An address of another kind is returned as it is.
    """
    scheme = address.partition(":")[0]
    if scheme in (SERVERS, "zookeeper"):
        _check_no_user(address)
    if scheme == SERVERS:
        listed, _, topic = address.removeprefix(f"{SERVERS}://").partition("/")
        if not topic or not address.startswith(f"{SERVERS}://"):
            return address, ""
        return f"{SERVERS}://{listed}", _topic_in(address, topic)
    if scheme == "zookeeper":
        place, _, query = address.partition("?")
        options = query.split("&") if query else []
        topics = [each.removeprefix("topic=") for each in options if each.startswith("topic=")]
        if not topics:
            return address, ""
        if len(topics) > 1:
            raise BadOption(f"invalid address {redacted_address(address)!r}: it names two topics; name one")
        others = "&".join(each for each in options if not each.startswith("topic="))
        return f"{place}?{others}" if others else place, _topic_in(address, topics[0])
    if scheme == "file":
        # A path may have any letters: only this ending is no part of it.
        place, mark, topic = address.rpartition("?topic=")
        return (place, _topic_in(address, topic)) if mark else (address, "")
    if scheme == "embedded" and any(name == "topic" for name, _ in parse_qsl(address.partition("?")[2], True)):
        raise BadOption(
            f"invalid address {redacted_address(address)!r}: an embedded log has no topics, only a cluster has; "
            "leave the topic out, or run a cluster (polonaise cluster start)"
        )
    return address, ""


def _check_no_user(address: str) -> None:
    """Raise `BadOption` for an at sign: a part of a password would be taken for a host or a topic, and be told."""
    if "@" in address:
        raise BadOption(
            f"invalid address {redacted_address(address)!r}: with an @ it names no HOST:PORT, and no root or topic has "
            f"one; write {LOG_FORMS}, without a user"
        )


def check_no_topic(topic: str, what: str) -> None:
    """Raise `BadOption` for a topic where `what`, such as an archive, has only the log's own partitions: fragments have
    the ids of these, and not the numbers that a client of a topic knows.
    """
    if topic:
        raise BadOption(
            f"{what} has the log's own partitions only, and not those of topics: leave topic {topic!r} out of the "
            "address"
        )


def _topic_in(address: str, topic: str) -> str:
    try:
        return check_topic_name(topic)
    except BadOption as error:
        raise BadOption(f"invalid address {redacted_address(address)!r}: {error.text}") from None


def absolute_address(address: str) -> str:
    """Return a log's address with absolute paths: that of `embedded:PATH?…` or `file:PATH`, and of its fragment store.

    So it means the same in another working directory. Any other address is returned as it is.
    """
    scheme, _, rest = address.partition(":")
    path, mark, query = rest.partition("?") if scheme == "embedded" else (rest, "", "")
    # Without a path it is refused where it is opened: it does not mean the working directory.
    if scheme not in ("embedded", "file") or not path:
        return address
    options = [
        (name, absolute_store(value) if name == "fragments" and value else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return f"{scheme}:{os.path.abspath(path)}{mark}{urlencode(options, safe='/:')}"


def absolute_store(url: str) -> str:
    """Return the address of a fragment store: a URL as it is, a path or `file:PATH` as an absolute path."""
    if "://" in url:
        return url
    return os.path.abspath(unquote(url.removeprefix("file:")) if url.startswith("file:") else url)


def coordinator_at(host: Host, address: str, tls: TlsIdentity | None = None) -> Coordinator:
    """Return the coordinator at `zookeeper://HOST:PORT,…/ROOT` or `file:PATH`.

    With `tls` ZooKeeper is connected to by TLS, with the same files, unless the address ends with `?tls=no`. Raises
    `BadOption` for any other address, for one with a topic, and for the coordinator of an embedded log, whose election
    a client or server would go around; `ExtraMissing` without kazoo.
    """
    if split_topic(address)[1]:
        raise BadOption(
            f"{redacted_address(address)!r} names a topic, and this needs the whole cluster: leave the topic out"
        )
    scheme, separator, location = address.partition(":")
    if not separator or not location:
        raise BadOption(f"invalid coordinator address {redacted_address(address)!r}: write {_COORDINATORS}")
    if "\0" in location:
        raise BadOption(
            f"invalid coordinator address {redacted_address(address)!r}: write {_COORDINATORS}, without a zero byte"
        )
    if scheme == "zookeeper":
        return _in_zookeeper(host, address, tls)
    if scheme == SERVERS:
        raise BadOption(
            f"{redacted_address(address)!r} names servers, which clients ask: this needs the coordinator itself, "
            f"{_COORDINATORS} (--coordinator, or POLONAISE_COORDINATOR)"
        )
    if scheme != "file":
        raise BadOption(f"unknown kind of coordinator {scheme!r}: write {_COORDINATORS}")
    path = os.path.abspath(location)
    parent, own = os.path.split(path)
    # The marker is in the embedded log's directory; PATH may name that, or the coordinator's directory within it.
    for directory in (path, parent) if own == COORDINATOR else (path,):
        if holds_embedded(directory):
            raise BadOption(
                f"{redacted_address(address)!r} is the coordinator of an embedded log, which is opened by its "
                f"directory: write embedded:{redacted(directory)}"
            )
    return coordinator_in(host, path)


def holds_embedded(directory: str) -> bool:
    """Whether the directory holds an embedded log, of whatever version or without its marker. Blocks."""
    present = {name for name in (MARKER, COORDINATOR, SOCKETS) if os.path.exists(os.path.join(directory, name))}
    return MARKER in present or lacks_only_marker(present)


def lacks_only_marker(names: Container[str]) -> bool:
    """Whether a directory with these names holds an embedded log whose marker somebody has removed: only a host makes a
    directory of sockets beside a coordinator's, and it writes the marker before both.
    """
    return MARKER not in names and COORDINATOR in names and SOCKETS in names


def _in_zookeeper(host: Host, address: str, tls: TlsIdentity | None) -> Coordinator:
    place, mark, query = address.partition("?")
    if mark and query != "tls=no":
        raise BadOption(
            f"invalid coordinator address {redacted_address(address)!r}: its only option is ?tls=no, for a "
            "ZooKeeper that has no TLS"
        )
    hosts, slash, root = place.removeprefix("zookeeper:").removeprefix("//").partition("/")
    names = root.split("/")
    if not address.startswith("zookeeper://") or not hosts or not slash or not all(map(_ROOT_NAME.fullmatch, names)):
        raise BadOption(
            f"invalid coordinator address {redacted_address(address)!r}: write "
            "zookeeper://HOST:PORT,HOST:PORT/ROOT, with a root of its own for each cluster"
        )
    for each in hosts.split(","):
        parsed = parse_address(each)
        if not isinstance(parsed, HostPort) or not parsed.port:
            raise BadOption(f"invalid ZooKeeper address {redacted(each)!r}: write HOST:PORT, with a port above 0")
    try:
        from polonaise.coordination.zookeeper import ZooKeeperBackend
    except ImportError as error:
        raise ExtraMissing(f"ZooKeeper needs {error.name}: pip install 'polonaise[zookeeper]'") from error
    files = None if tls is None or mark else tls.files
    return Coordinator(ZooKeeperBackend(hosts, f"/{root}", tls=files), host.clock)


def servers_at(address: str) -> tuple[str, ...]:
    """Return the addresses of the servers in `polonaise://HOST:PORT,HOST:PORT`, in this order. Raises `BadOption`."""
    _check_no_user(address)
    shown = repr(redacted_address(address))
    begin = f"{SERVERS}://"
    if not address.startswith(begin):
        raise BadOption(f"invalid address {shown}: {_SERVERS}")
    listed, _, path = address.removeprefix(begin).partition("/")
    if path:
        raise BadOption(f"invalid address {shown}: leave the topic {redacted(path)!r} out here")
    if not listed:
        raise BadOption(f"invalid address {shown}: it names no server; {_SERVERS}")
    servers: list[str] = []
    for each in listed.split(","):
        entry = repr(redacted(each))
        if not each:
            raise BadOption(f"invalid address {shown}: nothing stands beside one of its commas; {_SERVERS}")
        if any(letter.isspace() for letter in each) or each.startswith("unix:") or "?" in each:
            raise BadOption(f"invalid address {shown}: {entry} is no HOST:PORT; {_SERVERS}")
        if ":" not in each.rpartition("]")[2]:
            raise BadOption(f"invalid address {shown}: {entry} has no port; {_SERVERS}")
        parsed = parse_address(each)
        if isinstance(parsed, HostPort) and not parsed.port:
            raise BadOption(f"invalid address {shown}: {entry} has port 0; write the port at which the server listens")
        if str(parsed) in servers:
            raise BadOption(f"invalid address {shown}: {entry} stands there twice; name each server once")
        servers.append(str(parsed))
    return tuple(servers)


_NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")


def storage_nodes_of(texts: Iterable[str], option: str) -> dict[StorageId, str]:
    """Return the addresses of storage nodes by name, written as NAME=HOST:PORT, or HOST:PORT if that is the name.

    Raises `BadOption` for a name or an address that is invalid and, with `option` in the message, for one that is there
    twice or that is both the name of a node and the address of another.
    """
    nodes: dict[StorageId, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        # The part before an equals sign may be that of an address: unix:/tmp/a=b.
        if not equals or ":" in name:
            name = address = text
        check_storage_name(name)
        if name in nodes:
            raise BadOption(f"{option} has {redacted(name)} twice: each replica needs a storage node of its own")
        nodes[name] = address
    check_storage_addresses(nodes.values(), option)
    if clash := nodes.keys() & {address for name, address in nodes.items() if address != name}:
        raise BadOption(f"{option} has {redacted(min(clash))} as a node's name and as the address of another node")
    return nodes


def check_storage_addresses(addresses: Iterable[str], option: str) -> None:
    """Raise `BadOption` for an address that is invalid or, with `option` in the message, there twice."""
    seen: set[str] = set()
    for address in addresses:
        check_storage_address(address)
        if address in seen:
            raise BadOption(
                f"{option} has the address {redacted_address(address)} twice: each storage node needs one of its own"
            )
        seen.add(address)


def check_storage_name(name: StorageId) -> None:
    """Raise `BadOption` unless a storage node may have this name: a word, or an address."""
    if ":" in name:
        check_storage_address(name)
    elif not _NODE_NAME.fullmatch(name):
        raise BadOption(
            f"invalid name of a storage node {redacted(name)!r}: write 1 to 63 letters, digits, '.', '_' or '-'"
        )


def check_storage_address(address: str) -> None:
    """Raise `BadOption` unless a storage node may have this address: not port 0, which changes at each start."""
    parsed = parse_address(address)
    if isinstance(parsed, HostPort) and not parsed.port:
        raise BadOption(
            f"invalid storage node address {redacted_address(address)!r}: "
            "with port 0 the node would listen at another port after every start; write a fixed port"
        )
