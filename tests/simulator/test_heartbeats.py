"""The production processor over a store whose renewals are heartbeats: they make records young, and change no version.

So it is over blobs, most of the time (docs/adr/0010): a claim of what was listed before the renewal is then not lost.
"""

from __future__ import annotations

from typing import Any

import pytest

from hubline.checkpoint_stores.memory import MemoryStore, _listed
from hubline.model.ownership import Ownership
from hubline.testing.simulation.own_seeds import run_seed

SEEDS_COUNT = 12
"""As many as take some seconds."""


def _renew(store: MemoryStore, record: Any) -> Ownership:
    record.modified_at = store._now()
    return _listed(record, record.modified_at)


def test_no_seed_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "_renew", _renew)

    for seed in range(SEEDS_COUNT):
        assert run_seed(seed).violations == [], seed
