"""The options --tls-ca, --tls-certificate and --tls-key, for the commands that connect to nodes or run one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final, TypeVar

from typer import Option

from polonaise.cli.addedoptions import adding
from polonaise.host.environment import variables
from polonaise.host.tls import VARIABLES, files_of

T = TypeVar("T")

_PANEL: Final = "TLS"
_OPTIONS: Final = {
    "tls_ca": ("ca", "CA certificates (PEM) that this process believes."),
    "tls_certificate": ("certificate", "Certificate (PEM) of this process."),
    "tls_key": ("key", "Private key (PEM) of the certificate."),
}


def with_tls(command: Callable[..., T]) -> Callable[..., T]:
    """Decorate a command: it takes the TLS options, and runs with the files that they name in its environment.

    There `polonaise.connect` finds them, wherever it is called, and so do child processes. Variables that are set
    already are the options' defaults.
    """

    def run(given: dict[str, Any], called: Callable[..., T]) -> T:
        with _in_environment({file: given[name] for name, (file, _) in _OPTIONS.items()}):
            return called()

    return adding(command, {name: (_annotation_of(name), None) for name in _OPTIONS}, run)


def _annotation_of(name: str) -> Any:
    file, text = _OPTIONS[name]
    option = f"--{name.replace('_', '-')}"
    return Annotated[
        str | None, Option(option, metavar="FILE", envvar=VARIABLES[file], help=text, rich_help_panel=_PANEL)
    ]


def _in_environment(given: dict[str, str | None]) -> AbstractContextManager[None]:
    """Return a block in which the environment names the files. Raises `BadOption` if some of the three are missing."""
    files = files_of(given)
    return variables({} if files is None else {variable: getattr(files, file) for file, variable in VARIABLES.items()})
