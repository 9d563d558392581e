"""A model of some of the targets of a fit."""

import numpy as np
import pytest

from dkrr import KernelRidge, load, save


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("columns", [slice(1, 2), slice(0, 2)])
def test_it_is_the_model_that_is_fitted_to_them_alone(data, tmp_path, form, columns):
    settings = {"alpha": 0.3, "kernel": "linear", "fit_intercept": True, "form": form}
    together = KernelRidge(**settings).fit(data.X, data.y)
    is_vector = columns == slice(1, 2)
    part = together.of_targets(columns, is_vector=is_vector)
    y = data.y[:, 1] if is_vector else data.y[:, columns]
    alone = KernelRidge(**settings).fit(data.X, y)
    save(part, tmp_path / "m.zarr")
    for model in (part, load(tmp_path / "m.zarr")):
        assert np.allclose(model.predict(data.X), alone.predict(data.X), rtol=0, atol=1e-9)
        assert np.allclose(model.dual_coef_, alone.dual_coef_, rtol=0, atol=1e-9)
        assert model.dual_coef_.shape == alone.dual_coef_.shape
    assert np.allclose(part.norm_, alone.norm_) and np.ndim(part.norm_) == np.ndim(alone.norm_)
    assert together.dual_coef_.shape == data.y.shape, "the fit itself is as before"
