"""The fuzz targets of the C++ library and its example: libFuzzer, with the address and undefined-behaviour sanitizers.

python -m tests.plugins.embed.fuzzing --runs 1000000          all targets, one after the other
python -m tests.plugins.embed.fuzzing --seconds 60 png
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
EMBED = ROOT / "plugins" / "embed"
BUILD = ROOT / "build" / "fuzzing"
COMPILERS = ("clang++", *(f"clang++-{version}" for version in range(21, 13, -1)))
FLAGS = ("-std=c++17", "-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
RECORD = [
    EMBED / "src" / f"{name}.cpp"
    for name in ("error", "files", "json_text", "record", "rules", "schema", "sha256", "tensor")
]
PICTURE = [EMBED / "src" / f"{name}.cpp" for name in ("error", "preprocess", "tensor")]
PICTURE += [EMBED / "example" / f"{name}.cpp" for name in ("read_image", "orientation", "pnm", "png", "jpeg")]


@dataclass(frozen=True)
class Target:
    """One fuzz target: its sources besides its own, the libraries it links, and the longest input, in bytes."""

    name: str
    sources: list[Path]
    libraries: tuple[str, ...]
    longest: int

    @property
    def seeds(self) -> Path:
        return HERE / "fuzz" / "seeds" / self.name


DECODERS = ("-lpng", "-ljpeg", "-lz")
TARGETS = (
    Target("sidecar", RECORD, (), 4096),
    Target("pnm", PICTURE, DECODERS, 256),
    Target("png", PICTURE, DECODERS, 512),
    Target("jpeg", PICTURE, DECODERS, 768),
)


def compiler() -> str | None:
    """A clang with libFuzzer, or None."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def build(target: Target, json_headers: Path) -> Path:
    """Compile the target; RuntimeError with the compiler's words where it does not."""
    clang = compiler()
    assert clang, "a clang is needed"
    folder = BUILD / target.name
    folder.mkdir(parents=True, exist_ok=True)
    schema = (ROOT / "infsa_deploy" / "engine" / "sidecar_schema.json").read_text()
    header = (EMBED / "src" / "sidecar_schema.h.in").read_text().replace("@INFSA_SCHEMA_TEXT@", schema)
    (folder / "sidecar_schema.h").write_text(header)
    include = [f"-I{place}" for place in (folder, EMBED / "include", EMBED / "src", EMBED / "example", HERE / "fuzz")]
    own = HERE / "fuzz" / f"{target.name}.cpp"
    words = [clang, *FLAGS, "-DINFSA_PNG", "-DINFSA_JPEG", *include, "-isystem", json_headers, own, *target.sources]
    result = subprocess.run(
        [*map(str, words), "-o", str(folder / "fuzz"), *target.libraries], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return folder / "fuzz"


def fuzz(target: Target, program: Path, *limits: str) -> tuple[int, str]:
    """Run the target from its seeds; how many inputs it ran, and its messages. RuntimeError where one is a finding."""
    corpus = program.parent / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir()
    words = [program, f"-max_len={target.longest}", "-timeout=20", "-rss_limit_mb=2048", "-malloc_limit_mb=512"]
    words += [f"-artifact_prefix={program.parent}/", "-print_final_stats=1", "-verbosity=0", "-seed=1", *limits]
    if target.name == "sidecar":
        words.append(f"-dict={HERE / 'fuzz' / 'sidecar.dict'}")
    result = subprocess.run(
        [*map(str, words), str(corpus), str(target.seeds)], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-8000:])
    return int(re.search(r"number_of_executed_units: *(\d+)", result.stderr)[1]), result.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[target.name for target in TARGETS])
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--json-headers", type=Path, required=True, help="folder that holds nlohmann/json.hpp")
    options = parser.parse_args()
    for target in TARGETS:
        if target.name not in options.targets:
            continue
        program = build(target, options.json_headers)
        runs, text = fuzz(target, program, f"-runs={options.runs}", f"-max_total_time={options.seconds}")
        stats = dict(re.findall(r"stat::(\w+): *(\d+)", text))
        files = len(list((program.parent / "corpus").iterdir()))
        print(
            f"{target.name}: {runs:,} runs, {stats['average_exec_per_sec']} a second, {files} inputs kept, no finding"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
