"""Models and runs with anything in their descriptions, whose checksums match: an error of dkrr, or a use of it."""

import contextlib
import json
import shutil

import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dkrr
from dkrr.errors import DkrrError
from dkrr.tiles.descriptions import read_group, write_group

X = np.random.default_rng(0).normal(size=(24, 3))
Y = X[:, 0]
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NAMES = st.sampled_from(
    ["kernel", "name", "array", "shape", "dtype", "left", "feature_map", "rbf", "sum", "../x", "0" * 64]
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    NAMES,
)
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


def places(value, path=()):
    """Paths of all values within a value of JSON."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += places(one, (*path, key))
    return found


def changed(draw, description):
    """Description with one value replaced, removed or added."""
    copy = json.loads(json.dumps(description))
    path = draw(st.sampled_from(places(copy)))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if isinstance(parent, dict) and draw(st.booleans()) and draw(st.booleans()):
        del parent[path[-1]]
    else:
        parent[path[-1]] = draw(JSON)
    return copy


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m.zarr"
    kernel = dkrr.kernels.RBF(0.3) + dkrr.kernels.Polynomial(degree=2, gamma=1.0, coef0=1.0)
    dkrr.save(dkrr.KernelRidge(kernel=kernel, fit_intercept=True).fit(X, Y), folder)
    return folder, read_group(str(folder))


@SETTINGS
@given(data=st.data())
def test_models(model, data):
    folder, description = model
    write_group(str(folder), changed(data.draw, description))
    for use in (lambda: dkrr.load(folder).predict(X), lambda: dkrr.verify(folder)):
        with contextlib.suppress(DkrrError):
            use()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with dkrr.config.dask.config.set({"dkrr.checkpoint-seconds": 0}):
        fitted(folder / "run.zarr")
    shutil.copytree(folder / "run.zarr", folder / "kept.zarr")
    return folder, read_group(str(folder / "run.zarr")), fitted(folder / "run.zarr").predict(X)


def fitted(store):
    rows = da.from_array(X, chunks=12)
    return dkrr.KernelRidge(kernel="rbf", alpha=0.1, solver="cg", tile=12, store=str(store)).fit(rows, Y)


@SETTINGS
@given(data=st.data())
def test_runs(run, data):
    folder, description, expected = run
    shutil.rmtree(folder / "run.zarr")
    shutil.copytree(folder / "kept.zarr", folder / "run.zarr")
    write_group(str(folder / "run.zarr"), changed(data.draw, description))
    for use in (dkrr.status, dkrr.verify):
        with contextlib.suppress(DkrrError):
            str(use(folder / "run.zarr"))
    try:
        found = fitted(folder / "run.zarr")
    except DkrrError:
        return
    assert np.allclose(found.predict(X), expected, atol=1e-6), "a solution is of the rows that were given"
