"""Alignment of two recordings by structure: operator tree, module path, shapes, order, kernel class."""
