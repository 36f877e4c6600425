"""Decodes and preprocesses images as `infsa-deploy run` does; Triton's python backend calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from infsa_deploy.errors import DeployError, UsageError
from infsa_deploy.records.codec import decode
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import prepare


class TritonPythonModel:
    """One instance: the bytes of image files [B, 1] in, the model's input [B, C, H, W] out."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read what the model's input holds."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self._image = decode(ImageSpec, json.loads((folder / "image.json").read_text(encoding="utf-8")))
        (output,) = json.loads(args["model_config"])["output"]
        self._output, self._dtype = output["name"], triton.triton_string_to_numpy(output["data_type"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself, so that a damaged image fails no other."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        files = triton.get_input_tensor_by_name(request, "file").as_numpy()[:, 0]
        try:
            planes = [prepare(file, self._image, f"image {n}") for n, file in enumerate(files)]
            if len({plane.shape for plane in planes}) > 1:
                raise UsageError("the images become different sizes.", "one request is one array.", "send them apart.")
        except DeployError as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error), triton.TritonError.INVALID_ARG))
        return triton.InferenceResponse([triton.Tensor(self._output, np.concatenate(planes).astype(self._dtype))])
