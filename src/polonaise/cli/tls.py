"""The `polonaise tls` commands: make certificates for development, and look at those in use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli.addedoptions import with_tls
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import Json, print_each, say_either
from polonaise.errors import BadOption

if TYPE_CHECKING:
    from polonaise.admin.certificates import Made

tls = typer.Typer(help="Make certificates for development, and check TLS files.", no_args_is_help=True)


@tls.command(epilog=EXIT_STATUS)
def init(
    directory: Annotated[Path, Argument(help="Directory for the files; made if missing.")],
    node: Annotated[
        list[str] | None,
        Option(metavar="HOST[,HOST…]", help="Certificate for the nodes of a host, by its names and IP addresses."),
    ] = None,
    client: Annotated[list[str] | None, Option(metavar="NAME", help="Certificate for a client.")] = None,
    target: Annotated[
        list[str] | None,
        Option(metavar="HOST[,HOST…]", help="Certificate for the targets of players on a host, by its names."),
    ] = None,
    player: Annotated[
        list[str] | None, Option(metavar="NAME", help="Certificate for a player, which is a client, too.")
    ] = None,
    days: Annotated[float, Option(help="Days for which the certificates are valid.")] = 365,
    renew: Annotated[bool, Option("--renew", help="Replace certificates that exist; their keys stay.")] = False,
    as_json: Json = False,
) -> None:
    """Make a CA, and certificates for nodes and clients. For development and tests: see docs/tls.md for production.

    Without names it makes one for the nodes of localhost and one for a client. Run it again with other names: they are
    of the same CA. Keep ca-key.pem to yourself, and give each machine only ca.pem and its own two files. Needs
    the extra tls.
    """
    from polonaise.admin import certificates

    holders = [
        *map(certificates.node, node or ()),
        *map(certificates.client, client or ()),
        *map(certificates.target, target or ()),
        *map(certificates.player, player or ()),
    ]
    if not holders:
        holders = [certificates.node("localhost"), certificates.client("client")]
    made = certificates.make(directory, holders, days=days, renew=renew)
    print_each(made, _fields, ["name", "roles", "hosts", "expires", "certificate", "key"], as_json=as_json)


def _fields(made: Made) -> dict[str, str]:
    return {
        "name": made.holder.name,
        "roles": ",".join(made.holder.roles),
        "hosts": ",".join(made.holder.hosts),
        "expires": made.expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "certificate": str(made.certificate),
        "key": str(made.key),
    }


@tls.command(epilog=EXIT_STATUS)
@with_tls
def check(as_json: Json = False) -> None:
    """Check the TLS files of --tls-ca, --tls-certificate and --tls-key as a node or client would at its start.

    Prints the certificate's name, its roles and when it expires.
    """
    import os
    import time

    from polonaise.host.tls import TlsIdentity, files_in

    files = files_in(os.environ)
    if files is None:
        raise BadOption("no TLS files are named: give --tls-ca, --tls-certificate and --tls-key")
    own = TlsIdentity(files).own
    for role in sorted(own.roles):
        TlsIdentity(files, role)  # without a role, the extended key usage that roles need is not checked
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(own.expires_s))
    fields = {"name": own.name, "roles": sorted(own.roles), "expires": expires}
    say_either(fields, f"{own.name} is for {own.may_be}, until {expires}", as_json=as_json)
