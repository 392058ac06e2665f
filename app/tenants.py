"""Whose a run is, by what the server knows of a visitor or a key. What either says of itself divides its own part."""

from __future__ import annotations

from engines.cache.scope import LOCAL, Scope


def of_visitor(session: str, login: str | None, *, alone: bool) -> Scope:
    """A visitor of the page, with the server's own name of the session.

    `alone`: only programs of this machine reach the server, so that all of its visitors are one person. Otherwise each
    is a tenant, or whoever logs in under one name.
    """
    if alone:
        return Scope(LOCAL, LOCAL, session)
    return Scope(f"login {login}" if login else f"visitor {session}", login or session, session)


def owner_of(visitor: str, login: str | None, *, alone: bool) -> str:
    """Whose history a visitor of the page sees: this machine's one person, whoever logs in under a name, or a browser.

    `visitor` is a name that only that browser and the server know.
    """
    if alone:
        return LOCAL
    return f"login {login}" if login else f"visitor {visitor}"


def of_caller(
    tenant: str, user: str | None, session: str | None, resource: str | None, *, this_machine_only: bool
) -> Scope:
    """A caller of the endpoint: `tenant` is its key's, the others are what its request says.

    Without keys and on this machine only, callers are the one person who uses it.
    """
    return Scope(LOCAL if this_machine_only else f"key {tenant}", user or "", session or "", resource or "")
