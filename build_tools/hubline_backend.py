"""How hubline is built: as setuptools does it, with the compiled core.

Where there is no C compiler, pip fetches one (ziglang) for the environment of the build alone.
"""

from __future__ import annotations

from pathlib import Path

from compile_core import SOURCE, compile_core, find_compiler
from setuptools import Distribution, build_meta
from setuptools.build_meta import *  # noqa: F403 (the hooks that stay as they are)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ZIG = "ziglang>=0.13"


def get_requires_for_build_wheel(config_settings=None):
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compilers_to_fetch()]


def get_requires_for_build_editable(config_settings=None):
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compilers_to_fetch()]


def _compilers_to_fetch():
    return [] if find_compiler() else [ZIG]


class HublineDistribution(Distribution):
    def has_ext_modules(self):
        """Whether the wheel is for one platform only."""
        return find_compiler() is not None


class BuildPackages(build_py):
    """Packages, and the core among them; in the sources themselves for an editable installation."""

    def run(self):
        super().run()
        compile_core(SOURCE if self.editable_mode else Path(self.build_lib))


class BuildWheel(bdist_wheel):
    """A wheel for any Python 3 of its platform: the core knows nothing of Python."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


SETUP = {"distclass": HublineDistribution, "cmdclass": {"build_py": BuildPackages, "bdist_wheel": BuildWheel}}
