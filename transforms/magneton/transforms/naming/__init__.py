"""Reading names: kernels and their classes, launch calls, Python frames."""
