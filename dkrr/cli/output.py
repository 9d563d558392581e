"""What the commands print and write."""

import json
from typing import Any

import numpy as np

from dkrr.tiles.arrays import chunk_rows, create_array
from dkrr.units import format_bytes, format_seconds


def fit_report(model: Any, path: str, *, as_json: bool) -> str:
    """Plan and result of a fit."""
    result = model.solve_result_
    facts = {
        "model": path,
        "status": result.status.name,
        "residual": result.residual,
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
