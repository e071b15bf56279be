"""Replayed CUDA and HIP graphs: which operator each kernel of a replay belongs to."""
