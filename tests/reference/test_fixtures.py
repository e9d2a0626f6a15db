"""Fixture kernels and their launches: complete, and within what every GPU allows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.kernels.data import SOURCES, FixtureKernel, buffer_sizes, materialise, ptx_path
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.reference.memory import buffer_addresses, place_buffers
from tests.reference.parse import parse


def test_addresses_are_256_byte_aligned_with_a_gap_and_need_no_data() -> None:
    assert list(place_buffers({"a": 4, "b": 256, "c": 257, "d": 1}).values()) == [
        0x7F0000000000, 0x7F0000000200, 0x7F0000000400, 0x7F0000000700,
    ]  # fmt: skip
    for kernel in KERNELS:
        shape = kernel.shapes[0]
        made = buffer_addresses(materialise(kernel.name, shape))
        assert place_buffers(buffer_sizes(shape)) == made


def test_the_committed_ptx_is_what_the_source_list_says() -> None:
    listed = {f"{name}.{target}.ptx" for name, made in SOURCES.items() for target in made}
    folder = ptx_path("copy", "sm_70").parent
    assert {path.name for path in folder.glob("*.ptx")} == listed
    assert {path.stem for path in (folder.parent / "cuda").glob("*.cu")} == set(SOURCES)


def test_every_entry_of_the_ptx_has_launches() -> None:
    launched = {(kernel.source, kernel.entry) for kernel in (*KERNELS, *TENSOR_KERNELS)}
    for source, made in SOURCES.items():
        for target in made:
            program = parse(ptx_path(source, target).read_text())
            entries = {(source, f.name) for f in program.functions.values() if f.is_entry}
            assert entries <= launched


def test_names_are_unique_and_the_shapes_of_a_kernel_differ() -> None:
    everyone = (*KERNELS, *TENSOR_KERNELS)
    assert len({kernel.name for kernel in everyone}) == len(everyone)
    for kernel in everyone:
        launches = {str((shape.grid, shape.block, shape.arguments)) for shape in kernel.shapes}
        assert len(launches) == 3, kernel.name


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_launches_keep_to_what_every_gpu_allows(kernel: FixtureKernel) -> None:
    for shape in (*kernel.shapes, kernel.large):
        x, y, z = (*shape.block, 1, 1)[:3]
        assert x * y * z <= 1024
        assert z <= 64
        assert all(size <= 65535 for size in shape.grid[1:])
        assert shape.dynamic_shared_bytes <= 48 * 1024
    small = [np.prod(shape.grid) * np.prod(shape.block) for shape in kernel.shapes]
    large = np.prod(kernel.large.grid) * np.prod(kernel.large.block)
    assert max(small) <= 2048
    assert large >= 16 * max(small)
