"""Pictures that somebody made to do harm: refused with a reason, without much memory, and without a leak.

The example runs under the address sanitizer, which ends it where a single allocation is above LARGEST or memory leaks.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infsa_deploy.records.engine import TensorProfile
from tests.plugins.embed.conftest import HERE, RECORD, ROOT, command, execute, sanitized

LARGEST = 64  # MiB
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes, length: int | None = None) -> bytes:
    said = len(data) if length is None else length
    return struct.pack(">I", said) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return SIGNATURE + header + b"".join(chunks) + chunk(b"IEND", b"")


def jpeg(folder: Path, height: int, width: int) -> bytes:
    """A picture of 8 x 8 pixels that says it is another size."""
    Image.new("RGB", (8, 8)).save(folder / "small.jpg")
    good = (folder / "small.jpg").read_bytes()
    at = good.index(b"\xff\xc0") + 5
    return good[:at] + struct.pack(">HH", height, width) + good[at + 4 :]


SAMPLES = chunk(b"IDAT", zlib.compress(b"\0" * 100))
PNM = {
    "no samples": (b"P5 4 4 255", "its header is not of"),
    "no samples behind the blank": (b"P5 4 4 255\n", "it ends before its samples do"),
    "one sample too few": (b"P6 2 2 255\n" + b"\0" * 11, "it ends before its samples do"),
    "more than the magic": (b"P5junk 2 2 255\n" + b"\0" * 4, "its header is not of"),
    "no blank behind the magic": (b"P52 2 255\n" + b"\0" * 9, "its header is not of"),
    "a negative size": (b"P5 -2 2 255\n" + b"\0" * 9, "its header is not of"),
    "a size of 0": (b"P5 0 2 255\n" + b"\0" * 9, "its header is not of"),
    "16 bits": (b"P5 2 2 65535\n" + b"\0" * 9, "its header is not of"),
    "2^32 + 2": (b"P5 4294967298 2 255\n" + b"\0" * 9, "its header is not of"),
    "text for a size": (b"P5 a 2 255\n" + b"\0" * 9, "its header is not of"),
    "50000 x 49999": (b"P5 49999 50000 255\n" + b"\0" * 9, "it is 50000 x 49999 pixels, of 268435456 that are read"),
    "999999999 x 999999999": (b"P5 999999999 999999999 255\n\0", "pixels, of 268435456 that are read"),
}
PNG = {
    "a header that promises 1.8 GB": (png(25_000, 25_000, SAMPLES), "pixels, of 268435456 that are read"),
    "a header that promises 700 MB": (png(16_000, 16_000, SAMPLES), "it ends before its samples do"),
    "the largest sizes": (png(2**31 - 1, 2**31 - 1, SAMPLES), ""),
    "a chunk that says 1 GB": (png(1, 1, chunk(b"tEXt", b"a\0b", 2**30), SAMPLES), "it ends before its samples do"),
    "text that unpacks to 1 GB": (
        png(1, 1, chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 2**26)), chunk(b"IDAT", zlib.compress(b"\0" * 4))),
        None,
    ),
    "no end": (png(1, 1, SAMPLES)[:-12], "it ends before its samples do"),
    "its signature alone": (SIGNATURE, "it ends before its samples do"),
    "half its signature": (SIGNATURE[:5], "it ends in its signature"),
    "no samples": (png(1, 1), ""),
    "a wrong checksum": (png(1, 1, SAMPLES[:-1] + b"\xff"), ""),
}


@pytest.fixture
def refused(installed, engine, tmp_path):
    """Classify a file of these bytes; returns the reason for which it is refused, None where it is read."""
    program, path = installed("asan") / "bin" / "infsa_classify", engine()

    def run(content: bytes) -> str | None:
        (tmp_path / "picture").write_bytes(content)
        limits = f"max_allocation_size_mb={LARGEST}"
        result = execute(program, "--tensor", tmp_path / "out", path, tmp_path / "picture", ASAN_OPTIONS=limits)
        if result.returncode == 0:
            return None
        assert result.returncode == 4, result.stderr
        what, why, *_ = result.stderr.splitlines()
        assert what.removeprefix(f"error: {tmp_path / 'picture'} is ") in ("a damaged image.", "too large.")
        return why.removeprefix("  why: ")

    return run


@pytest.mark.parametrize(("content", "reason"), [*PNM.values(), *PNG.values()], ids=[*PNM, *PNG])
def test_pictures_that_are_refused(refused, content, reason):
    why = refused(content)
    assert (why is None) == (reason is None), why
    assert reason is None or reason in why


@pytest.mark.parametrize(
    ("height", "width", "reason"), [(0, 8, ""), (65500, 65500, "pixels, of"), (8000, 8000, "ends")]
)
def test_jpegs_that_are_refused(refused, tmp_path, height, width, reason):
    assert reason in refused(jpeg(tmp_path, height, width))


def test_a_progressive_jpeg_of_many_scans(refused, tmp_path):
    """Each scan takes as long as a picture. Behind the first, one for each coefficient of each colour, all empty."""
    Image.new("RGB", (8, 8), "red").save(tmp_path / "p.jpg", progressive=True)
    good = (tmp_path / "p.jpg").read_bytes()
    begin = good[: good.index(b"\xff\xc4", good.index(b"\xff\xda"))]
    table = (
        b"\xff\xc4" + struct.pack(">H", 20) + b"\x10" + b"\1" + bytes(15) + b"\0"
    )  # one code, for the end of a block
    scans = [
        table + b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, colour, 0, k, k, 0) + b"\x7f"
        for colour in (1, 2, 3)
        for k in range(1, 64)
    ]
    assert refused(begin + b"".join(scans[:60]) + b"\xff\xd9") is None
    assert refused(begin + b"".join(scans) + b"\xff\xd9") == "it has more than 100 scans"


def test_files_too_large_are_not_read(refused, installed, engine, tmp_path):
    """2.5 GB that take no room on the disk."""
    with open(tmp_path / "huge.pgm", "wb") as file:
        file.write(b"P5 49999 50000 255\n")
        file.truncate(19 + 49999 * 50000)
    result = execute(
        installed("asan") / "bin" / "infsa_classify", "--tensor", tmp_path / "out", engine(), tmp_path / "huge.pgm"
    )
    assert (result.returncode, result.stderr.splitlines()[0]) == (4, f"error: {tmp_path / 'huge.pgm'} is too large.")


def test_nothing_leaks_where_memory_ends(installed, stand_ins, tmp_path):
    """Each reader, at each of its allocations in turn, for a good file and a damaged one."""
    colours = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(5, 6, 3)
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("a.png", "a.jpg", "a.ppm"):
        Image.fromarray(colours).save(tmp_path / name, exif=turned)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"cut_{name}").write_bytes(whole[:-30] + whole[-12:])
    example, prefix, program = ROOT / "plugins" / "embed" / "example", installed("asan"), tmp_path / "probe"
    sources = [example / f"{name}.cpp" for name in ("read_image", "orientation", "pnm", "png", "jpeg")]
    flags = sanitized("asan")[0].removeprefix("-DCMAKE_CXX_FLAGS=").split()
    flags += ["-I", prefix / "include", "-I", example, "-DINFSA_PNG", "-DINFSA_JPEG", f"-Wl,-rpath,{prefix / 'lib'}"]
    linked = [prefix / "lib" / "libinfsa_engine.so", "-lpng", "-ljpeg", "-Wl,--allow-shlib-undefined"]
    command("g++", "-std=c++17", *flags, HERE / "native" / "picture_probe.cpp", *sources, "-o", program, *linked)
    result = execute(program, *sorted(tmp_path.glob("*a.*")), on=stand_ins)
    assert result.returncode == 0, result.stderr
    allocations = [int(line) for line in result.stdout.split()]
    assert len(allocations) == 6
    assert min(allocations) >= 2


def test_logits_that_no_class_can_be_told_from(installed, stand_ins, engine, tmp_path):
    """Fewer than classes, none, or not finite."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    program = installed("asan") / "bin" / "infsa_classify"
    for plan, words in (
        ("few-logits", "the engine gives 3 logits."),
        ("no-logits", "the engine gives 0 logits."),
        ("nan-logits", f"the logits of {tmp_path / 'a.png'} are not finite."),
    ):
        result = execute(program, engine(plan), tmp_path / "a.png", on=stand_ins)
        assert (result.returncode, result.stdout) == (4, "")
        assert result.stderr.splitlines()[0] == f"error: {words}"


def test_an_engine_without_an_image_input(installed, stand_ins, engine, tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    path = engine(inputs={"scale": TensorProfile("float32", ())})
    result = execute(installed("asan") / "bin" / "infsa_classify", path, tmp_path / "a.png", on=stand_ins)
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("error: input 'scale' of the engine takes no batch of images.")


def test_a_model_without_classes(installed, stand_ins, engine, tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    scores = {"logits": TensorProfile("float32", (-1, 5, 1))}
    path = engine(outputs=scores, metadata=replace(RECORD.metadata, classes=()))
    result = execute(installed("asan") / "bin" / "infsa_classify", path, tmp_path / "a.png", on=stand_ins)
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("error: the engine's model has no classes.")
