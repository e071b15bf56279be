"""JSON documents that Magneton writes, as structs: diffs, repeats, measurements, outputs of commands."""
