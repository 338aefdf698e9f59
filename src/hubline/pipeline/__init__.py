"""Pipelines: stages from hubs to hubs, tables and files, running on Spark with the guarantees of the parts below."""

from hubline.pipeline.definition import Checkpoints, Pipeline, Stage, StageKind

__all__ = ["Checkpoints", "Pipeline", "Stage", "StageKind"]
