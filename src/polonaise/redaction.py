"""Redact addresses: errors, logs and names of threads show them without passwords, keys and tokens.

A wrong address must be redacted as well, so nothing here parses one: what looks like a secret is taken out of any text,
rather more than less.
"""

from __future__ import annotations

import re
import string
import traceback
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import quote, unquote

T = TypeVar("T")

HIDDEN: Final = "***"
_TEXT_CHARACTERS_MAX: Final = 2_000
"""The most characters of an application's text that are told."""

_ENDS_CHARACTERS: Final = 100_000
"""The characters before the end of a text that are read with it, as a secret may begin there."""

_SECRET_NAMES: Final = "pass|pwd|secret|token|key|cred|sig|auth|private|sas"
_SECRET_NAME: Final = re.compile(rf"(?i){_SECRET_NAMES}|(?:^|[_.\-])pw$")
_NAME: Final = re.compile(r"(?:^|[?&#;,\s'\"({/:])([\w.\-%]+)=")
_VALUE: Final = re.compile(
    r"(?P<quoted>(?:b?'(?:[^'\\]|\\.|'')*'?|b?\"(?:[^\"\\]|\\.|\"\")*\"?|\{(?:[^}]|\}\})*\}?)?)[^&\s]*", re.DOTALL
)
"""A parameter, and its value: `password=…` in a query, a JDBC address or a DSN of words. A quoted value without its
second quote was cut by somebody else: it goes to the end. Only `&` and blanks end a value for certain."""
_BEFORE_NEXT: Final = re.compile(r"[^;&'\"{}\n]{1,200}(?=;\s?[A-Za-z][\w \-]{0,40}=)")
"""A value of `Password=…;Server=…`, up to the next name: it may have blanks in it."""
_AFTER: Final = "'\")]},;:."
"""What the text itself may have written behind a value, at its end."""
_DONE: Final = re.compile(r"\*\*\*(?=['\")\]},;:.]*(?:[&\s]|\Z))")
"""A value that is hidden already."""
_CERTAIN_NAMES: Final = "passw(?:or)?d|passphrase|pwd|secret|token|(?:api|access|private)[_-]?key|authorization"
_SETTING: Final = re.compile(
    rf"(?i)(?<![\w.\-])(?:[\w.\-]{{0,100}}(?:{_CERTAIN_NAMES})(?:['\"]?\s{{0,9}}:|['\"]?\s{{1,9}}=)|"
    rf"--[\w\-]{{0,100}}(?:{_CERTAIN_NAMES})(?=\s)|(?:password|identified\s{{1,9}}by)(?=\s{{1,9}}['\"]))\s{{0,9}}(?:(?:bearer|basic)\s{{1,9}})?"
)
"""What stands before a secret in JSON, in a header, in settings with blanks, on a command line, and in SQL. Fewer names
than in an address: many a word stands before a colon."""
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
"""A private key as PEM, perhaps cut by somebody else."""
_UP_TO_AT: Final = re.compile(r"(?<!\S)(?P<up_to>\S*@)(?P<rest>\S*)")
"""A word with an at sign: up to its last one, and the rest."""
_PASSWORD: Final = re.compile(
    r"(?P<scheme>(?<![\w+.\-])[\w+.\-]+:/{1,3}|//)?(?<![^\s:/@'\"])(?P<user>[^\s:/@'\"]*):(?!/|\*\*\*@)(?P<hidden>\S+)@"
)
"""`user:password@`, up to the last at sign: an unquoted at sign within a password would leave its second half visible.
What is hidden already stays as it is, here and below."""
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[\w+.\-]+://|\A(?!(?:embedded|file|unix):))(?P<user>[^:/?]*):(?!/)(?P<hidden>.*)@", re.DOTALL
)
"""`user:password@` in a text that is one address, up to its last at sign."""
_QUERY: Final = re.compile(r"[^?]*\?[^=]*=")
"""A query within what looks like a password: `HOST:PORT/DATABASE?password=a@b`."""
_NO_PORT: Final = re.compile(
    r"(?<=:\*\*\*@)(?P<host>\[[^\s\]]*\]|(?!\[)[^\s:/?@]*):(?!\d+(?:\W|_|\Z)|\*\*\*)(?P<rest>\S+)"
)
"""What stands in a port's place behind a hidden password, and begins with no number: more of the password."""
_WORD: Final = re.compile(r"\S*")
_ESCAPED: Final = re.compile(r"[^\s/?#@&\[\]\\]*")
"""A password that ends where it is meant to."""
_SPACED: Final = re.compile(
    r"(?P<scheme>(?<![\w+.\-])[\w+.\-]+://)(?P<user>[^\s:/@'\"]*):(?!\*\*\*@)"
    r"(?P<hidden>(?:[^\s,;'\"()/?#:@]+://){0,9}(?:[^\n:]|:(?!//)){1,200}(?:(?<!')@|@(?!'))(?:\S*@)?)"
)
"""`user:password@` with blanks in it, up to the last at sign before another address, only behind a scheme. `://` within
the password's first word begins no other address. The at sign of MariaDB's `'user'@'host'` ends none."""
_TOKEN: Final = re.compile(r"(?i)\b(?P<scheme>https?://)[^\s:/@'\"]+@")
"""A user without a password in an http or https address, which may itself be the token."""
_QUOTED: Final = re.compile(r"(?i)(?<![^\s?&=;'\"])[^\s?&=;'\"]*(?:%3a%2f%2f|%40|%3d)[^\s&;'\"]*")
"""A percent-encoded address within an address, of which often only the delimiters are encoded."""
_MAY_STAY: Final = frozenset(string.punctuation) - {"%"}
_QUOTED_TIMES_MAX: Final = 8
"""How often an address may be percent-encoded; what is so more often is hidden whole."""
_STAYS_AFTER_MAX: Final = 8
"""How often a text is redacted at most until it stays as it is."""

_OPTION: Final = re.compile(r"(?P<name>[?&#][\w.\-%]+=)(?P<value>[^&]*)")
"""An option in a text that is one address: its value goes to the next one, with all blanks."""
_KINDS: Final = r"(?<![\w+.\-])(?i:sqlite|postgres|postgresql|mariadb|mysql|oracle|mssql|\w+\+\w+)://"
_DATABASE: Final = re.compile(rf"(?P<before>{_KINDS}[^\s?]*)(?P<query>\?\S*)?")
"""A database's URL in a text, and its query."""
_DATABASE_ADDRESS: Final = re.compile(rf"\A(?P<before>{_KINDS}[^?]*)(?P<query>\?.*)?", re.DOTALL)
_HARMLESS_OPTIONS: Final = frozenset(
    {
        *("user", "host", "hostaddr", "port", "dbname", "database", "db", "unix_socket"),
        *("application_name", "charset", "client_encoding", "use_unicode", "autocommit", "prepare_threshold"),
        *("connect_timeout", "read_timeout", "write_timeout", "timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
        *("sslmode", "sslcert", "sslcrl", "sslrootcert", "sslnegotiation", "channel_binding", "gssencmode"),
        *("ssl", "ssl_ca", "ssl_capath", "ssl_cert", "ssl_disabled", "ssl_check_hostname", "ssl_verify_cert"),
        *("ssl_verify_identity", "target_session_attrs", "load_balance_hosts"),
        *("mode", "cache", "uri", "immutable", "check_same_thread"),
    }
)
"""The options of a database's URL whose values are shown: any other may be a misspelled password."""


def redacted(text: object, characters_max: int | None = None) -> str:
    """Return the text without the secrets of the addresses in it, cut to `characters_max`. Bytes are decoded first. A
    text that is cut ends with `…`, and is never cut before: half a secret is not seen to be one. What is redacted once
    stays as it is. Takes time in proportion to the text's length."""
    before, shown = None, text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    for _ in range(_STAYS_AFTER_MAX):
        if before == shown:
            break
        before, shown = shown, _redacted(shown, 0)
    return shown if characters_max is None else shortened(shown, characters_max)


def redacted_address(address: str) -> str:
    """Return a text that is one address, right or wrong, without its secrets. An unescaped
    password has blanks, slashes and at signs in it: within other text it has no end."""
    shown = _ADDRESS.search(address)
    if shown is not None:
        hidden = _without_password(shown)
        # Behind the at sign of a query is more of its value.
        address = address[: shown.start()] + hidden + (address[shown.end() :] if hidden.endswith("@") else "")
    address = _OPTION.sub(_without_option, address)
    return redacted(_DATABASE_ADDRESS.sub(_without_unknown, address))


def has_unescaped_password(address: str) -> bool:
    """Return whether the password of an address `SCHEME://USER:PASSWORD@…` has letters that end one: what reads the
    address would take the rest for a host, a path or options, and tell it. An at sign behind a host with a port looks
    the same."""
    match = _ADDRESS.search(address)
    return match is not None and not _ESCAPED.fullmatch(address, match.end("user") + 1, match.end() - 1)


def redacted_part(part: str, address: str) -> str:
    """Return a part of an address, or that it is hidden where the address is not shown with it."""
    return redacted(part) if part in redacted_address(address) else HIDDEN


def shortened(shown: str, characters_max: int) -> str:
    """Return a text of parts that were redacted, each on its own, cut to `characters_max`; then it ends with `…`.
    Redacted together, an address in front of another one would hide all between them."""
    return shown if len(shown) <= characters_max else f"{shown[: characters_max - 1]}…"


def redacted_line(text: object) -> str:
    return redacted(redacted(text).strip().partition("\n")[0].rstrip())


def redacted_end(text: str, characters_max: int) -> str:
    """Return the last characters of a text, such as a process's log, redacted and then cut, without blanks around it.
    What is long is read from the beginning of a line on, so that a log of any size takes no longer."""
    begin = text.rfind("\n", 0, max(len(text) - characters_max - _ENDS_CHARACTERS, 0)) + 1
    shown = redacted(text[begin:]).strip()
    return shown if len(shown) <= characters_max else f"…{shown[len(shown) - characters_max + 1 :]}"


def _redacted(shown: str, depth: int) -> str:
    # Each pattern begins where a word or a run of letters does, so that no letter is looked at from many beginnings.
    # With blanks first: the first half of a password, hidden on its own, would look like the whole of it. And before
    # anything is decoded: what is encoded in a password ends it nowhere.
    shown = _NO_PORT.sub(_without_port, _UP_TO_AT.sub(_without_word, _without_spaced(shown)))
    shown = _QUOTED.sub(lambda match: _within(match[0], depth), shown)
    shown = _TOKEN.sub(lambda match: f"{match['scheme']}{HIDDEN}@", shown)
    shown = _without_values(shown, _NAME, lambda name: _SECRET_NAME.search(name[1]) is not None)
    shown = _DATABASE.sub(lambda url: _without_unknown(url, _AFTER), shown)
    return _PRIVATE_KEY.sub(rf"\1{HIDDEN}", _without_values(shown, _SETTING, lambda _: True))


def _without_password(match: re.Match[str]) -> str:
    """Return what is shown of `user:password@`: without the at sign, if what follows it is not certainly a host."""
    end = "" if _QUERY.match(match["hidden"]) else "@"
    return f"{match['scheme'] or ''}{match['user']}:{HIDDEN}{end}"


def _without_spaced(text: str) -> str:
    parts, at = [], 0
    while (match := _SPACED.search(text, at)) is not None:
        parts += [text[at : match.start()], shown := _without_password(match)]
        at = match.end()
        if not shown.endswith("@"):
            rest = _WORD.match(text, at)
            assert rest is not None  # it may be empty
            at += len(rest[0].rstrip(_AFTER))
    return "".join((*parts, text[at:]))


def _without_word(word: re.Match[str]) -> str:
    shown, rest = _PASSWORD.sub(_without_password, word["up_to"]), word["rest"]
    return shown + (rest if shown.endswith("@") else rest[len(rest.rstrip(_AFTER)) :])


def _without_port(place: re.Match[str]) -> str:
    rest = place["rest"]
    ended = rest.rstrip(_AFTER)
    return f"{place['host']}:{HIDDEN}{rest[len(ended) :]}" if ended else place[0]


def _without_option(option: re.Match[str]) -> str:
    return option["name"] + (HIDDEN if _SECRET_NAME.search(option["name"][1:-1]) else option["value"])


def _without_unknown(url: re.Match[str], after: str = "") -> str:
    """Return a database's URL without the values of options that are not known to be harmless, and, of several, without
    the names that do not say themselves that they are of a secret: a password with an ampersand makes options of its
    rest, which may stand in any order. `after` has the letters that are the text's own at its end."""
    if not url["query"]:
        return url[0]
    query = url["query"].rstrip(after)
    options = query[1:].split("&")
    unknown = [option for option in options if option and option.partition("=")[0] not in _HARMLESS_OPTIONS]
    shown: list[str] = []
    for option in options:
        name, equals, _ = option.partition("=")
        if not option or name in _HARMLESS_OPTIONS:
            shown.append(option)
        else:
            is_named = equals and (len(unknown) == 1 or _SECRET_NAME.search(name))
            shown.append(f"{name}={HIDDEN}" if is_named else HIDDEN)
    return f"{url['before']}?{'&'.join(shown)}{url['query'][len(query) :]}"


def _without_values(text: str, names: re.Pattern[str], hides: Callable[[re.Match[str]], bool]) -> str:
    parts, at = [], 0
    while (name := names.search(text, at)) is not None:
        parts.append(text[at : name.end()])
        at = name.end()
        if hides(name):
            parts.append(HIDDEN)
            if (done := _DONE.match(text, at)) is not None:
                at = done.end()
            else:
                at = _end_of_value(text, at, in_query=name[0][:1] in ("?", "&", "#"))
    return "".join((*parts, text[at:]))


def _end_of_value(text: str, at: int, *, in_query: bool) -> int:
    if not in_query and (value := _BEFORE_NEXT.match(text, at)) is not None:
        return value.end()
    value = _VALUE.match(text, at)
    assert value is not None  # it may be empty
    return at + max(len(value["quoted"]), len(value[0].rstrip(_AFTER)))


def _within(quoted: str, depth: int) -> str:
    """Return the percent-encoded text redacted, or as it was if it holds no secret."""
    if depth == _QUOTED_TIMES_MAX:
        return HIDDEN
    unquoted = unquote(quoted)
    shown = _redacted(unquoted, depth + 1)
    if shown == unquoted:
        return quoted
    # What is not encoded stays so.
    return quote(shown, safe=HIDDEN + "".join(set(quoted) & _MAY_STAY), errors="replace")


def redacted_text(
    given: object, text_of: Callable[[object], str] = str, characters_max: int = _TEXT_CHARACTERS_MAX
) -> str:
    """Return the text of an application's own object, redacted, and then cut if it is long."""
    try:
        return redacted(text_of(given), characters_max)
    except Exception:  # noqa: BLE001 - the application's objects say how they look
        return f"{type(given).__name__} without a text"


def redacted_trace(error: BaseException) -> str:
    try:
        return redacted("".join(traceback.format_exception(error))).rstrip()
    except Exception:  # noqa: BLE001 - the application's objects say how they look
        return f"{type(error).__name__} without a traceback"


def redacted_repr(cls: type[T]) -> type[T]:
    """Decorate a class so that its `repr`, which ends up in logs and tracebacks, shows addresses redacted."""
    whole_repr = cls.__repr__

    def shown_repr(self: T) -> str:
        return redacted(whole_repr(self))

    setattr(cls, "__repr__", shown_repr)  # noqa: B010 - mypy takes no assignment to a method
    return cls
