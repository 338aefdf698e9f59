"""For tests of programs that use hubline: a simulator in virtual time, a hub in memory, and suites for adapters."""

from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.instance import Instance, SimulatedWorld
from hubline.testing.simulation.scenario import FAULTS
from hubline.testing.simulation.simulate import SimulationFailed, simulate
from hubline.testing.simulation.simulator import Report

__all__ = ["FAULTS", "Instance", "MemoryHub", "Report", "SimulatedWorld", "SimulationFailed", "simulate"]
