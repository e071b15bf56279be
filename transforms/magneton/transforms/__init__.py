"""Recording to normalised Parquet tables. Imports no machine-learning framework."""
