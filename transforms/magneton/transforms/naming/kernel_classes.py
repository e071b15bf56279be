"""The kind of work of a device activity, from its name: one table for NVIDIA, AMD, Triton and the libraries.

The first rule whose pattern is found in the name decides; patterns ignore case. Mangled names work as well, since the
words survive mangling. Classes:

=============== =======================================================================================================
gemm            matrix products (cuBLAS, cuBLASLt ``nvjet``, CUTLASS, Tensile ``Cijk_``, CK, Triton templates, split-K)
attention       fused attention, prefill and decode
convolution     convolutions and their gradients, Winograd and implicit-GEMM transforms
normalization   batch, layer, group and RMS norm
softmax         softmax, log-softmax, cross entropy
elementwise     pointwise arithmetic, activations, rotary embedding, casts fused with arithmetic, quantisation
reduction       sums, means, maxima, scans
copy            copies, casts, transposes, concatenation, gather and scatter on the device by kernels
collective      NCCL, RCCL, one-shot and multimem reductions, NVSHMEM
embedding       table look-ups and their gradients
moe             routing and permutation of mixtures of experts, fused expert kernels
optimizer       parameter updates
sort            sorting, top-k, unique
rng             random numbers, dropout
memcpy, memset  transfers and fills outside kernels (by category, or kernels the runtime uses for them)
other           anything else
=============== =======================================================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache

from magneton.schemas.kinds import Activity

_RULES: tuple[tuple[str, str], ...] = (
    # Kernels the ROCm runtime launches in place of a copy engine.
    ("memcpy", r"__amd_rocclr_copy|^memcpy|^copybuffer"),
    ("memset", r"__amd_rocclr_fill|^memset|^fillbuffer"),
    (
        "collective",
        r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|one_?shot|two_?shot"
        r"|cross_device_reduce|nvshmem|deep_?ep|mscclpp|symm_mem|send_?recv",
    ),
    # Data movement and casts whose names mention what they serve.
    ("copy", r"reshape_and_cache|kv_?cache_?(?:copy|store)|store_?kv|kv_indices|subtensoropwith"),
    ("elementwise", r"quantize_with|quantize_kernel"),
    # Inductor names its kernels after everything fused into them: the prefix says what kind of kernel it is.
    ("attention", r"^triton_tem_.*(?:attention|sdpa|flex)"),
    ("gemm", r"^triton_(?:tem|mm|bmm)"),
    ("normalization", r"^triton_(?:red|per)_.*(?:norm|rsqrt|var_mean)"),
    ("softmax", r"^triton_(?:red|per)_.*(?:softmax|amax.*exp|log_sum_exp|nll_loss)"),
    ("reduction", r"^triton_(?:red|per|split_scan)_"),
    (
        "copy",
        r"^triton_poi_fused_(?:_?(?:cat|clone|copy|to_copy|permute|view|t|transpose|split|slice|unsafe_view)_*)+\d*$",
    ),
    ("elementwise", r"^triton_(?:poi|for)_"),
    (
        "optimizer",
        r"adam|fused_?sgd|sgd_?functor|lamb_?functor|multi_tensor_apply.*(?:sgd|lamb|adagrad)|fusedoptimizer",
    ),
    ("embedding", r"(?<!rotary_)embedding|indexselect|index_select|bounds_check_indices|linearize_index"),
    (
        "attention",
        r"attn|attention|fmha|flash|_mha_|mha_(?:fwd|bwd|batch)|sdpa|paged_?kv|batch(?:prefill|decode)|sage_(?:fwd|attn)|_mla_|flashmla",
    ),
    ("moe", r"moe|expert|topk_?gating|grouped_topk|token_permut|_routing_|bitmatrix"),
    (
        "normalization",
        r"norm(?!al)|rms_?n|::bn_|(?<![a-z])bn_(?:fw|bw)|bnfwd|bnbwd|miopenbatch|welford|cuComputeGradGammaBeta|grad_?gamma_?beta|GammaBeta",
    ),
    ("softmax", r"soft_?max|cross_?entropy|nll_?loss"),
    ("rng", r"philox|distribution_|curand|hiprand|dropout|bernoulli|random"),
    (
        "convolution",
        r"fprop|dgrad|wgrad|winograd|implicit_?(?:convolve_)?gemm|im2d?2?col|col2im|cask_cudnn|miopensp3|igemm_|conv(?!ert)(?!_?state)|scudnn"
        r"|fft2d|gcgemm|bwd_?weight|bwd_?data|miopengcn",
    ),
    (
        "gemm",
        r"gemm|cijk_|mat_?mul|cutlass::kernel|cutlass_\d|nvjet|xmma|gemv|(?:^|[^a-z])[bs]?mm_|splitk_?reduce|cublas|wmma|dot_kernel"
        r"|marlin|machete|tensorop_|device_kernel<.*cutlass|wvsplitk|_mm_kernel|reduce_1block|linear_kernel",
    ),
    ("sort", r"sort|radix|top_?k|bitonic|unique|searchsorted|histogram"),
    (
        "copy",
        r"direct_copy|catarray|cat_|_cat|transpose|permute|nchwtonhwc|nhwctonchw|copy(?!able)|gather|scatter|index_(?:put|elementwise|copy)"
        r"|indexing|slice|pad_|unfold|cvt|cast_kernel|repeat_interleave|roll_|flip_",
    ),
    ("reduction", r"reduce|reduction|cumsum|scan|argmax|argmin|segment_|sum_kernel|norm2|mean_kernel"),
    (
        "elementwise",
        r"elementwise|pointwise|functor|vectorized|unrolled|act_and_mul|gelu|silu|relu|rotary|rope|quant|swiglu|fill|arange"
        r"|threshold|sigmoid|tanh|where|masked|triu|tril|add_|mul_|pool|upsample|interpolate|foreach|multi_tensor|linspace",
    ),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _RULES)

CLASSES = tuple(sorted({name for name, _ in _RULES} | {"other"}))


@lru_cache(maxsize=100_000)
def kernel_class(name: str, category: str = Activity.KERNEL) -> str:
    """Return the class of a device activity.

    Args:
        name: as the recording system wrote it.
        category: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``.
    """
    if category == Activity.MEMCPY:
        return "memcpy"
    if category == Activity.MEMSET:
        return "memset"
    return next((label for label, pattern in _COMPILED if pattern.search(name)), "other")
