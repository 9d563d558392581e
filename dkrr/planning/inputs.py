"""Price of what every strategy reads: X, the targets, and the rows of Φ."""

from dkrr.cost import Stage
from dkrr.features import IdentityMap
from dkrr.linalg.normal import TARGET_PASSES, row_block
from dkrr.linalg.normal_product import SECONDS_PER_STREAMED_ENTRY
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Place, Rates, Resources, cold_fraction


def sharing_stages(p: Problem, place: Place, rates: Rates) -> tuple[Stage, Stage, Stage]:
    """What precedes the work: workers start, X is checked, and copied unless they can read it."""
    staged = 0 if place.is_memory or p.x_is_shared else p.stored_bytes
    return (
        Stage("starting workers", place.start_seconds),
        Stage("checking X", 0.0, 0 if place.is_memory else checked_bytes(p)),
        Stage("copying X", 2 * staged / rates.write_bytes, 0.0, staged, staged),
    )


def symmetry_stages(p: Problem) -> tuple[Stage, ...]:
    """Comparing a precomputed matrix with its mirror image, which takes next to no time."""
    return (Stage("checking symmetry", 0.0),) if p.kernel.is_precomputed else ()


def unpriced_stages(p: Problem) -> tuple[Stage, ...]:
    """Passes over the rows that take next to no time beside those which form the normal matrix."""
    means = (Stage("feature means", 0.0),) if p.fit_intercept else ()
    return (*means, Stage("training errors", 0.0))


def checked_bytes(p: Problem) -> int:
    """Bytes that the check for NaN reads before the work, where X is in a store."""
    return 0 if p.x_in_memory else p.stored_bytes


def is_held(p: Problem, place: Place) -> bool:
    """Whether X is in the memory of the process that works."""
    return p.x_in_memory and place.is_memory


def cache_bytes(resources: Resources, place: Place, peak_bytes: float) -> float:
    """Memory that is left for the system's cache of files while work is done in a place."""
    return resources.cache_bytes(place.n_workers, peak_bytes, on_workers=place.execution == "dask")


def rates_of_rows(p: Problem, resources: Resources, place: Place, peak_bytes: float) -> Rates:
    """Rates with which X is read where it is stored, which may be larger than the system's cache of files."""
    cold = cold_fraction(p.stored_bytes, cache_bytes(resources, place, peak_bytes))
    # Else X is copied to the run's store, and read from there.
    is_where_it_was = p.x_is_shared or place.is_memory
    return (resources.rates_of_rows if is_where_it_was else resources.rates).reading(cold)


def reading_seconds(p: Problem, resources: Resources, place: Place, peak_bytes: float) -> float:
    """Time to read one byte of X, where all slots read."""
    return 1.0 / rates_of_rows(p, resources, place, peak_bytes).read_bytes / place.slots


def mapped_target_stage(p: Problem, resources: Resources, place: Place, peak_bytes: float) -> Stage:
    """Passes over targets in a mapped file, and over the dual coefficients in another."""
    if not p.y_is_mapped:
        return Stage("targets", 0.0)
    rates = resources.rates_of_disk.reading(cold_fraction(2 * p.y_bytes, cache_bytes(resources, place, peak_bytes)))
    read = float(TARGET_PASSES * p.y_bytes)
    return Stage("targets", read / rates.read_bytes + p.y_bytes / rates.write_bytes, read, p.y_bytes, p.y_bytes)


def rows_at_once(p: Problem, n_columns: int) -> int:
    """Rows of Φ in memory at once, for tasks that use so many of its columns."""
    return row_block(p.n, p.bytes_of_row, p.n_targets, n_columns)


def feature_bytes(p: Problem) -> int:
    """Arrays of the feature map and temporaries of its calls."""
    return 0 if p.feature_map is None else p.feature_map.held_bytes(p.d)


def feature_seconds(p: Problem) -> float:
    """Elementwise work of the feature map for one entry of Φ."""
    return 0.0 if p.feature_map is None else p.feature_map.entry_seconds(p.d)


def streamed_entries(p: Problem, dimension: int) -> float:
    """Entries of Φ that a pass over the rows uses."""
    return p.n * (p.bytes_of_row / 12 if p.streams_sparse else float(dimension))


def stream_seconds(p: Problem, entries: float, m: int) -> float:
    """Time of one slot to form so many entries of Φ, and of both of their products with m vectors."""
    features = 0.0 if isinstance(p.feature_map, IdentityMap) else feature_seconds(p)
    return entries * (SECONDS_PER_STREAMED_ENTRY * m + features)
