"""Tables with named columns, read in blocks of rows by libraries that are imported where needed."""

from dkrr.tables.base import Table
from dkrr.tables.opening import (
    as_table,
    in_memory,
    is_pandas_like,
    is_table_path,
    open_table,
    opened,
    table_at,
    with_columns,
)
from dkrr.tables.source import Column, Source

__all__ = [
    "Column",
    "Source",
    "Table",
    "as_table",
    "in_memory",
    "is_pandas_like",
    "is_table_path",
    "open_table",
    "opened",
    "table_at",
    "with_columns",
]
