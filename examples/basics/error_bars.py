"""
Two kinds of error bars
=======================

How well is the function known, and where will a new target be?

These are two questions. ``return_std`` answers the first: the model is the mean of a
Gaussian process, whose standard deviation grows where there are no rows.
``predict_interval`` answers the second, from the errors of the folds at held-out rows.
"""

# %%
# A noisy wave with a gap.

import matplotlib.pyplot as plt
import numpy as np

from dkrr import KernelRidgeCV

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-4, -0.5, 60), rng.uniform(1.5, 4, 40)])
y = np.sin(1.5 * x) + 0.25 * x + 0.2 * rng.standard_normal(x.size)
X = x[:, None]

# %%
# λ and the width of the kernel are chosen by ten folds.

search = KernelRidgeCV(
    np.geomspace(1e-3, 1, 7), kernel="rbf", gamma=[0.1, 0.3, 1, 3], cv=10
)
search.fit(X, y)
print(search.best_params_)

# %%
# The standard deviation is that of f, so most points are outside its band. Nine in ten
# points are inside the interval. Its width is the same everywhere, so it is too narrow in
# the gap.

grid = np.linspace(-4.5, 4.5, 300)[:, None]
mean, std = search.predict(grid, return_std=True)
lower, upper = search.predict_interval(grid, coverage=0.9)
inside = np.mean(
    (search.predict_interval(X)[0] <= y) & (y <= search.predict_interval(X)[1])
)
print(f"{inside:.0%} of the training targets are within their intervals")

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.fill_between(
    grid[:, 0], lower, upper, color="tab:orange", alpha=0.25, label="90 % of new targets"
)
axes.fill_between(
    grid[:, 0],
    mean - 2 * std,
    mean + 2 * std,
    color="tab:blue",
    alpha=0.35,
    label="f ± 2 std",
)
axes.plot(grid[:, 0], mean, color="tab:blue", label="f")
axes.plot(x, y, ".", color="black", markersize=4)
axes.set(xlabel="x", ylabel="y")
axes.legend(loc="upper left")
