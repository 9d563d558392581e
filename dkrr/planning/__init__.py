"""The planner: which form, which executor, which tiles, and why."""

from dkrr.cost import Stage
from dkrr.planning.plan import Plan
from dkrr.planning.predictions import PredictionPlan
from dkrr.planning.resources import Profile
from dkrr.planning.searches import SelectionPlan
from dkrr.planning.selection import ScoringPlan
from dkrr.planning.strategy import Strategy
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.text import Reason

__all__ = [
    "Plan",
    "PredictionPlan",
    "Profile",
    "Reason",
    "ScoringPlan",
    "SelectionPlan",
    "Stage",
    "Strategy",
    "UncertaintyPlan",
]


def __dir__() -> list[str]:
    return __all__
