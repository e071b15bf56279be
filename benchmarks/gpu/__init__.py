"""The stages of ``benchmarks.gpu_check``: what is looked at on a machine with a GPU, each within a time of its own."""
