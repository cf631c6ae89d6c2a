"""`pie keys`: who may use the server of this machine."""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...tables import listed, moment
from ...terminal import write_line
from .state import add_state

if TYPE_CHECKING:
    from pie_control.durable.accounts.audit import AuditRecord
    from pie_control.durable.accounts.usage import UsageRecord
    from pie_control.durable.keys import KeyRecord

NAME = "keys"
HELP = "make, list and revoke the keys of tenants; see what they have used and done"
EXAMPLES = """  pie keys add default --name laptop         prints the key, this once
  pie keys add alice --name ci --expires 90d --may launch,upload,http
  pie keys add alice --name tool --tokens-per-minute 60000 --requests-per-minute 600
  pie keys list
  pie keys revoke laptop
  pie keys usage --days 7                     what each key has used, day by day
  pie keys audit                              who did what"""

COLUMNS = ("ID", "TENANT", "NAME", "ENDS WITH", "MAY", "CREATED", "EXPIRES", "STATE")
USAGE = ("DAY", "TENANT", "KEY", "REQUESTS", "PROMPT TOKENS", "GENERATED TOKENS", "PROCESSOR SECONDS")
AUDIT = ("FIRST", "LAST", "COUNT", "TENANT", "KEY", "ACTION", "SUBJECT")
BUDGETS = ("requests-per-minute", "tokens-per-minute", "tokens-per-day", "cpu-seconds-per-hour")
MOST_NAMES = 20
"""Tenants that an error names."""
MOST = 1 << 53
"""What a budget may be."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    add = actions.add_parser("add", help="make a key, which is shown once", allow_abbrev=False)
    add.add_argument("tenant", metavar="TENANT", help="of the server's file of tenants; without one: default")
    add.add_argument("--new", action="store_true", help="also for a tenant that the server does not have yet")
    add.add_argument("--name", required=True, help="what the key is called in lists")
    add.add_argument("--expires", metavar="TIME", help="as 90d, 12h or 30m from now (default: never)")
    add.add_argument(
        "--may",
        default="launch,upload",
        metavar="WHAT",
        help="what it may, of launch, upload, http, adapters and admin, with commas (default: launch,upload)",
    )
    for budget in BUDGETS:
        add.add_argument(f"--{budget}", type=_count, metavar="N", help="its own budget, within that of its tenant")
    add.add_argument("--max-inferlets", type=_count, metavar="N", help="that it may run at a time, children included")
    listing = actions.add_parser("list", help="list all that were made", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print all fields as JSON")
    revoke = actions.add_parser("revoke", help="end a key and its sessions", allow_abbrev=False)
    revoke.add_argument("key", metavar="ID|NAME", help="see `pie keys list`")
    usage = actions.add_parser("usage", help="tell what each key has used, by day (UTC)", allow_abbrev=False)
    usage.add_argument(
        "--days", type=_count, default=30, metavar="N", help="the last ones, today included (default: 30)"
    )
    audit = actions.add_parser("audit", help="tell who did what, oldest first", allow_abbrev=False)
    audit.add_argument("--most", type=_count, default=100, metavar="N", help="the last ones (default: 100)")
    for action in (usage, audit):
        action.add_argument("--tenant", metavar="TENANT", help="of this one only")
        action.add_argument("--json", action="store_true", help="print all fields as JSON")
    for action in (add, listing, revoke, usage, audit):
        add_state(action)


def execute(options: argparse.Namespace) -> int:
    """Does what the action says, in the state, which a server that runs looks at all the time."""
    from pie_control.durable.database import FILE, check_exists, open_database, own_folder, state_folder, unusable
    from pie_control.durable.keys import list_keys, revoke_key

    folder = state_folder(options.state)
    if options.action != "add":  # which may make the first key before the first server starts
        check_exists(folder)
    database = open_database(own_folder(folder), to_read=options.action not in ("add", "revoke"))
    try:
        match options.action:
            case "add":
                write_line(_add(options, database))
            case "list":
                write_line(listed(options, COLUMNS, list_keys(database), _row))
            case "usage":
                write_line(_usage(options, database))
            case "audit":
                write_line(_audit(options, database))
            case "revoke":
                key = revoke_key(database, options.key)
                write_line(f"the key {key.name} of {key.tenant} is revoked, and its sessions end")
    except sqlite3.Error as error:
        raise unusable(folder / FILE, error) from None
    finally:
        database.close()
    return 0


def _add(options: argparse.Namespace, database: sqlite3.Connection) -> str:
    from pie_control.durable.keys import add_key, list_tenants
    from pie_control.errors import ConfigError
    from pie_control.tenants.accounts import NAME as TENANT_NAME
    from pie_control.tenants.budgets import Budget
    from pie_control.tenants.keys import digest_of, make_key, read_capabilities, read_lasting

    if not TENANT_NAME.fullmatch(options.tenant):
        raise ConfigError("the name of a tenant has 1 to 64 letters, digits and . _ -")
    if not (0 < len(options.name) <= 64 and options.name.isprintable()):
        raise ConfigError(f"the name of a key has 1 to 64 printable characters, not {options.name!a}")
    _check_tenant(options, list_tenants(database))
    may = read_capabilities(options.may)
    expires = time.time() + read_lasting(options.expires) if options.expires else None
    key = make_key()
    budget = Budget(*(getattr(options, name.replace("-", "_")) for name in BUDGETS))
    add_key(
        database, options.tenant, options.name, digest_of(key), key[-4:], may, expires, budget, options.max_inferlets
    )
    return key


def _check_tenant(options: argparse.Namespace, known: Sequence[str]) -> None:
    """Raises ConfigError for a tenant that the server of the state does not have; `known`: those that it has."""
    from pie_control.durable.database import state_folder
    from pie_control.errors import ConfigError
    from pie_control.tenants.tenant import DEFAULT_TENANT

    tenant = options.tenant
    if not known:
        folder = state_folder(options.state)
        told = f"pie: no server has used the state in {folder} yet: only one with that (--state) will know the key"
        file = f", and its file of tenants (--tenants) needs a tenant {tenant}"
        return write_line(told + (file if tenant != DEFAULT_TENANT.name else ""), sys.stderr)
    if options.new or tenant in known:
        return None
    names = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if known[MOST_NAMES:] else "")
    raise ConfigError(
        f"the server of this state has no tenant {tenant!r}, so nobody could use the key; it has {names}. Add the "
        "tenant to its file of tenants (--tenants) first, or give --new"
    )


def _usage(options: argparse.Namespace, database: sqlite3.Connection) -> str:
    from pie_control.durable.accounts.usage import list_usage
    from pie_control.durable.keys import list_keys
    from pie_control.tenants.budgets import DAY

    names = {key.id: key.name for key in list_keys(database)}

    def row(one: UsageRecord) -> tuple[str, ...]:
        counts = map(str, (one.requests, one.prompt_tokens, one.generated_tokens))
        return one.day, one.tenant, names.get(one.key, one.key) or "-", *counts, f"{one.cpu_seconds:.1f}"

    found = list_usage(database, int(time.time() // DAY) - options.days + 1, options.tenant)
    return listed(options, USAGE, found, row)


def _audit(options: argparse.Namespace, database: sqlite3.Connection) -> str:
    from pie_control.durable.accounts.audit import list_audit
    from pie_control.durable.keys import list_keys

    names = {key.id: key.name for key in list_keys(database)}

    def row(one: AuditRecord) -> tuple[str, ...]:
        times = moment(one.first), moment(one.last)
        return *times, str(one.count), one.tenant or "-", names.get(one.key, one.key) or "-", one.action, one.subject

    return listed(options, AUDIT, list_audit(database, options.most, options.tenant), row)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)


def _row(key: KeyRecord) -> tuple[str, ...]:
    now = time.time()
    state = "revoked" if key.revoked is not None else "valid" if key.is_valid(now) else "expired"
    expires = moment(key.expires) if key.expires is not None else "never"
    return key.id, key.tenant, key.name, key.ending, ",".join(key.may), moment(key.created), expires, state
