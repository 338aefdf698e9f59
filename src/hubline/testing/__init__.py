"""For tests of programs that use hubline: run a stage or a processor on events, simulate crashes, test adapters.

The fixtures are in the pytest plugin, `pytest_hubline`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubline.testing.hubs import TestEndpoint, TestHub, TestHubs
    from hubline.testing.memory_hub import MemoryHub
    from hubline.testing.processors import ProcessorResult, run_processor
    from hubline.testing.simulation.instance import Instance, SimulatedWorld
    from hubline.testing.simulation.scenario import FAULTS
    from hubline.testing.simulation.simulate import SimulationFailed, simulate
    from hubline.testing.simulation.simulator import Report
    from hubline.testing.sinks import TestSink, TestSinks
    from hubline.testing.stages import StageResult, run_stage

__all__ = [
    "FAULTS",
    "Instance",
    "MemoryHub",
    "ProcessorResult",
    "Report",
    "SimulatedWorld",
    "SimulationFailed",
    "StageResult",
    "TestEndpoint",
    "TestHub",
    "TestHubs",
    "TestSink",
    "TestSinks",
    "run_processor",
    "run_stage",
    "simulate",
]

_NAMES_BY_MODULE = {
    "hubs": ("TestEndpoint", "TestHub", "TestHubs"),
    "memory_hub": ("MemoryHub",),
    "processors": ("ProcessorResult", "run_processor"),
    "simulation.instance": ("Instance", "SimulatedWorld"),
    "simulation.scenario": ("FAULTS",),
    "simulation.simulate": ("SimulationFailed", "simulate"),
    "simulation.simulator": ("Report",),
    "sinks": ("TestSink", "TestSinks"),
    "stages": ("StageResult", "run_stage"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: who tests a processor need not have Spark."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
