"""
What a fit will cost
====================

Plans for growing problems, without any data.

``dkrr.plan`` needs sizes only. It chooses the solver and where it runs, and predicts
time, memory and disk on this machine. Both axes are logarithmic: a factorisation, with
n³ / 3 operations, is a steep line, and conjugate gradient a flatter one.
"""

# %%
# Every number of rows is planned twice: for a factorisation, and with dkrr's own choice.

import matplotlib.pyplot as plt
import numpy as np

import dkrr

sizes = [2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000]
problem = {"n_features": 30, "kernel": "rbf", "memory_limit": "4GiB", "workers": 2}
direct = [dkrr.plan(n_samples=n, solver="cholesky", **problem) for n in sizes[:6]]
chosen = [dkrr.plan(n_samples=n, **problem) for n in sizes]

# %%
# A plan is a value: print it, or take its numbers.

for n, plan in zip(sizes, chosen, strict=True):
    print(f"{n:>7,} rows: {plan.chosen.summary()}")

# %%
# The dashed line is the memory of one whole kernel matrix.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for plans, name, style in (
    (direct, "Cholesky", "o-"),
    (chosen, "chosen by dkrr", "s-"),
):
    n = sizes[: len(plans)]
    left.loglog(n, [plan.chosen.seconds for plan in plans], style, label=name)
    right.loglog(n, [plan.chosen.peak_bytes / 2**30 for plan in plans], style, label=name)
right.loglog(sizes, 8 * np.square(sizes, dtype=float) / 2**30, "k--", label="K")
left.set(xlabel="rows", ylabel="seconds", title="time")
right.set(xlabel="rows", ylabel="GiB in one process", title="memory", ylim=(0.03, 3000))
left.legend()
right.legend()
