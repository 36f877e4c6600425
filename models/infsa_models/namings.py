"""How libraries spell the keys of a ViT, as tables: torchvision, timm, Hugging Face; from and to our names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Pairs = tuple[tuple[str, str], ...]

OUR_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
QKV = ("q", "k", "v")


@dataclass(frozen=True)
class Naming:
    """The keys of one library.

    Attributes:
        signs: a file with a key that begins like one of these is of this library.
        layer: how the keys of a layer begin, with `{}` for its number.
        outer, inner: (our prefix, theirs) of keys outside and inside of a layer. The longest prefix that fits is taken;
            of several spellings of one prefix all are read, and the first is written.
    """

    signs: tuple[str, ...]
    layer: str
    outer: Pairs
    inner: Pairs

    def ours(self, key: str) -> str:
        """Our name of a key of this library; a key that it does not know comes back unchanged."""
        found = re.fullmatch(re.escape(self.layer).replace(r"\{\}", r"(\d+)") + r"(.+)", key)
        if found is None:
            return _swap_prefix(key, _turned(self.outer))
        return f"blocks.{int(found[1])}.{_swap_prefix(found[2], _turned(self.inner))}"

    def theirs(self, key: str) -> str:
        """The inverse of `ours`."""
        found = OUR_BLOCK.fullmatch(key)
        if found is None:
            return _swap_prefix(key, self.outer)
        return self.layer.format(found[1]) + _swap_prefix(found[2], self.inner)


OURS = Naming(signs=(), layer="blocks.{}.", outer=(), inner=())
# The second spelling of an MLP layer is torchvision's older one.
TORCHVISION = Naming(
    signs=("encoder.layers.encoder_layer_", "encoder.pos_embedding", "encoder.ln.", "conv_proj."),
    layer="encoder.layers.encoder_layer_{}.",
    outer=(
        ("position_embedding", "encoder.pos_embedding"),
        ("patch_embed.", "conv_proj."),
        ("norm.", "encoder.ln."),
        ("head.", "heads.head."),
    ),
    inner=(
        ("norm1.", "ln_1."),
        ("attention.", "self_attention."),
        ("norm2.", "ln_2."),
        ("mlp.expand.", "mlp.0."),
        ("mlp.contract.", "mlp.3."),
        ("mlp.expand.", "mlp.linear_1."),
        ("mlp.contract.", "mlp.linear_2."),
    ),
)
TIMM = Naming(
    signs=("cls_token", "pos_embed", "patch_embed.proj."),
    layer="blocks.{}.",
    outer=(("class_token", "cls_token"), ("position_embedding", "pos_embed"), ("patch_embed.", "patch_embed.proj.")),
    inner=(
        ("attention.in_proj_", "attn.qkv."),
        ("attention.out_proj.", "attn.proj."),
        ("attention.", "attn."),
        ("mlp.expand.", "mlp.fc1."),
        ("mlp.contract.", "mlp.fc2."),
    ),
)
_HUGGING_FACE_OUTER = (
    ("class_token", "vit.embeddings.cls_token"),
    ("position_embedding", "vit.embeddings.position_embeddings"),
    ("patch_embed.", "vit.embeddings.patch_embeddings.projection."),
    ("norm.", "vit.layernorm."),
    ("head.", "classifier."),
)
# What save_pretrained writes. InfSA in place of the self-attention, in a wrapper or not,
# has `output.dense` behind its own projection.
HUGGING_FACE = Naming(
    signs=("vit.encoder.layer.", "vit.embeddings."),
    layer="vit.encoder.layer.{}.",
    outer=_HUGGING_FACE_OUTER,
    inner=(
        ("norm1.", "layernorm_before."),
        ("attention.q_proj.", "attention.attention.query."),
        ("attention.k_proj.", "attention.attention.key."),
        ("attention.v_proj.", "attention.attention.value."),
        ("attention.after_proj.", "attention.output.dense."),
        ("attention.", "attention.attention."),
        ("attention.", "attention.attention.infsa_attn."),
        ("norm2.", "layernorm_after."),
        ("mlp.expand.", "intermediate.dense."),
        ("mlp.contract.", "output.dense."),
    ),
)
# The state_dict of a model of transformers 5, which save_pretrained turns into the keys above.
HUGGING_FACE_5 = Naming(
    signs=("vit.layers.",),
    layer="vit.layers.{}.",
    outer=_HUGGING_FACE_OUTER,
    inner=(
        ("norm1.", "layernorm_before."),
        ("attention.after_proj.", "attention.o_proj."),
        ("norm2.", "layernorm_after."),
        ("mlp.expand.", "mlp.fc1."),
        ("mlp.contract.", "mlp.fc2."),
    ),
)
NAMINGS = (TORCHVISION, TIMM, HUGGING_FACE_5, HUGGING_FACE)


def naming_of(state: Mapping[str, Tensor]) -> Naming:
    """The library whose keys these are; ours where no other is recognised."""
    return next((naming for naming in NAMINGS if any(key.startswith(naming.signs) for key in state)), OURS)


def is_hugging_face(state: Mapping[str, Tensor]) -> bool:
    """Whether the keys are those of a ViT of Hugging Face."""
    return naming_of(state) in (HUGGING_FACE, HUGGING_FACE_5)


def in_our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under our names, q, k and v apart; unknown keys are kept as they are.

    Two projections, one behind the other, become the one that they amount to, multiplied in float64.
    """
    naming = naming_of(state)
    if naming is OURS:
        return dict(state)
    renamed: dict[str, Tensor] = {}
    for key, tensor in state.items():
        for our_key, part in _unpacked(naming.ours(key), tensor):
            renamed[key if our_key in renamed else our_key] = part
    return _with_one_projection(renamed)


def _turned(pairs: Pairs) -> Pairs:
    return tuple((theirs, ours) for ours, theirs in pairs)


def _swap_prefix(key: str, pairs: Pairs) -> str:
    fitting = [(old, new) for old, new in pairs if key.startswith(old)]
    if not fitting:
        return key
    old, new = max(fitting, key=lambda pair: len(pair[0]))  # of equals, the first
    return new + key.removeprefix(old)


def _unpacked(key: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    stem, _, kind = key.rpartition(".in_proj_")
    if not stem or tensor.ndim == 0 or tensor.shape[0] % 3:
        yield key, tensor
        return
    for name, part in zip(QKV, tensor.chunk(3), strict=True):
        yield f"{stem}.{name}_proj.{kind}", part.clone()


def _with_one_projection(state: dict[str, Tensor]) -> dict[str, Tensor]:
    joined = dict(state)
    for key in state:
        stem, found, kind = key.rpartition("after_proj.")
        if found and f"{stem}out_proj.{kind}" not in state:  # one projection alone, under the name of the second
            joined[f"{stem}out_proj.{kind}"] = joined.pop(key)
    for key in state:
        stem = key.removesuffix("after_proj.weight")
        names = [f"{stem}{name}_proj.{kind}" for name in ("out", "after") for kind in ("weight", "bias")]
        if stem == key or not all(name in joined for name in names):
            continue
        weight, bias, after, after_bias = (joined[name].double() for name in names)
        if weight.ndim == after.ndim == 2 and bias.shape == after_bias.shape == weight.shape[:1] == after.shape[1:]:
            joined[names[0]] = (after @ weight).to(joined[names[0]].dtype)
            joined[names[1]] = (after @ bias + after_bias).to(joined[names[1]].dtype)
            del joined[names[2]], joined[names[3]]
    return joined
