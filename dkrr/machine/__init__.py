"""Resources of this machine or cluster, and how fast it is."""

from dkrr.machine.baseline import record_baseline
from dkrr.machine.calibration import calibrate
from dkrr.machine.detection import ambient_client, describe, detect
from dkrr.machine.profile import Profile

__all__ = ["Profile", "ambient_client", "calibrate", "describe", "detect", "record_baseline"]
