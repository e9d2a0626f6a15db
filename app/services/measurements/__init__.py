"""Uploads of measurements: a file of a stranger in, a stored batch out.

parquet_rows   the process of its own that reads Parquet
tables         gzip and zip within limits, nothing written under a name from the upload; CSV, JSON
               lines, Parquet -> rows
rows           one row: its columns, checked
upload         the whole of it, with the features of a measured launch, from its PTX
readers        the same in a process of its own (__main__), which a prediction never waits for
"""
