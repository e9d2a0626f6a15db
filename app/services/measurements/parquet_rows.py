"""Parquet on stdin, JSON lines on stdout: a script, run as a process with limits of its own.

A few kilobytes of Parquet can unpack to gigabytes within one call of the library, and a broken
file can crash it. Here that ends this process, and neither the service nor its memory.

    python parquet_rows.py <rows>
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROWS_AT_ONCE = 256
_MOST_COLUMNS = 1000


def main(most_rows: int) -> str | None:
    """Copy the rows; the answer is what is wrong with the file, if anything is."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pydantic_core import to_json

    out = sys.stdout.buffer
    try:
        with Path("/dev/stdin").open("rb") as file:
            table = pq.ParquetFile(file, pre_buffer=False)
            names = table.schema_arrow.names
            if len(names) > _MOST_COLUMNS:
                return f"it has {len(names)} columns; at most {_MOST_COLUMNS} are taken"
            if len(set(names)) < len(names):
                return "two of its columns have the same name"
            # One row more than is taken: that there are too many is told from the rows.
            left = most_rows + 1
            for batch in table.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                for row in batch.slice(0, left).to_pylist():
                    out.write(to_json(row, inf_nan_mode="constants", fallback=str) + b"\n")
                left -= batch.num_rows
                if left <= 0:
                    break
        out.flush()
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        lines = str(error).splitlines()
        return (lines[0] if lines else type(error).__name__)[:300]
    return None


if __name__ == "__main__":
    problem = main(int(sys.argv[1]))
    if problem is not None:
        sys.stderr.write(problem)
        sys.stderr.flush()
        sys.exit(3)
