"""Settings in force: of torch and its backends, of the environment, of packages, of models. Secrets are left out."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from magneton.collectors.raw.rows import keep_rows
from magneton.collectors.scrub import Scrubber

FILE = "knobs.parquet"
# Environment variables that frameworks and their libraries read, by how their names begin.
PREFIXES = (
    "ACCELERATE_",
    "ATEN_",
    "BLIS_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DEEPSPEED_",
    "DIFFUSERS_",
    "DNNL_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "GLOO_",
    "GOMP_",
    "HF_",
    "HIP_",
    "HSA_",
    "JAX_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MEGATRON_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "NUMEXPR_",
    "NVIDIA_",
    "NVTE_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "ORT_",
    "PYTORCH_",
    "RCCL_",
    "ROCM_",
    "ROCR_",
    "SGLANG_",
    "TF_",
    "TORCH",
    "TPU_",
    "TRANSFORMERS_",
    "TRITON_",
    "VLLM_",
    "XFORMERS_",
    "XLA_",
)
# A name with one of these words is left out, whatever it begins with.
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|SIGNATURE|PROXY", re.IGNORECASE)
# So is a value that carries a user and a password.
_LOGIN = re.compile(r"://[^/\s]*@")
# Paths below these directories name the installed system and no person.
_SYSTEM = ("/usr/", "/opt/")
_MATMUL = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_tf32",
    "fp32_precision",
)
_PREFERENCES = ("preferred_blas_library", "preferred_linalg_library", "preferred_rocm_fa_library")
_PLAIN = (bool, int, float, str, type(None))


def write_knobs(path: Path, models: Iterable[Any], keys: Mapping[str, Any]) -> None:
    """Keep the settings in force now for a raw file; see ``knobs``."""
    keep_rows(path, "knobs", knobs(models), {"run_id": None} | dict(keys))


def knobs(models: Iterable[Any] = ()) -> dict[str, list[str | None]]:
    """Return the settings in force now as columns of the table ``knobs``, sorted by source and name.

    Args:
        models: modules whose configuration is recorded.
    """
    found: dict[tuple[str, str], str | None] = {}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= {("torch", name): value for name, value in torch_knobs(torch).items()}
    found |= {("environment", name): value for name, value in environment_knobs(os.environ).items()}
    found |= {("package", name): value for name, value in package_knobs().items()}
    for model in models:
        found |= {("model", name): value for name, value in model_knobs(model).items()}
    ordered = sorted(found)
    return {
        "name": [name for _, name in ordered],
        "value": [found[key] for key in ordered],
        "source": [source for source, _ in ordered],
    }


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    return str(value)


def torch_knobs(torch: Any) -> dict[str, str | None]:
    """Return settings of torch: every value below ``torch.backends``, and the general ones."""
    found: dict[str, Any] = {}
    for name in sorted(n for n in sys.modules if n == "torch.backends" or n.startswith("torch.backends.")):
        found |= _of_backend(name, sys.modules[name])
    questions = {
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision,
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
        "torch.is_deterministic_algorithms_warn_only_enabled": torch.is_deterministic_algorithms_warn_only_enabled,
        "torch.get_num_threads": torch.get_num_threads,
        "torch.get_num_interop_threads": torch.get_num_interop_threads,
        "torch.get_default_dtype": torch.get_default_dtype,
        "torch.is_grad_enabled": torch.is_grad_enabled,
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled,
        "torch.utils.deterministic.fill_uninitialized_memory": lambda: (
            torch.utils.deterministic.fill_uninitialized_memory
        ),
    }
    for device in ("cpu", "cuda"):
        questions[f"torch.is_autocast_enabled({device})"] = lambda d=device: torch.is_autocast_enabled(d)
        questions[f"torch.get_autocast_dtype({device})"] = lambda d=device: torch.get_autocast_dtype(d)
    for name, ask in questions.items():
        found |= _answer(name, ask)
    return {name: _text(value) for name, value in found.items()}


def _answer(name: str, ask: Any) -> dict[str, Any]:
    """Return one setting; nothing where this build of torch cannot tell."""
    try:
        value = ask()
    except (RuntimeError, AttributeError, AssertionError, TypeError, NotImplementedError):
        return {}
    return {name: value}


def _of_backend(name: str, module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in sorted(set(dir(type(module))) | set(vars(module))):
        full = f"{name}.{attribute}"
        if attribute.startswith("_") or attribute.isupper() or attribute == "TYPE_CHECKING":
            continue
        got = _answer(full, lambda a=attribute: getattr(module, a))
        if full not in got:
            continue
        value = got[full]
        if isinstance(value, _PLAIN):
            found[full] = value
        elif full == "torch.backends.cuda.matmul":
            for part in _MATMUL:
                found |= _answer(f"{full}.{part}", lambda p=part, v=value: getattr(v, p))
        elif type(value).__name__ == "_FP32Precision":
            found |= _answer(f"{full}.fp32_precision", lambda v=value: v.fp32_precision)
        elif isinstance(value, (list, tuple)) and all(isinstance(v, _PLAIN) for v in value):
            found[full] = list(value)
        elif full.startswith("torch.backends.cuda.") and (attribute.endswith("_enabled") or attribute in _PREFERENCES):
            found |= _answer(full, value)
    return found


def environment_knobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables frameworks read, without secrets and without places on this machine."""
    scrubber = Scrubber()
    return {
        name: scrubber.text(value)
        for name, value in environment.items()
        if name.startswith(PREFIXES)
        and not _SECRET.search(name)
        and not _LOGIN.search(value)
        and (not value.startswith(("/", "~")) or value.startswith(_SYSTEM))
    }


def package_knobs() -> dict[str, str]:
    """Return the versions of the distributions that were imported from."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    imported = {name.partition(".")[0] for name in sys.modules}
    for module, distributions in metadata.packages_distributions().items():
        if module in imported:
            for name in distributions:
                try:
                    found[name] = metadata.version(name)
                except metadata.PackageNotFoundError:
                    continue
    return found


def model_knobs(model: Any) -> dict[str, str | None]:
    """Return the configuration of a model: its class, mode, size, and ``config.to_dict()`` of it and of its parts."""
    scrubber = Scrubber()
    name = type(model).__name__
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    found: dict[str, str | None] = {
        f"{name}.training": _text(getattr(model, "training", None)),
        f"{name}.parameters": str(sum(p.numel() for p in parameters)),
        f"{name}.dtypes": ",".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})) or None,
    }
    seen: set[int] = set()
    for part in model.modules() if hasattr(model, "modules") else [model]:
        config = getattr(part, "config", None)
        if config is None or id(config) in seen or not callable(getattr(config, "to_dict", None)):
            continue
        seen.add(id(config))
        owner = f"{type(part).__name__}.config"
        for key, value in config.to_dict().items():
            if not _SECRET.search(str(key)) or isinstance(value, (bool, int)):
                text = _text(value)
                found[f"{owner}.{key}"] = None if text is None else scrubber.text(text)
        implementation = getattr(config, "_attn_implementation", None)
        if isinstance(implementation, str):
            found[f"{owner}.attn_implementation"] = implementation
    return found
