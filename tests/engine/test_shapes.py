"""Shapes as typed, and the ranges that are made of them."""

from __future__ import annotations

import pytest

from infsa_deploy.config import EngineConfig, parse_bytes, parse_shapes, parse_targets
from infsa_deploy.engine.shapes import resolve_shapes
from infsa_deploy.errors import UsageError

IMAGE = {"image": ("batch", 3, 224, 224)}


def ranges(inputs=IMAGE, **shapes):
    (found,) = resolve_shapes(inputs, EngineConfig(**shapes)).values()
    return found.minimum, found.optimum, found.maximum


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("image:1x3x224x224", {"image": (1, 3, 224, 224)}),
        ("image:[1,3,224,224]", {"image": (1, 3, 224, 224)}),
        ("image:[1, 3, 8, 8], mask:1x8", {"image": (1, 3, 8, 8), "mask": (1, 8)}),
        ("scope:0:4", {"scope:0": (4,)}),
    ],
)
def test_both_spellings(text, shapes):
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "image", "image:", "image:0x3", "image:1x-3", "1x3x4", "image:[1,3", "image:axb"])
def test_no_shapes(text):
    with pytest.raises(UsageError, match="is not valid"):
        parse_shapes(text)


def test_targets_and_sizes():
    assert parse_targets("sm80, SM86,sm80,sm120") == ("sm80", "sm86", "sm120")
    assert [parse_bytes(text) for text in ("512M", "4g", "1KiB")] == [512 << 20, 4 << 30, 1024]
    for parse, text in ((parse_targets, "a100"), (parse_targets, ""), (parse_bytes, "4"), (parse_bytes, "0G")):
        with pytest.raises(UsageError):
            parse(text)


def batches(**shapes):
    return tuple(
        shape[0] for shape in ranges(**{f"{kind}_shapes": {"image": (b, 3, 224, 224)} for kind, b in shapes.items()})
    )


def test_defaults_and_what_is_stated():
    assert batches() == (1, 8, 32)
    assert batches(max=4) == (1, 4, 4)
    assert batches(max=64) == (1, 8, 64)
    assert batches(min=16) == (16, 16, 32)
    assert batches(min=64) == (64, 64, 64)
    assert batches(opt=2) == (1, 2, 32)
    assert batches(opt=40) == (1, 40, 40)
    assert batches(min=2, opt=3, max=4) == (2, 3, 4)


def test_default_batches_of_huge_images():
    assert [shape[0] for shape in ranges({"image": ("batch", 3, 9216, 9216)})] == [1, 1, 1]
    assert [shape[0] for shape in ranges({"image": ("batch", 3, 2048, 2048)})] == [1, 8, 16]


def test_a_lowered_batch_is_explained_and_a_stated_one_is_not():
    huge = {"image": ("batch", 3, 2048, 2048)}

    def lowered(inputs, **shapes):
        return resolve_shapes(inputs, EngineConfig(**shapes))["image"].lowered

    assert "the largest batch is 16, not 32: an image of 3x2048x2048 is 12,582,912 numbers" in lowered(huge)
    assert lowered(huge, opt_shapes={"image": (8, 3, 2048, 2048)}) is not None
    assert lowered(huge, max_shapes={"image": (2, 3, 2048, 2048)}) is None
    assert lowered(huge, min_shapes={"image": (40, 3, 2048, 2048)}) is None
    assert lowered(IMAGE) is None
    assert lowered({"image": (1, 3, 2048, 2048)}) is None


def test_free_image_axes_take_the_model_s_own_size_unless_stated():
    free = {"image": ("batch", 3, "16*rows", "16*columns")}

    def found(**shapes):
        (range_,) = resolve_shapes(free, EngineConfig(**shapes), (224, 256)).values()
        return [shape[2:] for shape in (range_.minimum, range_.optimum, range_.maximum)]

    assert found() == [(224, 256)] * 3
    assert found(max_shapes={"image": (1, 3, 512, 512)}) == [(224, 256), (224, 256), (512, 512)]
    assert found(min_shapes={"image": (1, 3, 32, 512)}) == [(32, 512), (224, 512), (224, 512)]


def test_a_fixed_model_has_one_shape():
    assert ranges({"image": (2, 3, 8, 8)}) == ((2, 3, 8, 8),) * 3


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"max_shapes": {"picture": (1, 3, 224, 224)}}, "names input 'picture'"),
        ({"max_shapes": {"image": (1, 3, 224)}}, "does not fit the model"),
        ({"opt_shapes": {"image": (1, 3, 448, 448)}}, "does not fit the model"),
        ({"min_shapes": {"image": (9, 3, 224, 224)}, "max_shapes": {"image": (8, 3, 224, 224)}}, "min"),
        ({"opt_shapes": {"image": (9, 3, 224, 224)}, "max_shapes": {"image": (8, 3, 224, 224)}}, "opt shape"),
    ],
)
def test_shapes_that_cannot_be(shapes, message):
    with pytest.raises(UsageError, match=message):
        ranges(**shapes)


def test_a_free_axis_that_is_not_the_batch_is_never_guessed():
    free = {"image": ("batch", 3, "height", 8)}
    with pytest.raises(UsageError, match=r"axis 2 \(height\) of input 'image' is free") as failed:
        ranges(free)
    assert "image:batchx3xheightx8" in failed.value.fix
    assert ranges(free, min_shapes={"image": (1, 3, 8, 8)}, max_shapes={"image": (2, 3, 16, 8)}) == (
        (1, 3, 8, 8),
        (2, 3, 16, 8),
        (2, 3, 16, 8),
    )


TWO = {"image": ("batch", 3, 64, 64), "mask": ("batch", "tokens"), "scale": ()}


def found(inputs, **shapes):
    resolved = resolve_shapes(inputs, EngineConfig(**shapes))
    return {name: (one.minimum, one.optimum, one.maximum) for name, one in resolved.items()}


def test_axes_of_one_name_have_one_size_in_all_inputs():
    shapes = found(TWO, min_shapes={"mask": (1, 16)}, max_shapes={"image": (4, 3, 64, 64)})
    assert shapes == {
        "image": ((1, 3, 64, 64), (4, 3, 64, 64), (4, 3, 64, 64)),
        "mask": ((1, 16), (4, 16), (4, 16)),
        "scale": ((), (), ()),
    }
    huge = {"image": ("batch", 3, 2048, 2048), "mask": ("batch", 16)}
    assert found(huge)["mask"] == ((1, 16), (8, 16), (16, 16))
    lowered = {name: one.lowered for name, one in resolve_shapes(huge, EngineConfig()).items()}
    assert lowered["image"] is not None
    assert lowered["mask"] is None


def test_axes_without_a_name_are_each_input_s_own():
    foreign = {"a": ("axis 0", "axis 1"), "b": ("axis 0", "axis 1")}
    shapes = found(foreign, max_shapes={"a": (4, 5), "b": (8, 6)})
    assert [shape[2] for shape in shapes.values()] == [(4, 5), (8, 6)]


def test_two_sizes_for_one_axis():
    with pytest.raises(UsageError, match="--max-shapes gives axis 'batch' two sizes") as caught:
        found(TWO, max_shapes={"image": (4, 3, 64, 64), "mask": (8, 16)})
    assert "4 in 'image' and 8 in 'mask'" in caught.value.why
