"""Precision in effect: whether the arithmetic is float32 throughout or something lowered it."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence

from ..machine.accelerators import ACCELERATORS, device_of

LOWERING_VARIABLES = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("", "0"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
    "HIPBLASLT_ALLOW_TF32": ("", "0"),
    "TF_SET_ONEDNN_FPMATH_MODE": ("", "STRICT"),
}
"""Variable → values that leave float32 as it is (documentation of oneDNN, PyTorch, NVIDIA).

With the last one, torch's switches for TF32 apply to AMD's MI300 series; other GPUs of AMD have
none.
"""


def prepare(torch: Any, stated: str) -> None:
    """Turn off the only reduced-precision mode that torch uses by default.

    It is TF32 in cuDNN's convolutions, and is turned off if ``stated`` is "float32". Everything
    else is left as found, so that ``problems`` can detect what lowered the precision.
    """
    if stated == "float32":
        torch.backends.cudnn.allow_tf32 = False


def observe(
    torch: Any, accelerator: str, environ: Mapping[str, str] = os.environ
) -> Dict[str, Any]:
    """Return the report's ``precision``: the settings that are now in effect."""
    return {
        "dtype": str(torch.get_default_dtype()).replace("torch.", ""),
        "matmul": _matmul(torch, accelerator),
        "autocast": _autocast(torch, device_of(accelerator)),
        "cuda_tf32": bool(
            ACCELERATORS[accelerator].tf32
            and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
        ),
        "environment": lowering(environ),
    }


def lowering(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return those environment variables in ``environ`` that can lower the precision."""
    return {name: environ[name] for name in LOWERING_VARIABLES if name in environ}


def _autocast(torch: Any, place: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(place))
    except TypeError:  # before torch 2.4, only CUDA's and the CPU's could be asked for
        old = torch.is_autocast_cpu_enabled if place == "cpu" else torch.is_autocast_enabled
        return bool(old())


def _matmul(torch: Any, accelerator: str) -> str:
    """Return the precision of float32 matmuls: "highest", "high" (TF32) or "medium" (bfloat16)."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        # torch 2.13 raises this once the newer setting of a single backend has been used.
        library = torch.backends.mkldnn if accelerator == "cpu" else torch.backends.cuda
        return {"tf32": "high", "bf16": "medium"}.get(library.matmul.fp32_precision, "highest")


def effective(observed: Mapping[str, Any]) -> str:
    """Return the precision that the observed settings amount to, such as "float32" or "tf32"."""
    modes = observed["environment"]
    for name, harmless in LOWERING_VARIABLES.items():
        mode = str(modes.get(name, "")).upper()
        if mode not in harmless:
            return {"BF16": "bfloat16", "F16": "float16", "1": "tf32"}.get(mode, mode.lower())
    if observed["autocast"]:
        return "autocast"
    if observed["dtype"] != "float32":
        return str(observed["dtype"])
    if observed["cuda_tf32"] or observed["matmul"] == "high":
        return "tf32"
    return "bfloat16" if observed["matmul"] == "medium" else "float32"


def problems(
    stated: str, before: Mapping[str, Any], after: Mapping[str, Any], tensors: Sequence[str]
) -> List[str]:
    """Return a sentence for each difference from the requested precision, ``stated``.

    ``before`` and ``after`` are the settings observed before and after the training. ``tensors``
    are the dtypes that parameters, gradients and activations really had.
    """
    sentences = []
    for when, observed in (("before", before), ("after", after)):
        actual = effective(observed)
        if actual != stated:
            sentences.append(f"{stated} is stated, but {actual} is in effect {when} training")
    # TF32 is a way to compute on float32 tensors, not a dtype of its own.
    dtype = "float32" if stated == "tf32" else stated
    others = sorted(set(tensors) - {dtype})
    if others:
        sentences.append(f"{stated} is stated, but tensors of {', '.join(others)} took part")
    return sentences
