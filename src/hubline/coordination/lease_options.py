"""How long leases last, and how often they are renewed."""

from __future__ import annotations

from dataclasses import dataclass

from hubline.errors import ConfigError

RENEWALS_PER_LEASE_MIN = 3
"""A lease must outlast two failed renewals: one lost packet or one slow answer must not move partitions."""


SDK_LEASE_SECONDS = 120.0
"""The expiry of .NET, with three renewals even of those that take longest between two (Python, up to 36 s)."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """How ownership is kept. A ``renew_seconds`` or ``grace_seconds`` of 0 follows from the lease: a third, and all.

    A member that wants a partition asks its owner, and takes it after ``grace_seconds``. A new member waits
    ``settle_seconds`` before its first claim, so that members that start together see each other. In a store that the
    official SDKs share, what one of them owns stays with it for ``sdk_lease_seconds``, for they renew less often.
    """

    lease_seconds: float = 30.0
    renew_seconds: float = 0.0
    interval_seconds: float = 10.0
    grace_seconds: float = 0.0
    settle_seconds: float = 1.0
    sdk_lease_seconds: float = SDK_LEASE_SECONDS

    def __post_init__(self) -> None:
        if not (self.lease_seconds > 0 and self.interval_seconds > 0 and self.sdk_lease_seconds > 0):
            raise ConfigError("the leases and the interval of the dispatch cycle are longer than 0 seconds")
        if not (self.renew_seconds >= 0 and self.grace_seconds >= 0 and self.settle_seconds >= 0):
            raise ConfigError("renew_seconds, grace_seconds and settle_seconds are not negative")
        if self.renew_seconds == 0:
            object.__setattr__(self, "renew_seconds", self.lease_seconds / RENEWALS_PER_LEASE_MIN)
        if self.grace_seconds == 0:
            object.__setattr__(self, "grace_seconds", self.lease_seconds)
        if self.lease_seconds < self.renew_seconds * RENEWALS_PER_LEASE_MIN * (1 - 1e-9):
            raise ConfigError(
                f"a lease of {self.lease_seconds:g} s does not outlast {RENEWALS_PER_LEASE_MIN} renewals "
                f"{self.renew_seconds:g} s apart: make it at least "
                f"{self.renew_seconds * RENEWALS_PER_LEASE_MIN:g} s, or renew more often"
            )
