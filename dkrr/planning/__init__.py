"""The planner: which form, which executor, which tiles, and why; what this machine has, and how fast it is."""

from dkrr.planning.plan import Plan
from dkrr.planning.planner import make_plan
from dkrr.planning.problem import Layout, Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import Rates, Resources
from dkrr.planning.strategy import Direct, Float32Factor, Generated, Iterative, Strategy, Tiling
from dkrr.planning.ways import WAYS

__all__ = [
    "WAYS",
    "Direct",
    "Float32Factor",
    "Generated",
    "Iterative",
    "Layout",
    "Plan",
    "Problem",
    "Rates",
    "Reason",
    "Resources",
    "Strategy",
    "Tiling",
    "make_plan",
]
