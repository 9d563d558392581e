"""What the commands print and write."""

import json
from typing import Any

import numpy as np

from dkrr.errors import InputError
from dkrr.tiles.arrays import chunk_rows, create_array
from dkrr.units import format_bytes, format_seconds


def fit_report(model: Any, path: str, *, as_json: bool) -> str:
    """Plan and result of a fit."""
    result = model.solve_result_
    facts = {
        "model": path,
        "status": result.status.name,
        "residual": result.residual,
        "iterations": result.iterations,
        "rank": result.rank,
        "messages": list(result.messages),
        "seconds": result.seconds,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "peak_bytes": result.peak_bytes,
        "plan": model.plan_.to_dict(),
    }
    if as_json:
        return json.dumps(facts)
    return "\n".join(
        [
            str(model.plan_),
            f"status      {result.status.name}: {result.status.value}",
            f"residual    {result.residual:.1e} (true, relative)",
            *(
                [f"iterations  {result.iterations}, preconditioner of rank {result.rank:,}"]
                if result.iterations
                else []
            ),
            *(f"note        {message}" for message in result.messages),
            f"time        {format_seconds(result.seconds)}",
            f"memory      {format_bytes(result.peak_bytes)} at most in a process",
            f"disk        {format_bytes(result.bytes_written)} written, {format_bytes(result.bytes_read)} read",
            f"model       {path}",
        ]
    )


def info_report(description: dict[str, Any], path: str, *, as_json: bool) -> str:
    """Description of a saved model."""
    if as_json:
        return json.dumps(description)
    solve = description["solve"] or {}
    lines = [
        f"{path}: {description['estimator']}, dkrr model of format {description['format']}",
        f"  kernel      {json.dumps(description['kernel'])}",
        f"  columns     {description['n_features']}",
        f"  parameters  {json.dumps(description['parameters'])}",
        f"  predicts    in {'primal' if 'coef' in description['arrays'] else 'dual'} form",
        f"  versions    {json.dumps(description['versions'])}",
    ]
    if solve:
        lines.append(
            f"  fit         {solve['form']}, {solve['status']}, residual {solve['residual']:.1e}, "
            f"{format_seconds(solve['seconds'])}, {format_bytes(solve['peak_bytes'])} at most in a process"
        )
    return "\n".join(lines)


LINES = 20
"""Of a convergence history on the terminal."""


def convergence_report(solve: dict[str, Any], *, as_json: bool) -> str:
    """Convergence history of a fit: [iteration, seconds, residual, whether it is the true one]."""
    if as_json:
        return json.dumps(solve["history"])
    history = solve["history"]
    step = max(1, len(history) // LINES)
    shown = [line for k, line in enumerate(history) if k % step == 0 or line[3] or k == len(history) - 1]
    lines = ["iteration       time  relative residual"]
    lines += [
        f"{iteration:>9,} {format_seconds(seconds):>10}  {residual:.2e}{'  true' if is_true else ''}"
        for iteration, seconds, residual, is_true in shown
    ]
    return "\n".join([*lines, f"{solve['status']}: asked for {solve['tol']:.1e}, rank {solve['rank']:,}"])


def draw_convergence(solve: dict[str, Any], path: str) -> None:
    """Draw a convergence history.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--out needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    history = solve["history"]
    axes.semilogy([h[0] for h in history], [h[2] for h in history], color="#1763a6", label="by the recurrence")
    true = [h for h in history if h[3]]
    axes.semilogy([h[0] for h in true], [h[2] for h in true], "o", color="#e8963a", label="true, in float64")
    axes.axhline(solve["tol"], color="#8a94a0", linestyle="--", linewidth=1)
    axes.annotate("asked for", (0, solve["tol"]), xytext=(2, 3), textcoords="offset points", color="#52606d")
    axes.set(xlabel="iteration", ylabel="relative residual", title=f"{solve['status']}, rank {solve['rank']:,}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def write_predictions(predictions: Any, path: str) -> None:
    """Write predictions, an ndarray or a lazy Dask array, to a .npy file or a Zarr array, a block at a time."""
    blocks = _blocks(predictions)
    if path.endswith(".npy"):
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=predictions.shape)
    else:
        out = create_array(path, predictions.shape, np.float64, chunk_rows(predictions.shape, np.float64))
    for start, stop in blocks:
        part = predictions[start:stop]
        out[start:stop] = part.compute() if hasattr(part, "compute") else part
    if path.endswith(".npy"):
        out.flush()


def _blocks(predictions: Any) -> list[tuple[int, int]]:
    n = predictions.shape[0]
    step = max(1, 2**24 // max(1, int(np.prod(predictions.shape[1:])) * 8))
    if hasattr(predictions, "chunks"):
        # Several blocks at once keep all workers busy; all at once might not fit in memory.
        step = max(step, 16 * max(predictions.chunks[0]))
    return [(start, min(start + step, n)) for start in range(0, n, step)]
