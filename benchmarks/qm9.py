"""QM9 molecules as a regression problem: 79 numbers for each molecule, one energy to predict.

The data are the 130,831 molecules of QM9 (Ramakrishnan et al. 2014) that the package ``qm9pack`` carries:
up to 29 atoms of H, C, N, O and F, with the equilibrium geometry and the energy from B3LYP/6-31G(2df,p).
Only its CSV files are read. The package itself is never imported, because its loader needs ``pkg_resources``.

References
----------
M. Rupp, A. Tkatchenko, K.-R. Müller, O. A. von Lilienfeld, "Fast and accurate modeling of molecular
atomization energies with machine learning", Phys. Rev. Lett. 108, 058301 (2012).
R. Ramakrishnan, P. O. Dral, M. Rupp, O. A. von Lilienfeld, "Quantum chemistry structures and properties of
134 kilo molecules", Sci. Data 1, 140022 (2014).
"""

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOTAL_MOLECULES = 130_831
MAX_ATOMS = 29
SYMBOLS = ("H", "C", "N", "O", "F")
ATOMIC_NUMBERS: Integers = np.array([1, 6, 7, 8, 9], dtype=np.int64)
PAIR_POWERS = (1, 3, 6)
N_PAIR_TYPES = len(SYMBOLS) * (len(SYMBOLS) + 1) // 2
COUNTS = slice(MAX_ATOMS, MAX_ATOMS + len(SYMBOLS))
N_FEATURES = MAX_ATOMS + len(SYMBOLS) + len(PAIR_POWERS) * N_PAIR_TYPES

BOHR_PER_ANGSTROM = 1 / 0.529177210903  # CODATA 2018
KCAL_PER_MOL_PER_HARTREE = 627.509474

FILES = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
_ENERGY = "InternalEnergy_0K_au"
_COLUMNS = ("Index", "N_atoms", "Elements", "XYZ_Ang", _ENERGY)
# Molecules parsed and described at once: some tens of MB of text and numbers, whatever the sample's size.
_BATCH = 4096
# Part of the name of a cached file: raise it whenever a descriptor changes.
_CACHE_VERSION = 1

_ELEMENTS_TEXT = re.compile(r"\['[A-Za-z]+'(?:,'[A-Za-z]+')*\]")
_NUMBERS3 = r"\[[^][,]+,[^][,]+,[^][,]+\]"
_POSITIONS_TEXT = re.compile(rf"\[{_NUMBERS3}(?:,{_NUMBERS3})*\]")

_CODE = {symbol: code for code, symbol in enumerate(SYMBOLS)}


def _pair_types() -> Integers:
    """Number the unordered pairs of elements: (5, 5), symmetric, HH, HC, HN, ... FF as 0, 1, 2, ... 14."""
    table = np.empty((len(SYMBOLS), len(SYMBOLS)), dtype=np.int64)
    upper = np.triu_indices(len(SYMBOLS))
    table[upper] = np.arange(N_PAIR_TYPES)
    table.T[upper] = np.arange(N_PAIR_TYPES)
    return table


_PAIR_TYPE = _pair_types()


@dataclass(frozen=True)
class Molecules:
    """A sample of QM9."""

    descriptors: Floats
    """(n, 79), one row a molecule; the columns are those of :func:`describe`."""
    target: Floats
    """(n,), kcal/mol: the energy that the composition does not explain, see :func:`composition_residual`."""
    index: Integers
    """(n,), QM9's own number of each molecule, 1 to 133,885."""


def load(n_molecules: int, *, seed: int = 0, cache: Path | None = None) -> Molecules:
    """Draw molecules from QM9 at random and describe them.

    The sample is the first ``n_molecules`` entries of one random permutation of all 130,831, so with one
    seed the rows (descriptors and index) of a smaller sample are the first rows of a larger one. The
    targets of the two differ slightly: the fit on composition uses the whole loaded sample.

    Parameters
    ----------
    n_molecules : int
        How many, 1 to 130,831.
    seed : int
        Seed of the permutation.
    cache : Path, optional
        A folder in which to keep the descriptors and energies, made if need be. A sample of the same size
        and seed is read from there the next time.

    Returns
    -------
    Molecules
        Descriptors (n, 79), target (n,) in kcal/mol, index (n,).

    Raises
    ------
    ValueError
        If ``n_molecules`` is out of range, or a row of the data contradicts itself.
    ModuleNotFoundError
        If ``qm9pack`` is not installed.
    """
    if not 1 <= n_molecules <= TOTAL_MOLECULES:
        raise ValueError(f"n_molecules={n_molecules} must be between 1 and {TOTAL_MOLECULES}, the size of QM9")
    path = None if cache is None else cache / f"qm9-v{_CACHE_VERSION}-{n_molecules}-{seed}.npz"
    if path is not None and path.exists():
        with np.load(path, allow_pickle=False) as stored:
            descriptors, energy, index = stored["descriptors"], stored["energy"], stored["index"]
    else:
        rows = np.random.default_rng(seed).permutation(TOTAL_MOLECULES)[:n_molecules]
        descriptors, energy, index = _read(rows)
        if path is not None:
            _keep(path, descriptors=descriptors, energy=energy, index=index)
    target = KCAL_PER_MOL_PER_HARTREE * composition_residual(descriptors[:, COUNTS], energy)
    return Molecules(descriptors, target, index)


def describe(codes: Integers, positions: Floats) -> Floats:
    """Descriptors of molecules that have the same number of atoms.

    The columns, none of which depends on the order of the atoms, on rotation or on translation:

    - 0 to 28: the eigenvalues of the Coulomb matrix, sorted by descending absolute value and padded with
      zeros. ``C_ii = 0.5 Z_i^2.4``, ``C_ij = Z_i Z_j / r_ij`` with r in bohr (Rupp et al. 2012);
    - 29 to 33: how many atoms there are of H, C, N, O and F;
    - 34 to 78: for each of the 15 unordered pairs of elements (HH, HC, HN, HO, HF, CC, CN, ... FF), the sum
      over the pairs of atoms of 1/r, then in the next 15 columns of 1/r³, then of 1/r⁶, with r in ångström.

    Parameters
    ----------
    codes : ndarray of shape (m, n_atoms)
        The element of each atom, as a position in ``SYMBOLS``.
    positions : ndarray of shape (m, n_atoms, 3)
        Where each atom is, in ångström.

    Returns
    -------
    ndarray of shape (m, 79)

    Raises
    ------
    ValueError
        If there are more than 29 atoms, or two atoms of a molecule are in one place.
    """
    n_molecules, n_atoms = codes.shape
    if n_atoms > MAX_ATOMS:
        raise ValueError(f"a molecule of {n_atoms} atoms: the descriptors take at most {MAX_ATOMS}")
    first, second = np.triu_indices(n_atoms, 1)
    distance = np.sqrt(np.sum((positions[:, first] - positions[:, second]) ** 2, axis=2))
    if distance.size and not distance.min() > 0:
        raise ValueError("two atoms of a molecule are in one place")
    inverse = 1 / distance

    charge = ATOMIC_NUMBERS[codes].astype(np.float64)
    coulomb = np.zeros((n_molecules, n_atoms, n_atoms))
    # eigvalsh reads the lower triangle only.
    coulomb[:, second, first] = charge[:, first] * charge[:, second] * (inverse / BOHR_PER_ANGSTROM)
    diagonal = np.arange(n_atoms)
    coulomb[:, diagonal, diagonal] = 0.5 * charge**2.4
    eigenvalues = np.linalg.eigvalsh(coulomb)
    order = np.argsort(-np.abs(eigenvalues), axis=1)

    descriptors = np.zeros((n_molecules, N_FEATURES))
    descriptors[:, :n_atoms] = np.take_along_axis(eigenvalues, order, axis=1)
    descriptors[:, COUNTS] = (codes[:, :, None] == np.arange(len(SYMBOLS))).sum(axis=1)
    # One bin for each (molecule, pair of elements): a single bincount then adds up all the pairs of atoms.
    bins = np.arange(n_molecules)[:, None] * N_PAIR_TYPES + _PAIR_TYPE[codes[:, first], codes[:, second]]
    for step, power in enumerate(PAIR_POWERS):
        sums = np.bincount(bins.ravel(), (inverse**power).ravel(), n_molecules * N_PAIR_TYPES)
        start = COUNTS.stop + step * N_PAIR_TYPES
        descriptors[:, start : start + N_PAIR_TYPES] = sums.reshape(n_molecules, N_PAIR_TYPES)
    return descriptors


def composition_residual(counts: Floats, energy: Floats) -> Floats:
    """Take away the part of the energy that the composition explains.

    An ordinary least-squares fit ``energy ~ c + Σ_e a_e counts_e`` over all the rows given (in
    :func:`load`: the whole sample, held-out rows included; it has six parameters), and its residual.

    Parameters
    ----------
    counts : ndarray of shape (n, 5)
        Atoms of each element.
    energy : ndarray of shape (n,)
        In any unit.

    Returns
    -------
    ndarray of shape (n,)
        In the unit of ``energy``.
    """
    design = np.column_stack([counts, np.ones(len(counts))])
    # Few molecules may lack an element or be fewer than six: lstsq then takes the shortest solution.
    coefficients = np.linalg.lstsq(design, energy)[0]
    return np.asarray(energy - design @ coefficients, dtype=np.float64)


def describe_text(elements: Sequence[str], positions: Sequence[str], n_atoms: Integers, index: Integers) -> Floats:
    """Descriptors of molecules of any size from the text of the CSV files.

    Parameters
    ----------
    elements : sequence of m str
        ``['O','H','H']``.
    positions : sequence of m str
        ``[[x,y,z],[x,y,z],[x,y,z]]`` in ångström.
    n_atoms : ndarray of shape (m,)
        The number of atoms that the table states.
    index : ndarray of shape (m,)
        QM9's number of each molecule, for the messages.

    Returns
    -------
    ndarray of shape (m, 79)

    Raises
    ------
    ValueError
        If the text is malformed, names another element, or disagrees with ``n_atoms``.
    """
    codes = [
        code
        for text, size, number in zip(elements, n_atoms, index, strict=True)
        for code in element_codes(text, int(size), int(number))
    ]
    flat_codes = np.array(codes, dtype=np.int64)
    places = flat_positions(positions, n_atoms, index)
    start = np.cumsum(n_atoms) - n_atoms
    descriptors = np.empty((len(n_atoms), N_FEATURES))
    for size in np.unique(n_atoms):
        rows = np.flatnonzero(n_atoms == size)
        atoms = start[rows, None] + np.arange(size)
        descriptors[rows] = describe(flat_codes[atoms], places[atoms])
    return descriptors


def element_codes(text: str, n_atoms: int, number: int) -> list[int]:
    """Read ``['C','H']`` as positions in ``SYMBOLS``."""
    if _ELEMENTS_TEXT.fullmatch(text) is None:
        raise ValueError(f"QM9 molecule {number}: its elements {text[:60]!r} are not a list of symbols")
    symbols = text[2:-2].split("','")
    if len(symbols) != n_atoms:
        raise ValueError(f"QM9 molecule {number}: {len(symbols)} elements, but N_atoms = {n_atoms}")
    unknown = set(symbols).difference(SYMBOLS)
    if unknown:
        raise ValueError(f"QM9 molecule {number}: element {min(unknown)!r} is not one of {', '.join(SYMBOLS)}")
    return [_CODE[symbol] for symbol in symbols]


def flat_positions(texts: Sequence[str], n_atoms: Integers, index: Integers) -> Floats:
    """Read the coordinates of all the molecules into one array (n_atoms.sum(), 3), in ångström."""
    for text, size, number in zip(texts, n_atoms, index, strict=True):
        if _POSITIONS_TEXT.fullmatch(text) is None:
            raise ValueError(f"QM9 molecule {number}: its coordinates {text[:60]!r} are not a list of triples")
        if text.count("[") != size + 1:
            n_triples = text.count("[") - 1
            raise ValueError(f"QM9 molecule {number}: coordinates of {n_triples} atoms, but N_atoms = {size}")
    # The numbers include "0." and "1.", which JSON refuses; one split over the batch is as fast. With the
    # shape of every text checked above, the brackets can simply go.
    numbers = ",".join(texts).translate({ord("["): None, ord("]"): None}).split(",")
    try:
        values = np.fromiter(map(float, numbers), dtype=np.float64, count=len(numbers)).reshape(-1, 3)
    except ValueError as error:
        raise ValueError(f"QM9 coordinates near molecule {index[0]}: {error}") from None
    if not np.isfinite(values).all():
        atom = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        number = index[np.searchsorted(np.cumsum(n_atoms), atom, side="right")]
        raise ValueError(f"QM9 molecule {number}: a coordinate is not finite")
    return values


def data_folder() -> Path:
    """Where ``qm9pack`` keeps its CSV files, found without importing it."""
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the QM9 data come with the package qm9pack, which is not installed: pip install 'dkrr[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _read(rows: Integers) -> tuple[Floats, Floats, Integers]:
    """Read the given rows of the three files: descriptors (n, 79), energy (n,) in hartree, index (n,)."""
    folder = data_folder()
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "reading the QM9 data needs pandas, which is not installed: pip install 'dkrr[demo]'"
        ) from None
    # object keeps plain Python strings: pandas' own string type would convert each one twice.
    text = {"Elements": object, "XYZ_Ang": object}
    parts = [pd.read_csv(folder / name, usecols=list(_COLUMNS), dtype=text) for name in FILES]
    table = pd.concat(parts, ignore_index=True)
    if len(table) != TOTAL_MOLECULES:
        raise ValueError(f"{folder} holds {len(table)} molecules, not {TOTAL_MOLECULES}: is it qm9pack 1.0.3?")
    table = table.iloc[rows]
    n_atoms = table["N_atoms"].to_numpy(dtype=np.int64)
    index = table["Index"].to_numpy(dtype=np.int64)
    energy = table[_ENERGY].to_numpy(dtype=np.float64)
    if not np.isfinite(energy).all():
        raise ValueError(f"QM9 molecule {index[~np.isfinite(energy)][0]}: its energy is not a finite number")
    elements, positions = table["Elements"].tolist(), table["XYZ_Ang"].tolist()
    descriptors = np.empty((len(rows), N_FEATURES))
    for start in range(0, len(rows), _BATCH):
        batch = slice(start, start + _BATCH)
        descriptors[batch] = describe_text(elements[batch], positions[batch], n_atoms[batch], index[batch])
    return descriptors, energy, index


def _keep(path: Path, **arrays: Floats | Integers) -> None:
    """Write a cached sample under another name first, so that a broken run leaves no half file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.npz")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    partial.replace(path)
