"""Which partitions are paused, whether they are open or not."""

from __future__ import annotations


class PausedPartitions:
    """What `pause` and `resume` said last of each partition, for those too that are opened later."""

    def __init__(self) -> None:
        self._default = False
        self._exceptions: set[str] = set()

    def __contains__(self, partition: str) -> bool:
        return self._default != (partition in self._exceptions)

    def set(self, partition: str | None, *, is_paused: bool) -> None:
        """Pauses or resumes one partition, or with None all of them."""
        if partition is None:
            self._default = is_paused
            self._exceptions.clear()
        elif is_paused != self._default:
            self._exceptions.add(partition)
        else:
            self._exceptions.discard(partition)
