"""Twenty real pictures: the digits of the package, photographs that other packages bring, and what is made of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import infsa_models
import numpy as np
from PIL import Image

ORIENTATION_TAG = 0x0112


def _inside(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec, f"needs {package}, of the extra dev"
    return Path(next(iter(spec.submodule_search_locations or ()))).joinpath(*parts)


def twenty(folder: Path) -> list[Path]:
    """Paths of the pictures; those that are made are written into `folder`.

    All formats that the example decodes: PNG grey, RGB, with transparency, palette, 16 bits; JPEG, one of them to be
    turned; PGM and PPM. Sizes from 21 to 640 pixels, wide and tall.
    """
    digits = sorted(Path(infsa_models.__file__).parent.glob("samples/*.png"))
    photographs = [_inside("sklearn.datasets", "images", name) for name in ("china.jpg", "flower.jpg")]
    samples = _inside("matplotlib", "mpl-data", "sample_data")
    others = [samples / name for name in ("grace_hopper.jpg", "Minduka_Present_Blue_Pack.png", "logo2.png")]
    china, flower = (Image.open(path) for path in photographs)
    turned, made = Image.Exif(), []
    turned[ORIENTATION_TAG] = 6
    depth = np.asarray(china.convert("L"), np.uint16) * 257 ^ np.asarray(china, np.uint16)[:, :, 0]
    for name, image, options in (
        ("turned.jpg", flower.crop((100, 50, 500, 300)), {"exif": turned}),
        ("palette.png", china.crop((0, 0, 333, 217)).quantize(200), {}),
        ("deep.png", Image.fromarray(depth), {}),
        ("strip.ppm", china.crop((5, 200, 640, 221)), {}),
        ("grey.pgm", flower.convert("L").crop((200, 0, 297, 400)), {}),
    ):
        image.save(folder / name, **options)
        made.append(folder / name)
    return [*digits, *photographs, *others, *made]
