"""Bytes and seconds as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.errors import InputError
from dkrr.units import format_bytes, format_count, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        (" 500 MB ", 500_000_000),
        ("1.5kB", 1500),
        (".5KiB", 512),
        ("7b", 7),
        ("7B", 7),
        ("2e9", 2_000_000_000),
        ("1e3 MB", 10**9),
        ("3k", 3000),
        ("3m", 3_000_000),
        ("3G", 3 * 10**9),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 2**40),
        ("3MiB", 3 * 2**20),
        (1234567, 1234567),
        (1234567.9, 1234567),
        (np.int64(5 * 10**9), 5 * 10**9),
        (np.float64(1e6), 10**6),
    ],
)
def test_bytes_are_read_as_people_write_them(text, n_bytes):
    assert parse_bytes(text) == n_bytes
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "value",
    ["", "GB", "4 XB", "4GiB!", "-4GB", "four", "4 4", "1,000", "nan", "1e", "4 i b", None, True, [4], 4j, b"4"],
)
def test_what_is_not_a_number_of_bytes_is_named(value):
    with pytest.raises(InputError, match="memory_limit is .*; expected a positive number of bytes: write .* '4GiB'"):
        parse_bytes(value)


@pytest.mark.parametrize("value", [0, -1, 0.5, "0", "0.1 B", float("nan"), float("inf"), 2**63, "1e30 TB"])
def test_bytes_must_be_positive(value):
    with pytest.raises(InputError, match="limit is .*; expected a positive number of bytes"):
        parse_bytes(value, "limit")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (4 * 2**30, "4 GiB"),
        (1.25 * 2**30, "1.25 GiB"),
        (999 * 2**20, "999 MiB"),
        (999.7 * 2**10, "0.976 MiB"),
        (1000 * 2**30, "0.977 TiB"),
        (72 * 2**40, "72 TiB"),
        (5000 * 2**40, "5,000 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_format_bytes(n_bytes, text):
    assert format_bytes(n_bytes) == text


@given(st.integers(1, 900 * 2**40))
def test_what_is_written_is_read(n_bytes):
    text = format_bytes(n_bytes)
    assert "e+" not in text and len(text) <= 9
    assert parse_bytes(text) == pytest.approx(n_bytes, rel=0.0051)


@given(st.integers(10**6, 2**62))
def test_a_number_stays(n_bytes):
    assert abs(parse_bytes(str(n_bytes)) - n_bytes) <= n_bytes * 2**-52
    assert parse_bytes(n_bytes) == pytest.approx(n_bytes, rel=2**-52)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (0.85, "850 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12.5, "12.5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (47.9 * 3600, "47 h 54 min"),
        (48 * 3600, "2 d 0 h"),
        (80 * 3600 + 59, "3 d 8 h"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1_234_567, "1,234,567"),
        (10**15 - 1, "999,999,999,999,999"),
        (10**15, "about 1e15"),
        (576 * 10**105, "about 5.8e107"),
        (998 * 10**400, "about 1e403"),
        (3 * 10**4000, "about 3e4000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_counts_of_any_size(count, text):
    assert format_count(count) == text
