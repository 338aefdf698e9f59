"""What tests of programs that use hubline need: a simulator in virtual time, a hub in memory, contract suites.

from hubline.testing import simulate

simulate(seeds=range(200), build=build, after=check)
"""

from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.instance import Instance, SimulatedWorld
from hubline.testing.simulation.scenario import FAULTS
from hubline.testing.simulation.simulate import SimulationFailed, simulate
from hubline.testing.simulation.simulator import Report

__all__ = ["FAULTS", "Instance", "MemoryHub", "Report", "SimulatedWorld", "SimulationFailed", "simulate"]
