"""The GGUF reader against files written by the ``gguf`` package, whole and broken."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from vertumnusd.gguf_file import GGUFError, GGUFFile, GGUFTensor

MATRIX = np.arange(6 * 64, dtype=np.float32).reshape(6, 64) / 100 - 1.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_float32("a.ratio", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "Pomona – 🍎")
    writer.add_array("a.words", ["x", "", "yz"])
    writer.add_array("a.numbers", [3, -4])
    writer.add_tensor("plain", MATRIX)
    writer.add_tensor("vector", MATRIX[0])
    writer.add_tensor("half", MATRIX.astype(np.float16))
    packed = gguf.quantize(MATRIX, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    stack = packed.reshape(2, 3, -1)
    writer.add_tensor("stack", stack, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_of_every_kind(path: Path) -> None:
    values = GGUFFile(path).metadata
    assert values["general.architecture"] == "llama"
    assert (values["a.count"], values["a.ratio"], values["a.flag"]) == (7, 0.5, True)
    assert values["a.text"] == "Pomona – 🍎"
    assert (values["a.words"], values["a.numbers"]) == (["x", "", "yz"], [3, -4])


def test_rows_of_a_tensor_in_any_type(path: Path) -> None:
    file = GGUFFile(path)
    assert file.tensors["plain"].shape == (6, 64)
    np.testing.assert_array_equal(file.rows("plain", 2, 5), MATRIX[2:5])
    np.testing.assert_array_equal(file.rows("vector", 0, 64), MATRIX[0])
    np.testing.assert_allclose(file.rows("half", 0, 6), MATRIX, rtol=1e-3)
    np.testing.assert_allclose(file.rows("packed", 4, 6), MATRIX[4:6], atol=0.01)


def test_rows_of_a_stack_of_matrices_are_counted_through(path: Path) -> None:
    file = GGUFFile(path)
    assert file.tensors["stack"].shape == (2, 3, 64)
    np.testing.assert_array_equal(file.rows("stack", 1, 5), file.rows("packed", 1, 5))


def test_rows_may_be_written_to(path: Path) -> None:
    rows = GGUFFile(path).rows("plain", 0, 1)
    rows[0, 0] = 9


def test_a_file_cut_at_any_place_in_its_header_says_so(path: Path, tmp_path: Path) -> None:
    whole, cut = path.read_bytes(), tmp_path / "cut.gguf"
    header = GGUFFile(path).tensors["plain"].offset
    for size in range(4, header - 32, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match="ends inside its header"):
            GGUFFile(cut)


def test_a_file_cut_in_a_tensor_says_so(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[: GGUFFile(path).tensors["plain"].offset + 100])
    with pytest.raises(GGUFError, match="ends inside tensor plain"):
        GGUFFile(cut).rows("plain", 0, 6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 something else", "not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00", "version 1"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "ends inside its header"),
        (
            b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + b"k\x63"
            + bytes(11),
            "unsupported type 99",
        ),
    ],
)  # fmt: skip
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=reason):
        GGUFFile(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="No such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_a_tensor_that_cannot_be_dequantised_is_named_with_what_can(
    path: Path, tmp_path: Path
) -> None:
    file = GGUFFile(path)
    file.check_types()
    for number, name in ((26, "I32"), (4, "4")):
        file.tensors["plain"] = GGUFTensor((6, 64), number, 0)
        with pytest.raises(GGUFError, match=f"tensor plain has the type {name}; .*F16, Q4_0"):
            file.check_types()
