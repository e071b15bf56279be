"""The frameworks and systems that are recorded from outside, one file each; ``docs/adding-a-system.md`` builds one.

A file of this folder that is named in ``SYSTEMS`` offers:

* ``FRAMEWORK``: the framework whose operators run: ``torch``, ``jax``, ``onnxruntime`` or ``tensorflow``;
* ``MODULES``: names of modules. ``install`` is called with each of them, once, as soon as the program has imported it;
* ``install(module, listener)``: put the hooks in place. ``listener`` is a ``protocol.Listener``;
* ``facts()``: what the system says of its model and its work, as ``protocol.Facts``; called at the end of a capture;
* ``OPERATORS``: notes on operators whose schema does not say what they do, as ``protocol.OperatorNote``.

It imports nothing but the standard library and ``protocol`` before ``install`` is called: the program may lack everything else.
"""

from __future__ import annotations

import importlib
from typing import cast

from magneton.collectors.systems.protocol import System

SYSTEMS = (
    "torch",
    "transformers",
    "diffusers",
    "vllm",
    "sglang",
    "jax",
    "onnxruntime",
    "tensorflow",
)


def systems() -> dict[str, System]:
    """Return the files of all systems, by name."""
    return {name: cast(System, importlib.import_module(f"{__name__}.{name}")) for name in SYSTEMS}
