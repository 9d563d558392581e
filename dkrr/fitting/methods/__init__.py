"""Ways to solve, a module for each: its candidates, its words and its execution."""

from dataclasses import replace

from dkrr.fitting.costs.centre_costs import drawing_of
from dkrr.fitting.methods.dual_cg import DualCG
from dkrr.fitting.methods.dual_cholesky import DualCholesky, DualFloat32
from dkrr.fitting.methods.fourier_solve import FourierCG, FourierCholesky
from dkrr.fitting.methods.newton_curvature import NewtonCurvature
from dkrr.fitting.methods.primal_cg import PrimalCG
from dkrr.fitting.methods.primal_cholesky import PrimalCholesky
from dkrr.kernels.map_base import FeatureMap
from dkrr.planning.plan import Plan
from dkrr.planning.planner import choose
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Method

METHODS: tuple[Method, ...] = (
    PrimalCholesky(),
    NewtonCurvature(),
    PrimalCG(),
    FourierCholesky(),
    FourierCG(),
    DualCholesky(),
    DualFloat32(),
    DualCG(),
)
"""All ways to solve, in the order in which their candidates are priced."""


def make_plan(problem: Problem, resources: Resources, features: FeatureMap | None = None) -> Plan:
    """Cheapest strategy of all methods that stays within the limits; see `dkrr.planning.planner.choose`.

    With `features` all candidates have these, in place of the kernel's own.
    """
    if features is None:
        drawing = None if problem.kernel.is_plain else drawing_of(problem, resources)
        return choose(METHODS, problem, resources, drawing)
    plan = choose(METHODS, problem.with_features(features), resources)
    return replace(plan, problem=replace(plan.problem, feature_map=problem.feature_map))
