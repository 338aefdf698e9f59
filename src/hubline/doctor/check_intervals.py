"""Compares the lease options of the processors with the store, the clocks and the other consumers."""

from __future__ import annotations

from typing import Final

from hubline.coordination.lease_options import RENEWALS_PER_LEASE_MIN, LeaseOptions
from hubline.doctor.findings import Finding, Severity, error, note, ok, warning
from hubline.doctor.observations import ClockFacts, GroupFacts
from hubline.errors import ConfigError

# The Python SDK has the longest cycle of the official SDKs: 30 s and up to a fifth more.
SDK_RENEWAL_SECONDS_MAX: Final = 36.0
# Leases expire after 60 s for the Go SDK, 120 s for .NET and 180 s for Python.
SDK_EXPIRY_SECONDS_MIN: Final = 60.0

# A renewal that takes this share of its interval leaves no time for a retry before the next one is due.
SLOW_SHARE_MAX: Final = 0.5

# Machines that are set by a time service may differ by less than this; and blob storage has whole seconds.
SKEW_NOTE_SECONDS: Final = 5.0
# A third of the lease of the Go SDK, which is the strictest.
SKEW_WARNING_SECONDS: Final = 20.0
# Azure refuses signatures that are 15 minutes off.
SKEW_ERROR_SECONDS: Final = 900.0


def check_lease(
    lease_seconds: float, renew_interval_seconds: float, handover_timeout_seconds: float, sdk_lease_seconds: float
) -> tuple[LeaseOptions, list[Finding]]:
    """The options to compare the group with, and findings about those that were given (0: follows from the lease)."""
    try:
        lease = LeaseOptions(
            lease_seconds=lease_seconds,
            renew_interval_seconds=renew_interval_seconds,
            handover_timeout_seconds=handover_timeout_seconds,
            sdk_lease_seconds=sdk_lease_seconds,
        )
    except ConfigError as problem:
        fix = f"make the lease at least {RENEWALS_PER_LEASE_MIN} renewal intervals long; processors refuse this one"
        return LeaseOptions(), [error("interval.lease", str(problem), where="--lease, --renew-interval", fix=fix)]
    if lease.handover_timeout_seconds < lease.renew_interval_seconds:
        notified = f"its owner reads the request at its next renewal, up to {lease.renew_interval_seconds:g} s later"
        message = f"a requested partition is taken over after {lease.handover_timeout_seconds:g} s, but {notified}"
        fix = (
            f"make the handover timeout at least {lease.renew_interval_seconds:g} s; otherwise no handover is graceful"
        )
        return lease, [warning("interval.handover-timeout", message, where="--handover-timeout", fix=fix)]
    facts = f"the lease is {lease.lease_seconds:g} s, renewed every {lease.renew_interval_seconds:g} s"
    return lease, [ok("interval.ok", facts)]


def check_speed(lease: LeaseOptions, facts: GroupFacts) -> list[Finding]:
    """Whether the store answers fast enough for the renewals."""
    if facts.list_seconds <= lease.renew_interval_seconds * SLOW_SHARE_MAX:
        return []
    message = (
        f"the store took {facts.list_seconds:.1f} s to list the group, "
        f"but a renewal is due every {lease.renew_interval_seconds:g} s"
    )
    fix = (
        f"lengthen the lease to at least {facts.list_seconds * 2 * RENEWALS_PER_LEASE_MIN:.0f} s, or use a faster store"
    )
    return [warning("interval.slow-store", message, fix=fix)]


def check_sdk_intervals(lease: LeaseOptions, facts: GroupFacts) -> list[Finding]:
    """In a group that is shared with SDKs, each side must see the renewals of the other in time."""
    if not facts.sdk_owners:
        return []
    findings = []
    lease_seconds_min = SDK_RENEWAL_SECONDS_MAX * RENEWALS_PER_LEASE_MIN
    if lease.sdk_lease_seconds < lease_seconds_min:
        message = (
            f"SDK members renew every {SDK_RENEWAL_SECONDS_MAX:g} s or less, but hubline takes their partitions after "
            f"{lease.sdk_lease_seconds:g} s"
        )
        fix = f"set sdk_lease_seconds to {lease_seconds_min:g} s or more"
        findings.append(error("interval.sdk-lease", message, where="--sdk-lease", fix=fix))
    renew_seconds_max = SDK_EXPIRY_SECONDS_MIN / 2  # one renewal may fail
    if lease.renew_interval_seconds > renew_seconds_max:
        message = (
            f"some SDK members take a partition that was not renewed for {SDK_EXPIRY_SECONDS_MIN:g} s, but renewals "
            f"are {lease.renew_interval_seconds:g} s apart"
        )
        fix = f"renew at least every {renew_seconds_max:g} s while SDK members share the group"
        findings.append(warning("interval.sdk-renew", message, where="--renew-interval", fix=fix))
    return findings


def check_clock(clock: ClockFacts, *, sdk_members: bool) -> list[Finding]:
    """Compares the clock of this machine with that of the store. hubline uses the store's clock; SDKs do not."""
    skew = clock.skew_seconds
    if abs(skew) < SKEW_NOTE_SECONDS:
        return [ok("store.clock", "the clocks of this machine and of the store agree")]
    side = "behind" if skew > 0 else "ahead of"
    message = f"this machine's clock is {abs(skew):.0f} s {side} the store's"
    harm = "hubline uses the store's clock for leases, but the lag times it shows and its signatures are off"
    if sdk_members:
        harm = "SDK members use their own clocks, so one with a wrong clock takes partitions from active owners"
    severity = Severity.NOTE
    if abs(skew) >= SKEW_ERROR_SECONDS:
        severity, harm = Severity.ERROR, "Azure refuses signatures that are 15 minutes off"
    elif abs(skew) >= SKEW_WARNING_SECONDS:
        severity = Severity.WARNING
    return [Finding(severity, "store.clock", f"{message}: {harm}", fix="synchronize the clock (NTP)")]


def check_hub_clock(newest_ahead_seconds: float) -> list[Finding]:
    """If the newest event is from the future, the hub's clock is ahead or this machine's clock is behind."""
    if newest_ahead_seconds < SKEW_NOTE_SECONDS:
        return []
    message = (
        f"the newest event is from {newest_ahead_seconds:.0f} s in the future: the hub's clock is ahead of this one"
    )
    harm = "lag times are off, and a local hub's retention removes events too early"
    return [note("hub.clock", message, fix=f"synchronize the clocks (NTP): {harm}")]
