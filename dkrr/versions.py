"""Versions of Python, of dkrr and of the libraries that its numbers come from."""

import platform
from importlib.metadata import version

# Read with this module: they lie in files, and a process that saves a model may have no descriptor left to open one.
VERSIONS = {
    "python": platform.python_version(),
    **{name: version(name) for name in ("dkrr", "numpy", "scipy", "scikit-learn", "zarr")},
}
