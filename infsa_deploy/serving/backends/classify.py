"""Runs the model file beside it with infsa-deploy; Triton's python backend calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from infsa_deploy.errors import DeployError
from infsa_deploy.runtime.model import load


class TritonPythonModel:
    """One instance: a loaded model, which answers the requests that Triton hands over together in one run."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine or the ONNX file."""
        settings = {key: item["string_value"] for key, item in json.loads(args["model_config"])["parameters"].items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        threads = int(settings["threads"]) if "threads" in settings else None
        plugins = folder / "libinfsa_plugins.so"
        self._model = load(
            next(path for path in (folder / "model.engine", folder / "model.onnx") if path.is_file()),
            provider=settings["provider"],
            threads=threads,
            allow_host_code=True,  # whoever can write this folder can write this file, and its code runs as well
            plugins=plugins if plugins.is_file() else None,
        )
        (self._input,) = self._model.inputs

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run requests of one image size together, and give each its part of the outputs, or the error."""
        images = [triton.get_input_tensor_by_name(request, self._input.name).as_numpy() for request in requests]
        sizes: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(images):
            sizes.setdefault(image.shape[1:], []).append(index)
        responses: list[Any] = [None] * len(requests)
        for indices in sizes.values():
            try:
                found = self._model.run(np.concatenate([images[index] for index in indices]))
            except DeployError as error:
                for index in indices:
                    responses[index] = triton.InferenceResponse(error=triton.TritonError(str(error)))
                continue
            ends = np.cumsum([len(images[index]) for index in indices])[:-1]
            parts = {name: np.split(array, ends) for name, array in found.items()}
            for place, index in enumerate(indices):
                tensors = [triton.Tensor(name, part[place]) for name, part in parts.items()]
                responses[index] = triton.InferenceResponse(tensors)
        return responses

    def finalize(self) -> None:
        """Free the model."""
        self._model.close()
