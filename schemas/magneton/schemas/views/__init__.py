"""SQL views over the tables of recordings: their columns, their SQL, their registry."""
