"""Feature maps of a user's own: a pair of functions, and a subclass."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import InputError, InputTypeError, KernelFunctionError, StoreError
from dkrr.features import CallableMap, ConcatenatedMap, FeatureMap, ScaledMap, feature_map_from_dict
from dkrr.kernels import Kernel, Linear
from tests.oracles import naive_kernel_ridge

POWER = 2.0


def waves(X):
    X = X.toarray() if sp.issparse(X) else X
    return np.hstack([np.cos(X), np.sin(X)])


def twice(n_features):
    return 2 * n_features


@dataclass(frozen=True)
class Powers(FeatureMap):
    powers: tuple[float, ...] = (1.0, POWER)

    def dimension(self, n_features):
        return len(self.powers) * n_features

    def _fill(self, X, start, stop, out):
        X = X.toarray() if sp.issparse(X) else X
        out[...] = np.hstack([np.abs(X) ** p for p in self.powers])[:, start:stop]


@dataclass(frozen=True)
class Within(FeatureMap):
    """Another map, or the kernel's, in part."""

    base: FeatureMap
    kernel_of_it: Kernel

    def dimension(self, n_features):
        return self.base.dimension(n_features)

    def _fill(self, X, start, stop, out):
        self.base._fill(X, start, stop, out)


rng = np.random.default_rng(4)
X, Y, NEW = rng.standard_normal((70, 3)), rng.standard_normal((70, 2)), rng.standard_normal((9, 3))
WAVES, POWERS = CallableMap(waves, twice), Powers((1.0, 0.5, 3.0))
FEATURES = {WAVES: waves, POWERS: lambda rows: np.hstack([np.abs(rows) ** p for p in POWERS.powers])}
each = pytest.mark.parametrize("phi", FEATURES, ids=["functions", "subclass"])


@each
class TestFits:
    @pytest.mark.parametrize("form", ["primal", "dual"])
    @pytest.mark.parametrize("settings", [{}, {"tile": 32}, {"solver": "cg", "tol": 1e-12}], ids=str)
    def test_are_those_of_the_features(self, phi, form, settings):
        features, new = FEATURES[phi](X), FEATURES[phi](NEW)
        dual, b = naive_kernel_ridge(features @ features.T, Y, [0.3, 0.3], fit_intercept=True)
        model = KernelRidge(0.3, kernel=phi, form=form, fit_intercept=True, **settings).fit(X, Y)
        assert model.plan_.form == form
        assert_allclose(model.dual_coef_, dual, rtol=1e-7, atol=1e-9)
        assert_allclose(model.predict(NEW), new @ features.T @ dual + b, rtol=1e-8, atol=1e-9)

    def test_of_classes(self, phi):
        labels = Y[:, 0] > 0
        primal, dual = (
            KernelLogisticRegression(0.1, kernel=phi, form=form).fit(X, labels) for form in ("primal", "dual")
        )
        assert_allclose(primal.predict_proba(NEW), dual.predict_proba(NEW), rtol=0, atol=1e-7)

    def test_of_sparse_and_float32_rows(self, phi):
        thin = np.where(X > 0, X, 0.0).astype(np.float32)
        expected = KernelRidge(0.3, kernel=phi).fit(thin.astype(float), Y).dual_coef_
        for rows in (thin, sp.csr_array(thin), sp.csr_array(thin.astype(float))):
            for form in ("primal", "dual"):
                found = KernelRidge(0.3, kernel=phi, form=form).fit(rows, Y).dual_coef_
                assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
            assert_allclose(ScaledMap(phi, 4.0).transform(rows), 2 * FEATURES[phi](thin.astype(float)), rtol=1e-14)

    def test_features_in_ranges_and_other_maps(self, phi):
        whole = FEATURES[phi](X)
        assert_allclose(phi.transform(X, slice(2, 5)), whole[:, 2:5])
        both = ConcatenatedMap(ScaledMap(phi, 4.0), phi)
        assert_allclose(both.transform(X), np.hstack([2 * whole, whole]))
        assert_allclose(both.kernel()(X, NEW), 5 * whole @ FEATURES[phi](NEW).T, rtol=1e-12, atol=1e-12)
        assert pickle.loads(pickle.dumps(phi)) == phi

    def test_a_model_is_saved_by_name(self, phi, tmp_path):
        model = KernelRidge(0.3, kernel=phi).fit(X, Y)
        dkrr.save(model, tmp_path / "m.zarr")
        with pytest.raises(InputError, match="files never hold code; expected it to be given again.*kernel="):
            dkrr.load(tmp_path / "m.zarr")
        again = dkrr.load(tmp_path / "m.zarr", kernel=phi)
        assert np.array_equal(again.predict(NEW), model.predict(NEW)) and again.kernel == phi.kernel()
        assert_allclose(again.fit(X, Y).predict(NEW), model.predict(NEW), rtol=1e-12)


class TestDescriptions:
    def test_hold_settings_and_names_alone(self):
        for phi, name in ((POWERS, "Powers"), (WAVES, "waves")):
            described = json.loads(json.dumps(phi.to_dict()))
            assert described["name"] == f"tests.algorithms.test_own_feature_maps.{name}"
            assert feature_map_from_dict(described, {described["name"]: phi}) == phi
        described = json.loads(json.dumps(POWERS.to_dict()))
        assert feature_map_from_dict(described, {described["name"]: Powers}) == POWERS, "the settings are in the file"
        nested = Within(ScaledMap(Powers(), 2.0), Linear())
        given = {described["name"]: Powers, nested.to_dict()["name"]: Within}
        assert feature_map_from_dict(json.loads(json.dumps(nested.to_dict())), given) == nested

    def test_several_parts_are_told_apart_by_their_names(self, tmp_path):
        phi = ConcatenatedMap(WAVES, ConcatenatedMap(Powers(), CallableMap(np.cbrt, 3, name="roots")))
        model = KernelRidge(0.3, kernel=phi).fit(X, Y)
        dkrr.save(model, tmp_path / "m.zarr")
        assert np.array_equal(dkrr.load(tmp_path / "m.zarr", kernel=phi).predict(NEW), model.predict(NEW))

    def test_a_number_of_features_is_saved_and_a_function_for_it_is_not(self, tmp_path):
        model = KernelRidge(0.3, kernel=CallableMap(waves, 6)).fit(X, Y)
        dkrr.save(model, tmp_path / "number.zarr")
        assert np.array_equal(dkrr.load(tmp_path / "number.zarr", kernel=waves).predict(NEW), model.predict(NEW))
        dkrr.save(KernelRidge(0.3, kernel=WAVES).fit(X, Y), tmp_path / "function.zarr")
        with pytest.raises(InputError, match=r"size is a function too.*CallableMap\(function, size\)"):
            dkrr.load(tmp_path / "function.zarr", kernel=waves)

    def test_a_class_that_fails_is_not_damage(self, tmp_path):
        @dataclass(frozen=True)
        class Narrow(type(POWERS)):
            def __post_init__(self):
                raise ValueError("degree of 2 at most")

        dkrr.save(KernelRidge(0.3, kernel=POWERS).fit(X, Y), tmp_path / "m.zarr")
        with pytest.raises(InputError, match="cannot be made with the settings that were saved.*degree of 2 at most"):
            dkrr.load(tmp_path / "m.zarr", kernel=Narrow)

    def test_another_source_is_noticed(self, tmp_path):
        def other(X):
            return waves(X) + 1

        assert CallableMap(waves, 6).digest != CallableMap(other, 6, CallableMap(waves, 6).name).digest
        assert CallableMap(waves, 6).digest != CallableMap(waves, 7).digest
        described = {**POWERS.to_dict(), "digest": "of another class"}
        with pytest.warns(UserWarning, match="has another source text than the one that was saved"):
            feature_map_from_dict(described, {described["name"]: Powers})

    def test_a_class_is_its_methods_and_what_they_read(self, monkeypatch):
        def of(constant, power):
            @dataclass(frozen=True)
            class Own(Powers):
                CONSTANT = constant

                def _fill(self, X, start, stop, out):
                    out[...] = np.hstack([X**power] * 2)[:, start:stop]

            return Own().to_dict()["digest"]

        assert of(1, 2) == of(1, 2) and len({of(1, 2), of(2, 2), of(1, 3)}) == 3

        @dataclass(frozen=True)
        class Child(Powers):
            pass

        before = Child().to_dict()["digest"]
        monkeypatch.setattr(Powers, "dimension", lambda self, n_features: 7)
        assert Child().to_dict()["digest"] != before

    def test_a_store_of_another_class_is_not_gone_on_with(self, tmp_path):
        def made(power):
            return CallableMap(lambda rows: rows**power, 3)

        settings = {"alpha": 0.3, "tile": 32, "store": str(tmp_path / "run.zarr")}
        KernelRidge(kernel=made(2), **settings).fit(X, Y)
        with pytest.raises(StoreError, match="kernel"):
            KernelRidge(kernel=made(3), **settings).fit(X, Y)

    def test_what_does_not_fit_is_refused(self):
        described = POWERS.to_dict()
        name = described["name"]
        for given in (waves, WAVES.function, int):
            with pytest.raises(InputError, match="expected its class or a value of it"):
                feature_map_from_dict(described, {name: given})
        with pytest.raises(InputError, match="was saved with the fields"):
            feature_map_from_dict({**described, "settings": {"degree": 3}}, {name: Powers})
        with pytest.raises(InputError, match="expected one with a name"):
            feature_map_from_dict({"feature_map": "own", "settings": {}}, {})
        with pytest.raises(InputError, match="expected one with a name"):
            feature_map_from_dict({"feature_map": "callable"}, {})


class TestChecks:
    def test_a_class_that_is_not_a_frozen_dataclass(self):
        class Plain(Powers):
            pass

        class Bare(FeatureMap):
            dimension, _fill = Powers.dimension, Powers._fill

        for phi in (Plain(), Bare()):
            with pytest.raises(InputTypeError, match="is not a frozen dataclass"):
                KernelRidge(kernel=phi).fit(X, Y)

    @pytest.mark.parametrize(
        ("function", "size", "message"),
        [
            (waves, 7, r"returned shape \(70, 6\) for 70 rows; expected \(70, 7\)"),
            (lambda rows: rows.sum(axis=0), 3, r"returned shape \(3,\)"),
            (lambda rows: sp.csr_array(rows), 3, "sparse matrix"),
            (lambda rows: rows * 1j, 3, "complex128; expected real numbers"),
            (lambda rows: np.where(rows > 1, np.nan, rows), 3, "NaN or infinite features"),
        ],
    )
    def test_results(self, function, size, message):
        with pytest.raises(InputError, match=message):
            CallableMap(function, size).transform(X)

    def test_failures(self):
        def failing(rows):
            raise KeyError("depth")

        with pytest.raises(
            KernelFunctionError, match="failing' failed on a dense block of 70 rows and 3 columns: KeyError"
        ):
            CallableMap(failing, 3).transform(X)
