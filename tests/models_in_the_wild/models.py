"""Whole models as users build them, each with what its export must come to.

`ops`: every attention is on custom ops; `kept`: one at least is traced as it is, and said to be; `none`: there is no
InfSA module; a text: the export is refused with an error that holds it. In all other cases outputs must be equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from infsa_models.vit import Block as OurBlock
from infsa_models.vit import ViT, ViTConfig
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.models_in_the_wild.attentions import *  # noqa: F403
from tests.models_in_the_wild.attentions import Attention, E, H

IMAGE = (torch.zeros(1, 3, 16, 16),)


@dataclass(frozen=True)
class Wild:
    build: Callable[[], nn.Module]
    outcome: str
    examples: tuple[Tensor, ...] = field(default=IMAGE)


class Block(nn.Module):
    def __init__(self, attention: nn.Module | None = None, call: Callable[..., Tensor] | None = None):
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(E), attention or Attention(), nn.Linear(E, E)
        self.call = call

    def forward(self, x):
        y = self.norm(x)
        attended = self.call(self, x, y) if self.call else self.attn(y, y, y, need_weights=False)[0]
        x = x + attended
        return x + torch.relu(self.mlp(x))


class Model(nn.Module):
    """Patches, blocks, the mean over tokens, logits; `end` makes other outputs of the tokens."""

    def __init__(self, *blocks: nn.Module, end: Callable[..., Any] | None = None, prepare: Any = None):
        super().__init__()
        self.patch, self.blocks, self.head = nn.Conv2d(3, E, 4, 4), nn.ModuleList(blocks or [Block()]), nn.Linear(E, 5)
        self.end, self.prepare = end, prepare

    def tokens(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, image):
        x = self.tokens(image)
        return self.end(self, image, x) if self.end else self.head(x.mean(1))


def with_attention(make, call=None):
    return lambda: Model(Block(make(), call))


def changed(change, attention=Attention):
    """A model of which one attention was changed after it was made."""

    def build():
        made = attention()
        change(made)
        return Model(Block(made))

    return build


def ending(end):
    return lambda: Model(end=end)


# How the attention is called.
def three_norms(b, x, y):
    return b.attn(b.norm(x), b.norm(x), b.norm(x))[0]


def position_added(b, x, y):
    return b.attn(y + 0.1, y + 0.1, y)[0]


def query_alone_moved(b, x, y):
    return b.attn(y + 0.3, y, y)[0]


def all_differ(b, x, y):
    return b.attn(y + 0.3, 2 * y, x)[0]


def fewer_queries(b, x, y):
    return b.attn(y[:, :3], y, y)[0].mean(1, keepdim=True)


def keyword_call(b, x, y):
    return b.attn(query=y, value=y, key=y, key_padding_mask=None)[0]


def hidden_states(b, x, y):
    return b.attn(hidden_states=y)[0]


def padding(b, x, y):
    return b.attn(y, y, y, key_padding_mask=y[..., 0] > 0)[0]


def weights_too(b, x, y):
    out, weights = b.attn(y, y, y, need_weights=True)
    return out + weights.mean()


def forward_called(b, x, y):
    return b.attn.forward(y, y, y)[0]


def core_called(b, x, y):
    return b.attn.core(y)


def attributes_read(b, x, y):
    assert b.attn.embed_dim == y.shape[-1]
    assert b.attn.head_dim * b.attn.num_heads == E
    return b.attn(y, y, y)[0] * b.attn.out_proj.weight.norm()


def class_checked(b, x, y):
    return b.attn(y, y, y)[0] if isinstance(b.attn, Attention) else y


def windows(b, x, y):
    w = y.reshape(-1, 2, 2, 2, 2, E).transpose(2, 3).reshape(-1, 4, E)
    return b.attn(w, w, w)[0].reshape(-1, 2, 2, 2, 2, E).transpose(2, 3).reshape(-1, 16, E)


def sequence_first(b, x, y):
    t = y.transpose(0, 1)
    return b.attn(t, t, t)[0].transpose(0, 1)


def tensor_call(b, x, y):
    return 1.0 * b.attn(y)


def dict_call(b, x, y):
    return b.attn(y)["tokens"]


def first_of_call(b, x, y):
    return b.attn(y)[0]


def odd_call(b, x, y):
    return b.attn(y, y)


def masked_by_coincidence(b, x, y):
    return b.attn(y, y * (y.shape[1] == 16), y)[0]


# What is changed in an attention.
def lora(attention, names=("q_proj", "k_proj", "v_proj", "out_proj")):
    for name in names:
        setattr(attention, name, LowRank(getattr(attention, name)))  # noqa: F405


def weight_norm(attention):
    parametrizations.weight_norm(attention.k_proj)
    parametrizations.orthogonal(attention.v_proj)


def output_hook(attention):
    attention.register_forward_hook(lambda module, inputs, result: (2 * result[0], result[1]))


def input_hook(attention):
    attention.register_forward_pre_hook(lambda module, inputs: tuple(x + 1 for x in inputs))


def query_hook(attention):
    attention.q_proj.register_forward_hook(lambda module, inputs, result: torch.relu(result))


def value_hook(attention):
    attention.v_proj.register_forward_hook(lambda module, inputs, result: 3 * result + 1)


def bent(attention):
    attention.k_proj = Bent(E, E)  # noqa: F405


def patched_forward(attention):
    original = attention.forward
    attention.forward = lambda *a, **k: (original(*a, **k)[0] * attention.out_proj.weight.mean(), None)


def transparent_forward(attention):
    original = attention.forward
    attention.forward = lambda *a, **k: original(*a, **k)


def zero_output(attention):
    nn.init.zeros_(attention.out_proj.weight)
    nn.init.zeros_(attention.out_proj.bias)


def zero_gate(attention):
    attention.alpha = nn.Parameter(torch.zeros(()))
    original = attention.forward
    attention.forward = lambda *a, **k: (original(*a, **k)[0] * attention.alpha, None)


def unknown_variant(attention):
    attention.variant = "linear_infsa_v2"


def rho_buffer(attention):
    del attention.rho_logit
    attention.register_buffer("rho_logit", torch.tensor(0.3))


# Models with a forward of their own.
class TwoInputs(Model):
    def forward(self, image, mask):
        return self.head((self.tokens(image) * mask[..., None]).mean(1))


class MaskFirst(Model):
    def forward(self, keep, image):
        return self.head((self.tokens(image) * keep[..., None]).mean(1))


class Conditioned(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, E)

    def forward(self, image, label, temperature):
        return self.head(self.tokens(image).mean(1) + self.embed(label)) / temperature


class MaskedKeys(Model):
    """Keys that equal the queries only where the mask is 1."""

    def forward(self, image, mask):
        x = self.patch(image).flatten(2).transpose(1, 2)
        return self.head(self.blocks[0].attn(x, x * mask[..., None], x)[0].mean(1))


class BatchBranch(Model):
    def forward(self, image):
        return super().forward(image) * (2.0 if image.shape[0] >= 4 else 1.0)


class BatchParity(Model):
    def forward(self, image):
        return super().forward(image) * (2.0 if image.shape[0] % 2 else 1.0)


class Squeezes(Model):
    def forward(self, image):
        return super().forward(image).squeeze()


class FixedView(Model):
    def forward(self, image):
        return super().forward(image).view(2, -1)


class CentredOnBatch(Model):
    def forward(self, image):
        logits = super().forward(image)
        return logits - logits.mean(0)


class AlwaysDrops(Model):
    def forward(self, image):
        return self.head(nn.functional.dropout(self.tokens(image).mean(1), 0.5))


class ValueBranch(Model):
    def forward(self, image):
        logits = super().forward(image)
        return logits if logits.sum() > 0 else -logits


class WeightBranch(Model):
    def forward(self, image):
        logits = super().forward(image)
        return logits if self.head.weight.sum() > 100 else -logits


class Counts(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, image):
        self.calls += 1
        return super().forward(image)


class Drifts(Counts):
    def forward(self, image):
        return super().forward(image) * self.calls


class Casts(Model):
    def forward(self, image):
        return self.head(self.tokens(image).mean(1).float().to(image.dtype))


class DefaultTypes(Model):
    def forward(self, image):
        ramp = torch.linspace(0, 1, E) + torch.zeros(E)
        return self.head(self.tokens(image).mean(1) * ramp)


class OnlyFloat32(Model):
    def forward(self, image):
        return super().forward(image.float())


class Extra(nn.Identity):
    def get_extra_state(self):
        return {"scale": 1}

    def set_extra_state(self, state):
        pass


class Functional(Model):
    def __init__(self):
        super().__init__(nn.Identity())
        self.q, self.rho_logit = nn.Linear(E, E), nn.Parameter(torch.tensor(1.0))

    def forward(self, image):
        q = self.q(self.tokens(image)).unsqueeze(1)
        rho = float(torch.sigmoid(self.rho_logit.detach()))
        return self.head((rho * scores(q, q, "pure_infsa") @ q).squeeze(1).mean(1))  # noqa: F405


class Softmaxed(Model):
    def __init__(self):
        super().__init__(nn.TransformerEncoderLayer(E, H, 2 * E, batch_first=True, activation="gelu"))


class NoForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Model()


class HuggingFaceLike(OrderedDict):
    """As ModelOutput: keys in order."""


@dataclass
class Found:
    boxes: Tensor
    scores: Tensor


# Models of ours that were changed.
CONFIG = ViTConfig("linear", (16, 16), 8, 3, E, 1, H, 2 * E, 5)


class SummingBlock(OurBlock):
    def forward(self, x):
        return x + self.attention(self.norm1(x)).sum(1, keepdim=True)


class ScalingBlock(OurBlock):
    def forward(self, x):
        return x + 0.1 * self.attention(self.norm1(x))


class FirstTokenBlock(OurBlock):
    def forward(self, x):
        y = self.attention(self.norm1(x))
        return torch.cat([y[:, :1], x[:, 1:] * y[:, 1:]], dim=1)


class Temperature(ViT):
    def forward(self, image):
        return super().forward(image) / 10


def our_vit(block=None, kind=ViT, **changes):
    def build():
        config = ViTConfig(**{**vars(CONFIG), **changes})
        model = kind(config)
        if block:
            model.blocks[0] = block(config)
        return model

    return build


def twice():
    block = Block()
    return Model(block, block)


def tied():
    attention = Attention("linear_infsa")
    return Model(Block(attention), Block(attention, three_norms))


def hooked_block():
    model = Model()
    model.blocks[0].register_forward_hook(lambda module, inputs, result: result * 2)
    return model


def hooked_model():
    model = Model()
    model.register_forward_hook(lambda module, inputs, result: result + 1)
    return model


def compiled_inside():
    model = Model()
    model.blocks[0] = nn.DataParallel(model.blocks[0])
    return model


A = __import__("tests.models_in_the_wild.attentions", fromlist=["*"])
LINEAR = partial(Attention, "linear_infsa")
MASK = (IMAGE[0], torch.ones(1, 16))

MODELS: dict[str, Wild] = {
    "pure": Wild(Model, "ops"),
    "linear": Wild(with_attention(LINEAR), "ops"),
    "no bias": Wild(with_attention(partial(Attention, "linear_infsa", bias=False)), "ops"),
    "sequence first": Wild(with_attention(partial(Attention, batch_first=False), sequence_first), "ops"),
    "one head": Wild(with_attention(partial(Attention, heads=1)), "ops"),
    "rho is a buffer": Wild(changed(rho_buffer), "ops"),
    "wide heads": Wild(with_attention(A.WideHeads), "ops"),
    "shared keys": Wild(with_attention(A.SharedKeys), "kept"),
    "query and key norm": Wild(with_attention(A.QueryKeyNorm), "kept"),
    "gate": Wild(with_attention(A.Gated), "kept"),
    "causal": Wild(with_attention(A.Causal), "kept"),
    "eps as an attribute": Wild(with_attention(partial(A.OwnEps, "linear_infsa")), "ops"),
    "eps in the code": Wild(with_attention(A.HiddenEps), "kept"),
    "rows normalised": Wild(with_attention(A.RowNormalised), "kept"),
    "clamped": Wild(with_attention(A.Clamped), "kept"),
    "other above seven tokens": Wild(with_attention(A.FewTokensOnly), "kept"),
    "bias of one size": Wild(with_attention(A.FixedTokens), "kept"),
    "softplus": Wild(with_attention(A.Softplus), "kept"),
    "padding honoured": Wild(with_attention(A.HonoursPadding, padding), "kept"),
    "padding ignored": Wild(with_attention(LINEAR, padding), "ops"),
    "scaled output": Wild(with_attention(A.LayerScaled), "kept"),
    "returns a tensor": Wild(with_attention(A.ReturnsTensor, tensor_call), "ops"),
    "returns a dict": Wild(with_attention(A.ReturnsDict, dict_call), "ops"),
    "returns two tensors": Wild(with_attention(A.ReturnsMore, first_of_call), "kept"),
    "returns a named tuple": Wild(with_attention(A.ReturnsNamed, three_norms), "ops"),
    "arguments in another order": Wild(with_attention(A.OddArguments, odd_call), "ops"),
    "half inside": Wild(with_attention(A.HalfInside), "kept"),
    "float inside": Wild(with_attention(A.FloatInside), "kept"),
    "number from a weight": Wild(with_attention(A.KeepsMap), "ops"),
    "three norms": Wild(with_attention(LINEAR, three_norms), "ops"),
    "positions on query and key": Wild(with_attention(Attention, position_added), "ops"),
    "positions on query and key, linear": Wild(with_attention(LINEAR, position_added), "ops"),
    "query moved": Wild(with_attention(LINEAR, query_alone_moved), "ops"),
    "all three differ": Wild(with_attention(LINEAR, all_differ), "ops"),
    "cross attention, linear": Wild(with_attention(LINEAR, fewer_queries), "ops"),
    "cross attention, pure": Wild(with_attention(Attention, fewer_queries), "kept"),
    "keywords": Wild(with_attention(LINEAR, keyword_call), "ops"),
    "hidden_states": Wild(with_attention(LINEAR, hidden_states), "ops"),
    "weights wanted": Wild(with_attention(Attention, weights_too), "kept"),
    "forward called": Wild(with_attention(LINEAR, forward_called), "ops"),
    "another method called": Wild(with_attention(A.WithCore, core_called), "kept"),
    "attributes read": Wild(with_attention(LINEAR, attributes_read), "ops"),
    "class checked": Wild(with_attention(LINEAR, class_checked), "ops"),
    "windows": Wild(with_attention(Attention, windows), "ops"),
    "low-rank updates": Wild(changed(lora, LINEAR), "ops"),
    "parametrised": Wild(changed(weight_norm, LINEAR), "ops"),
    "hook on the output": Wild(changed(output_hook), "ops"),
    "hook on the input": Wild(changed(input_hook, LINEAR), "ops"),
    "hook on the query": Wild(changed(query_hook), "kept"),
    "hook on the value": Wild(changed(value_hook), "ops"),
    "bent projection": Wild(changed(bent), "kept"),
    "forward exchanged": Wild(changed(patched_forward), "kept"),
    "forward wrapped": Wild(changed(transparent_forward), "ops"),
    "zero output": Wild(changed(zero_output, LINEAR), "ops"),
    "zero gate": Wild(changed(zero_gate), "kept"),
    "unknown variant": Wild(changed(unknown_variant), "kept"),
    "two inputs": Wild(TwoInputs, "ops", MASK),
    "image second": Wild(MaskFirst, "ops", MASK[::-1]),
    "label and temperature": Wild(Conditioned, "ops", (IMAGE[0], torch.tensor([3]), torch.tensor(2.0))),
    "keys masked by an input": Wild(lambda: MaskedKeys(Block(LINEAR())), "ops", MASK),
    "branch on the batch": Wild(BatchBranch, "every batch size"),
    "branch on odd batches": Wild(BatchParity, "every batch size"),
    "squeeze": Wild(Squeezes, "ops"),
    "view of one batch": Wild(FixedView, "fails on an image"),
    "centred on the batch": Wild(CentredOnBatch, "ops"),
    "dropout stays on": Wild(AlwaysDrops, "other outputs for the same input"),
    "branch on values": Wild(ValueBranch, "could not be traced"),
    "branch on weights": Wild(WeightBranch, "ops"),
    "counts its calls": Wild(Counts, "ops"),
    "drifts with its calls": Wild(Drifts, "other outputs for the same input"),
    "casts": Wild(Casts, "ops"),
    "default types": Wild(DefaultTypes, "ops"),
    "float32 alone": Wild(OnlyFloat32, "ops"),
    "extra state": Wild(lambda: Model(Block(), Extra()), "ops"),
    "functional": Wild(Functional, "none"),
    "softmax": Wild(Softmaxed, "none"),
    "no forward": Wild(NoForward, "has no forward"),
    "data parallel": Wild(lambda: nn.DataParallel(Model()), "ops"),
    "data parallel inside": Wild(compiled_inside, "ops"),
    "compiled": Wild(lambda: torch.compile(Model(), backend="eager"), "ops"),
    "averaged": Wild(lambda: torch.optim.swa_utils.AveragedModel(Model()), "ops"),
    "segmentation": Wild(ending(lambda m, image, x: m.head(x).transpose(1, 2).unflatten(2, (4, 4))), "ops"),
    "dict": Wild(ending(lambda m, image, x: {"boxes": m.head(x), "logits": m.head(x.mean(1))}), "ops"),
    "tuple": Wild(ending(lambda m, image, x: (m.head(x.mean(1)), None, x)), "ops"),
    "list": Wild(ending(lambda m, image, x: [x, x + 1]), "ops"),
    "nested": Wild(ending(lambda m, image, x: {"a": (x, {"b": x.mean(1)})}), "ops"),
    "dataclass": Wild(ending(lambda m, image, x: Found(m.head(x), x.mean((1, 2)))), "ops"),
    "model output": Wild(ending(lambda m, image, x: HuggingFaceLike(logits=m.head(x.mean(1)), hidden=(x,))), "ops"),
    "scores": Wild(ending(lambda m, image, x: x.mean((1, 2))), "ops"),
    "input returned": Wild(ending(lambda m, image, x: (image, m.head(x), m.head.bias)), "ops"),
    "one tensor twice": Wild(ending(lambda m, image, x: (x, x)), "ops"),
    "most likely class": Wild(ending(lambda m, image, x: {"classes": m.head(x.mean(1)).argmax(1), "x": x}), "ops"),
    "text returned": Wild(ending(lambda m, image, x: {"logits": x, "name": "x"}), "is a str"),
    "block used twice": Wild(twice, "ops"),
    "attention tied": Wild(tied, "ops"),
    "hook on a block": Wild(hooked_block, "ops"),
    "hook on the model": Wild(hooked_model, "ops"),
    "our ViT": Wild(our_vit(), "ops"),
    "our pure ViT": Wild(our_vit(variant="pure", hops=3), "ops"),
    "our softmax ViT": Wild(our_vit(variant="softmax"), "none"),
    "our block that sums": Wild(our_vit(SummingBlock), "ops"),
    "our block that scales": Wild(our_vit(ScalingBlock), "ops"),
    "our block that reads tokens": Wild(our_vit(FirstTokenBlock), "ops"),
    "our ViT with a temperature": Wild(our_vit(kind=Temperature), "ops"),
}

# Whose graph is that of another model of the table: compared as a traced program, in float64, alone.
TRACED_ALONE = frozenset(
    (
        "no bias",
        "one head",
        "rho is a buffer",
        "eps in the code",
        "clamped",
        "other above seven tokens",
        "scaled output",
        "returns a named tuple",
        "keywords",
        "hidden_states",
        "forward called",
        "attributes read",
        "class checked",
        "parametrised",
        "hook on the output",
        "hook on the input",
        "hook on the query",
        "hook on the value",
        "forward exchanged",
        "forward wrapped",
        "zero gate",
        "unknown variant",
        "extra state",
        "data parallel",
        "data parallel inside",
        "compiled",
        "averaged",
        "hook on a block",
        "hook on the model",
        "attention tied",
    )
)
