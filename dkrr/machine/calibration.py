"""``dkrr calibrate``: the quick measurement for longer, at request, with the store of a given folder."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from dkrr.config import temporary_directory
from dkrr.errors import InputError
from dkrr.machine.detection import ambient_client, cluster_of, local_workers
from dkrr.machine.measures import measure_cores
from dkrr.machine.profile import Profile, create_profile_folder, machine_fingerprint, save_profile
from dkrr.machine.quick import measured_profile, on_threads, with_store
from dkrr.runtime.folders import private_folder
from dkrr.values import location, positive

SECONDS = 0.25
"""Seconds for each of the measurements of a core."""
MAX_SECONDS = 60.0


def calibrate(folder: str | None = None, seconds: float = SECONDS) -> Profile:
    """Measure the workers of the ambient Dask client, or else this machine, and keep the result.

    It is the measurement that the first long fit makes in half a second, for longer and with the store. Later plans use
    it: it is found by a fingerprint of the machine or cluster, in the folder ``dkrr.profile-directory`` of Dask's
    configuration. Takes about ten seconds; measure when no other program runs. The latency of Dask and the rates of
    buckets are documented defaults, which ``dkrr.rates`` in Dask's configuration replaces.

    Parameters
    ----------
    folder : str, optional
        Folder, seen by all workers, on the file system whose bandwidth is to be measured; default
        ``dkrr.temporary-directory``.
    seconds : float
        Time of each measurement.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If the folder does not exist, or the result cannot be kept.
    """
    seconds = positive(seconds, "seconds")
    if seconds > MAX_SECONDS:
        raise InputError(
            f"seconds is {seconds:g}; expected at most {MAX_SECONDS:g}: each of many measurements takes it"
        )
    if folder is not None:
        folder = location(folder, "folder", "an existing folder, or None: the temporary one")
    create_profile_folder()  # before the work
    where = str(folder or temporary_directory())
    if not os.path.isdir(where):  # noqa: PTH112 (Path's raises an error where there is no permission)
        raise InputError(f"folder is {where}; expected an existing folder: give one that every worker can write to")
    client, cores = ambient_client(), 1
    if client is None:
        cores = local_workers(None)
        fingerprint, run = machine_fingerprint(), partial(on_threads, cores)
    else:
        from dkrr.runtime.dask_client import check_folder_is_shared, on_every_worker

        fingerprint, run = cluster_of(client), partial(on_every_worker, client)
    with private_folder("calibrate", where) as scratch:
        if client is not None:
            check_folder_is_shared(client, Path(scratch))
        profile = measured_profile(fingerprint, lambda: run(partial(measure_cores, seconds)))
        profile = with_store(profile, scratch, run)
    profile = replace(profile, is_quick=False)
    save_profile(profile)
    return profile
