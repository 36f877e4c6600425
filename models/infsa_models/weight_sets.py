"""Which of the tensors in a checkpoint are the model's: sets of weights under names of their own.

Training scripts nest the weights (`{"model": {...}, "model_ema": {...}, "optimizer": {...}}`), wrappers put words
before each key (`module.`, `_orig_mod.`), and both come together. A set is the tensors that share all of these words;
its name is the words, joined by dots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from infsa_deploy.errors import ModelError, UsageError
from infsa_models import layout
from infsa_models.namings import in_our_names

Words = tuple[str, ...]

SILENT_WORDS = {"module", "_orig_mod"}  # of DataParallel, DistributedDataParallel, AveragedModel; of torch.compile
AVERAGE_WORDS = {"ema", "model_ema", "ema_model", "teacher", "averaged_model"}
WRAPPER_WORDS = SILENT_WORDS | AVERAGE_WORDS | {"model", "net", "network", "student", "state_dict", "backbone"}
# What averages of weights keep beside them: how many steps they saw, and how fast they forget.
COUNTERS = {"n_averaged", "num_updates", "decay"}


@dataclass(frozen=True)
class WeightSet:
    """Tensors by key, and where they lie: names of dictionaries, then words that were before each key."""

    nest: Words
    words: Words
    tensors: dict[str, Tensor]

    @property
    def path(self) -> Words:
        """The words a user needs to name it."""
        return tuple(word for word in (*self.nest, *self.words) if word not in SILENT_WORDS)

    @property
    def name(self) -> str:
        """The path as typed."""
        return ".".join(self.path)

    def is_vit(self) -> bool:
        """Whether most of its keys are those of a ViT, as we or a library name them."""
        known = layout.known_keys(in_our_names(self.tensors))
        return known >= 4 and 2 * known >= len(self.tensors)


def choose_weights(
    path: Path, loaded: Mapping[Any, Any], key: str | None = None, note: Callable[[str], None] = lambda line: None
) -> dict[str, Tensor]:
    """The weights of the model in what a checkpoint holds, without the words before their keys.

    Args: key: the name of the set, or its first words. note: told what was left aside.
    Raises: UsageError when there are several sets and `key` does not name one; ModelError when there is none, or when
        other tensors lie in the dictionary of the set, which may be a part of the model.
    """
    sets = [found for nest, tensors in _nests((), loaded) for found in _sets(nest, tensors)]
    if not sets:
        held = ", ".join(map(str, loaded)) or "nothing"
        raise ModelError(f"{path} holds no weights by name", f"it holds {held}", "save model.state_dict()")
    if key is not None:
        sets = _under(sets, tuple(key.split("."))) or _no_such_key(path, key, sets)
    candidates = [found for found in sets if found.is_vit()]
    if len(candidates) > 1:
        listed = ", ".join(f"{found.name or '(no name)'} ({len(found.tensors)} tensors)" for found in candidates)
        raise UsageError(
            f"{path} holds {len(candidates)} sets of weights",
            f"they are {listed}",
            f"choose one: key={candidates[-1].name!r}, --key {candidates[-1].name}",
        )
    if not candidates:
        return max(sets, key=lambda found: len(found.tensors)).tensors
    return _without_counters(path, candidates[0], [] if key is not None else sets, note)


def _without_counters(
    path: Path, chosen: WeightSet, sets: list[WeightSet], note: Callable[[str], None]
) -> dict[str, Tensor]:
    """The chosen tensors, but for what averages keep beside them; checks that nothing else lies in their dictionary."""
    others = [found for found in sets if found is not chosen and found.nest == chosen.nest]
    averages = [_whole(found, key) for found in others if AVERAGE_WORDS & set(found.words) for key in found.tensors]
    beside = {_whole(found, key): found.tensors[key] for found in others for key in found.tensors}
    aside = [name for name in (*chosen.tensors, *beside) if name in COUNTERS or name in averages]
    if aside:
        shown = f"{', '.join(aside[:5])}{', ...' if len(aside) > 5 else ''}"
        note(f"left aside as no weights of the model: {shown}")
    rest = {name: tensor for name, tensor in beside.items() if name not in aside}
    if rest and chosen.words:
        raise ModelError(
            f"{path} holds more than the weights of {'.'.join((*chosen.nest, *chosen.words))}",
            f"beside them lie {', '.join(list(rest)[:5])}{', ...' if len(rest) > 5 else ''}",
            f"if these are no part of the model, take the others alone: --key {chosen.name}"
            if chosen.name
            else "save the weights of the model alone",
        )
    return {name: tensor for name, tensor in {**chosen.tensors, **rest}.items() if name not in aside}


def _whole(found: WeightSet, key: str) -> str:
    return ".".join((*found.words, key))


def _nests(nest: Words, loaded: Mapping[Any, Any]) -> Iterator[tuple[Words, dict[str, Tensor]]]:
    """Each dictionary that holds tensors by name, with the names on the way to it."""
    named = {key: value for key, value in loaded.items() if isinstance(key, str)}
    tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}
    if tensors:
        yield nest, tensors
    for key, value in named.items():
        if isinstance(value, Mapping):
            yield from _nests((*nest, key), value)


def _sets(nest: Words, tensors: Mapping[str, Tensor]) -> Iterator[WeightSet]:
    groups: dict[Words, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        words = _words_before(key)
        groups.setdefault(words, {})[".".join(key.split(".")[len(words) :])] = tensor
    for words, group in groups.items():
        found = WeightSet(nest, words, group)
        yield found if found.is_vit() else _without_shared_word(found)


def _words_before(key: str) -> Words:
    parts = key.split(".")
    count = 0
    while count < len(parts) - 1 and parts[count] in WRAPPER_WORDS:
        count += 1
    return tuple(parts[:count])


def _without_shared_word(found: WeightSet) -> WeightSet:
    """A set whose keys all begin with one word of the user's own, such as `vit.`, without it if that makes it a ViT."""
    words = {key.partition(".")[0] for key in found.tensors}
    if len(words) != 1 or not all("." in key for key in found.tensors):
        return found
    stripped = {key.partition(".")[2]: tensor for key, tensor in found.tensors.items()}
    within = WeightSet(found.nest, (*found.words, *words), stripped)
    return within if within.is_vit() else found


def _under(sets: list[WeightSet], key: Words) -> list[WeightSet]:
    """The sets whose path begins with the key; else what lies below it inside of a set; else those with it inside."""
    key = tuple(word for word in key if word not in SILENT_WORDS) or key
    first = [found for found in sets if found.path[: len(key)] == key]
    if first:
        return first
    inside = []
    for found in sets:
        rest = key[len(found.path) :]
        before = "".join(f"{word}." for word in rest)
        tensors = {name.removeprefix(before): t for name, t in found.tensors.items() if name.startswith(before)}
        if rest and tensors and key[: len(found.path)] == found.path:
            inside += list(_sets((*found.nest, *found.words, *rest), tensors))
    return inside or [found for found in sets if f".{'.'.join(key)}." in f".{found.name}."]


def _no_such_key(path: Path, key: str, sets: list[WeightSet]) -> list[WeightSet]:
    names = [found.name for found in sets if found.name and found.is_vit()] or [s.name for s in sets if s.name]
    why = f"it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "its weights have no name"
    raise UsageError(f"{path} holds no weights under {key!r}", why, "give one of these, or leave out --key")
