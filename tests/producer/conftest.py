"""Tries that follow each other at once."""

from __future__ import annotations

import pytest

from hubline.producer import lanes
from hubline.retry import RetryPolicy
from tests.producer.hubs import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(lanes, "RETRY", RetryPolicy(initial_backoff_seconds=0.001, max_backoff_seconds=0.01))
    return Hub()
