"""A loaded model for a program: pictures in, class names out, from any number of threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from infsa_deploy.config import Trust
from infsa_deploy.errors import DeployError, ModelError, UsageError
from infsa_deploy.records.model import ImageSpec, ModelMetadata, Prediction
from infsa_deploy.runtime.classify import BATCH_PIXELS, check_finite, name_classes
from infsa_deploy.runtime.feeds import image_input, spell
from infsa_deploy.runtime.memory import check_fits, describe_need, largest_batch
from infsa_deploy.runtime.outputs import check_classifies, classifies
from infsa_deploy.runtime.pictures import preprocess as pictures
from infsa_deploy.runtime.pictures.preprocess import Picture, Pixels
from infsa_deploy.runtime.sessions.artefact import open_artefact
from infsa_deploy.runtime.sessions.pool import SessionPool
from infsa_deploy.runtime.sessions.protocol import (
    Arrays,
    ModelSession,
    TensorInfo,
    call_empty,
    call_in_pieces,
    check_numbers,
)

Pictures = Sequence[Picture] | npt.NDArray[Any]


def load(
    path: str | os.PathLike[str],
    *,
    provider: str = "cpu",
    threads: int | None = None,
    contexts: int = 1,
    plugins: str | os.PathLike[str] | None = None,
    max_pixels: int | None = None,
    trusted_sha256: Collection[str] = (),
    allow_host_code: bool = False,
) -> Model:
    """Open an ONNX file that infsa-deploy exported, or an engine that it built.

    Args:
        path: the file; an engine has its sidecar beside it.
        provider: `cpu` or `cuda` of ONNX Runtime, or `openvino`; an engine always runs on the GPU.
        threads: CPU threads within an operator; at most, and by default, one a core that this process may use.
        contexts: calls that an engine may run at once; each has its own memory on the device. Further ones wait.
        plugins: the plugin library, for an engine that does not hold it; default: the one beside it, or installed.
        max_pixels: the most pixels a picture may have; default: what can be decoded in half of the free memory.
        trusted_sha256: hashes in hexadecimal, from a source you trust, of an engine and of a plugin library beside it.
            Where any is given, no other engine is loaded.
        allow_host_code: whoever can write the engine's folder may run code in this process. An engine that holds its
            plugin library, or has it beside it, or is for several versions, needs this or its hash.

    Raises:
        ModelError: the file is missing, damaged, not ours, or an engine that is not trusted.
        HostError: this machine lacks what the file needs: a package, a driver, the GPU it was built for.
        UsageError: an unknown provider, no context at all, or an engine that runs code on the processor and may not.
    """
    if contexts < 1:
        raise UsageError(f"cannot run with {contexts} contexts.", "", "give contexts=1 or more.")
    trust = Trust(tuple(trusted_sha256), allow_host_code)
    session = open_artefact(Path(path), provider, threads, Path(plugins) if plugins else None, trust)
    return Model(session, contexts, max_pixels)


class Model:
    """A loaded model. All methods may be called from several threads at once.

    A call with arrays takes any model; `run` takes those of one input, `predict` those that return logits for it.

    Attributes:
        metadata: what the model says of itself: classes, image input, architecture.
        inputs, outputs: names, shapes and types, as `__call__` takes and gives them.
        runtime: what runs it: `onnxruntime`, `tensorrt`, `tensorrt-rtx`.
        classifies: whether `predict` works.
    """

    def __init__(self, session: ModelSession, contexts: int = 1, max_pixels: int | None = None) -> None:
        self.metadata: ModelMetadata = session.metadata
        self.inputs: tuple[TensorInfo, ...] = session.inputs
        self.outputs: tuple[TensorInfo, ...] = session.outputs
        self.runtime: str = session.runtime
        self._max_batch, self._on_host = session.max_batch, session.on_host
        self._image = image_input(session.inputs, self.metadata.image)
        batch = self._image.shape[0] if self._image else None
        self._fixed = batch if isinstance(batch, int) else None
        self._max_pixels = max_pixels
        self.classifies: bool = classifies(session)
        self._pool = SessionPool(session, contexts)

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Arrays by input name in, arrays by output name out, in one run; no image gives no row.

        Raises:
            UsageError: an array has another name, type or shape than the model takes, or holds NaN, or the model is
                closed.
        """
        check_numbers(feeds)
        with self._pool.lent() as session:
            empty = self._fixed is None and any(array.ndim and not len(array) for array in feeds.values())
            return _warned(call_empty(session, feeds) if empty else session(feeds))

    def run(self, images: npt.NDArray[Any]) -> Arrays:
        """Preprocessed images [B, C, H, W], any number of them, to arrays by output name.

        They are split into as many runs as the model's largest batch demands; a fixed batch is filled up.
        No image gives no row.

        Raises: as `__call__`.
        """
        check_numbers({self.inputs[0].name: images})
        return _warned(self._run(images))

    def preprocess(self, picture: Picture) -> npt.NDArray[Any]:
        """Scale, crop and normalise one picture to [1, C, H, W] in the model's input type.

        Raises: as read_image; UsageError for a model without an image input.
        """
        if self._image is None:
            fix = "make its arrays yourself, and call it with them."
            raise UsageError("this model takes no picture.", f"its inputs are {spell(self.inputs)}.", fix)
        pixels = pictures.prepare(picture, self.metadata.image, max_pixels=self._max_pixels)
        return pixels.astype(self._image.dtype, copy=False)

    def predict(
        self,
        images: Pictures,
        top: int = 3,
        *,
        note: Callable[[str], None] = lambda line: None,
        failed: Callable[[str, DeployError], None] | None = None,
    ) -> list[Prediction]:
        """The `top` most likely classes of each picture, with softmax scores, in the order given.

        Pictures may have any size. Those that become one size share calls, as many as the model takes; they are read
        call by call, so that a list of files may be as long as one likes. Scores of a dynamically quantised model
        depend on which pictures share a call, because its scales do.

        Args:
            images: paths, file contents, Pillow images or arrays [H, W, C], see read_image; or one [B, H, W, C]. A
                Prediction carries the path, or `image 3` for the fourth of the list where that is no path.
            top: classes to name a picture.
            note: told how much of the host's memory each size needs, before it is allocated; and of what is left out,
                as the frames of an animation but the first.
            failed: told of each picture that cannot be classified, by its name, and why; it is then left out of what
                is returned. By default the first of them is raised.

        Raises:
            ModelError: a picture cannot be read, or its logits are not finite.
            HostError: a picture needs more memory than this machine has.
            UsageError: `images` is one picture rather than a list, the model is closed, or it names no classes: it
                has other inputs than an image, or no output `logits` [batch, classes].
        """
        if not self.classifies:
            with self._pool.lent() as session:
                check_classifies("this model", session)
        if isinstance(images, str | bytes | os.PathLike | Image) or (
            isinstance(images, np.ndarray) and images.ndim < 4
        ):
            raise UsageError("predict takes a list of images.", "one image was given.", "write predict([image]).")
        names = [_name(picture, index) for index, picture in enumerate(images)]
        failed = failed or _raised
        groups = self._by_size(images, names, failed)
        if self._on_host:
            for size in groups:
                note(describe_need(self.metadata, size))
                check_fits(self.metadata, size)
        found: dict[int, Prediction] = {}
        for chosen in self._calls(groups):
            read: dict[int, Pixels] = {}
            for index in chosen:
                with _reported(names[index], failed):
                    read[index] = self._pixels(images[index], names[index], note)
            if not read:
                continue
            pixels = list(read.values())
            logits = self._run(pixels[0] if len(pixels) == 1 else np.concatenate(pixels))["logits"]
            for index, row in zip(read, logits, strict=True):
                with _reported(names[index], failed):
                    found[index] = name_classes(names[index], row, self.metadata.classes, top)
        return [found[index] for index in sorted(found)]

    def close(self) -> None:
        """Wait for calls under way, then free the model; a call afterwards is a UsageError."""
        self._pool.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, images: npt.NDArray[Any]) -> Arrays:
        with self._pool.lent() as session:
            return call_in_pieces(session, images)

    def _pixels(self, picture: Picture, name: str, note: Callable[[str], None]) -> Pixels:
        return pictures.prepare(picture, self.metadata.image, name, max_pixels=self._max_pixels, note=note)

    def _by_size(
        self, images: Pictures, names: Sequence[str], failed: Callable[[str, DeployError], None]
    ) -> dict[ImageSpec, list[int]]:
        """Positions of the pictures by the size they become; the headers of files are enough for that."""
        spec = self.metadata.image
        if spec.multiple_of is None:
            return {spec: list(range(len(images)))} if names else {}
        groups: dict[ImageSpec, list[int]] = {}
        for index, (picture, name) in enumerate(zip(images, names, strict=True)):
            with _reported(name, failed):
                shape = pictures.picture_shape(picture, name, max_pixels=self._max_pixels)
                groups.setdefault(pictures.at_own_size(shape, spec), []).append(index)
        return groups

    def _calls(self, groups: Mapping[ImageSpec, list[int]]) -> Iterator[list[int]]:
        for size, indices in groups.items():
            together = max(1, BATCH_PIXELS // (size.height * size.width))
            if self._on_host:
                together = largest_batch(self.metadata, size, together)
            batch = self._fixed or min(together, self._max_batch or together)
            for start in range(0, len(indices), batch):
                yield indices[start : start + batch]


@contextmanager
def _reported(name: str, failed: Callable[[str, DeployError], None]) -> Iterator[None]:
    """Hand what goes wrong in the block with the picture `name` to `failed`."""
    try:
        yield
    except DeployError as error:
        failed(name, error)


def _warned(found: Arrays) -> Arrays:
    """The arrays, with a warning where logits are not finite."""
    if (logits := found.get("logits")) is not None:
        try:
            check_finite("these inputs", logits)
        except ModelError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=3)
    return found


def _raised(name: str, error: DeployError) -> NoReturn:
    raise error


def _name(picture: Picture, index: int) -> str:
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else f"image {index}"
