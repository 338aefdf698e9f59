"""Whether leases and clocks can work: the processors' options, against what the store and others do."""

from __future__ import annotations

from typing import Final

from hubline.coordination.lease_options import RENEWALS_PER_LEASE_MIN, LeaseOptions
from hubline.doctor.findings import Finding, Severity, error, note, ok, warning
from hubline.doctor.observations import ClockFacts, GroupFacts
from hubline.errors import ConfigError

# Python's cycle is the longest among the official SDKs': 30 s and up to a fifth more.
SDK_RENEWAL_SECONDS_MAX: Final = 36.0
# Go counts an owner as gone after 60 s, .NET after 120 s, Python after 180 s.
SDK_EXPIRY_SECONDS_MIN: Final = 60.0

# A renewal that takes this part of its interval leaves no time for a second try before the next one is due.
SLOW_SHARE_MAX: Final = 0.5

# Less is between machines that are set by a time service, on a bad day; and blob storage tells whole seconds.
SKEW_NOTE_SECONDS: Final = 5.0
# A third of what Go, the strictest SDK, waits before it counts an owner as gone.
SKEW_WARNING_SECONDS: Final = 20.0
# Azure refuses what was signed with a clock that is 15 minutes off.
SKEW_ERROR_SECONDS: Final = 900.0


def check_lease(
    lease_seconds: float, renew_interval_seconds: float, handover_timeout_seconds: float, sdk_lease_seconds: float
) -> tuple[LeaseOptions, list[Finding]]:
    """The options to judge the group by, and what is wrong with those that were given (0: follows from the lease)."""
    try:
        lease = LeaseOptions(
            lease_seconds=lease_seconds,
            renew_interval_seconds=renew_interval_seconds,
            handover_timeout_seconds=handover_timeout_seconds,
            sdk_lease_seconds=sdk_lease_seconds,
        )
    except ConfigError as problem:
        fix = f"a lease has to outlast {RENEWALS_PER_LEASE_MIN} renewals: processors refuse to start with this one"
        return LeaseOptions(), [error("interval.lease", str(problem), where="--lease, --renew-interval", fix=fix)]
    if lease.handover_timeout_seconds < lease.renew_interval_seconds:
        notified = f"an owner hears of it at its next renewal, up to {lease.renew_interval_seconds:g} s later"
        message = f"a partition that is asked for is taken after {lease.handover_timeout_seconds:g} s, but {notified}"
        fix = f"make the handover timeout at least {lease.renew_interval_seconds:g} s, or no handover is ever graceful"
        return lease, [warning("interval.handover-timeout", message, where="--handover-timeout", fix=fix)]
    facts = f"a lease of {lease.lease_seconds:g} s, renewed every {lease.renew_interval_seconds:g} s"
    return lease, [ok("interval.ok", facts)]


def check_speed(lease: LeaseOptions, facts: GroupFacts) -> list[Finding]:
    """Whether the store answers fast enough for the renewals."""
    if facts.list_seconds <= lease.renew_interval_seconds * SLOW_SHARE_MAX:
        return []
    message = (
        f"the store took {facts.list_seconds:.1f} s to list the group, "
        f"and a renewal is due every {lease.renew_interval_seconds:g} s"
    )
    fix = f"lengthen the lease to at least {facts.list_seconds * 2 * RENEWALS_PER_LEASE_MIN:.0f} s, or speed it up"
    return [warning("interval.slow-store", message, fix=fix)]


def check_sdk_intervals(lease: LeaseOptions, facts: GroupFacts) -> list[Finding]:
    """In a group shared with the SDKs, each side has to see the other's renewals in time."""
    if not facts.sdk_owners:
        return []
    findings = []
    lease_seconds_min = SDK_RENEWAL_SECONDS_MAX * RENEWALS_PER_LEASE_MIN
    if lease.sdk_lease_seconds < lease_seconds_min:
        message = (
            f"SDK members renew up to {SDK_RENEWAL_SECONDS_MAX:g} s apart, and what they own is taken after "
            f"{lease.sdk_lease_seconds:g} s"
        )
        fix = f"leave it to them for at least {lease_seconds_min:g} s (sdk_lease_seconds)"
        findings.append(error("interval.sdk-lease", message, where="--sdk-lease", fix=fix))
    renew_seconds_max = SDK_EXPIRY_SECONDS_MIN / 2  # one renewal may fail
    if lease.renew_interval_seconds > renew_seconds_max:
        message = (
            f"some SDK members count an owner as gone after {SDK_EXPIRY_SECONDS_MIN:g} s, and renewals are "
            f"{lease.renew_interval_seconds:g} s apart"
        )
        fix = f"renew at least every {renew_seconds_max:g} s while SDK members share the group"
        findings.append(warning("interval.sdk-renew", message, where="--renew-interval", fix=fix))
    return findings


def check_clock(clock: ClockFacts, *, sdk_members: bool) -> list[Finding]:
    """How far this machine's clock is from the store's. hubline goes by the store's; others do not."""
    skew = clock.skew_seconds
    if abs(skew) < SKEW_NOTE_SECONDS:
        return [ok("store.clock", "this machine and the store agree about the time")]
    side = "behind" if skew > 0 else "ahead of"
    message = f"this machine's clock is {abs(skew):.0f} s {side} the store's"
    harm = "hubline goes by the store's time, but the lags it shows and the signatures it makes are off"
    if sdk_members:
        harm = "SDK members judge owners by their own clock: one with a wrong clock takes partitions from active owners"
    severity = Severity.NOTE
    if abs(skew) >= SKEW_ERROR_SECONDS:
        severity, harm = Severity.ERROR, "Azure refuses signatures that are 15 minutes off"
    elif abs(skew) >= SKEW_WARNING_SECONDS:
        severity = Severity.WARNING
    return [Finding(severity, "store.clock", f"{message}: {harm}", fix="set the clock by a time service (NTP)")]


def check_hub_clock(newest_ahead_seconds: float) -> list[Finding]:
    """A hub whose newest event is from the future has a clock that is ahead, or this machine's is behind."""
    if newest_ahead_seconds < SKEW_NOTE_SECONDS:
        return []
    message = (
        f"the newest event was enqueued {newest_ahead_seconds:.0f} s from now: the hub's clock is ahead of this one"
    )
    harm = "lags in seconds are off, and a local hub's retention removes events too early"
    return [note("hub.clock", message, fix=f"set the clocks by a time service (NTP): {harm}")]
