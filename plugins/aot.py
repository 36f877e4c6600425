"""Compile the kernels ahead of time: one cubin for each kernel, variant, type and SM, PTX for newer devices.

    python aot.py --out FOLDER [--sm 80 86 ...] [--jobs N]     what CMake runs
    python aot.py --report [--sm 80 90]                        registers, spills, shared memory, occupancy, tensor cores

Needs triton and neither a GPU nor a CUDA toolkit. Results are cached under the hash of the kernel's source, its
variant and the compiler's version. The folder gets `kernels.inc` (a table for C++), `kernels.S` (the code itself) and
`kernels.json` (the same table for other readers).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # the interpreter's functions cannot be compiled
sys.path.insert(0, str(Path(__file__).parent))

DEFAULT_SM = (80, 86, 89, 90, 100, 120)
SHARED = {89: 86}  # code of the same major and a lower minor version runs, and Triton's differs in fp8 only
PTX_SM = 86  # the tiles of the smallest shared memory; targets above carry arch-specific PTX that no other SM takes
CPP_TYPE = {"fp32": "kFLOAT", "fp16": "kHALF", "bf16": "kBF16"}


@dataclass(frozen=True)
class Job:
    """One compilation: a kernel's variant for a type and an SM, as machine code or PTX."""

    kernel: str
    dtype: str
    limit: int
    sm: int
    ptx: bool = False


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infsa-deploy" / "kernels"


def kernels() -> dict[str, Any]:
    """Every kernel by name: those of each op's folder, and what the ops share."""
    import infsa_plugins
    from infsa_plugins import pooling

    folders = [name for _, name, is_folder in pkgutil.iter_modules(infsa_plugins.__path__) if is_folder]
    ops = [importlib.import_module(f"infsa_plugins.{name}.kernel") for name in folders]
    return {kernel.name: kernel for module in (*ops, pooling) for kernel in module.KERNELS}


def jobs(sms: Sequence[int], ptx: bool) -> list[Job]:
    """Every compilation that a list of SMs needs, each once; PTX last, when most of it is in the cache already."""
    targets = [(sm, False) for sm in sorted({SHARED.get(sm, sm) for sm in sms})] + [(PTX_SM, True)] * ptx
    return [
        Job(name, dtype, limit, sm, as_ptx)
        for sm, as_ptx in targets
        for name, kernel in kernels().items()
        for dtype in kernel.dtypes
        for limit in kernel.tiles(dtype, sm)
    ]


def compile_job(job: Job, cache: Path) -> dict[str, Any]:
    """Compile one job, or take it from the cache; returns its table entry with the path of its code.

    The PTX of a variant is a by-product of its machine code, so the two share a compilation.
    """
    import triton

    kernel = kernels()[job.kernel]
    tile = kernel.tiles(job.dtype, job.sm)[job.limit]
    recipe = json.dumps(
        {
            "triton": triton.__version__,
            "source": kernel.function.cache_key,
            "arguments": kernel.arguments,
            "multiples": kernel.multiples,
            "tile": asdict(tile),
            "target": [job.dtype, job.limit, job.sm],
        }
    )
    stem = cache / hashlib.sha256(recipe.encode()).hexdigest()[:32]
    if not stem.with_suffix(".json").exists():
        _compile(job, kernel, tile, stem)
    entry = json.loads(stem.with_suffix(".json").read_text())
    code = stem.with_suffix(".ptx" if job.ptx else ".cubin")
    return asdict(job) | entry | {"code": str(code), "sha256": hashlib.sha256(code.read_bytes()).hexdigest()}


def _compile(job: Job, kernel: Any, tile: Any, stem: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    types = {name: kind.replace("*T", f"*{job.dtype}") for name, kind in kernel.arguments.items()}
    function = kernel.function
    promises = {name: 16 for name, kind in types.items() if kind.startswith("*")} | dict(kernel.multiples)
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in function.arg_names},
        constexprs=dict(tile.constants),
        attrs={(function.arg_names.index(name),): [["tt.divisibility", by]] for name, by in promises.items()},
    )
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    with tempfile.TemporaryDirectory() as scratch, triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir = scratch
        triton.knobs.compilation.disable_line_info = True
        built = triton.compile(source, target=GPUTarget("cuda", job.sm, 32), options=options)
    scratch_bytes = built.metadata.global_scratch_size + getattr(built.metadata, "profile_scratch_size", 0)
    if scratch_bytes:
        raise RuntimeError(f"{job}: wants {scratch_bytes} bytes of scratch memory, which the library does not provide")
    entry = {
        "symbol": built.metadata.name,
        "arguments": {name: types[name] for name in types},
        "constants": {name: int(value) for name, value in tile.constants.items()},
        "promises": promises,
        "warps": tile.warps,
        "stages": tile.stages,
        "shared": built.metadata.shared,
    }
    entry["threads"] = 32 * tile.warps
    _write(stem.with_suffix(".cubin"), built.asm["cubin"])
    _write(stem.with_suffix(".ptx"), built.asm["ptx"].encode() + b"\0")
    _write(stem.with_suffix(".json"), json.dumps(entry).encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def compile_all(todo: Sequence[Job], cache: Path, workers: int) -> list[dict[str, Any]]:
    """Compile in parallel, with a line of progress on a terminal."""
    entries = []
    with ProcessPoolExecutor(workers) as pool:
        for done, entry in enumerate(pool.map(compile_job, todo, [cache] * len(todo)), 1):
            entries.append(entry)
            if sys.stderr.isatty():
                print(f"\rkernels {done}/{len(todo)}", end="\n" if done == len(todo) else "", file=sys.stderr)
    return entries


def write_table(entries: list[dict[str, Any]], out: Path) -> None:
    """Write kernels.inc, kernels.S and kernels.json, equal code once."""
    blobs: dict[str, int] = {}
    table, assembly = [], ['.section .note.GNU-stack,"",%progbits', ".section .rodata"]
    for entry in entries:
        if entry["sha256"] not in blobs:
            index = blobs[entry["sha256"]] = len(blobs)
            assembly += [".balign 64", f".globl infsa_code_{index}", f".hidden infsa_code_{index}"]
            assembly += [f"infsa_code_{index}:", f'.incbin "{entry["code"]}"']
        index = blobs[entry["sha256"]]
        constants = ", ".join(f'{{"{name}", {value}}}' for name, value in entry["constants"].items())
        table.append(
            f'{{"{entry["kernel"]}", DataType::{CPP_TYPE[entry["dtype"]]}, {entry["limit"]}, {entry["sm"]}, '
            f'{str(entry["ptx"]).lower()}, "{entry["symbol"]}", {entry["threads"]}, {entry["shared"]}, '
            f"{len(entry['arguments'])}, infsa_code_{index}, {{{constants}}}}},"
        )
    declarations = [f'extern "C" unsigned char const infsa_code_{index}[];' for index in blobs.values()]
    out.mkdir(parents=True, exist_ok=True)
    header = ["#ifdef INFSA_DECLARATIONS", *declarations, "#else", *table, "#endif"]
    _write(out / "kernels.inc", ("\n".join(header) + "\n").encode())
    _write(out / "kernels.S", ("\n".join(assembly) + "\n").encode())
    _write(out / "kernels.json", json.dumps(entries, indent=1).encode())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--report", action="store_true", help="print what each kernel uses instead")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--sm", type=int, nargs="+", help="SMs to compile for")
    parser.add_argument("--no-ptx", action="store_true", help="leave out the PTX for newer SMs")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, default: %(default)s")
    options = parser.parse_args(arguments)
    if options.report == bool(options.out):
        parser.error("give either --out or --report")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        import triton
    except ImportError:
        print("aot.py: triton is missing. The kernels are written in it. pip install triton", file=sys.stderr)
        return 3
    if options.report:
        import static_report

        todo = jobs(options.sm or (80, 90), ptx=False)
        products = {name for name, kernel in kernels().items() if kernel.product}
        return static_report.run(compile_all(todo, options.cache, options.jobs), options.json, products)
    started = time.monotonic()
    todo = jobs(options.sm or DEFAULT_SM, ptx=not options.no_ptx)
    entries = compile_all(todo, options.cache, options.jobs)
    write_table(entries, options.out)
    size = sum({entry["sha256"]: Path(entry["code"]).stat().st_size for entry in entries}.values())
    print(
        f"{len(entries)} kernels by triton {triton.__version__}, {size / 2**20:.1f} MiB,"
        f" {time.monotonic() - started:.0f} s",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
