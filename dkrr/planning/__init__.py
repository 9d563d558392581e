"""The planner: which form, which executor, which tiles, and why. Integers and floats only."""

from dkrr.planning.plan import Candidate, Plan
from dkrr.planning.planner import make_plan
from dkrr.planning.problem import Layout, Problem
from dkrr.planning.resources import KernelRate, Rates, Resources

__all__ = ["Candidate", "KernelRate", "Layout", "Plan", "Problem", "Rates", "Resources", "make_plan"]
