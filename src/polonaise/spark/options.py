"""A query's options: parsed from what Spark hands over, and checked before anything runs.

`docs/spark.md` lists them. Case does not matter in their names. An invalid one raises `BadOption`, which names it and
says what to write.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeVar

from polonaise.client.protocol.arguments import INT64_MAX, partitions_named
from polonaise.coordination.topics import check_topic_name
from polonaise.errors import BadOption, UnknownPartition
from polonaise.fragments.protocol.coverage import Span
from polonaise.host.tls import VARIABLES, TlsFiles, files_of
from polonaise.node.addresses import (
    LOG_FORMS,
    LOG_SCHEMES,
    SERVERS,
    absolute_address,
    absolute_store,
    split_topic,
    with_topic,
)
from polonaise.redaction import redacted, redacted_address, redacted_repr
from polonaise.spark.protocol.ddl import checked_columns
from polonaise.terms import PartitionId, TransactionId

T = TypeVar("T")

EARLIEST: Final = -2
"""In place of a transaction id: the beginning of a partition, id 0, even if that was trimmed."""
LATEST: Final = -1
"""In place of a transaction id: the end of a partition when the query begins."""

MIB: Final = 1024 * 1024
FRAGMENTS: Final = "fragments:"
"""What the option `cluster` begins with to read a fragment store alone, without a log."""
STORAGE: Final = "storage:"
"""What the option `cluster` begins with to read one replica, not all of which need be committed."""


KEY_BYTES: Final = 16
"""The length of a log's key."""

RANGE_OPTIONS: Final = frozenset(
    {
        "partitions", "startingtransactions", "endingtransactions", "startingoffsets", "endingoffsets",
        "startingtimestamp", "endingtimestamp",
    }
)  # fmt: skip
"""Names, in lower case, of the options that select partitions and a range of each."""


class Positions(NamedTuple):
    """A place in each partition: a transaction's id, `EARLIEST` or `LATEST`."""

    default: TransactionId
    """In every partition that `by_partition` does not name."""
    by_partition: Mapping[PartitionId, TransactionId] = {}

    def of(self, partition: PartitionId) -> TransactionId:
        return self.by_partition.get(partition, self.default)


FROM_EARLIEST: Final = Positions(EARLIEST)
UP_TO_LATEST: Final = Positions(LATEST)


class OnUndecodable(enum.Enum):
    """What to do with a body that the decoder can't read."""

    FAIL = "fail"
    """End the query with `body_undecodable`."""
    SKIP = "skip"
    """Leave the row out, with a warning."""
    COLUMN = "column"
    """Put the body into the column `_corrupt` and the reason into `_reason`; the decoder's columns are null."""
    ONLY = "only"
    """Return only the rows of bodies that the decoder can't read, each with its `_reason`."""


@redacted_repr
@dataclass(frozen=True)
class ReadOptions:
    """The options of a batch or stream query."""

    cluster: str
    """Address: one of `LOG_FORMS`, `fragments:URL` for a store alone, or `storage:PATH` for one replica."""
    fragments: str | None = None
    """The store of archived history, as a URL or path; None without one."""
    partitions: str = "all"
    """Partitions to read: `all`, `3` or `0-6,9`."""
    starting: Positions = FROM_EARLIEST
    """First transaction to read of each partition."""
    ending: Positions = UP_TO_LATEST
    """First transaction of each partition that is not read any more."""
    starting_time_us: int | None = None
    """Earliest commit time to read, in microseconds UTC, inclusive. None: `starting` decides."""
    ending_time_us: int | None = None
    """End of the commit times to read, in microseconds UTC, exclusive. None: `ending` decides."""
    headers: frozenset[int] | None = None
    """Read only transactions with these headers; None for all."""
    decoder: str | None = None
    """Format of the bodies, or a function as `module:function`; None to leave bodies undecoded."""
    decoder_schema: str | None = None
    """The columns that the decoder adds, as DDL."""
    decoder_options: Mapping[str, str] = field(default_factory=dict)
    """The options whose names begin with `decoder.`, under the rest of their names in lower case."""
    kafka_columns: bool = False
    fail_on_data_loss: bool = True
    on_undecodable: OnUndecodable = OnUndecodable.FAIL
    transactions_per_trigger_max: int | None = None
    """Maximum number of transactions of one micro-batch, over all partitions; None for all that are new."""
    partitions_min: int = 1
    """Minimum number of Spark tasks, if there are that many transactions. A replica's segments are never divided."""
    split_bytes_max: int = 128 * MIB
    """Maximum number of bytes, roughly and as stored, that one task reads. A replica's segments are not divided."""
    timeout_s: float = 60.0
    """Seconds that a request to the log may take before the query fails."""
    log_key: bytes | None = None
    """The key that the log has to have (`Log.log_key`), or the fragments of a store alone; None for any."""
    tls: TlsFiles | None = None
    """The TLS files with which to connect, on each machine; None for those in its environment."""


@redacted_repr
@dataclass(frozen=True)
class WriteOptions:
    """The options of a write: where rows are appended, and under which name, so that a repetition is recognized."""

    cluster: str
    app_id: str | None = None
    """The application whose batches these are. None: a stream's query id; a batch write then has no name."""
    app_version: int | None = None
    """Number of the application's batch, in batch writes; numbers only go up. None in streams and without `app_id`."""
    partition_by: str | None = None
    """Column whose hash decides the partition. None: the column `partition` decides, or else the hash of `data`."""
    staging: str | None = None
    """URL or path of the store for rows until they are published; None for the directory that `staging_of` names."""
    inline_bytes_max: int = 256 * 1024
    """Most bytes of a task's rows that may travel in its message to the driver, without being staged."""
    timeout_s: float = 60.0
    """Seconds without any progress after which a commit fails; also the deadline of a request to the staging store."""
    tls: TlsFiles | None = None
    """The TLS files with which to connect, on each machine; None for those in its environment."""


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises `BadOption` for one that is unknown, invalid, contradictory or missing."""
    texts = GivenOptions(given, _READ)
    forms = f"{LOG_FORMS}, fragments:URL, or storage:PATH for what one replica holds"
    cluster, fragments = _where(texts, forms)
    options = ReadOptions(
        cluster=cluster,
        fragments=fragments,
        partitions=texts.text("partitions") or "all",
        starting=texts.value("startingTransactions", _positions("starting"), FROM_EARLIEST),
        ending=texts.value("endingTransactions", _positions("ending"), UP_TO_LATEST),
        starting_time_us=texts.value("startingTimestamp", _time_us, None),
        ending_time_us=texts.value("endingTimestamp", _time_us, None),
        headers=texts.value("headers", _headers, None),
        decoder=texts.text("decoder"),
        decoder_schema=texts.value("decoderSchema", checked_columns, None),
        decoder_options=texts.with_prefix("decoder."),
        kafka_columns=texts.value("kafkaColumns", _flag, False),
        fail_on_data_loss=texts.value("failOnDataLoss", _flag, True),
        on_undecodable=_undecodable_in(texts),
        transactions_per_trigger_max=texts.value("maxTransactionsPerTrigger", _positive, None),
        partitions_min=texts.value("minPartitions", _positive, 1),
        split_bytes_max=texts.value("maxBytesPerSplit", _bytes, 128 * MIB),
        log_key=texts.value("logKey", _key, None),
        timeout_s=texts.value("timeout", _seconds, 60.0),
        tls=_tls(texts),
    )
    if options.decoder is None and options.decoder_schema is not None:
        raise BadOption("decoderSchema without a decoder: add .option('decoder', 'json')")
    if options.decoder is None and texts.text("onUndecodable") not in (None, OnUndecodable.FAIL.value):
        raise BadOption("onUndecodable without a decoder: add .option('decoder', 'json'), or leave it out")
    for side, time_us, ids in (
        ("starting", options.starting_time_us, texts.text("startingTransactions")),
        ("ending", options.ending_time_us, texts.text("endingTransactions")),
    ):
        if time_us is not None and ids is not None:
            raise BadOption(f"{side}Timestamp and {side}Transactions are both given: give one of them")
    since, until = options.starting_time_us, options.ending_time_us
    if since is not None and until is not None and since > until:
        raise BadOption("startingTimestamp is later than endingTimestamp: swap them")
    return options


def write_options(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Parse the options of a write. Raises `BadOption` likewise."""
    texts = GivenOptions(given, _WRITE)
    given_cluster = texts.text("cluster") or ""
    if given_cluster.startswith(FRAGMENTS):
        raise BadOption(f"cluster: a fragment store can't be appended to: name the log, {LOG_FORMS}")
    if given_cluster.startswith(STORAGE):
        raise BadOption(f"cluster: one replica can't be appended to: name the log, {LOG_FORMS}")
    cluster, _ = _where(texts, LOG_FORMS)
    app_id, version = texts.text("txnAppId"), texts.value("txnVersion", _not_negative, None)
    if is_stream and version is not None:
        raise BadOption("txnVersion is for batch writes: a stream numbers its batches itself")
    if not is_stream and (app_id is None) != (version is None):
        raise BadOption("txnAppId and txnVersion go together: give both, or neither for a write that may repeat rows")
    return WriteOptions(
        cluster=cluster,
        app_id=app_id,
        app_version=version,
        partition_by=texts.text("partitionBy"),
        staging=texts.text("staging"),
        inline_bytes_max=texts.value("inlineBytesMax", _bytes, 256 * 1024),
        timeout_s=texts.value("timeout", _seconds, 60.0),
        tls=_tls(texts),
    )


_READ: Final = (
    "cluster", "fragments", "partitions", "startingTransactions", "endingTransactions", "startingTimestamp",
    "endingTimestamp", "headers", "decoder", "decoderSchema", "kafkaColumns", "failOnDataLoss", "onUndecodable",
    "failOnDecodeError", "maxTransactionsPerTrigger", "minPartitions", "maxBytesPerSplit", "topic",
    "logKey", "timeout", "tls.ca", "tls.certificate", "tls.key",
)  # fmt: skip
_WRITE: Final = (
    "cluster", "txnAppId", "txnVersion", "partitionBy", "staging", "inlineBytesMax", "timeout", "topic",
    "tls.ca", "tls.certificate", "tls.key",
)  # fmt: skip


def _tls(texts: GivenOptions) -> TlsFiles | None:
    return files_of({name: texts.text(f"tls.{name}") for name in VARIABLES})


def _where(texts: GivenOptions, forms: str) -> tuple[str, str | None]:
    """Return the options `cluster` and `fragments`. `forms` is what `cluster` may be, for messages."""
    cluster = texts.text("cluster")
    if cluster is None:
        raise BadOption(f"no option cluster: name the log, .option('cluster', …), as {forms}")
    scheme, colon, rest = cluster.partition(":")
    if not colon or not rest or scheme not in (*LOG_SCHEMES, "fragments", "storage"):
        raise BadOption(f"cluster={redacted_address(cluster)!r}: write {forms}")
    if scheme == "storage" and "://" in rest:
        raise BadOption(
            f"cluster={redacted_address(cluster)!r}: write storage:PATH, a directory on the machine of the tasks"
        )
    fragments = texts.text("fragments")
    topic = _topic(texts, cluster, fragments)
    if scheme == "fragments":
        if fragments is not None:
            raise BadOption("fragments is given twice: cluster=fragments:URL names it, too")
        return FRAGMENTS + absolute_store(rest), absolute_store(rest)
    if scheme == "storage":
        return STORAGE + os.path.abspath(rest), None if fragments is None else absolute_store(fragments)
    cluster, _ = split_topic(cluster)
    return with_topic(absolute_address(cluster), topic), None if fragments is None else absolute_store(fragments)


def _topic(texts: GivenOptions, cluster: str, fragments: str | None) -> str:
    """Return the topic that the address or the option `topic` names; empty for none. Raises `BadOption`."""
    named, option = split_topic(cluster)[1], texts.text("topic")
    if option is not None:
        check_topic_name(option)
        if cluster.partition(":")[0] not in ("file", "zookeeper", SERVERS):
            raise BadOption(
                f"topic={option!r}: cluster={redacted_address(cluster)!r} has no topics that could be read by "
                "name: name the cluster, polonaise://HOST:PORT,…, zookeeper://…/ROOT or file:PATH, or "
                "leave the topic out"
            )
        if named and named != option:
            raise BadOption(f"topic={option!r}: the option cluster names topic {named!r}: name one topic")
    topic = option or named
    if topic and fragments is not None:
        raise BadOption(
            f"fragments: the store names partitions by their ids in the cluster, and topic {topic!r} numbers its own: "
            "leave fragments out, or read the store alone, cluster=fragments:URL with partitions=IDS"
        )
    return topic


def _undecodable_in(texts: GivenOptions) -> OnUndecodable:
    """Return the value of `onUndecodable`, or of its older form `failOnDecodeError`."""
    policy = texts.value("onUndecodable", _on_undecodable, None)
    fails = texts.value("failOnDecodeError", _flag, None)
    if policy is not None and fails is not None and policy is not _OLDER_WORDS[fails]:
        raise BadOption(
            "failOnDecodeError and onUndecodable contradict each other: give onUndecodable only; fail is "
            "failOnDecodeError=true, and column is failOnDecodeError=false"
        )
    if fails is not None:
        return _OLDER_WORDS[fails]
    return policy or OnUndecodable.FAIL


_OLDER_WORDS: Final = {True: OnUndecodable.FAIL, False: OnUndecodable.COLUMN}


# ------------------------------------------------------------------ values


def _on_undecodable(text: str) -> OnUndecodable:
    word = text.strip().lower()
    if word == "table":
        raise ValueError(
            "table is for polonaise pipeline views: write skip here, and to keep the undecodable bodies store the "
            "result of a second query with onUndecodable=only"
        )
    if word not in {each.value for each in OnUndecodable}:
        raise ValueError(f"write {', '.join(each.value for each in OnUndecodable)}")
    return OnUndecodable(word)


def _positions(side: str) -> Callable[[str], Positions]:
    """Return a parser of `startingTransactions` or `endingTransactions`; `side` is `starting` or `ending`."""

    def parse(text: str) -> Positions:
        # Partitions that an object of ids leaves out are read whole, as without this option.
        default = EARLIEST if side == "starting" else LATEST
        word = text.strip().lower()
        if word in ("earliest", "latest"):
            return Positions(EARLIEST if word == "earliest" else LATEST)
        try:
            ids = json.loads(text)
        except ValueError:
            ids = None
        if not isinstance(ids, dict) or not ids:  # an empty object says nothing: most likely a mistake
            raise ValueError(
                'write earliest, latest, or ids by partition: {"0": 100, "1": -2} (-2 earliest, -1 latest)'
            )
        return Positions(default, {_partition(key): _position(value) for key, value in ids.items()})

    return parse


def _partition(text: str) -> PartitionId:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text!r} is no partition: they are numbered from 0")
    return int(text)


def _position(value: Any) -> TransactionId:
    if type(value) is not int or not EARLIEST <= value <= INT64_MAX:
        raise ValueError(f"{value!r} is no transaction: an id from 0 on, -2 for the earliest, -1 for the latest")
    return value


def _time_us(text: str) -> int:
    """Parse an ISO 8601 time with its zone, or milliseconds since 1970 UTC; return microseconds UTC."""
    if text.strip().removeprefix("-").isdecimal():
        if abs(int(text)) > INT64_MAX // 1_000:
            raise ValueError("milliseconds beyond the range of times: write 2026-01-31T12:00:00Z")
        return 1_000 * int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("write a time as 2026-01-31T12:00:00Z, or as milliseconds since 1970") from None
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone: write 2026-01-31T12:00:00Z, or +01:00 instead of Z")
    return microseconds(moment)


def partitions_among(named: str, existing: Collection[PartitionId], message: str) -> list[PartitionId]:
    """Return the partitions that the option `partitions`, given as `named`, chooses. Raises `BadOption` for an invalid
    text; `UnknownPartition`, with `message`, for one that is not among the `existing`."""
    try:
        chosen = sorted(existing) if named.strip() == "all" else partitions_named(named, max(existing) + 1)
    except UnknownPartition:
        chosen = []
    if not chosen or not set(chosen) <= set(existing):
        raise UnknownPartition(f"partitions={named!r}: {message} {sorted(existing)}")
    return chosen


def range_options(spans: Mapping[PartitionId, Span]) -> dict[str, str]:
    """Return the source's options that select exactly these ranges and no other partition."""
    return {
        "partitions": ",".join(map(str, spans)),
        "startingTransactions": json.dumps({str(partition): span.first for partition, span in spans.items()}),
        "endingTransactions": json.dumps({str(partition): span.last + 1 for partition, span in spans.items()}),
    }


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970 UTC. `moment` must have a time zone."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _headers(text: str) -> frozenset[int]:
    try:
        headers = frozenset(int(each) for each in text.split(","))
    except ValueError:
        headers = frozenset({INT64_MAX})
    if not all(-(2**31) <= each < 2**31 for each in headers):
        raise ValueError("a header is an integer of 32 bits: write 1,2,3")
    return headers


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a log's key has {2 * KEY_BYTES} hexadecimal digits")
    return key


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("write true or false")
    return word == "true"


def _positive(text: str) -> int:
    return _whole(text, 1, "write a whole number above 0")


def _not_negative(text: str) -> int:
    return _whole(text, 0, "write a whole number from 0 on")


def _bytes(text: str) -> int:
    """Parse a size in bytes. A suffix k, m or g stands for the binary multiple, as in Spark."""
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    scale = {"k": 1024, "m": MIB, "g": 1024 * MIB}.get(word[-1:], 1)
    return scale * _whole(
        word[:-1] if scale > 1 else word, 1, "write bytes as a whole number above 0, or with k, m or g, such as 128m"
    )


def _whole(text: str, lowest: int, wanted: str) -> int:
    if not text.strip().isdecimal() or not lowest <= int(text) <= INT64_MAX:
        raise ValueError(wanted)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ValueError("write seconds above 0, at most 86400")
    return seconds


KAFKAS: Final = {
    "startingoffsets": "startingTransactions",
    "endingoffsets": "endingTransactions",
    "maxoffsetspertrigger": "maxTransactionsPerTrigger",
}
"""By the name, in lower case, that Spark's Kafka source has for an option: our name. It may be given by either."""
_SPARKS: Final = frozenset({"checkpointlocation", "path", "queryname", "__partition_columns"})
"""Options that are Spark's own."""
_TABLES: Final = frozenset({"provider", "owner", "option.cluster"})
"""Options that Spark adds for a table in a catalog."""


class GivenOptions:
    """The given options, under their documented names. Raises `BadOption` for a name that is neither among `known` nor
    Spark's, for an option under two names, for a path, and for a table in a catalog."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        by_name = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        self._given = {key.lower(): value for key, value in given.items()}
        for key, value in self._given.items():
            name = by_name.get(key) or by_name.get(KAFKAS.get(key, "").lower())
            if name is None:
                _check_foreign(key, value, by_name)
            elif name in self._values:
                raise BadOption(f"{name} is given twice, once under the name that Spark's Kafka source gives it")
            else:
                self._values[name] = value

    def text(self, name: str) -> str | None:
        """Return an option's text; None if it was not given. Raises `BadOption` for an empty one."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise BadOption(f"{name} is empty: leave it out, or give it a value")
        return value

    def value(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return what `parse` makes of an option, or the default. Raises `BadOption`, with what `parse` objects to."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BadOption(f"{name}={redacted_address(text)!r}: {redacted(error)}") from None

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with this, under the rest of their names in lower case."""
        return {key.removeprefix(prefix): value for key, value in self._given.items() if key.startswith(prefix)}


def _check_foreign(key: str, value: str, by_name: Mapping[str, str]) -> None:
    if key == "path" and value:
        raise BadOption(
            f"a log has no path {redacted_address(value)!r}: name it with .option('cluster', 'embedded:PATH'), "
            "then .load()"
        )
    if key in _TABLES:
        raise BadOption(
            "a table: Spark does not hand on a table's options when it is read; write CREATE TEMPORARY VIEW name USING "
            "polonaise OPTIONS (cluster '…')"
        )
    if key in _SPARKS or (key.startswith("decoder.") and "decoder" in by_name):
        return
    close = get_close_matches(key, by_name, 1)
    hint = f": did you mean {by_name[close[0]]}?" if close else f": there are {', '.join(by_name.values())}"
    raise BadOption(f"no option is named {key!r}{hint}")
