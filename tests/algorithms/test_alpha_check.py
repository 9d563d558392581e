"""A cheap test of whether λ should be searched again, with the factor that earlier rows have left."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks import qm9
from dkrr import KernelRidge
from dkrr.fitting.costs import alpha_check_costs
from dkrr.fitting.costs.alpha_check_costs import ALPHA_CHECK
from dkrr.kernels import RBF
from dkrr.linalg.nearby_alphas import FACTORS, MAX_STEPS, TOL, paired_t, solutions_nearby
from dkrr.solvers import ConjugateGradient, Float32Cholesky


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 10.0])
def test_solutions_for_other_shifts_follow_from_a_factor(alpha):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((120, 3))
    K, B = RBF(gamma=0.3)(X), np.sin(X) + 0.1 * rng.standard_normal((120, 3))
    inverse, calls = np.linalg.inv(K + alpha * np.eye(120)), []
    shifts = alpha * (np.array(FACTORS) - 1)
    own, others = solutions_nearby(lambda V: calls.append(V.shape[1]) or inverse @ V, B, shifts)
    assert_allclose(own, inverse @ B, rtol=0, atol=0)
    for shift, found in zip(shifts, others, strict=True):
        expected = np.linalg.solve(K + (alpha + shift) * np.eye(120), B)
        error, difference = (np.linalg.norm(K @ (one - expected)) for one in (found, own))
        assert error <= 3 * TOL * difference, (error, difference)
    assert calls[0] == 3 and len(calls) <= 1 + MAX_STEPS and set(calls[1:]) == {6}


def test_a_shift_that_makes_the_matrix_indefinite_gives_nothing():
    A = np.diag(np.linspace(1.0, 2.0, 5))
    assert solutions_nearby(lambda V: V / A.diagonal()[:, None], np.ones((5, 1)), np.array([-1.5])) is None


def test_students_t_of_paired_differences():
    rng = np.random.default_rng(2)
    own, others = rng.random(400), rng.random(400)
    d = others - own
    assert paired_t(own, others, np.ones(400)) == pytest.approx(d.mean() / (d.std() / 20))
    assert paired_t(own, own, np.ones(400)) == 0.0
    assert paired_t(np.zeros(256), np.full(256, -1.0), np.ones(256)) == -np.inf
    twice = np.r_[np.full(100, 2.0), np.ones(300)]
    assert paired_t(own, own - 0.1 * rng.random(400), twice) < -3


def sample(n, signal=1.0):
    """Rows, and targets with as much noise as signal."""
    rng = np.random.default_rng(4)
    X, noise = rng.uniform(-2, 2, (700, 2)), rng.standard_normal((700, 2))
    y = signal * np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]]) + noise
    return X[:n], y[:n]


@pytest.fixture
def is_worth_it(monkeypatch):
    """Small fits take longer to plan than to compute."""
    monkeypatch.setattr(alpha_check_costs, "MAX_SHARE", np.inf)


SETTINGS = {"kernel": "rbf", "gamma": 0.5, "solver": "cholesky"}


def searched(model):
    return [text for text in model.solve_result_.messages if text.startswith("search again")]


@pytest.mark.usefixtures("is_worth_it")
@pytest.mark.parametrize(
    ("way", "alpha", "signal", "gamma", "name"),
    [
        ("plain", 0.1, 0.0, 5.0, "3 alpha"),
        ("intercept", 300.0, 1.0, 0.5, "alpha/3"),
        ("plain", 0.3, 1.0, 0.5, ""),
        pytest.param("weights", 0.1, 0.0, 5.0, "3 alpha", marks=pytest.mark.nightly),
        pytest.param("float32", 300.0, 1.0, 0.5, "alpha/3", marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_grows_says_whether_to_search_again(tmp_path, way, alpha, signal, gamma, name):
    X, y = sample(700, signal)
    w = np.random.default_rng(2).choice([0.0, 0.5, 2.0], 700) if way == "weights" else np.ones(700)
    settings = {**SETTINGS, "gamma": gamma, "alpha": alpha, "fit_intercept": way == "intercept"}
    if way == "float32":
        settings["solver"] = ConjugateGradient(Float32Cholesky())

    def fitted(n):
        return KernelRidge(**settings, store=tmp_path / "run").fit(X[:n], y[:n], w[:n])

    assert not searched(fitted(400))
    grown = fitted(700)
    found = searched(grown)
    assert ALPHA_CHECK in {stage.name for stage in grown.plan_.chosen.stages}
    expected = t_of_refits(X, y, w, settings, alpha * (3.0 if name == "3 alpha" else 1 / 3))
    if not name:
        assert not found and expected > -3
    else:
        assert len(found) == 1 and found[0].startswith(f"search again: {name} predicts the new rows better")
        t = float(found[0].split("t = ")[1].split(" ")[0])
        assert t == pytest.approx(expected, rel=0.1, abs=0.2)
    assert searched(fitted(700)) == found, "the same call says the same"


def t_of_refits(X, y, w, settings, other):
    """Student's t of the squared errors of rows 400 and after, by fits to the rows before."""
    errors = []
    for alpha in (settings["alpha"], other):
        model = KernelRidge(**{**settings, "alpha": alpha, "solver": "cholesky"}).fit(X[:400], y[:400], w[:400])
        errors.append(((y[400:] - model.predict(X[400:])) ** 2 / y[400:].var(axis=0)).sum(axis=1))
    return paired_t(*errors, w[400:])


@pytest.mark.usefixtures("is_worth_it")
def test_a_few_rows_say_nothing(tmp_path):
    X, y = sample(499)
    for n in (400, 499):
        model = KernelRidge(**SETTINGS, alpha=300.0, store=tmp_path / "run").fit(X[:n], y[:n])
    assert not searched(model) and ALPHA_CHECK not in {stage.name for stage in model.plan_.chosen.stages}


@pytest.mark.usefixtures("is_worth_it")
def test_a_model_in_memory_says_it_too():
    X, y = sample(700)
    model = KernelRidge(**SETTINGS, alpha=[300.0, 1.0], form="dual").partial_fit(X[:400], y[:400])
    found = searched(model.partial_fit(X[400:], y[400:]))
    assert len(found) == 1 and found[0].startswith("search again: alpha/3 of 300 predicts the new rows better")


@pytest.mark.nightly
@pytest.mark.usefixtures("is_worth_it")
def test_on_molecules_of_qm9(tmp_path):
    """λ is too large where the first rows were few, and is not searched again in vain."""
    sample = qm9.load(2000)
    X = (sample.descriptors - sample.descriptors[:1600].mean(axis=0)) / (sample.descriptors[:1600].std(axis=0) + 1e-12)
    y = (sample.target - sample.target.mean()) / sample.target.std()
    for alpha, expected in ((0.1, ["alpha/3"]), (1e-3, [])):
        for n in (1600, 2000):
            model = KernelRidge(kernel="rbf", gamma=0.01, alpha=alpha, solver="cholesky", store=tmp_path / f"{alpha}")
            model.fit(X[:n], y[:n])
        assert [text.split()[2] for text in searched(model)] == expected, model.solve_result_.messages
