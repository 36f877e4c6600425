"""A picture becomes the same tensor in C++ as in Python."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import preprocess, read_image
from tests.plugins.embed.conftest import execute, reports
from tests.plugins.embed.pictures import twenty

TOLERANCE = 1e-6  # of values about 1: a few roundings to float32, divided by the smallest deviation, 0.225
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPECS = {
    "imagenet": ImageSpec(3, 224, 224, MEAN, STD, 0.875),
    "wide": ImageSpec(3, 48, 160, MEAN, STD),
    "grey": ImageSpec(1, 64, 64, (0.5,), (0.5,)),
    "any size": ImageSpec(3, 224, 224, MEAN, STD, multiple_of=16),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    paths = twenty(tmp_path_factory.mktemp("pictures"))
    assert len(paths) == 20
    return paths


def largest_difference(file, expected: list[np.ndarray]) -> float:
    found = np.fromfile(file, np.float32)
    assert found.size == sum(array.size for array in expected)
    return float(np.abs(found - np.concatenate([array.ravel() for array in expected])).max())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_library_on_twenty_pictures(probe, engine, pictures, spec, tmp_path):
    path, words, expected = engine(image=spec), [], []
    for index, picture in enumerate(pictures):
        pixels = read_image(picture)
        pixels.tofile(tmp_path / f"{index}.raw")
        words += [path, *pixels.shape, tmp_path / f"{index}.raw"]
        expected.append(preprocess(pixels, spec))
    probe("preprocess", tmp_path / "out", *words)
    assert largest_difference(tmp_path / "out", expected) <= TOLERANCE


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_example_and_run_on_twenty_files(installed, engine, pictures, spec, tmp_path):
    """From the files: the decoders agree too, JPEG's to the last bit where both are libjpeg-turbo."""
    example = installed("asan") / "bin" / "infsa_classify"
    result = execute(example, "--tensor", tmp_path / "out", engine(image=spec), *pictures)
    assert result.returncode == 0, result.stderr
    expected = [preprocess(read_image(picture), spec) for picture in pictures]
    assert largest_difference(tmp_path / "out", expected) <= TOLERANCE


def test_sizes_that_fall_between_pixels(probe, engine, rng, tmp_path):
    """Sixty pictures of random sizes from 1 to 90, up and down, to models of random proportions."""
    words, expected = [], []
    for index in range(60):
        height, width, to_height, to_width = (int(size) for size in rng.integers(1, 90, 4))
        crop, channels = float(rng.uniform(0.3, 1)), int(rng.choice([1, 3]))
        spec = ImageSpec(channels, to_height, to_width, (0.5,) * channels, (0.5,) * channels, crop)
        pixels = rng.random((height, width, int(rng.choice([1, 3])))).astype(np.float32)
        pixels.tofile(tmp_path / f"{index}.raw")
        words += [engine(name=f"{index}.engine", image=spec), *pixels.shape, tmp_path / f"{index}.raw"]
        expected.append(preprocess(pixels, spec))
    probe("preprocess", tmp_path / "out", *words)
    assert largest_difference(tmp_path / "out", expected) <= TOLERANCE


def test_pictures_that_are_refused(probe, engine, tmp_path):
    values = np.full(12, 0.5, np.float32)
    values.tofile(tmp_path / "good")
    for name, wrong in (("bright", 1.5), ("dark", -0.1), ("nan", np.nan)):
        changed = values.copy()
        changed[7] = wrong
        changed.tofile(tmp_path / name)
    cases = [
        (2, 2, 3, "bright"),
        (2, 2, 3, "dark"),
        (2, 2, 3, "nan"),
        (2, 3, 2, "good"),
        (2, 2, 1, "good"),
        (0, 2, 3, "good"),
    ]
    path = engine()
    words = [word for *sizes, name in cases for word in (path, *sizes, tmp_path / name)]
    found = reports(probe("preprocess", tmp_path / "out", *words).stdout)
    assert [code for code, _ in found] == [4, 4, 4, 2, 2, 2]
    assert "has values outside its range" in found[0][1]
    assert "a picture has shape 2x3x2 and 12 values." in found[3][1]


def test_the_example_refuses_files_that_are_no_image(installed, engine, pictures, tmp_path):
    whole = {path.suffix: path.read_bytes() for path in pictures}
    (tmp_path / "text.png").write_bytes(b"this is a text file")
    (tmp_path / "empty.png").write_bytes(b"")
    for suffix in (".png", ".jpg", ".ppm"):
        (tmp_path / f"half{suffix}").write_bytes(whole[suffix][: len(whole[suffix]) // 2])
    example, path = installed("asan") / "bin" / "infsa_classify", engine()
    for name, message in (
        ("text.png", "is no image"),
        ("empty.png", "is empty"),
        ("none.png", "does not exist"),
        ("half.png", "damaged"),
        ("half.jpg", "damaged"),
        ("half.ppm", "damaged"),
    ):
        result = execute(example, "--tensor", tmp_path / "out", path, tmp_path / name)
        assert (result.returncode, message in result.stderr) == (4, True), (name, result.stderr)


def test_narrow_types_round_as_numpy_does(probe, tmp_path, rng):
    torch = pytest.importorskip("torch")
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].astype(np.float32)
    ordered = np.sort(halves)
    between = (ordered[1:] + ordered[:-1]) / 2  # ties
    edges = np.array([65519.996, 65520, 1e30, np.inf, -np.inf, 2**-25, 2**-24, 1e-45, 3e38], np.float32)
    values = np.concatenate([halves, between, np.nextafter(between, np.float32(np.inf)), edges])
    values.astype(np.float32).tofile(tmp_path / "values")
    probe("narrow", tmp_path / "values", tmp_path / "narrow", tmp_path / "wide")
    with np.errstate(over="ignore"):
        as_half = values.astype(np.float16)
    as_brain = torch.from_numpy(values).to(torch.bfloat16)
    narrow = np.fromfile(tmp_path / "narrow", np.uint16)
    np.testing.assert_array_equal(narrow[: len(values)], as_half.view(np.uint16))
    np.testing.assert_array_equal(narrow[len(values) :], as_brain.view(torch.int16).numpy().view(np.uint16))
    wide = np.concatenate([as_half.astype(np.float32), as_brain.float().numpy()])
    np.testing.assert_array_equal(np.fromfile(tmp_path / "wide", np.float32), wide)
