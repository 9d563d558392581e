"""Bytes, seconds and counts as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.checks import parse_bytes
from dkrr.errors import InputError
from dkrr.text import format_bytes, format_count, format_seconds

UNITS = {f"{p}B": 1000**k for k, p in enumerate(["", *"kMGT"])} | {f"{p}iB": 1024**k for k, p in enumerate("KMGT", 1)}
UNITS |= {unit[0]: factor for unit, factor in UNITS.items() if unit[1:] == "B"}


@given(st.decimals(1, 9999, places=2), st.sampled_from(sorted(UNITS)))
def test_bytes_are_read_with_any_unit(number, unit):
    for text in (f"{number}{unit}", f" {number} {unit.lower()} ", f"{number}{unit.upper()}"):
        found = parse_bytes(text)
        assert type(found) is int and found == pytest.approx(float(number) * UNITS[unit], abs=1, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [
        (".5KiB", 512),
        ("2e9", 2 * 10**9),
        ("1e3 MB", 10**9),
        (1234567, 1234567),
        (1234567.9, 1234567),
        (np.int64(5 * 10**9), 5 * 10**9),
        (np.float64(1e6), 10**6),
    ],
)
def test_numbers_are_bytes(value, n_bytes):
    assert parse_bytes(value) == n_bytes and type(parse_bytes(value)) is int


NOT_BYTES = ["", "GB", "4 XB", "4GiB!", "-4GB", "four", "4 4", "1,000", "nan", "1e", "4 i b", "0", "0.1 B", "1e30 TB"]


@pytest.mark.parametrize("value", [*NOT_BYTES, None, True, [4], b"4", 0, 0.5, float("nan"), float("inf"), 2**63])
def test_what_is_not_a_positive_number_of_bytes_is_named(value):
    with pytest.raises(InputError, match="memory_limit is .*; expected a positive number of bytes: write .* '4GiB'"):
        parse_bytes(value)


@given(st.integers(1, 900 * 2**40))
def test_bytes_that_are_written_are_read(n_bytes):
    text = format_bytes(n_bytes)
    assert "e+" not in text and len(text) <= 9
    assert parse_bytes(text) == pytest.approx(n_bytes, rel=0.0051)


@given(st.integers(10**6, 2**62))
def test_a_number_stays(n_bytes):
    assert abs(parse_bytes(str(n_bytes)) - n_bytes) <= n_bytes * 2**-52
    assert parse_bytes(n_bytes) == pytest.approx(n_bytes, rel=2**-52)


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (format_bytes, 0, "0 B"),
        (format_bytes, 999, "999 B"),
        (format_bytes, 1000, "0.977 KiB"),
        (format_bytes, 1.25 * 2**30, "1.25 GiB"),
        (format_bytes, 999.7 * 2**10, "0.976 MiB"),
        (format_bytes, 1000 * 2**30, "0.977 TiB"),
        (format_bytes, 5000 * 2**40, "5,000 TiB"),
        (format_bytes, -2048, "-2 KiB"),
        (format_seconds, 0, "0 ms"),
        (format_seconds, 0.9994, "999 ms"),
        (format_seconds, 0.9996, "1.0 s"),
        (format_seconds, 59.94, "59.9 s"),
        (format_seconds, 59.96, "1 min 00 s"),
        (format_seconds, 3599.4, "59 min 59 s"),
        (format_seconds, 3599.6, "1 h 00 min"),
        (format_seconds, 47.9 * 3600, "47 h 54 min"),
        (format_seconds, 48 * 3600, "2 d 0 h"),
        (format_seconds, 80 * 3600 + 59, "3 d 8 h"),
        (format_count, 1_234_567, "1,234,567"),
        (format_count, 10**15 - 1, "999,999,999,999,999"),
        (format_count, 10**15, "about 1e15"),
        (format_count, 998 * 10**400, "about 1e403"),
    ],
)
def test_bytes_seconds_and_counts_are_written_as_people_write_them(form, value, text):
    assert form(value) == text
