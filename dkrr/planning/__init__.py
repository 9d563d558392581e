"""The planner: which form, which executor, which tiles, and why. Integers and floats only."""

import dkrr.planning.saved  # noqa: F401  # gives plans the size of the model
from dkrr.planning.direct import Direct
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.iteration import Iterative
from dkrr.planning.newton import Newton
from dkrr.planning.plan import Plan
from dkrr.planning.planner import STRATEGIES, make_plan
from dkrr.planning.problem import Layout, Problem
from dkrr.planning.resources import KernelRate, Rates, Resources
from dkrr.planning.strategy import Reason, Strategy, Tiling

__all__ = [
    "STRATEGIES",
    "Direct",
    "Float32Factor",
    "Iterative",
    "KernelRate",
    "Layout",
    "Newton",
    "Plan",
    "Problem",
    "Rates",
    "Reason",
    "Resources",
    "Strategy",
    "Tiling",
    "make_plan",
]
