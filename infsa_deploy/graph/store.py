"""Putting an ONNX model on disk with its metadata, and reading one back."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from infsa_deploy.errors import ModelError
from infsa_deploy.files import check_model_file, written_whole
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.model import METADATA_KEY, ModelMetadata, read_metadata

EXTERNAL_DATA_FROM = 1_900_000_000  # bytes of weights; a protobuf file ends at 2 GiB


def save_model(
    model: ir.Model, metadata: ModelMetadata, path: Path, *, external_data_from: int = EXTERNAL_DATA_FROM
) -> None:
    """Check `model` and write it to `path`; weights past `external_data_from` bytes go to `<path>.data`.

    Without such weights, a `<path>.data` of the file that was replaced goes with it.

    Raises:
        UsageError, HostError: the path cannot be written.
        ModelError: the graph breaks the ONNX specification.
    """
    model.metadata_props[METADATA_KEY] = to_json(metadata, indent=None)
    model.producer_name, model.producer_version = "infsa-deploy", metadata.tool_version
    external = weights_bytes(model) > external_data_from
    with written_whole(path) as scratch:
        ir.save(model, scratch, external_data=f"{scratch.name}.data" if external else None)
        try:
            onnx.checker.check_model(str(scratch), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise ModelError("the exported graph is not valid ONNX.", str(error), "report this as a bug.") from error
    if not external:
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def load_model(path: Path) -> tuple[ir.Model, ModelMetadata]:
    """Read a model of ours and its metadata.

    Raises:
        ModelError: the file is missing, empty, truncated, not ONNX, or not ours.
    """
    check_model_file(path)
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf's own exception types differ between its releases
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{path} is no ONNX model, or a truncated one.", reason, "export it again.") from error
    return model, read_metadata(model.metadata_props, path)


def weights_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
