"""``examine`` reads hub and store, and runs all checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubline.coordination.lease_options import LeaseOptions
from hubline.doctor.check_checkpoints import check_checkpoints, check_damage
from hubline.doctor.check_group import check_group
from hubline.doctor.check_intervals import check_lease
from hubline.doctor.examination import Examination, ExaminationRequest
from hubline.doctor.examine_hub import examine_hub, opened_hub, refused_positions
from hubline.doctor.examine_store import examine_store, opened_store
from hubline.doctor.findings import Finding, note
from hubline.model.keys import GroupKey

# Without a hub there is no group to read. Any group shows whether the store answers.
UNKNOWN: Final = GroupKey("unknown", "unknown", "unknown")


async def examine(request: ExaminationRequest, report: Callable[[str], None]) -> list[Finding]:
    """All findings, in the order of the checks. ``report`` is called with the name of each step."""
    examination = Examination(request, report)
    findings = examination.findings
    lease, judged = check_lease(
        request.lease_seconds or LeaseOptions().lease_seconds,
        request.renew_interval_seconds,
        request.handover_timeout_seconds,
        request.sdk_lease_seconds,
    )
    findings += judged
    async with opened_hub(examination) as hub:
        hub_facts = await examine_hub(examination, hub) if hub else None
        group = GroupKey(hub.namespace, hub.name, request.group) if hub else UNKNOWN
        async with opened_store(examination) as store:
            facts = await examine_store(examination, store, group, lease) if store else None
        if hub and facts:
            findings += check_group(facts, lease, hub_facts.properties.partition_ids if hub_facts else None)
            findings += check_damage(facts)
        if hub and hub_facts and facts:
            refused = await refused_positions(examination, hub, hub_facts, facts)
            findings += check_checkpoints(hub_facts, facts, refused)
        else:
            skipped = "hubline could not compare owners and checkpoints with the hub"
            findings.append(
                note("doctor.skipped", skipped, fix="fix the findings above, then run `hubline doctor` again")
            )
    return findings
