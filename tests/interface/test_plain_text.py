"""Text for people: characters that act on terminals, secrets in URLs, and bytes, seconds and counts."""

import json
import logging
import pickle
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.checks import location, parse_bytes, shown
from dkrr.cluster.progress import LineFormatter
from dkrr.errors import DamagedChunkError, InputError, NotFiniteError, StoreError
from dkrr.text import escape, format_bytes, format_count, format_seconds, one_line, printable, safe_message

ANY = st.text(st.characters(codec=None))


@given(ANY)
def test_only_shown_characters_are_left(text):
    found = printable(text)
    assert not {unicodedata.category(c) for c in found if c != "\n"} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert printable(found) == found and "\n" not in one_line(text)
    found.encode()


@given(st.recursive(ANY | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)))
def test_json_keeps_its_value(value):
    assert json.loads(printable(json.dumps(value))) == value


def test_letters_signs_and_spaces_of_all_kinds_are_kept():
    assert printable("λ = 0.5 ± 10 %\n  ΦᵀΦ — naïve\u00a0名") == "λ = 0.5 ± 10 %\n  ΦᵀΦ — naïve\u00a0名"
    assert printable("a\x1b[31m\r\b\x9b\u202e\u2066\u200f\u2028\ud800") == (
        r"a\u001b[31m\u000d\u0008\u009b\u202e\u2066\u200f\u2028\ud800"
    )


@given(ANY)
def test_errors_values_logs_and_pages_are_printable_lines(text):
    found = StoreError(f"the model {text} is damaged")
    assert str(found).isprintable() or any(unicodedata.category(c) == "Zs" for c in text)
    again = pickle.loads(pickle.dumps(DamagedChunkError(text, "a", "b")))
    assert str(again) == str(DamagedChunkError(text, "a", "b"))
    assert "\n" not in str(NotFiniteError(text, 3))
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelno": logging.WARNING, "levelname": "WARNING"})
    for line in (shown(text), str(found), LineFormatter().format(record)):
        assert "\n" not in line and printable(line) == line
    assert printable(escape(text)) == escape(text)


SECRET = "S3CR3T"
PROTOCOLS = ["http", "HTTPS", "ftp", "S3", "s3a", "gs", "gcs", "az", "abfs", "github", "hdfs", "zip://a.npy::https"]
PROTOCOLS += ["simplecache::https", "filecache::S3"]
PLACES = [
    f"user:{SECRET}@host/x.zarr",
    f"{SECRET}@host/x.zarr",
    f"user:{SECRET}/5@host:80/x",
    f"user:a::{SECRET}@host",
    f"user:1 {SECRET}@host/x",
    f"host/x.zarr?token={SECRET}",
    f"host/x.zarr?a=1&X-Amz-Signature={SECRET}",
    f"host/x.zarr?%74oken={SECRET}",
    f"host/x?sig={SECRET}#a",
]


@pytest.mark.parametrize(
    "url", [*(f"{name}://{PLACES[0]}" for name in PROTOCOLS), *(f"s3://{place}" for place in PLACES)]
)
def test_urls_with_secrets_are_refused_without_them(url):
    with pytest.raises(InputError, match="with a name, a password or a query.*in the environment") as caught:
        location(url, "X")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["memory://a/x@y.zarr", "memory://x?download=1", "file:///a:b/c@d", "file:///x?a=b"])
def test_urls_without_secrets_are_taken(url):
    assert location(url, "X") == url


@given(
    st.text("ab:/?#=&@ '\n.", max_size=30),
    st.sampled_from([place for place in PLACES if " " not in place]),
    st.text("ab:/?#=&@.", max_size=30),
)
def test_messages_hide_the_secrets_of_urls(before, place, after):
    """Errors of libraries repeat URLs, also those that a server has redirected to."""
    url = f"https://{place}"
    assert SECRET not in str(StoreError(f"{before} cannot read {url}: {after}"))
    assert SECRET not in shown({url: after}) and SECRET not in safe_message(f"{before}'{url}'{after}")


def test_places_are_left_of_urls_in_messages():
    text = "cannot read https://u:p@host/x?y=1 (see s3://bucket/key); GET https://host:80/x is fine"
    expected = "cannot read https://***@host/x?... (see s3://bucket/key); GET https://host:80/x is fine"
    assert safe_message(text) == expected


# Bytes, seconds and counts as people write them


UNITS = {f"{p}B": 1000**k for k, p in enumerate(["", *"kMGT"])} | {f"{p}iB": 1024**k for k, p in enumerate("KMGT", 1)}
UNITS |= {unit[0]: factor for unit, factor in UNITS.items() if unit[1:] == "B"}


@given(st.decimals(1, 9999, places=2), st.sampled_from(sorted(UNITS)))
def test_bytes_are_read_with_any_unit(number, unit):
    for text in (f"{number}{unit}", f" {number} {unit.lower()} ", f"{number}{unit.upper()}"):
        found = parse_bytes(text)
        assert type(found) is int and found == pytest.approx(float(number) * UNITS[unit], abs=1, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [(".5KiB", 512), ("1e3 MB", 10**9), (1234567.9, 1234567), (np.int64(5 * 10**9), 5 * 10**9)],
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


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (format_bytes, 0, "0 B"),
        (format_bytes, 1000, "0.977 KiB"),
        (format_bytes, 999.7 * 2**10, "0.976 MiB"),
        (format_bytes, 5000 * 2**40, "5,000 TiB"),
        (format_seconds, 0, "0 ms"),
        (format_seconds, 0.9996, "1.0 s"),
        (format_seconds, 59.96, "1 min 00 s"),
        (format_seconds, 3599.4, "59 min 59 s"),
        (format_seconds, 3599.6, "1 h 00 min"),
        (format_seconds, 47.9 * 3600, "47 h 54 min"),
        (format_seconds, 48 * 3600, "2 d 0 h"),
        (format_count, 10**15 - 1, "999,999,999,999,999"),
        (format_count, 10**15, "about 1e15"),
        (format_count, 998 * 10**400, "about 1e403"),
    ],
)
def test_bytes_seconds_and_counts_are_written_as_people_write_them(form, value, text):
    assert form(value) == text
