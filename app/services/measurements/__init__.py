"""Uploads of measurements: a file of a stranger in, a stored batch out.

unpack         gzip and zip, within limits; nothing is ever written under a name from the upload
parquet_rows   the process of its own that reads Parquet
tables         CSV, JSON lines, Parquet -> rows
rows           one row: its columns, checked
extraction     features of a measured launch, from its PTX
upload         the whole of it
readers        the same in a process of its own (__main__), which a prediction never waits for
"""
