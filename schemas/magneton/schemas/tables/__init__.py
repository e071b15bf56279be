"""Tables of recordings and diffs: their columns, and reading and writing them as Parquet."""
