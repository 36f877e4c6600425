"""Taking a model out of what training put around it: DataParallel, torch.compile, averaging, PEFT."""

from __future__ import annotations

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.optim.swa_utils import AveragedModel

from infsa_deploy.errors import ModelError

INNER = {OptimizedModule: "_orig_mod", nn.DataParallel: "module", AveragedModel: "module"}


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside wrappers that compute nothing of their own, inner ones of its submodules included.

    The module given is not changed, unless a submodule is wrapped: pass a copy.

    Raises:
        ModelError: a wrapper computes something of its own, or there is no forward to export.
    """
    while (inner := _inside(module)) is not None:
        module = inner
    for child in list(module.modules()):
        for name, wrapped in list(child.named_children()):
            if _inside(wrapped) is not None:
                setattr(child, name, unwrapped(wrapped))
    _check_has_forward(module)
    return module


def _inside(module: nn.Module) -> nn.Module | None:
    """What `module` wraps; None where it is no wrapper."""
    kinds = (*INNER, nn.parallel.DistributedDataParallel)
    if isinstance(module, kinds):
        attribute = next((name for kind, name in INNER.items() if isinstance(module, kind)), "module")
        return getattr(module, attribute)  # type: ignore[no-any-return]
    if any(kind.__name__ == "PeftModel" for kind in type(module).__mro__):
        return _inside_peft(module)
    return None


def _inside_peft(module: nn.Module) -> nn.Module:
    config = getattr(module, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ModelError(
            f"{type(module).__name__} learns prompts, which its base model does not know of.",
            "they are put before the tokens in its own forward, whose arguments have no names.",
            "wrap it in a module whose forward(image) calls it.",
        )
    return module.get_base_model()  # type: ignore[operator, no-any-return]


def _check_has_forward(module: nn.Module) -> None:
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"{getattr(module, 'original_name', type(module).__name__)} is TorchScript.",
            "it is compiled already; its attention cannot be seen.",
            "export the Python module that it was made from.",
        )
    if getattr(type(module).forward, "__name__", "") == "_forward_unimplemented" and "forward" not in vars(module):
        inner = ", ".join(name for name, _ in module.named_children()) or "none"
        raise ModelError(
            f"{type(module).__name__} has no forward.",
            f"it holds the modules {inner}.",
            "export the one that computes the outputs.",
        )
