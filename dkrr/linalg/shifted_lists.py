"""Order statistics of several sorted lists, each shifted by its own number: the quantiles of CV+ intervals.

Of the values p_f + s_f,i, with s_f ascending, the one of rank r is wanted for many shifts p. With q the value of this
rank in the lists without shifts it lies between q + min p and q + max p. A rank is the sum of the ranks in each list,
and that of a value v in list f is the number of s_f,i up to v − p_f, which a table of a few thousand equal buckets near
q has about. From there how many values are taken from each list is corrected one by one, until no value that was taken
exceeds one that was not: so the result is exact, whatever the table says. Rows for which the table is too coarse (many
equal values, shifts far apart) are bisected over values with a binary search in every list: O(k log n) each.

References
----------
G. N. Frederickson, D. B. Johnson, "The complexity of selection and ranking in X + Y and matrices with sorted columns",
J. Comput. Syst. Sci. 24 (1982), for selection from sorted lists by ranks in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

GUESSES = 3
"""Corrections of a value by the density of all lists: the ranks of the last differ by a few."""
BUCKETS_PER_VALUE, MAX_BUCKETS = 4, 2**15
"""Buckets of a table over values of the largest list in them, so that few buckets have several; their largest number
(a table of ten lists is then 1.3 MB, of which most rows take the middle)."""
MAX_CORRECTIONS = 24
"""Corrections one by one after which the rows that are left are bracketed."""
COMPACT_BELOW = 0.6
"""Fraction of the rows at which those that are not done are put together."""
MAX_EXCESS, MIN_BRACKET_FRACTION = 4, 1 / 64
"""Ranks from the wanted one at which bracketing ends, and smallest fraction of a bracket that a step takes off."""


@dataclass(frozen=True)
class ShiftedLists:
    """Sorted lists of non-negative numbers.

    Parameters
    ----------
    lists : sequence of ndarray of shape (n_f,)
        Ascending and finite; at least one has a number.
    """

    lists: Sequence[Array]

    @property
    def n(self) -> int:
        """Numbers of all lists."""
        return sum(map(len, self.lists))

    @cached_property
    def _merged(self) -> Array:
        return np.sort(np.concatenate(self.lists), kind="stable")  # merges runs

    @cached_property
    def _flat(self) -> tuple[Array, Numbers]:
        """All lists, one after another, between −∞ and ∞; where the −∞ of each one is, of shape (k, 1)."""
        ends = np.array([-np.inf]), np.array([np.inf])
        starts = np.cumsum([0, *(len(one) + 2 for one in self.lists[:-1])])
        return np.concatenate([fraction for one in self.lists for fraction in (ends[0], one, ends[1])]), starts[:, None]

    def __getstate__(self) -> dict[str, Sequence[Array]]:
        return {"lists": self.lists}

    def of_rank(self, shifts: Array, rank: int) -> Array:
        """Value of a rank among all p_f + s_f,i, the very sum that a partition of these would have there.

        Parameters
        ----------
        shifts : ndarray of shape (k, m)
            p of m rows, finite.
        rank : int
            From 0 to n − 1.

        Returns
        -------
        ndarray of shape (m,)
        """
        shifts = np.ascontiguousarray(shifts)
        found = np.empty(shifts.shape[1])
        left = self._settle(found, np.arange(len(found)), shifts, self._near(shifts, rank), rank, MAX_CORRECTIONS)
        if len(left):
            rest = np.ascontiguousarray(shifts[:, left])
            self._settle(found, left, rest, self._bracketed(rest, rank), rank)
        return found

    def _near(self, shifts: Array, rank: int) -> Numbers:
        """Estimate how many of the smallest values each list has below the rank, of shape (k, m)."""
        middle = self._merged[rank]
        low, high = shifts.min(axis=0), shifts.max(axis=0)
        reach = max(float((high - low).max()), float(np.spacing(middle)))
        first, last = middle - reach, middle + reach
        ranges = [one[slice(*np.searchsorted(one, (first, last)))] for one in self.lists]
        most = max(map(len, ranges))
        n_buckets = min(max(BUCKETS_PER_VALUE * most, 1), MAX_BUCKETS, max(shifts.shape[1], 16))
        with np.errstate(over="ignore"):
            per_unit = n_buckets / (last - first)
        if not np.isfinite(per_unit):  # all are equal, near 0
            per_unit = 0.0
        tables = np.empty((len(self.lists), n_buckets + 1), np.int32)
        for table, one, near in zip(tables, self.lists, ranges, strict=True):
            where = np.minimum(((near - first) * per_unit).astype(np.int32), n_buckets - 1)
            table[0] = np.searchsorted(one, first)
            np.cumsum(np.bincount(where, minlength=n_buckets), out=table[1:])
            table[1:] += table[0]
        step = (last - first) / max(sum(map(len, ranges)), 1)  # a value further in all lists, about
        share = np.array([len(one) for one in ranges]) / max(sum(map(len, ranges)), 1)
        value = np.clip(share @ shifts + middle, middle + low, middle + high)
        counts, places = np.empty(shifts.shape, np.int32), np.empty(shifts.shape[1])
        for guess in range(GUESSES):
            for table, shift, count in zip(tables, shifts, counts, strict=True):
                np.subtract(value, shift, out=places)
                places -= first
                places *= per_unit
                np.clip(places, 0, n_buckets, out=places)  # far from 0 rounding may leave the range
                np.take(table, places.astype(np.int32), out=count, mode="clip")
            if guess < GUESSES - 1:
                value += (rank + 1 - counts.sum(axis=0)) * step
                np.clip(value, middle + low, middle + high, out=value)
        return counts.astype(np.intp)

    def _bracketed(self, shifts: Array, rank: int) -> Numbers:
        """Numbers of values for any shifts: between two values whose ranks are near each other, or that are neighbours.

        The next value is where the rank would be if it grew evenly between the two, and every third time the middle, so
        that the number of steps is bounded. Rows whose rank is a few away from that of one of the values are done.
        """
        middle, wanted = self._merged[rank], rank + 1
        low = np.nextafter(middle + shifts.min(axis=0), -np.inf)
        high = np.nextafter(middle + shifts.max(axis=0), np.inf)
        below, above = self._ranks(shifts, low), self._ranks(shifts, high)
        found, where, n_steps = np.empty_like(below), np.arange(len(low)), 0
        while len(where):
            n_below, n_above = below.sum(axis=0), above.sum(axis=0)
            fraction = (wanted - n_below) / np.maximum(n_above - n_below, 1) if n_steps % 3 < 2 else 0.5
            value = low + np.clip(fraction, MIN_BRACKET_FRACTION, 1 - MIN_BRACKET_FRACTION) * (high - low)
            is_near = np.minimum(wanted - n_below, n_above - wanted) <= MAX_EXCESS
            is_done = is_near | ~((low < value) & (value < high))
            # Sums between two neighbours are equal: any of them are taken.
            width = (above - below)[:, is_done]
            missing = (wanted - n_below)[is_done] - (np.cumsum(width, axis=0) - width)
            found[:, where[is_done]] = below[:, is_done] + np.clip(missing, 0, width)
            rest = np.flatnonzero(~is_done)
            where, low, high, value = where[rest], low[rest], high[rest], value[rest]
            shifts, below, above = shifts[:, rest], below[:, rest], above[:, rest]
            ranks = self._ranks(shifts, value)
            is_above = ranks.sum(axis=0) >= wanted
            high, low = np.where(is_above, value, high), np.where(is_above, low, value)
            above, below = np.where(is_above, ranks, above), np.where(is_above, below, ranks)
            n_steps += 1
        return found

    def _ranks(self, shifts: Array, values: Array) -> Numbers:
        """Number of sums of each list that are rounded to at most a value, of shape (k, m)."""
        half = 0.5 * np.spacing(np.abs(values))
        ranks = [np.searchsorted(one, (values - p) + half, "right") for one, p in zip(self.lists, shifts, strict=True)]
        return np.stack(ranks)

    def _settle(
        self, found: Array, where: Numbers, shifts: Array, counts: Numbers, rank: int, most: int | None = None
    ) -> Numbers:
        """Correct what is taken from each list until it is the smallest, and write the largest of it to `found`.

        Parameters
        ----------
        found : ndarray
        where : ndarray of shape (m,)
            Places of the rows in it.
        shifts, counts : ndarray of shape (k, m)
        most : int, optional
            Corrections at most.

        Returns
        -------
        ndarray
            Places of the rows that are left.
        """
        flat, starts = self._flat
        places, excess, n_done = counts + starts, counts.sum(axis=0) - (rank + 1), 0
        taken, left = flat.take(places), flat.take(places + 1)
        taken += shifts
        left += shifts
        numbers = np.arange(len(where))
        while True:
            of_largest, of_smallest = taken.argmax(axis=0), left.argmin(axis=0)
            largest, smallest = taken[of_largest, numbers], left[of_smallest, numbers]
            found[where] = largest  # of rows that are not done it is written again
            rest = np.flatnonzero((excess != 0) | (largest > smallest))
            if not len(rest) or n_done == most:
                return where[rest]
            if len(rest) < COMPACT_BELOW * len(where):
                where, excess, of_largest, of_smallest = (x[rest] for x in (where, excess, of_largest, of_smallest))
                taken, left, shifts, places = taken[:, rest], left[:, rest], shifts[:, rest], places[:, rest]
                numbers = rest = np.arange(len(rest))
            # Both where the number is right: the largest that is taken for the smallest that is not.
            less, more = rest[excess[rest] >= 0], rest[excess[rest] <= 0]
            for rows, lists, step in ((less, of_largest[less], -1), (more, of_smallest[more], 1)):
                place, shift = places[lists, rows] + step, shifts[lists, rows]
                places[lists, rows] = place
                taken[lists, rows] = flat[place] + shift
                left[lists, rows] = flat[place + 1] + shift
                excess[rows] += step
            n_done += 1
