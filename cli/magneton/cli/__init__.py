"""The command line: one command per file, over ``magneton.flows``."""
