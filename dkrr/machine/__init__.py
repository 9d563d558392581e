"""Resources of this machine or cluster, and how fast it is."""

from dkrr.machine.detection import describe, detect
from dkrr.machine.profile import Profile, record_baseline
from dkrr.machine.quick import calibrate, measured_plan

__all__ = ["Profile", "calibrate", "describe", "detect", "measured_plan", "record_baseline"]
