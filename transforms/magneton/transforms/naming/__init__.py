"""What names say: kernels and their classes, launch calls, Python frames."""
