"""Every way to fit prices itself as named stages, and says what a run that resumes it must keep."""

import json

import pytest

from dkrr.cost import STAGE_NAMES
from dkrr.planning import STRATEGIES, Layout, Newton, Strategy
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from tests.planning.problems import GIB, cluster, machine, problem

SETTINGS = [Cholesky(), ConjugateGradient(), ConjugateGradient(Float32Cholesky())]
PLACES = {"machine": machine(4 * GIB), "cluster": cluster()}
WAYS = [(loss, strategy) for loss, strategies in STRATEGIES.items() for strategy in strategies]


def priced(loss, strategy, where, **more):
    """Candidates of both forms, with every solver that the strategy serves."""
    for settings in SETTINGS:
        for form in ("dual", "primal"):
            if strategy.serves(settings):
                what = problem(1201, 17, "linear", 3, loss=loss, solver=settings, alphas=(0.1, 1.0), **more)
                yield from strategy.candidates(what, where, form)


@pytest.mark.parametrize(("loss", "strategy"), WAYS)
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("more", [{}, {"keeps_store": True, "x_in_memory": False}, {"fit_intercept": True}], ids=str)
def test_the_price_is_made_of_stages(loss, strategy, where, more):
    found = list(priced(loss, strategy, where, **more))
    assert found and all(isinstance(c, strategy) for c in found)
    for c in found:
        names = [s.name for s in c.stages]
        assert set(names) <= set(STAGE_NAMES) and len(set(names)) == len(names)
        assert c.seconds == pytest.approx(sum(s.seconds for s in c.stages)) and c.seconds > 0
        assert c.peak_bytes == max(s.peak_bytes for s in c.stages) > c.place.baseline_bytes
        assert all(min(s.seconds, s.read_bytes, s.written_bytes, s.disk_bytes) >= 0 for s in c.stages)
        assert json.loads(json.dumps(c.to_dict()))["stages"][0]["name"] == names[0]


@pytest.mark.parametrize(("loss", "strategy"), WAYS)
def test_a_run_that_is_resumed_is_cut_as_before(loss, strategy):
    for c in priced(loss, strategy, PLACES["machine"], keeps_store=True):
        layout = Layout(**c.layout())
        assert all(Layout(**again.layout()) == layout for again in resumed(loss, strategy, c, layout))


def resumed(loss, strategy: type[Strategy], c: Strategy, layout: Layout):
    """Candidates of the same kind for a store with this layout."""
    settings = next(s for s in SETTINGS if type(c.for_systems).serves(s))
    what = problem(
        9001, 17, "linear", 3, loss=loss, solver=settings, alphas=(0.1, 1.0), keeps_store=True, layout=layout
    )
    found = [again for again in strategy.candidates(what, PLACES["machine"], c.form) if again.kind == c.kind]
    assert found
    return found


@pytest.mark.parametrize("settings", [None, *SETTINGS], ids=repr)
def test_every_solver_is_served(settings):
    served = [s for s in STRATEGIES["squared"] if s.serves(settings)]
    assert len(served) == (3 if settings is None else 1), "two kinds of factors and conjugate gradient compete"


def test_newton_takes_the_price_of_its_systems_and_adds_its_own():
    for c in priced("logistic", Newton, PLACES["machine"]):
        assert c.seconds > c.inner.seconds > 0 and c.peak_bytes >= c.inner.peak_bytes
        assert {s.name for s in c.stages} > {s.name for s in c.inner.stages}
        assert (c.form, c.solver) == (c.inner.form, c.inner.solver)
