"""Reading every kind of picture, and turning it into what a model takes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from infsa_deploy.errors import ModelError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import picture_shape, preprocess, read_image

ORIENTATION_TAG, ROTATE_90 = 0x0112, 6  # stored turned left: to be turned clockwise by 90 degrees
HALF_BIT = 0.5 / 255


@pytest.fixture
def gradient() -> np.ndarray:
    """A colour image [6, 9, 3] uint8, different in every corner and channel."""
    rows, columns = np.mgrid[0:6, 0:9]
    return np.stack([rows * 40, columns * 25, (rows + columns) * 15], axis=2).astype(np.uint8)


def spec(height: int, width: int, channels: int = 3, crop: float = 1.0) -> ImageSpec:
    return ImageSpec(channels, height, width, (0.0,) * channels, (1.0,) * channels, crop)


@pytest.mark.parametrize("suffix", ["png", "tiff", "bmp"])
def test_colour_is_exact_in_lossless_formats(gradient, tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(gradient).save(path)
    np.testing.assert_array_equal(read_image(path), gradient.astype(np.float32) / np.float32(255))


def test_jpeg_is_close(gradient, tmp_path):
    large = np.kron(gradient, np.ones((8, 8, 1), np.uint8))
    Image.fromarray(large).save(tmp_path / "image.jpg", quality=98, subsampling=0)
    assert np.abs(read_image(tmp_path / "image.jpg") - large / 255).mean() < 0.02


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey(gradient, tmp_path, mode):
    image = Image.fromarray(gradient[:, :, 0]).convert(mode)
    image.save(tmp_path / "image.png")
    expected = np.asarray(image.convert("L"), np.float32)[:, :, None] / 255
    np.testing.assert_allclose(read_image(tmp_path / "image.png"), expected, atol=1e-7)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_keeps_its_depth(tmp_path, suffix):
    values = np.array([[0, 1, 255], [256, 30_000, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"image.{suffix}")
    found = read_image(tmp_path / f"image.{suffix}")
    np.testing.assert_array_equal(found[:, :, 0], values.astype(np.float32) / np.float32(65535))


def test_cmyk(gradient, tmp_path):
    Image.fromarray(gradient).convert("CMYK").save(tmp_path / "image.tiff")
    np.testing.assert_allclose(read_image(tmp_path / "image.tiff"), gradient / 255, atol=2 * HALF_BIT)


def test_palette(gradient, tmp_path):
    image = Image.fromarray(gradient).quantize(54)
    image.save(tmp_path / "image.png")
    expected = np.asarray(image.convert("RGB"), np.float32) / 255
    np.testing.assert_allclose(read_image(tmp_path / "image.png"), expected, atol=1e-7)


def test_transparency_is_laid_on_white(gradient, tmp_path):
    alpha = np.full(gradient.shape[:2], 255, np.uint8)
    alpha[0], alpha[1] = 0, 128
    Image.fromarray(np.dstack([gradient, alpha])).save(tmp_path / "image.png")
    found = read_image(tmp_path / "image.png")
    np.testing.assert_array_equal(found[0], 1.0)
    np.testing.assert_allclose(found[1], gradient[1] / 255 * 128 / 255 + 127 / 255, atol=2 * HALF_BIT)
    np.testing.assert_allclose(found[2:], gradient[2:] / 255, atol=1e-7)


def test_exif_rotation_is_applied(gradient, tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = ROTATE_90
    Image.fromarray(gradient).save(tmp_path / "image.png", exif=exif)
    np.testing.assert_allclose(read_image(tmp_path / "image.png"), np.rot90(gradient, -1) / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("array", "scale"),
    [
        (np.arange(12, dtype=np.uint8).reshape(3, 4), 255),
        (np.arange(12, dtype=np.uint16).reshape(3, 4, 1), 65535),
        (np.linspace(0, 1, 36).reshape(3, 4, 3), 1),
    ],
)
def test_numpy_files(array, scale, tmp_path):
    np.save(tmp_path / "image.npy", array)
    found = read_image(tmp_path / "image.npy")
    np.testing.assert_allclose(found.reshape(array.shape), array / scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("image.png", b"", "is empty"),
        ("image.png", b"this is a text file", "is no image"),
        ("image.npy", b"neither is this", "no NumPy array"),
        ("image.npy", b"\x93NUMPY\x01\x00\x0a\x00{'descr': (", "no NumPy array"),
        ("image.npy", b"PK\x03\x04 an archive, cut off", "no NumPy array"),
    ],
)
def test_files_that_are_no_image(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_image(tmp_path / name)


def test_an_archive_of_arrays_is_no_image(tmp_path):
    with (tmp_path / "image.npy").open("wb") as file:
        np.savez(file, a=np.zeros((3, 4)))
    for read in (read_image, picture_shape):
        with pytest.raises(ModelError, match="no NumPy array"):
            read(tmp_path / "image.npy")


def test_whatever_a_decoder_raises_is_a_damaged_image(gradient, tmp_path, monkeypatch):
    path = tmp_path / "image.png"
    Image.fromarray(gradient).save(path)

    def unlucky(image):
        raise RuntimeError("Failed to decode")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", unlucky)
    with pytest.raises(ModelError, match="is a damaged image") as caught:
        read_image(path)
    assert caught.value.why == "Failed to decode"


def test_missing_and_truncated(gradient, tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        read_image(tmp_path / "image.png")
    Image.fromarray(np.kron(gradient, np.ones((20, 20, 1), np.uint8))).save(tmp_path / "image.jpg")
    whole = (tmp_path / "image.jpg").read_bytes()
    (tmp_path / "image.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged"):
        read_image(tmp_path / "image.jpg")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4, 2), np.uint8), "shape"),
        (np.zeros((0, 4), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((3, 4), np.int32), "int32"),
        (np.full((3, 4), 2.0), "outside its range"),
        (np.full((3, 4), np.nan), "outside its range"),
        (np.array([["x"]], dtype=object), "no NumPy array"),
    ],
)
def test_arrays_that_are_no_image(array, message, tmp_path):
    """A model of any size asks for the shape first."""
    np.save(tmp_path / "image.npy", array)
    readers = (read_image, picture_shape) if message != "outside its range" else (read_image,)
    for read in readers:
        with pytest.raises(ModelError, match=message):
            read(tmp_path / "image.npy")


def test_the_right_size_is_left_alone(gradient):
    pixels = gradient.astype(np.float32) / 255
    np.testing.assert_array_equal(preprocess(pixels, spec(6, 9))[0], pixels.transpose(2, 0, 1))


def test_normalisation():
    pixels = np.full((2, 2, 3), 0.5, np.float32)
    model = ImageSpec(3, 2, 2, (0.5, 0.25, 0.0), (1.0, 0.5, 0.25))
    np.testing.assert_allclose(preprocess(pixels, model)[0, :, 0, 0], [0.0, 0.5, 2.0])


def test_one_pixel_becomes_a_flat_image():
    pixels = np.array([[[0.2, 0.4, 0.6]]], np.float32)
    found = preprocess(pixels, spec(16, 24))
    np.testing.assert_allclose(found[0], np.broadcast_to(pixels[0, 0][:, None, None], (3, 16, 24)), rtol=1e-6)


def test_a_long_image_keeps_its_proportions_and_its_centre():
    pixels = np.zeros((10, 100, 1), np.float32)
    pixels[:, 45:55] = 1
    np.testing.assert_array_equal(preprocess(pixels, spec(10, 10, channels=1))[0, 0], np.ones((10, 10)))


def test_crop_fraction_keeps_the_centre():
    pixels = np.zeros((16, 16, 1), np.float32)
    pixels[4:12, 4:12] = 1
    np.testing.assert_array_equal(preprocess(pixels, spec(8, 8, channels=1, crop=0.5))[0, 0], np.ones((8, 8)))


def test_grey_and_colour_become_what_the_model_takes(gradient):
    pixels = gradient.astype(np.float32) / 255
    grey = preprocess(pixels, spec(6, 9, channels=1))
    expected = np.asarray(Image.fromarray(gradient).convert("L"), np.float32) / 255
    np.testing.assert_allclose(grey[0, 0], expected, atol=2 * HALF_BIT)
    np.testing.assert_array_equal(preprocess(pixels[:, :, :1], spec(6, 9)), np.repeat(pixels[None, ..., 0][None], 3, 1))


def test_the_same_picture_in_every_form(gradient, tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = ROTATE_90
    path = tmp_path / "image.png"
    Image.fromarray(gradient).save(path, exif=exif)
    forms = (path, str(path), path.read_bytes(), Image.open(path), np.rot90(gradient, -1))
    for form in forms:
        np.testing.assert_array_equal(read_image(form), np.rot90(gradient, -1).astype(np.float32) / np.float32(255))
        assert tuple(picture_shape(form)[:2]) == (9, 6)


def test_errors_call_a_picture_that_is_no_file_by_its_name():
    for picture, message in ((b"text", "image 3 is no image"), (np.zeros((2, 2), int), "image 3 holds int64")):
        with pytest.raises(ModelError, match=message):
            read_image(picture, "image 3")


def test_colours_are_not_made_into_other_channels():
    spec = ImageSpec(4, 8, 8, (0.5,) * 4, (0.5,) * 4)
    assert preprocess(np.zeros((8, 8, 1), np.float32), spec).shape == (1, 4, 8, 8)
    with pytest.raises(ModelError, match="has 3 channels") as caught:
        preprocess(np.zeros((8, 8, 3), np.float32), spec)
    assert caught.value.why == "the model takes 4."
