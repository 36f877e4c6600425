"""Which of a checkpoint's tensors are the model's: nesting, words before keys, several sets, what lies beside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from infsa_models.weight_sets import choose_weights

from infsa_deploy.errors import ModelError, UsageError

PATH = Path("model.pt")
OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 0.1}]}


@pytest.fixture
def state(tiny_vit):
    return tiny_vit.state_dict()


def before(words, state):
    return {f"{words}{key}": tensor for key, tensor in state.items()}


def average(state):
    return {key: tensor + 1 for key, tensor in state.items()}


ONE_SET = {
    "bare": lambda s: s,
    "DistributedDataParallel": lambda s: before("module.", s),
    "compiled": lambda s: before("_orig_mod.", s),
    "compiled in DistributedDataParallel": lambda s: before("module._orig_mod.", s),
    "DistributedDataParallel in compiled": lambda s: {"state_dict": before("_orig_mod.module.", s)},
    "Lightning": lambda s: {"state_dict": before("model.", s), "optimizer_states": [OPTIMIZER], "epoch": 1},
    "Lightning, compiled": lambda s: {"state_dict": before("net._orig_mod.", s), "loops": {"fit": {}}},
    "of the user's own name": lambda s: {"state_dict": before("vit.", s)},
    "model_state_dict": lambda s: {"model_state_dict": s, "optimizer_state_dict": OPTIMIZER},
    "twice nested": lambda s: {"model": {"state_dict": before("module.", s)}},
    "any name": lambda s: {"generator": s, "center": torch.zeros(3)},
    "an average alone": lambda s: {"model_ema": {**before("module.", s), "decay": torch.tensor(0.9)}},
    "AveragedModel": lambda s: {**before("module.", s), "n_averaged": torch.tensor(3)},
    "an optimiser between the weights": lambda s: {**s, "optimizer": OPTIMIZER, "epoch": 3, "loss": 0.1},
    "counters of an average": lambda s: {**before("model.", s), "ema.decay": torch.ones(1), "ema.x": torch.ones(1)},
}


@pytest.mark.parametrize("kind", ONE_SET)
def test_one_set_of_weights(kind, state):
    found = choose_weights(PATH, ONE_SET[kind](state))
    assert found.keys() == state.keys()
    assert all(found[key] is state[key] for key in state)


SEVERAL = {
    "timm": (lambda s, e: {"arch": "x", "state_dict": s, "state_dict_ema": e}, "state_dict", "state_dict_ema"),
    "model and model_ema": (lambda s, e: {"model": s, "model_ema": before("module.", e)}, "model", "model_ema"),
    "student and teacher": (
        lambda s, e: {"student": before("module.backbone.", s), "teacher": before("backbone.", e)},
        "student.backbone",
        "teacher.backbone",
    ),
    "in one dictionary": (
        lambda s, e: {"state_dict": {**before("model.", s), **before("ema.module.", e)}},
        "state_dict.model",
        "state_dict.ema",
    ),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_sets_are_named_and_none_is_taken(kind, state):
    build, own, averaged = SEVERAL[kind]
    loaded = build(state, average(state))
    with pytest.raises(UsageError, match="2 sets of weights") as caught:
        choose_weights(PATH, loaded)
    assert caught.value.why == f"they are {own} (42 tensors), {averaged} (42 tensors)"
    assert f"--key {averaged}" in caught.value.fix
    for key, expected in ((own, state), (averaged, average(state))):
        found = choose_weights(PATH, loaded, key)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("student and teacher", "teacher"),
        ("in one dictionary", "ema"),
        ("in one dictionary", "ema.module"),
        ("in one dictionary", "state_dict.ema.module"),
        ("model and model_ema", "model_ema.module"),
    ],
)
def test_a_part_of_the_name_is_enough(kind, key, state):
    loaded = SEVERAL[kind][0](state, average(state))
    assert torch.equal(choose_weights(PATH, loaded, key)["class_token"], state["class_token"] + 1)


def test_a_key_below_a_set(state):
    mixed = {"encoder": {**before("left.", state), **before("right.", average(state))}}
    assert torch.equal(choose_weights(PATH, mixed, "encoder.right")["class_token"], state["class_token"] + 1)


def test_a_key_that_names_nothing(state):
    with pytest.raises(UsageError, match="no weights under 'emma'") as caught:
        choose_weights(PATH, {"model": state, "ema": state}, "emma")
    assert caught.value.why == "it holds model, ema"


def test_what_lies_beside_a_set_is_not_dropped_unasked(state):
    loaded = {"state_dict": {**before("model.", state), "criterion.weight": torch.ones(5)}}
    with pytest.raises(ModelError, match=r"more than the weights of state_dict\.model") as caught:
        choose_weights(PATH, loaded)
    assert "criterion.weight" in caught.value.why
    assert "--key state_dict.model" in caught.value.fix
    assert choose_weights(PATH, loaded, "state_dict.model").keys() == state.keys()


def test_a_second_head_does_not_take_the_place_of_the_first(state):
    with pytest.raises(ModelError, match=r"more than the weights of module") as caught:
        choose_weights(PATH, {**before("module.", state), "head.weight": torch.zeros(5, 16)})
    assert "--key" not in caught.value.fix


def test_what_is_left_aside_is_said(state):
    lines: list[str] = []
    choose_weights(PATH, {**before("module.", state), "n_averaged": torch.tensor(3)}, note=lines.append)
    assert lines == ["left aside as no weights of the model: n_averaged"]


@pytest.mark.parametrize("loaded", [{}, {"epoch": 1, "optimizer_states": [OPTIMIZER]}])
def test_no_tensors(loaded):
    with pytest.raises(ModelError, match="no weights by name"):
        choose_weights(PATH, loaded)
