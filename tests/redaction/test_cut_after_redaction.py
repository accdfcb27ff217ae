"""A text is redacted before it is cut, everywhere, and that takes time in proportion to its length."""

from __future__ import annotations

import time

import pytest

from polonaise.client.protocol.arguments import wrong
from polonaise.client.workerprogress import parse_kept
from polonaise.errors import PolonaiseError
from polonaise.link.protocol.peertext import printable
from polonaise.redaction import redacted, redacted_end, redacted_line, redacted_text
from polonaise.spark.protocol.sinkprogress import SinkProgress
from polonaise.spark.sink import AgreedCounts
from polonaise.views.databaseerrors import first_line
from polonaise.wire.codec import FRAME_BYTES_MAX, Frames, decode
from polonaise.wire.messages import Refused

ADDRESS = "postgresql://bank:hunter2secret@db/bank"


@pytest.mark.parametrize("before", range(1900, 2010))
def test_no_half_of_a_password_is_told_wherever_the_cut_is(before: int) -> None:
    told = redacted_text(RuntimeError("x" * before + " " + ADDRESS))
    assert "hunter2" not in told
    assert len(told) <= 2000
    assert "hunter2" not in redacted("x" * before + " " + ADDRESS, before + 25)


def test_what_redaction_shortens_leaves_room_for_no_half_of_another_secret() -> None:
    told = "could not reach https://lake/?sig=" + "A" * 1900 + " nor "
    error = "x" * (2000 - len(told) - len("postgresql://bank:hunter2s")) + told + ADDRESS
    assert redacted_text(RuntimeError(error)).endswith("postgresql://bank:***@db/bank")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://u:p@ss SECRET@h/db", "mariadb+pymysql://u:a@b cSECRET/x@127.0.0.1:1/db",
        "embedded:./l?fragments=s3://k:p@ss SECRET@b/x", "s3://u:SECRET@a to s3://u:SECRET@b",
        '{"password": "a SECRET", "user": "u"}', "{'passwd': 'SECRET'}", "{b'password': b'SECRET'}",
        "db_password: SECRET", "password = SECRET", r"password='a\'SECRET b' user=u", "password='a''SECRET b' user=u",
        "https://h/#access_token=SECRET", "https://h/?pw=SECRET", "Authorization: Bearer SECRET",
        "serve --db-password SECRET now", "ALTER USER u IDENTIFIED BY 'SECRET'", "ALTER ROLE u PASSWORD 'SECRET'",
        "postgresql://h/db?user=u&password=a)SECRET,b'SECRET}c;d=SECRET",
        "s3://b/x?access_key_id=a)SECRET&endpoint=e", "jdbc:sqlserver://h;password={a;SECRET};encrypt=true",
        "Server=h;Password=a SECRET;Uid=u", "Password=a SECRET;Server=h", 'password="a"SECRET host=h',
        "postgresql+psycopg://127.0.0.1:5432/bank?user=bank&password=abc@SECRET",
        "mariadb+pymysql://[::1]:3306/bank?user=bank&password=abc@SECRET",
        "postgresql://127.0.0.1:5432/bank?user=bank&password=a b@SECRET",
        "postgresql+psycopg://h/db?user=bank&pasword=SECRET", "postgresql+psycopg://h/db?user=bank&password=a&SECRET",
        "mysql://h/db?init_command=SET+PASSWORD%3D%27SECRET%27&charset=utf8mb4", "see postgres://h/db?options=SECRET",
        "polonaise://bank:SECRET://XZQZQ SECRET|@h1:1,h2:2/db", "postgresql://bank:SECRET%20B%3A%2F%2Fa%3Ab%40c@h/db",
        "https://h:80/x?sig=%2F@SECRET", "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nSECRET",
    ],
)  # fmt: skip
def test_a_secret_is_hidden_whole_in_whatever_form_it_is_told(text: str) -> None:
    shown = redacted(text)
    assert "SECRET" not in shown
    assert "***" in shown


def test_what_only_resembles_a_secret_is_told() -> None:
    for text in ("the key: 5", "author: me", "3 of 5 tokens", "no password", "polonaise://h:7000 at 12:30", "a: b@c"):
        assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'s3://b?secret=x' names no directory", "'s3://b?secret=***' names no directory"),
        ("see (s3://b?secret=x).", "see (s3://b?secret=***)."),
        ("connect(password='a b', host='c')", "connect(password=***, host='c')"),
        (
            "no mariadb+pymysql://bank:***@h:1/bank: (1045, \"Access denied for user 'bank'@'localhost'\")",
            "no mariadb+pymysql://bank:***@h:1/bank: (1045, \"Access denied for user 'bank'@'localhost'\")",
        ),
        (
            "mariadb://h:1/bank?user=bank&password=x: Access denied for user 'bank'@'localhost'",
            "mariadb://h:1/bank?user=bank&password=***: Access denied for user 'bank'@'localhost'",
        ),
        ("postgresql+psycopg://bank:a%2Fb%40c@h:1/bank", "postgresql+psycopg://bank:***@h:1/bank"),
        ("embedded:/l?fragments=s3://k%3Aa%40b@c/p+q", "embedded:/l?fragments=s3://k:***@c/p+q"),
        ("('postgresql://h/db?nosuch=x').", "('postgresql://h/db?nosuch=***')."),
        ("sqlite:///a.db?mode=ro&x=1&timeout=3", "sqlite:///a.db?mode=ro&x=***&timeout=3"),
        ("jdbc:sqlserver://h;password=x;encrypt=true", "jdbc:sqlserver://h;password=***;encrypt=true"),
    ],
)
def test_what_is_written_around_a_secret_is_told(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "A", "a.", "a:", "pass", "%3d", "a=b", "%25", "a@", "x://", "key='", "http://", "?key=", "'", "+a-",
        "password", "x://u:", ";a", "password={", "sqlite://", "sqlite://?", "x://u:a@", "x://u:a://", "a@:x:",
        "-----BEGIN PRIVATE KEY-----", "\\",
    ],
)  # fmt: skip
def test_long_words_take_time_in_proportion_to_their_length(piece: str) -> None:
    def took_s(count: int) -> float:
        began_s = time.process_time()
        redacted(piece * count)
        return time.process_time() - began_s

    took_s(1000)
    # Ten times the length; a hundred times the time would be what it was. With room for other things going on.
    assert took_s(50_000) < 40 * max(took_s(5_000), 0.002)


@pytest.mark.parametrize("before", range(60))
def test_no_half_of_a_password_is_told_of_a_register_s_value_or_an_argument(before: int) -> None:
    said = "x" * before + " " + ADDRESS
    for parse in (
        parse_kept,
        lambda value: AgreedCounts.parse(value, "app"),
        lambda value: SinkProgress.parse(b"\xff" * 40 + value, "app", 0),
    ):
        with pytest.raises(PolonaiseError) as told:
            parse(said.encode() + b"." * (len(said) % 2 == 0))  # whatever is written there has an even length
        assert told.value.code in ("bad_option", "sink_state_damaged")
        assert "hunter2" not in str(told.value)
    for given in (said, said.encode(), [said], {"engine": said}):
        assert "hunter2" not in str(wrong("address", given, "another one"))


@pytest.mark.parametrize("before", [65_500, 65_506, 65_510])
def test_no_half_of_a_password_is_told_by_a_peer_whose_text_is_cut_on_the_way(before: int) -> None:
    told = "x" * before + " " + ADDRESS
    assert "hunter2" not in printable(told, before + 25)
    (frame,) = Frames(FRAME_BYTES_MAX).feed(b"".join(Refused(0, "bad_option", told).frame()))
    refused = decode(frame)
    assert isinstance(refused, Refused)
    assert "hunter2" not in refused.text
    assert len(refused.text) > 65_000


@pytest.mark.exhaustive  # of places of a cut
@pytest.mark.parametrize("characters_max", range(1, 80))
def test_the_end_of_a_log_begins_within_no_password(characters_max: int) -> None:
    log = "listening\n" * 30_000 + f"could not reach {ADDRESS}\nended\n"
    told = redacted_end(log, characters_max)
    assert "secret" not in told
    assert "hunter" not in told
    assert len(told) <= characters_max
    assert told.endswith("ended"[-characters_max + 1 or 5 :])


def test_the_first_line_is_taken_of_a_text_that_was_redacted() -> None:
    said = "\n could not connect with password='hunter2\nsecret' at db\nhint: none"
    assert redacted_line(said) == "could not connect with password=*** at db"
    assert first_line(RuntimeError(said)) == "could not connect with password=*** at db"
    assert redacted("password='hunter2") == "password=***", "another system has cut it"


def test_what_is_cut_says_so() -> None:
    assert redacted("x" * 30, 10) == "x" * 9 + "…"
    assert redacted_end("x" * 30, 10) == "…" + "x" * 9
    assert redacted("x" * 10, 10) == redacted_end("x" * 10, 10) == "x" * 10
