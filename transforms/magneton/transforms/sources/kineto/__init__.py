"""Chrome traces of torch.profiler (kineto)."""
