"""Large TIFF and BigTIFF files, decoded by rows of tiles or by strips with tifffile, where that is installed."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLACK_IS_ZERO, RGB = 1, 2  # TIFF 6.0, PhotometricInterpretation
CONTIGUOUS = 1  # TIFF 6.0, PlanarConfiguration
TYPES = ("uint8", "uint16", "float32")


def open_tiff(file: Path | bytes, stack: ExitStack) -> TiffRows | None:
    """The first page of a file, to be cut by rows; None where it has to be decoded whole.

    Args:
        stack: closes the file.
    """
    try:
        import tifffile
    except ImportError:
        return None
    stream = io.BytesIO(file) if isinstance(file, bytes) else file
    page = stack.enter_context(tifffile.TiffFile(stream)).pages[0]
    grey = page.photometric == BLACK_IS_ZERO and page.samplesperpixel == 1
    colour = page.photometric == RGB and page.samplesperpixel == 3 and page.dtype == np.uint8
    plain = page.planarconfig == CONTIGUOUS and page.imagedepth == 1 and str(page.dtype) in TYPES
    known = page.compression in tifffile.TIFF.DECOMPRESSORS
    return TiffRows(page) if plain and known and (grey or colour) else None


class TiffRows:
    """A page that is cut as an array is, `page[top:bottom]`, of shape [H, W] or [H, W, 3].

    Attributes:
        block_bytes: what a strip, or a row of tiles, takes.
    """

    def __init__(self, page: Any) -> None:
        self._page, self._last = page, (-1, np.empty(0))
        self.shape, self.dtype = tuple(page.shape), page.dtype
        self._height = page.tilelength if page.is_tiled else min(page.rowsperstrip, page.imagelength)
        self._across = -(-page.imagewidth // page.tilewidth) if page.is_tiled else 1
        width = self._across * page.tilewidth if page.is_tiled else page.imagewidth
        self.block_bytes = self._height * width * page.samplesperpixel * page.dtype.itemsize

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last = rows.start // self._height, -(-rows.stop // self._height)
        joined = np.concatenate([self._block(index) for index in range(first, last)])
        return joined[rows.start - first * self._height : rows.stop - first * self._height]

    def _block(self, index: int) -> npt.NDArray[Any]:
        """A strip or a row of tiles [rows, W, ...]; the last one is kept, as the next cut may begin in it."""
        if self._last[0] != index:
            rows = min(self._height, self.shape[0] - index * self._height)
            block = np.zeros((rows, *self.shape[1:]), self.dtype)  # a part that the file leaves out is zero
            for column in range(self._across):
                self._decode(index * self._across + column, block, column * self._page.tilewidth)
            self._last = index, block
        return self._last[1]

    def _decode(self, segment: int, block: npt.NDArray[Any], left: int) -> None:
        file = self._page.parent.filehandle
        file.seek(self._page.dataoffsets[segment])
        data = file.read(self._page.databytecounts[segment])
        found, _, shape = self._page.decode(data, segment, jpegtables=self._page.jpegtables)
        if found is None:
            return
        values = found[0, : shape[1], : shape[2]].reshape(shape[1], shape[2], *self.shape[2:])
        rows, right = min(len(block), shape[1]), min(self.shape[1], left + shape[2])
        block[:rows, left:right] = values[:rows, : right - left]
