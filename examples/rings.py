"""
Two noisy rings
===============

Kernel logistic regression gives probabilities, and no straight line divides these two classes.

Ten points in a hundred have the wrong label. The regularisation strength λ (``alpha``) is chosen by cross-validation: a
small one would follow every wrong label, a large one would see no rings.
"""

# %%
# Two rings with radii 1 and 2, and labels of which one in ten is wrong.

import matplotlib.pyplot as plt
import numpy as np

from dkrr import KernelLogisticRegressionCV

rng = np.random.default_rng(0)
n = 300
radius = np.repeat([1.0, 2.0], n // 2) + 0.2 * rng.standard_normal(n)
angle = rng.uniform(0, 2 * np.pi, n)
X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
y = np.repeat(["inner", "outer"], n // 2)
wrong = rng.random(n) < 0.1
y[wrong] = np.where(y[wrong] == "inner", "outer", "inner")

# %%
# All values of λ are compared by the same five folds.

search = KernelLogisticRegressionCV(alphas=[0.01, 0.1, 1, 10], kernel="rbf", gamma=1.0, cv=5).fit(X, y)
print(search.best_params_, "log loss", round(-search.best_score_, 3))

# %%
# Far from all points the probability returns to one half: the model says that it does not know.

axis = np.linspace(-3.5, 3.5, 120)
grid = np.stack(np.meshgrid(axis, axis), axis=-1)
probability = search.predict_proba(grid.reshape(-1, 2))[:, 0].reshape(grid.shape[:2])

figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
filled = axes.contourf(axis, axis, probability, levels=np.linspace(0, 1, 11), cmap="RdBu", alpha=0.8)
axes.contour(axis, axis, probability, levels=[0.5], colors="k")
for label, colour in (("inner", "tab:blue"), ("outer", "tab:red")):
    axes.scatter(*X[y == label].T, s=12, color=colour, edgecolor="white", linewidth=0.4, label=label)
axes.set_aspect("equal")
axes.legend(loc="upper right")
figure.colorbar(filled, label="probability of the inner ring")
