"""Parameters of kernels and feature maps by scikit-learn's names; every kernel and map of the tables has them."""

from dataclasses import FrozenInstanceError

import pytest
from sklearn.base import clone

from dkrr.errors import InputError
from dkrr.features import Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Columns, Linear, Matern, Normalized, RandomWalk
from dkrr.kernels.custom import FunctionCost
from tests.features.table import MAPS
from tests.kernels.cases import CASES

FURTHER = [BagOfWords(), RandomWalk(0.1), Columns(RBF(), "a"), Nystroem(RBF(), 3), RandomFourier("rbf", 4)]
VALUES = [*(case.kernel for case in CASES), *MAPS, *FURTHER]
every_value = pytest.mark.parametrize("value", VALUES, ids=str)


@every_value
def test_values_are_what_their_parameters_say(value):
    own = value.get_params(deep=False)
    assert type(value)(**own) == value
    assert value.set_params(**own) == value
    assert set(own) <= set(value.get_params())


@every_value
def test_every_parameter_of_every_part_can_be_set(value):
    for name, old in value.get_params().items():
        assert value.set_params(**{name: old}) == value


@every_value
def test_clones_are_the_value_itself(value):
    assert clone(value) is value


def test_nested_parameters():
    kernel = Normalized(RBF(1.0) + 2.0 * Linear()) * Matern()
    assert kernel.get_params()["left__base__right__scale"] == 2.0
    changed = kernel.set_params(left__base__right__scale=3, left__base__left__gamma=0.5, right__nu=0.5)
    assert changed == Normalized(RBF(0.5) + 3.0 * Linear()) * Matern(0.5)
    assert kernel == Normalized(RBF(1.0) + 2.0 * Linear()) * Matern()
    with pytest.raises(FrozenInstanceError):
        kernel.left = Linear()


def test_a_part_and_its_parameter_together():
    assert (RBF() + Linear()).set_params(right__nu=2.5, right=Matern()) == RBF() + Matern(2.5)


def test_a_measured_cost_is_not_kept_for_another_function():
    kernel = CallableKernel(max, cost=FunctionCost(1.0, 1.0, 1.0, 1))
    assert "cost" not in kernel.get_params()
    assert kernel.set_params(function=min).cost is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"left__gama": 1.0}, "RBF has no parameter 'gama'; expected one of: 'gamma'"),
        ({"gamma": 1.0}, "Sum has no parameter 'gamma'; expected one of: 'left', 'left__gamma', 'right'"),
        ({"left__gamma__x": 1.0}, "gamma is None, which has no parameter 'x'"),
        ({"left__gamma": -1.0}, "gamma is -1.0; expected a finite number above 0"),
        ({"right__x": 1.0}, "Linear has no parameter 'x'; expected one of: none"),
    ],
)
def test_wrong_parameters(params, message):
    with pytest.raises(InputError, match=message):
        (RBF() + Linear()).set_params(**params)
