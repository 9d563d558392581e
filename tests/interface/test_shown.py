"""What commands print of a machine, a model and a search, from values that are given."""

import json
from types import SimpleNamespace

import numpy as np

from dkrr.cli.show import machine_text, model_text, search_text, search_values

RATES = {"gemm_flops": 12.5e9, "read_bytes": 0.5e9, "task_seconds": 2e-3, "network_bytes": None}
HAS = {"cluster_is_running": False, "local_threads": 2, "n_workers": 3, "worker_threads": 1}
HAS |= {"worker_limit_bytes": 2**32, "disk_free_bytes": None}
MACHINE = {"fingerprint": {"cpu": "a processor"}, "resources": HAS, "rates": RATES}
MACHINE |= {"measured": None, "profile": None}
MEASURED = {"time": "2026-01-02", "seconds": 9.0, "is_quick": False, "folder": "/data", "other_cores_busy": 1.5}
SOLVE = {"form": "dual", "status": "SOLVED", "residual": 3e-16, "seconds": 92.0, "peak_bytes": 3 * 10**8}
MODEL = {"estimator": "KernelRidge", "format": 1, "kernel": {"kernel": "rbf", "gamma": 0.2}, "n_features": 9}
MODEL |= {"parameters": {"alpha": 0.1}, "stored": {"dual_coef": {}}, "versions": {"dkrr": "0.1.0"}, "solve": None}
OF_TABLE = {"estimator": "KernelLogisticRegression", "n_samples": 1234, "target_names": ["late"], "solve": SOLVE}
OF_TABLE |= {"classes": ["früh", "no\nline"], "transformer": {"n_features_in": 5, "text": "StandardScaler()"}}
OF_TABLE |= {"stored": {"coef": {}}}
CURVE = {
    "train_sizes": np.array([40, 80]),
    "mean_test_score": np.array([-0.5, -0.25]),
    "std_test_score": np.array([0.125, np.nan]),
    "alpha": [0.1, [0.1, 1.0]],
    "conclusion": "from 40 to 80 the score went up",
}


def search(r2, train_sizes=None):
    results = {
        "params": [{"alpha": 0.1, "kernel": "rbf", "gamma": 0.2}, {"alpha": 1.0, "kernel": "linear"}, {"alpha": 10.0}],
        "mean_test_score": np.array([-0.25, -0.5, np.nan]),
        "std_test_score": np.array([0.125, 0.01, np.nan]),
        "iterations": np.array([7, 9, 2]),
        "residual": np.array([1e-5, 2e-6, np.nan]),
        "stopped": np.array([False, False, True]),
    }
    best = {"best_params_": {"alpha": 0.1, "kernel": "rbf"}, "best_score_": -0.25, "best_index_": 0}
    found = {"_r2": lambda scores: r2, "_score_name": "neg_mean_squared_error", "advice_": ("try a smaller alpha",)}
    return SimpleNamespace(cv_results_=results, train_sizes=train_sizes, learning_curve_=CURVE, **best, **found)


def test_what_commands_print_is_in_the_golden_file(golden):
    measured = {"measured": MEASURED, "profile": "profile.json"}
    texts = [machine_text(MACHINE), machine_text(MACHINE | measured), model_text(MODEL, "m.zarr")]
    texts.append(model_text(MODEL | OF_TABLE, "m.zarr"))
    factor = {"alpha": 0.1, "form": "dual"}
    for kept in (
        {"solver": "auto", "factors": [factor]},
        {"solver": "auto", "factors": [factor], "folds": [factor]},
        {"solver": "auto", "factors": []},
        {"solver": {}, "factors": []},
    ):
        texts.append(model_text(MODEL | {"solve": SOLVE, "uncertainty": kept}, "m.zarr"))
    texts.append(model_text(MODEL | {"uncertainty": kept, "kernel": {"kernel": "precomputed"}}, "m.zarr"))
    for one, path in ((search(np.array([0.75, 0.5, np.nan]), [0.5]), "m.zarr"), (search(None), None)):
        values = search_values(one, path)
        texts += [search_text(one, values), json.dumps(values, indent=1)]
    golden("commands.txt", "\n\n".join(texts) + "\n")
