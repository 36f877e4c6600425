"""Pictures read by bands of rows: the same values, less memory, and a limit."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from infsa_deploy.errors import ModelError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures import limit as picture_limit
from infsa_deploy.runtime.pictures import preprocess as images
from infsa_deploy.runtime.pictures import rows as picture_rows
from infsa_deploy.runtime.pictures.preprocess import crop_box, picture_shape, prepare, preprocess, read_image
from infsa_deploy.runtime.pictures.rows import open_rows

SPEC = ImageSpec(3, 24, 16, (0.5, 0.25, 0.0), (0.5, 0.25, 2.0), 0.9)
COLOUR, SIDES = (3,), (61, 83)


@pytest.fixture
def small_bands(monkeypatch):
    """Bands of a few rows, and TIFF files of any size in parts."""
    monkeypatch.setattr(images, "BAND_PIXELS", 5 * SIDES[1])
    monkeypatch.setattr(picture_rows, "WINDOWS_FROM", 1)


def _picture(rng, kind: str) -> np.ndarray:
    shape = SIDES if "grey" in kind else SIDES + COLOUR
    if "float" in kind:
        return rng.random(shape, dtype=np.float32)
    wide = "16" in kind
    return rng.integers(0, 65536 if wide else 256, shape, dtype=np.uint16 if wide else np.uint8)


@pytest.mark.parametrize(
    "spec", [SPEC, ImageSpec(1, *SIDES, (0.5,), (0.5,)), ImageSpec(3, *SIDES, (0.1,) * 3, (2.0,) * 3)]
)
@pytest.mark.parametrize("kind", ["png", "palette", "transparent", "turned", "npy float", "npy 16"])
def test_bands_give_the_values_of_the_whole(rng, tmp_path, monkeypatch, kind, spec):
    path = tmp_path / f"a.{'npy' if 'npy' in kind else 'png'}"
    values = _picture(rng, kind)
    if "npy" in kind:
        np.save(path, values)
    else:
        exif = Image.Exif()
        exif[picture_rows.ORIENTATION_TAG] = 6 if kind == "turned" else 1
        image = Image.fromarray(values)
        image.putalpha(Image.fromarray(values[..., 0])) if kind == "transparent" else None
        (image.quantize(64) if kind == "palette" else image).save(path, exif=exif)
    whole = preprocess(read_image(path), spec)
    monkeypatch.setattr(images, "BAND_PIXELS", 7 * SIDES[1])
    np.testing.assert_array_equal(prepare(path, spec), whole)


def test_bands_are_resampled_as_pillow_resamples_the_whole(rng, small_bands):
    pixels = rng.random((*SIDES, 3), dtype=np.float32)
    box = crop_box(*SIDES, SPEC)
    for channel, (mean, std) in enumerate(zip(SPEC.mean, SPEC.std, strict=True)):
        plane = Image.fromarray(np.ascontiguousarray(pixels[..., channel]))
        whole = np.asarray(plane.resize((16, 24), Image.Resampling.BICUBIC, box)).clip(0, 1)
        expected = (whole - np.float32(mean)) / np.float32(std)
        np.testing.assert_array_equal(preprocess(pixels, SPEC)[0, channel], expected)


@pytest.mark.parametrize("kind", ["colour", "grey", "grey 16", "grey float"])
@pytest.mark.parametrize(
    "layout",
    [{"tile": (16, 32)}, {"tile": (16, 32), "bigtiff": True, "compression": "zlib"}, {"rowsperstrip": 7}, {}],
    ids=["tiles", "BigTIFF, deflate", "strips", "one strip"],
)
def test_tiff_in_parts(rng, tmp_path, small_bands, monkeypatch, kind, layout):
    tifffile = pytest.importorskip("tifffile", reason="needs tifffile: pip install 'infsa-deploy[tiff]'")
    values, path = _picture(rng, kind), tmp_path / "a.tiff"
    tifffile.imwrite(path, values, photometric="rgb" if values.ndim == 3 else "minisblack", **layout)
    for file in (path, path.read_bytes()):
        with open_rows(file) as source:
            assert source.shape == values.shape
            assert type(source).__name__ == "ArrayRows"
            np.testing.assert_array_equal(source.rows(20, 37), read_image(values)[20:37])
        np.testing.assert_array_equal(prepare(file, SPEC), preprocess(read_image(values), SPEC))
    monkeypatch.setattr(picture_rows, "WINDOWS_FROM", 1 << 22)
    np.testing.assert_array_equal(read_image(path), read_image(values))


def test_what_a_picture_may_have_follows_from_the_free_memory(rng, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(_picture(rng, "colour")).save(path)
    monkeypatch.setattr(picture_limit, "ALWAYS_BYTES", 0)
    pixels = SIDES[0] * SIDES[1]
    monkeypatch.setattr(picture_limit, "available_bytes", lambda: 2 * 4 * pixels)
    assert read_image(path).shape == (*SIDES, 3)
    monkeypatch.setattr(picture_limit, "available_bytes", lambda: 2 * 4 * pixels - 1)
    for read in (read_image, picture_shape, lambda file: read_image(file.read_bytes(), str(path))):
        with pytest.raises(
            ModelError, match=rf"a\.png is too large to decode: 83 x 61 is {pixels:,} pixels"
        ) as refused:
            read(path)
        assert "--max-pixels" in refused.value.fix
    assert read_image(path, max_pixels=pixels).shape == (*SIDES, 3)
    with pytest.raises(ModelError, match=f"{pixels:,} pixels"):
        picture_shape(path, max_pixels=pixels - 1)


def test_pillows_own_limit_neither_warns_nor_refuses(rng, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(_picture(rng, "colour")).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepare(path, SPEC).shape == (1, 3, 24, 16)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_formats_that_start_other_programs_are_no_images(tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    with pytest.raises(ModelError, match="is no image"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", ["gif", "tiff", "png"])
def test_an_animation_is_its_first_frame_and_says_so(tmp_path, suffix):
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (51, 102, 204)]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / f"b.{suffix}")
    told: list[str] = []
    for name in ("a", "b"):
        prepare(tmp_path / f"{name}.{suffix}", SPEC, note=told.append)
    assert told == [f"{tmp_path}/a.{suffix} has 3 frames or pages: the first is used."]
    assert read_image(tmp_path / f"a.{suffix}").mean() == pytest.approx(51 / 255, abs=0.01)


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        read_image(tmp_path)


MARGIN = 32 << 20  # bands, tiles, and what libraries set up on their first call
PEAK = """
import re, sys
from pathlib import Path
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import prepare
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
side = int(sys.argv[2])
spec = ImageSpec(3, side, side, (0.5,) * 3, (0.5,) * 3)
prepare(Path(sys.argv[3]), ImageSpec(3, 64, 64, (0.5,) * 3, (0.5,) * 3))
before = peak()
prepare(Path(sys.argv[1]), spec)
print(peak() - before)
"""


def _peak(*arguments: object) -> int:
    """Bytes that the peak of a process rises by while it prepares a picture, measured in a process of its own."""
    typed = [sys.executable, "-c", PEAK, *map(str, arguments)]
    return int(subprocess.run(typed, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("suffix", "own", "decoded"), [("png", True, 1), ("png", False, 1), ("tiff", True, 0)], ids=["own", "224", "TIFF"]
)
def test_peak_memory(tmp_path, suffix, own, decoded):
    """A large picture costs the model's input and what its decoder holds, and nothing as large beside them.

    `decoded` is how many pictures of 4 bytes a pixel the decoder holds. One that is not of its own size is held once
    more, made narrow.
    """
    side = 3072
    values = np.tile(np.arange(251, dtype=np.uint8), side * side * 3 // 251 + 1)[: side * side * 3].reshape(
        side, side, 3
    )
    path, small = tmp_path / f"a.{suffix}", tmp_path / "b.png"
    if suffix == "tiff":
        tifffile = pytest.importorskip("tifffile", reason="needs tifffile: pip install 'infsa-deploy[tiff]'")
        tifffile.imwrite(path, values, tile=(256, 256), bigtiff=True, photometric="rgb")
    else:
        Image.fromarray(values).save(path, compress_level=1)
    Image.fromarray(values[:64, :64]).save(small)
    asked = side if own else 224
    result, narrow = asked * asked * 3 * 4, 0 if own else side * asked * 3 * 4
    assert _peak(path, asked, small) <= result + narrow + decoded * side * side * 4 + MARGIN
