"""What a recorder keeps inside a program, which may lack every package of this project, and the Parquet files made from it outside."""
