"""The planner: which form, which executor, which tiles, and why. Integers and floats only."""

from dkrr.planning.direct import Direct
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.iteration import Iterative
from dkrr.planning.newton import Newton
from dkrr.planning.plan import Plan
from dkrr.planning.planner import STRATEGIES, make_plan
from dkrr.planning.problem import Layout, Problem
from dkrr.planning.resources import KernelRate, Rates, Resources
from dkrr.planning.saved import saved_bytes, saved_bytes_with_uncertainty
from dkrr.planning.strategy import Strategy, Tiling

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
    "Resources",
    "Strategy",
    "Tiling",
    "make_plan",
    "saved_bytes",
    "saved_bytes_with_uncertainty",
]
