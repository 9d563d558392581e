"""Defaults, in Dask's configuration under ``dkrr:`` (files, environment, ``dask.config.set``)."""

from pathlib import Path
from typing import Any

import dask
import yaml

with (Path(__file__).parent / "dkrr.yaml").open() as _file:
    _defaults: dict[str, Any] = yaml.safe_load(_file)

dask.config.update_defaults(_defaults)


def setting(name: str) -> Any:
    """Value of ``dkrr.<name>``."""
    return dask.config.get(f"dkrr.{name}")
