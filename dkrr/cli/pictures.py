"""Pictures that commands write to files."""

from pathlib import Path
from typing import Any

from dkrr.cli.common import named
from dkrr.errors import InputError
from dkrr.values import location, shown


def check_picture_path(path: str, *, overwrite: bool) -> None:
    """Refuse a path that a picture could not be written to, before what it shows is computed."""
    from dkrr.cli import report_pictures as pictures
    from dkrr.store.places import check_free

    location(path, "--out", "the path of a picture")
    kinds = sorted(pictures.figure().canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in kinds:
        raise InputError(f"--out is {shown(path)}; expected a path that ends in one of {', '.join(kinds)}")
    with named("--out"):
        check_free(path, overwrite=overwrite, what="a file", is_one=_is_file, listed=None, name="--out")


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def write_picture(path: str, *draws: Any, overwrite: bool) -> None:
    """Write pictures of `dkrr.cli.report_pictures` side by side to one file."""
    from dkrr.cli import report_pictures as pictures
    from dkrr.store.places import written_aside

    with written_aside(path, overwrite=overwrite, listed=None) as place:
        pictures.figure(*draws).savefig(place, dpi=150)
