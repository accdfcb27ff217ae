"""The options --tls-ca, --tls-certificate and --tls-key, for the commands that connect to nodes or run one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final, TypeVar

from typer import Option

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
    signature = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                Option(f"--{name.replace('_', '-')}", metavar="FILE", envvar=VARIABLES[file], help=text,
                       rich_help_panel=_PANEL),
            ],
        )
        for name, (file, text) in _OPTIONS.items()
    ]  # fmt: skip

    @functools.wraps(command)
    def run(*arguments: Any, **given: Any) -> T:
        with _in_environment({file: given.pop(name, None) for name, (file, _) in _OPTIONS.items()}):
            return command(*arguments, **given)

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *options])  # type: ignore[attr-defined]
    return run


def _in_environment(given: dict[str, str | None]) -> AbstractContextManager[None]:
    """Return a block in which the environment names the files. Raises `BadOption` if some of the three are missing."""
    files = files_of(given)
    return variables({} if files is None else {variable: getattr(files, file) for file, variable in VARIABLES.items()})
