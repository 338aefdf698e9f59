"""Pipelines: stages from hubs to hubs, tables and files, running on Spark with the guarantees of the parts below."""

from typing import TYPE_CHECKING

from hubline.pipeline.definition import Pipeline, Stage, StageKind

if TYPE_CHECKING:
    from hubline.pipeline.event_columns import output_id

__all__ = ["Pipeline", "Stage", "StageKind", "output_id"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads what needs Spark when it is asked for: a plan is checked without."""
        if name != "output_id":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hubline.pipeline.event_columns import output_id

        return output_id
