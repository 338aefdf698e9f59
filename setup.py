"""What pyproject.toml cannot say: how the compiled core is built."""

from hubline_backend import SETUP
from setuptools import setup

setup(**SETUP)
