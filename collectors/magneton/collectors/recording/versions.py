"""Versions of the systems that a process has imported."""

from __future__ import annotations

import sys
from importlib import metadata

# Distributions whose version says which program ran, by the module that shows they were used.
_SYSTEMS = {
    "accelerate": "accelerate",
    "diffusers": "diffusers",
    "jax": "jax",
    "megatron.core": "megatron-core",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "sglang": "sglang",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "vllm": "vllm",
}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the known systems this process has imported so far."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for module, distribution in _SYSTEMS.items():
        if module in sys.modules:
            try:
                found[distribution] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                # Of a distribution with another name (tensorflow-cpu), or of none.
                version = getattr(sys.modules[module], "__version__", None)
                if version is not None:
                    found[distribution] = str(version)
    return found
