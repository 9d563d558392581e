"""``dkrr recipes``: the recipes for clusters, which an installed package holds as data."""

import shutil
from pathlib import Path

import click

import dkrr as library
from dkrr.cli.common import echo, readable_errors
from dkrr.errors import InputError

PACKAGE = Path(library.__file__).parent


@click.command()
@click.argument("folder", metavar="[FOLDER]", default="cluster")
def recipes(folder: str) -> None:
    """Write the recipes for clusters (Dask's command line, SLURM, Kubernetes, TLS) to FOLDER; default: cluster."""
    # Not at the top: it comes with libraries that the help of the command does without.
    from dkrr.tiles.faults import faults_of

    target = Path(folder)
    with readable_errors():
        if target.exists():
            raise InputError(f"FOLDER is {folder}, which exists; expected a new folder: name another one")
        with faults_of(f"write to {folder}"):
            shutil.copytree(_source(), target, ignore=shutil.ignore_patterns("__pycache__"))
        echo(f"{target / 'README.md'}: what to read first", err=True)


def _source() -> Path:
    """Folder of the recipes: in an installed package its own, else that of the repository."""
    installed = PACKAGE / "recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "cluster"
