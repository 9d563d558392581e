"""Page on Dask's dashboard with the fits of its cluster: what a fit sends of itself, and the page on the scheduler.

Not in `dkrr.runtime`: the scheduler imports it, which needs little of dkrr.
"""
