"""`KernelRidge.partial_fit` in dual form equals `fit` of all rows so far, and factors none of them twice."""

import copy
import pickle
import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, MemoryLimitError, NotPositiveDefiniteError
from dkrr.features import FourierGrid, Nystroem
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Linear
from dkrr.limits import resident_bytes
from dkrr.linalg import in_memory_cholesky
from dkrr.linalg.cholesky import cholesky_tasks
from dkrr.linalg.result import DUAL_SYSTEM

D = 8


def rows_of(rng, n, t=2):
    """Rows, targets and weights, some of which are 0."""
    X = rng.standard_normal((n, D))
    y = np.sin(X) @ rng.standard_normal((D, t)) + 0.1 * rng.standard_normal((n, t)) + 5.0
    weights = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2.0, n))
    weights[0] = 1.0
    return X, y, weights


def pieces(rng, sizes):
    stops = np.cumsum(sizes).tolist()
    return [slice(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]


def grow(model, X, y, weights, parts):
    for part in parts:
        w = None if weights is None or (weights[part] == 1).all() else weights[part].copy()
        if w is not None and not w.any():
            w[0] = weights[part][0] = 1.0  # the view of the caller, too
        model.partial_fit(X[part], y[part], w)
    return model


def numpy_alpha(K, y, alpha, weights, *, has_intercept):
    """Dual coefficients of one target, rows of weight 0 left out."""
    n = len(y)
    used = np.ones(n, bool) if weights is None else weights > 0
    w = np.ones(n) if weights is None else weights
    m = int(used.sum())
    A = K[np.ix_(used, used)] + alpha * np.diag(1.0 / w[used])
    if has_intercept:
        A, right = np.block([[A, np.ones((m, 1))], [np.ones((1, m)), np.zeros((1, 1))]]), np.append(y[used], 0.0)
    else:
        right = y[used]
    found = np.zeros(n)
    found[used] = np.linalg.solve(A, right)[:m]
    return found


def assert_same(grown, whole, X, rtol=1e-9):
    scale = np.abs(whole.dual_coef_).max()
    assert_allclose(grown.dual_coef_, whole.dual_coef_, rtol=0, atol=rtol * scale)
    assert_allclose(grown.predict(X[:50]), whole.predict(X[:50]), rtol=rtol)
    assert_allclose(grown.intercept_, whole.intercept_, rtol=rtol, atol=rtol)
    assert_allclose(grown.rkhs_norm_, whole.rkhs_norm_, rtol=1e-6)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 3 else pytest.mark.nightly) for seed in range(50)]
)
def test_a_model_that_grows_is_that_of_all_rows(seed):
    rng = np.random.default_rng([seed, 52])
    sizes = rng.choice([1, 2, 7, 60, 200, 511, 512, 700][: 5 if seed < 4 else None], int(rng.integers(2, 6))).tolist()
    X, y, weights = rows_of(rng, sum(sizes), t=3)
    weights = weights if seed % 3 else None
    if weights is not None and seed % 3 == 1:
        weights[: sizes[0]] = 1.0  # the first call has none
    parameters = {
        "kernel": "rbf",
        "gamma": 0.1,
        "alpha": [0.1, 1e-3, 0.1] if seed % 4 == 0 else 10.0 ** rng.integers(-6, 2),
        "fit_intercept": bool(seed % 2),
    }
    if seed % 5 == 4:
        y, parameters["alpha"] = y[:, 0], 0.1
    grown = grow(KernelRidge(**parameters), X, y, weights, pieces(rng, sizes))
    whole = KernelRidge(**parameters, uncertainty=True).fit(X, y, weights)
    assert_same(grown, whole, X)
    K = RBF(gamma=0.1)(X)
    alphas = np.broadcast_to(parameters["alpha"], y[:1].reshape(-1).shape)
    expected = numpy_alpha(K, y.reshape(len(X), -1)[:, 0], alphas[0], weights, has_intercept=bool(seed % 2))
    found = grown.dual_coef_.reshape(len(X), -1)[:, 0]
    assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    assert grown.solve_result_.residual_of == DUAL_SYSTEM and grown.solve_result_.status.is_good
    assert grown.solve_result_.residual < 1e-11
    assert grown.plan_.form == "dual" and grown.plan_.execution == "memory"
    assert np.array_equal(grown.X_fit_, X)
    for found, expected in zip(
        grown.predict(X[:5] + 0.1, return_std=True), whole.predict(X[:5] + 0.1, return_std=True), strict=True
    ):
        assert_allclose(found, expected, rtol=1e-8)
    assert_allclose(grown.loo_residuals(), whole.loo_residuals(), rtol=1e-6, atol=1e-8)
    assert_allclose(grown.log_marginal_likelihood(), whole.log_marginal_likelihood(), rtol=1e-9)


PLAIN = {"kernel": "rbf", "gamma": 0.1, "alpha": 0.01}


def factor_of(model):
    """Factor that standard deviations take."""
    ((_, posterior),) = model._posteriors().factored()
    return posterior.factor


@pytest.mark.parametrize("begins_with", ["partial_fit", "fit and its factor", "fit and standard deviations"])
def test_nothing_is_factored_twice(begins_with):
    rng = np.random.default_rng(1)
    X, y, _ = rows_of(rng, 1300, t=1)
    model = KernelRidge(**PLAIN, uncertainty=begins_with == "fit and its factor")
    if begins_with == "partial_fit":
        model.partial_fit(X[:1100], y[:1100])
    else:
        model.fit(X[:1100], y[:1100])
    model.set_params(uncertainty=False).predict(X[:3], return_std=True)
    model.partial_fit(X[1100:1200], y[1100:1200])
    assert "the factor of the other 1,100 was kept" in model.solve_result_.messages[0]
    before = factor_of(model)
    model.predict(X[:3], return_std=True), model.loo_residuals(), model.log_marginal_likelihood()
    model.partial_fit(X[1200:], y[1200:])
    after = factor_of(model)
    assert np.shares_memory(before.tile_buffer(0, 0), after.tile_buffer(0, 0))
    assert after is factor_of(model)
    assert "grows" in model.plan_.to_dict()["reason_codes"]
    assert_same(model, KernelRidge(**PLAIN).fit(X, y), X)


@pytest.mark.parametrize("n", [700, 1024 + 500])  # the new rows are in the last tile row, or in two
def test_rows_whose_deviations_were_the_last_ones_are_not_solved_for_again(monkeypatch, n):
    X, y, weights = rows_of(np.random.default_rng(5), n + 40)
    settings = {"alpha": [0.5, 2.0], "kernel": "rbf", "gamma": 0.1, "form": "dual", "fit_intercept": True}
    columns = list[int]()

    def tasks(system):
        columns.append(system.known_columns)
        return cholesky_tasks(system)

    monkeypatch.setattr(in_memory_cholesky, "cholesky_tasks", tasks)
    grown = KernelRidge(**settings).partial_fit(X[:n], y[:n], weights[:n])
    asked = (slice(n, n + 20), slice(n, n + 20), slice(n + 20, n + 40))
    for stop, rows, is_known in zip((n + 20, n + 30, n + 40), asked, (True, False, False), strict=True):
        columns.clear()
        grown.predict(X[rows], return_std=True)
        new = slice(grown.dual_coef_.shape[0], stop)
        grown.partial_fit(X[new], y[new], weights[new])
        assert columns == 2 * [n // 512 if is_known else 0]
        whole = KernelRidge(**settings).fit(X[:stop], y[:stop], weights[:stop])
        assert_same(grown, whole, X)
        assert_allclose(*(m.predict(X[-9:], return_std=True)[1] for m in (grown, whole)), rtol=1e-8)


def test_rows_that_were_suggested_are_not_solved_for_again(monkeypatch):
    X, y, _ = rows_of(np.random.default_rng(6), 900, t=1)
    known, settings = list[int](), {"alpha": 0.5, "kernel": "rbf", "gamma": 0.1}

    def tasks(system):
        known.append(system.known_columns)
        return cholesky_tasks(system)

    monkeypatch.setattr(in_memory_cholesky, "cholesky_tasks", tasks)
    grown = KernelRidge(**settings, uncertainty=True).fit(X[:700], y[:700, 0])
    chosen = 700 + dkrr.suggest(grown, X[700:], 15).rows
    known.clear()
    grown.partial_fit(X[chosen], y[chosen, 0])
    assert known == [1]
    rows = np.concatenate([np.arange(700), chosen])
    assert_same(grown, KernelRidge(**settings).fit(X[rows], y[rows, 0]), X)


def test_a_plain_fit_is_factored_once_more_and_says_so():
    X, y, _ = rows_of(np.random.default_rng(2), 90)
    model = KernelRidge(**PLAIN).fit(X[:60], y[:60])
    model.partial_fit(X[60:], y[60:])
    assert "all were factored, since the model had no factor" in model.solve_result_.messages[0]
    assert_same(model, KernelRidge(**PLAIN).fit(X, y), X)
    model.fit(X[:60], y[:60])  # a fit starts anew
    assert_same(model.partial_fit(X[60:70], y[60:70]), KernelRidge(**PLAIN).fit(X[:70], y[:70]), X)


@pytest.mark.parametrize("is_near", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_small_growths_lose_no_digits(is_near):
    rng = np.random.default_rng(3)
    X, y, _ = rows_of(rng, 800, t=1)
    alpha = 1e-8 if is_near else 1e-3
    if is_near:
        X[400:] = X[:400] * (1.0 + 1e-9)
    parts = [slice(0, 300), *(slice(k, k + 5) for k in range(300, 800, 5))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        grown = grow(KernelRidge(kernel="rbf", gamma=0.1, alpha=alpha), X, y, None, parts)
        whole = KernelRidge(kernel="rbf", gamma=0.1, alpha=alpha, solver="cholesky").fit(X, y)
    assert grown.solve_result_.residual < 2.0 * whole.solve_result_.residual
    A = RBF(gamma=0.1)(X) + alpha * np.eye(800)
    true = np.linalg.norm(y - A @ grown.dual_coef_) / np.linalg.norm(y)
    assert grown.solve_result_.residual == pytest.approx(true, rel=0.5)


def test_another_lambda_is_another_factor():
    X, y, _ = rows_of(np.random.default_rng(4), 700)
    model = grow(KernelRidge(**PLAIN), X, y, None, [slice(0, 600), slice(600, 650)])
    before, expected = copy.copy(model), model.predict(X[:5], return_std=True)
    model.set_params(alpha=[0.1, 0.2]).partial_fit(X[650:680], y[650:680])
    assert "alpha is not that of the factor that was kept" in model.solve_result_.messages[0]
    model.set_params(alpha=0.2).partial_fit(X[680:], y[680:])  # which is among those
    assert "was kept" in model.solve_result_.messages[0] and "alpha" not in model.solve_result_.messages[0]
    assert_same(model, KernelRidge(kernel="rbf", gamma=0.1, alpha=0.2).fit(X, y), X)
    for found, known in zip(before.predict(X[:5], return_std=True), expected, strict=True):
        assert np.array_equal(found, known)
    before.partial_fit(X[650:], y[650:])  # another branch from the same factor
    assert_same(before, KernelRidge(**PLAIN).fit(X, y), X)


def test_a_call_that_raises_leaves_the_model_as_it_was():
    X, y, _ = rows_of(np.random.default_rng(5), 60)
    model = KernelRidge(kernel="rbf", gamma=0.1, alpha=0.0).partial_fit(X[:40], y[:40])
    state, expected = dict(vars(model)), model.predict(X[40:], return_std=True)
    for bad_X, bad_y, weights, error, message in (
        # The pivots of repeated rows are rounding errors, of either sign: some are below 0 on any processor.
        (X[:20], y[:20], None, NotPositiveDefiniteError, r"λ = alpha = 0: the pivot of row [45]\d"),
        (X[40:, :2], y[40:], None, InputError, "X has 2 features, but KernelRidge is expecting 8"),
        (X[40:], y[40:, 0], None, InputError, r"y has shape \(20,\); expected \(n, 2\)"),
        (X[40:], y[41:], None, InputError, "inconsistent numbers of samples"),
        (X[40:], y[40:], -1.0, InputError, "sample_weight is -1.0"),
        (np.where(X > 9, 0.0, X * [1, 1, np.nan, 1, 1, 1, 1, 1]), y, None, InputError, "X.* is in row 0, column 2"),
        (X[40:], 1e200 * y[40:], None, InputError, r"the largest \|y\|"),
    ):
        with pytest.raises(error, match=message):
            model.partial_fit(bad_X, bad_y, weights)
        assert vars(model).keys() == state.keys() and all(vars(model)[name] is state[name] for name in state)
    for found, known in zip(model.predict(X[40:], return_std=True), expected, strict=True):
        assert np.array_equal(found, known)
    whole = KernelRidge(kernel="rbf", gamma=0.1, alpha=0.0).fit(X, y)
    assert_same(model.partial_fit(X[40:], y[40:]), whole, X, rtol=1e-7)


def test_rows_are_apart_from_the_arrays_that_were_given():
    X, y, _ = rows_of(np.random.default_rng(6), 60)
    model, buffer, targets = KernelRidge(**PLAIN), np.empty((20, D)), np.empty((20, 2))
    for k in range(0, 60, 20):
        buffer[:], targets[:] = X[k : k + 20], y[k : k + 20]
        model.partial_fit(buffer, targets)
    assert_same(model, KernelRidge(**PLAIN).fit(X, y), X)


def test_containers_may_differ_from_call_to_call():
    da, pandas = pytest.importorskip("dask.array"), pytest.importorskip("pandas")
    X, y, _ = rows_of(np.random.default_rng(7), 80)
    X[np.abs(X) < 0.7] = 0.0
    model = (
        KernelRidge(**PLAIN).partial_fit(sp.csr_array(X[:20]), y[:20]).partial_fit(sp.csr_matrix(X[20:40]), y[20:40])
    )
    assert sp.issparse(model.X_fit_)
    model.partial_fit(X[40:60].tolist(), y[40:60]).partial_fit(da.from_array(X[60:], chunks=(7, D)), y[60:])
    assert_same(model, KernelRidge(**PLAIN).fit(X, y), X)
    table = pandas.DataFrame(X, columns=[*"abcdefgh"]).assign(y=y[:, 0])
    model = KernelRidge(**PLAIN).partial_fit(table[:50], "y").partial_fit(table[50:], "y")
    assert list(model.feature_names_in_) == [*"abcdefgh"]
    assert_same(model, KernelRidge(**PLAIN).fit(table, "y"), table[[*"abcdefgh"]])
    with pytest.raises(InputError, match="feature names"):
        model.partial_fit(table[[*"bacdefgh"]], table["y"])


def test_kernels_of_other_data_grow():
    texts, y = ["one two", "two three", "three one one", "two"], np.arange(4.0)
    kernel = RBF(gamma=0.5)

    def length(a, b):
        return np.exp(-np.abs(np.subtract.outer([len(x) for x in a], [len(x) for x in b])))

    model = KernelRidge(kernel=CallableKernel(length)).partial_fit(texts[:2], y[:2]).partial_fit(texts[2:], y[2:])
    assert_allclose(model.predict(texts), KernelRidge(kernel=CallableKernel(length)).fit(texts, y).predict(texts))
    bag = BagOfWords().fitted(texts)
    model = KernelRidge(kernel=bag, form="dual").partial_fit(texts[:2], y[:2]).partial_fit(texts[2:], y[2:])
    assert_allclose(model.predict(texts), KernelRidge(kernel=bag).fit(texts, y).predict(texts))
    with pytest.raises(InputError, match=r"learns from all rows.*give kernel.fitted\(X\)"):
        KernelRidge(kernel=BagOfWords(), form="dual").partial_fit(texts, y)
    assert kernel == RBF(gamma=0.5)


def test_the_origin_of_a_linear_kernel_stays():
    rng = np.random.default_rng(8)
    X, y, weights = rows_of(rng, 120)
    X = X + 1e5
    parameters = {"kernel": Linear() + RBF(gamma=0.1), "fit_intercept": True, "alpha": 0.1}
    grown = grow(KernelRidge(**parameters), X, y, weights, [slice(0, 50), slice(50, 90), slice(90, 120)])
    whole = KernelRidge(**parameters).fit(X, y, weights)
    assert_allclose(grown.predict(X), whole.predict(X), rtol=1e-8)
    assert_allclose(grown.intercept_, whole.intercept_, rtol=1e-5)
    assert "was kept" in grown.solve_result_.messages[0]
    begun = KernelRidge(**parameters, uncertainty=True).fit(X[:50], y[:50], weights[:50])
    begun.partial_fit(X[50:], y[50:], weights[50:])
    assert "was kept" in begun.solve_result_.messages[0]
    assert_allclose(begun.predict(X), whole.predict(X), rtol=1e-8)


def test_dual_becomes_primal_and_not_back():
    X, y, _ = rows_of(np.random.default_rng(9), 100)
    model = KernelRidge(alpha=0.1, fit_intercept=True)
    forms = []
    for part in (slice(0, 3), slice(3, 6), slice(6, 40), slice(40, 100)):
        forms.append(model.partial_fit(X[part], y[part]).plan_.form)
    assert forms == ["dual", "dual", "primal", "primal"]
    assert_allclose(model.predict(X), KernelRidge(alpha=0.1, fit_intercept=True).fit(X, y).predict(X), rtol=1e-9)
    assert not hasattr(model, "X_fit_") and not hasattr(model, "dual_coef_")
    for changes, message in (
        ({"form": "dual"}, "form is 'dual', and the model is in primal form.*give all rows to fit"),
        ({"uncertainty": True}, "uncertainty is True, and in primal form.*form='dual' from the first call on"),
    ):
        with pytest.raises(InputError, match=message):
            copy.copy(model).set_params(**changes).partial_fit(X, y)
    model = KernelRidge(alpha=0.1, uncertainty=True).partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    assert model.plan_.form == "dual" and model.loo_residuals().shape == y.shape
    model.set_params(form="primal", uncertainty=False).partial_fit(X[:1], y[:1])
    assert model.plan_.form == "primal"


def test_copies_grow():
    X, y, weights = rows_of(np.random.default_rng(10), 90)
    model = KernelRidge(**PLAIN).partial_fit(X[:60], y[:60], weights[:60])
    again, other = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    whole = KernelRidge(**PLAIN).fit(X, y, weights)
    for one in (model, again, other):
        assert_same(one.partial_fit(X[60:], y[60:], weights[60:]), whole, X)
    assert len(pickle.dumps(model)) < 3 * (X.nbytes + y.nbytes + weights.nbytes) + 30_000


def test_a_saved_model_has_uncertainty_and_does_not_grow(tmp_path):
    X, y, _ = rows_of(np.random.default_rng(11), 700)
    model = KernelRidge(**PLAIN).partial_fit(X[:600], y[:600]).partial_fit(X[600:], y[600:])
    dkrr.save(model, tmp_path / "model.zarr", uncertainty=True)
    loaded = dkrr.load(tmp_path / "model.zarr")
    for found, expected in zip(
        loaded.predict(X[:9], return_std=True), model.predict(X[:9], return_std=True), strict=True
    ):
        assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(InputError, match="the model was loaded.*give all rows to fit"):
        loaded.partial_fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "precomputed"}, "kernel is 'precomputed'.*give all rows to fit"),
        ({"solver": "cg"}, "solver is 'cg'.*expected solver='cholesky'"),
        ({"store": "run.zarr"}, "store is 'run.zarr'.*give all rows to fit, which grows the run of its store"),
        ({"tile": 512}, "tile is 512.*give all rows to fit"),
        ({"uncertainty": "intervals"}, "uncertainty is 'intervals'.*expected True"),
        ({"transformer": "standardize"}, "transformer is 'standardize'.*FrozenEstimator"),
        ({"kernel": Nystroem(RBF(), 5), "form": "dual"}, "form is 'dual'.*expected form='primal' or 'auto'"),
        ({"kernel": FourierGrid(RBF()), "form": "dual"}, "form is 'dual'.*expected form='primal' or 'auto'"),
    ],
)
def test_a_first_call_that_cannot_grow_is_refused(parameters, message):
    X, y, _ = rows_of(np.random.default_rng(12), D)
    with pytest.raises(InputError, match=message):
        KernelRidge(**{"kernel": "rbf"} | parameters).partial_fit(X[:, : 2 if "form" in parameters else D], y)


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 0.2}, r"kernel is RBF\(gamma=0.2\).*were fitted with RBF\(gamma=0.1\)"),
        ({"fit_intercept": True}, "fit_intercept is True.*were fitted with False"),
    ],
)
def test_another_model_is_refused(first, changes, message):
    X, y, _ = rows_of(np.random.default_rng(13), 30)
    model = getattr(KernelRidge(**PLAIN), first)(X, y)
    with pytest.raises(InputError, match=message):
        model.set_params(**changes).partial_fit(X, y)


def test_a_limit_that_is_too_small_is_refused_with_one_that_works():
    X, y, _ = rows_of(np.random.default_rng(14), 3000, t=1)
    with pytest.raises(MemoryLimitError, match="store=, whose factor is on disk.*Nothing was computed") as refused:
        KernelRidge(**PLAIN, memory_limit="100 MiB").partial_fit(X, y)
    suffices = int(re.search(r"at least .* \((\d+) bytes\)", str(refused.value))[1])
    assert suffices < 2**31
    with pytest.raises(MemoryLimitError, match="form='primal', which keeps sums"):
        KernelRidge(kernel="rbf", memory_limit="100 MiB").partial_fit(X[:, :2], y)


def test_a_frozen_transformer_is_applied_to_every_call():
    X, y, _ = rows_of(np.random.default_rng(15), 90)
    scaler = StandardScaler().fit(X + 1.0)
    model = KernelRidge(**PLAIN, transformer=FrozenEstimator(scaler))
    model.partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
    whole = KernelRidge(**PLAIN).fit(scaler.transform(X), y)
    assert_allclose(model.predict(X), whole.predict(scaler.transform(X)), rtol=1e-9)
    assert "was kept" in model.solve_result_.messages[0]


@pytest.mark.nightly
def test_batches_of_targets_grow():
    rng = np.random.default_rng(16)
    X, y, _ = rows_of(rng, 300, t=2)
    y = y @ rng.standard_normal((2, 30_000))
    model = KernelRidge(**PLAIN, memory_limit=resident_bytes() + 3 * 2**28).partial_fit(X[:200], y[:200])
    model.set_params(memory_limit=resident_bytes() + 3 * 2**28).partial_fit(X[200:], y[200:])
    assert model.plan_.problem.batch > 0 and "was kept" in model.solve_result_.messages[0]
    whole = KernelRidge(**PLAIN).fit(X, y[:, :3])
    assert_allclose(model.dual_coef_[:, :3], whole.dual_coef_, rtol=0, atol=1e-9 * np.abs(whole.dual_coef_).max())
    assert model.predict(X[:3], return_std=True)[1].shape == (3, 30_000)


def test_intervals_follow_from_the_factor_that_has_grown():
    X, y, weights = rows_of(np.random.default_rng(17), 700)
    grown = grow(KernelRidge(**PLAIN, fit_intercept=True), X, y, weights, [slice(0, 600), slice(600, 700)])
    whole = KernelRidge(**PLAIN, fit_intercept=True).fit(X, y, weights)
    assert_allclose(grown.predict_interval(X[:9]), whole.predict_interval(X[:9]), rtol=1e-9)
