"""Who may find what a run leaves in the caches: tenant, user, session and resource, and how widely a run shares."""

from __future__ import annotations

from dataclasses import dataclass

from engines.settings import fingerprint

LOCAL = "local"
SESSION, RESOURCE, USER, TENANT, GLOBAL = "session", "resource", "user", "tenant", "global"


@dataclass(frozen=True)
class Scope:
    """Whose run it is. `tenant` is for the server to say and never for a request; the others divide it further.

    An empty name is unknown. Without a `resource` it is the media of the request, by content.
    """

    tenant: str = LOCAL
    user: str = LOCAL
    session: str = LOCAL
    resource: str = ""

    def owner(self, level: str, resource: str, *, public: bool) -> Owner | None:
        """Who owns the entries of a run that shares at `level`; None if the name that the level asks for is unknown.

        `resource` stands in for an unnamed one. The level global is for `public` content alone: everything else
        stays with the tenant.
        """
        if level == GLOBAL and public:
            return Owner("", fingerprint([GLOBAL]), GLOBAL)
        names = {
            SESSION: (self.user, self.session),
            RESOURCE: (self.resource or resource,),
            USER: (self.user,),
            TENANT: (),
            GLOBAL: (),
        }[level]
        if level in (SESSION, USER) and not names[-1]:
            return None
        kind = TENANT if level == GLOBAL else level
        return Owner(self.tenant, fingerprint([kind, self.tenant, *names]), kind)


@dataclass(frozen=True)
class Owner:
    """The root of a set of entries. Two owners' entries never meet: `key` is in every key made below it."""

    tenant: str
    """Empty: nobody's, and so everybody's."""
    key: str
    """SHA-256, in hex, of the level and its names."""
    scope: str = TENANT
    """The level itself: for counting, since the key has it already."""

    def within(self, tenant: str | None, scope: str | None) -> bool:
        """Whether this owner's entries are the tenant's and of the scope; None: whatever it is."""
        return tenant in (None, self.tenant) and scope in (None, self.scope)

    def below(self, *values: object) -> str:
        """SHA-256, in hex, of this owner and of whatever else decides an entry's content."""
        return fingerprint([self.key, *values])
