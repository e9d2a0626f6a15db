"""Names in the frequency-scaling files: GPU ids, and kernels that are variants of one program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

GPU_IDS: Mapping[str, str] = MappingProxyType(
    {
        "gtx_titan_x": "gtx-titan-x",
        "titan_xp": "titan-xp",
        "tesla_k40c": "tesla-k40c",
        "titan_v": "titan-v",
        "amd_rx580x": "radeon-rx-580x",
        "gtx_980": "gtx-980",
        "gtx_1080_ti": "gtx-1080-ti",
        "rtx_2070_super": "rtx-2070-super",
        "titan_x_pascal": "titan-x-pascal",
        "tesla_p100": "tesla-p100",
        "tesla_v100": "tesla-v100",
        "quadro_rtx_8000": "quadro-rtx-8000",
    }
)
"""Name of a GPU in the files -> GPU id."""

_PROGRAMS: tuple[tuple[str, str], ...] = (
    # Matrix products of Polybench, and the one the toolkit ships, which uses shared memory.
    (r"(2mm|3mm|gemm)", "mm"),
    (r"matrixmul.*", "matrixmul"),
    (r"(syrk|syr2k).*", "syrk"),
    (r"srad.*", "srad"),
    # Rodinia's backprop trains a neural network; the DCGM campaigns call it nn.
    (r"(backprop.*|nnforward|nnbackward)", "backprop"),
    (r"fastwalsh.*", "fastwalsh"),
    (r"scan.*", "scan"),
    (r"sort(ing)?networks.*", "sortingnetworks"),
    (r"kmeans.*", "kmeans"),
    (r"particlefilter.*", "particlefilter"),
    (r"hotspot.*", "hotspot"),
    (r"histo.*", "histogram"),
    (r"black-?scholes.*", "blackscholes"),
    (r"convolution(texture|separable|rows|columns).*", "convolution"),
    (r"(2|3)d-?conv.*", "conv"),
    (r"fdtd.*", "fdtd"),
    (r"(atax|bicg|mvt|gesummv).*", "matvec"),
    (r"(corr|covar)(elation|iance)?.*", "covariance"),
    (r"s3d.*", "s3d"),
    (r"fft.*", "fft"),
    (r"stencil.*", "stencil"),
    (r"reduc.*", "reduction"),
    (r"transpose.*", "transpose"),
    (r"mergesort.*", "mergesort"),
    (r"quasirandom.*", "quasirandom"),
    (r"cachebench.*", "cachebench"),
    (r"mixbench.*", "mixbench"),
)
"""Pattern of a whole name, lower case -> canonical name of the program."""


def kernel_group(benchmark: str) -> str:
    """Canonical name that all variants of a program share; grouped folds never split it.

    A name nobody listed is a group of its own: its lower-case form without a version at its end
    (``_v2``, ``_2``, ``_double``).
    """
    name = benchmark.strip().lower()
    for pattern, program in _PROGRAMS:
        if re.fullmatch(pattern, name):
            return program
    return re.sub(r"(_v\d+|_\d+|_double|_float|_naive)+$", "", name) or name
