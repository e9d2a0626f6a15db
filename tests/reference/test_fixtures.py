"""Fixture kernels and their launches: complete, and within what every GPU allows."""

from __future__ import annotations

from tests.fixtures.kernels.data import SOURCES, buffer_sizes, materialise, ptx_path
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
