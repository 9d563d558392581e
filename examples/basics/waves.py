"""
What λ and γ do
===============

Nine fits of the same forty noisy points.

With a large γ (a short length) a point acts only nearby; a small γ couples all points.
λ, the argument ``alpha``, says how much of the variation is noise. Neither replaces the
other.
"""

# %%
# A wave with a trend, and noise of 0.25.

import matplotlib.pyplot as plt
import numpy as np

from dkrr import KernelRidge

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-3, 3, 40))
y = np.sin(2 * x) + 0.3 * x + 0.25 * rng.standard_normal(40)
grid = np.linspace(-3.3, 3.3, 400)

# %%
# In the middle, λ and γ are about right. Top: λ is too small, and the curve follows the
# noise. Bottom: λ is too large, and the curve is flat. γ grows from left to right.

figure, panels = plt.subplots(
    3, 3, figsize=(9, 7), sharex=True, sharey=True, layout="constrained"
)
for line, alpha in zip(panels, (1e-4, 0.1, 10), strict=True):
    for axes, gamma in zip(line, (0.05, 1, 20), strict=True):
        model = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma).fit(x[:, None], y)
        axes.plot(x, y, ".", color="grey", markersize=4)
        axes.plot(grid, np.sin(2 * grid) + 0.3 * grid, color="tab:orange", linewidth=1)
        axes.plot(grid, model.predict(grid[:, None]), color="tab:blue")
        axes.set(title=f"λ = {alpha:g}, γ = {gamma:g}", ylim=(-2.5, 2.5))
