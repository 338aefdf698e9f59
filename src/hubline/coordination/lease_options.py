"""How long leases last, and how often they are renewed."""

from __future__ import annotations

from dataclasses import dataclass

from hubline.addresses.option_checks import checked_options
from hubline.addresses.option_kinds import PositiveSeconds, Seconds
from hubline.errors import ConfigError

RENEWALS_PER_LEASE_MIN = 3
"""A lease must outlast two failed renewals: one lost packet or one slow answer must not move partitions."""


SDK_LEASE_SECONDS = 120.0
"""The expiry of .NET, with three renewals even of those that take longest between two (Python, up to 36 s)."""


@checked_options
@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """How long a consumer owns a partition, and how consumers share partitions.

    Attributes:
        lease_seconds: An owner that has not renewed for this long has lost its partitions. Default: 30.
        renew_interval_seconds: Time between two renewals. Default (0): a third of the lease.
        load_balancing_interval_seconds: Time between two load balancing cycles. Default: 10.
        handover_timeout_seconds: How long a consumer waits for an owner that it requested a partition from, before it
            takes the partition. Default (0): the length of the lease. A store of `hubline.checkpoint_stores.adapt`
            keeps no requests, so nobody waits.
        startup_delay_seconds: How long a new consumer waits before its first claim, so that consumers that start
            together see each other. Default: 1.
        sdk_lease_seconds: The lease of consumers that use an official SDK, in a store shared with them (Blob Storage,
            or one of `hubline.checkpoint_stores.adapt`): the SDKs renew less often. Default: 120.

    Raises:
        ConfigError: An option is of the wrong type or is not allowed, or the lease does not outlast three renewals.
    """

    lease_seconds: PositiveSeconds = 30.0
    renew_interval_seconds: Seconds = 0.0
    load_balancing_interval_seconds: PositiveSeconds = 10.0
    handover_timeout_seconds: Seconds = 0.0
    startup_delay_seconds: Seconds = 1.0
    sdk_lease_seconds: PositiveSeconds = SDK_LEASE_SECONDS

    def __post_init__(self) -> None:
        if self.renew_interval_seconds == 0:
            object.__setattr__(self, "renew_interval_seconds", self.lease_seconds / RENEWALS_PER_LEASE_MIN)
        if self.handover_timeout_seconds == 0:
            object.__setattr__(self, "handover_timeout_seconds", self.lease_seconds)
        if self.lease_seconds < self.renew_interval_seconds * RENEWALS_PER_LEASE_MIN * (1 - 1e-9):
            raise ConfigError(
                f"a lease of {self.lease_seconds:g} s does not outlast {RENEWALS_PER_LEASE_MIN} renewals "
                f"{self.renew_interval_seconds:g} s apart. Make it at least "
                f"{self.renew_interval_seconds * RENEWALS_PER_LEASE_MIN:g} s, or renew more often."
            )
