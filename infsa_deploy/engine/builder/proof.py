"""Proof that an engine holds the plugins and types that were asked for."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from infsa_deploy.errors import BuildError

CALIBRATE = "give a model with Q/DQ nodes: infsa-deploy export --int8 --calibration FOLDER"


def check_creators(expected: Mapping[str, int], creators: Collection[str], library: Path) -> None:
    """Raise BuildError unless `library` registered a creator for each plugin the model's nodes name.

    TensorRT asks for a plugin by namespace, name and version, and silently takes the node's function body when one
    of the three differs.

    Args:
        expected: number of nodes by `namespace::op::version`.
        creators: those the registry holds, spelled likewise.
    """
    missing = [plugin for plugin in expected if plugin not in creators]
    if not missing:
        return
    nodes = sum(expected[plugin] for plugin in missing)
    unnamed = [plugin for plugin in missing if plugin.startswith("::") or plugin.endswith("::")]
    if unnamed:
        why = "they lack the attributes plugin_namespace and plugin_version; TensorRT would take the function body."
        fix = "export the model again with infsa-deploy export, or take --plugins off."
    else:
        names = {plugin.split("::")[1] for plugin in missing}
        similar = sorted(creator for creator in creators if creator.split("::")[1] in names)
        why = f"the model asks for {', '.join(missing)}; the library has {', '.join(similar) or 'none of that name'}."
        fix = "use the plugin library of this version of infsa-deploy, or take --plugins off."
    raise BuildError(f"{nodes} of {sum(expected.values())} infsa nodes find no plugin in {library.name}.", why, fix)


def check_fields(carried: Mapping[str, Collection[str]], fields: Mapping[str, Collection[str]], library: Path) -> None:
    """Raise BuildError unless each attribute that the model's nodes carry is a field of their plugin's creator.

    TensorRT asks a creator for the names of its fields and silently leaves out a node's other attributes: a library
    older than the export would compute something else.

    Args:
        carried: names of attributes by `namespace::op::version`.
        fields: those that the creator in `library` names, likewise.
    """
    unknown = {plugin: sorted(set(names) - set(fields[plugin])) for plugin, names in carried.items()}
    lost = [f"{name} of {plugin.split('::')[1]}" for plugin, names in unknown.items() for name in names]
    known = [f"{plugin.split('::')[1]} has {', '.join(fields[plugin])}" for plugin, names in unknown.items() if names]
    if lost:
        raise BuildError(
            f"{library.name} does not know {', '.join(lost)}.",
            f"its {'; '.join(known)}. TensorRT leaves other attributes out; the plugin would compute something else.",
            "use the plugin library of the infsa-deploy that exported the model, or take --plugins off.",
        )


def check_plugins(expected: Mapping[str, int], found: Mapping[str, int], place: str) -> None:
    """Raise BuildError unless each infsa node became one plugin layer; `place` names what was read."""
    if Counter(expected) != Counter(found):
        raise BuildError(
            f"{sum(found.values())} of {sum(expected.values())} infsa nodes are plugin layers in {place}.",
            f"expected {_listed(expected)}; found {_listed(found)}.",
            "see the log beside the engine; --plugins off builds from the function bodies instead.",
        )


def check_precision(asked: str | None, products: Collection[tuple[str, str]], kept_fp32: Collection[str]) -> None:
    """Raise BuildError unless the products with weights multiply in the type asked for.

    For `int8` at least one must be int8, for which ones are is the calibration's choice, and the rest fp16.

    Args:
        products: (layer name, type) of each.
        kept_fp32: names of nodes that were left in fp32 for a stated reason, which are excused.
    """
    found = Counter(kind for _, kind in products)
    if asked == "int8" and not found["int8"]:
        raise BuildError(
            f"int8 was asked, but none of {found.total()} products is quantized.",
            f"they multiply in {_listed(found)}; TensorRT quantizes nothing by itself.",
            CALIBRATE,
        )
    allowed = ("int8", "fp16") if asked == "int8" else (asked,)
    others = [name for name, kind in products if kind not in allowed and name not in kept_fp32]
    if asked is not None and others:
        raise BuildError(
            f"{asked} was asked, but {len(others)} of {found.total()} products multiply in another type.",
            f"found {_listed(found)}, the first is {others[0]!r}; a network takes its types from the ONNX file alone.",
            f"build from the float32 export with infsa-deploy build-engine --{asked}, which retypes it.",
        )


def plan_names_plugins(plan: Path, plugins: Collection[str], library: Path | None) -> bool:
    """Whether the plan names the namespace and op of each plugin outside the library it may hold."""
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(library.read_bytes()) if library else -1
        end = start + library.stat().st_size if library and start >= 0 else start
        names = {name for plugin in plugins for name in plugin.split("::")[:2]}
        return all(_outside(data, name.encode(), start, end) for name in names)


def _outside(data: mmap.mmap, name: bytes, start: int, end: int) -> bool:
    before = data.find(name) if start < 0 else data.find(name, 0, start)
    return before >= 0 or (start >= 0 and data.find(name, end) >= 0)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
