"""The plugin library as a file: where it is, whether it can be one, and which GPUs its code is for."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from infsa_deploy.errors import BuildError, HostError, UsageError
from infsa_deploy.files import sha256

ELF_MAGIC = b"\x7fELF"
EM_CUDA = 190
MACHINE, ABI_VERSION, FLAGS = 18, 8, 48  # offsets in a 64-bit ELF header
NEWER_ABI = 8  # from this ABI version on, the SM stands in bits 8..15 of the flags, before in bits 0..7


def locate(library: Path | None) -> Path:
    """The library asked for, or the installed one.

    Raises:
        UsageError: the file asked for does not exist, or is no ELF shared library.
        HostError: none is installed.
    """
    if library is None:
        library = _installed()
    if not library.is_file():
        raise UsageError(f"plugin library {library} does not exist.", "", "give its path with --plugins PATH.")
    with library.open("rb") as file:
        header = file.read(MACHINE)
    if header[:4] != ELF_MAGIC or header[4:5] != b"\x02" or header[16:18] != b"\x03\x00":
        raise UsageError(
            f"{library} is no plugin library.",
            "it is not a 64-bit ELF shared object.",
            "give the path of libinfsa_plugins.so.",
        )
    return library.resolve()


def check_targets(library: Path, targets: tuple[str, ...]) -> None:
    """Raise BuildError if the library has GPU code, but none for one of the targets.

    Code for SM x.y runs on x.z for z >= y. A library in which no GPU code is found cannot be judged and passes.
    """
    present = gpu_code(library)
    for target in targets:
        if present and not any(_serves(code, target) for code in present):
            raise BuildError(
                f"{library.name} has no GPU code for {target}.",
                f"it has code for {', '.join(present)}.",
                f"choose among these with --target, build the library for {target}, or take --plugins off.",
            )


def gpu_code(library: Path) -> tuple[str, ...]:
    """The architectures of the cubins in the library, for example ("sm80", "sm90"), in ascending order."""
    found = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(ELF_MAGIC, 1)
        while start >= 0:
            header = data[start : start + FLAGS + 4]
            if len(header) == FLAGS + 4 and struct.unpack_from("<H", header, MACHINE)[0] == EM_CUDA:
                (flags,) = struct.unpack_from("<I", header, FLAGS)
                found.add(flags >> 8 & 0xFF if header[ABI_VERSION] >= NEWER_ABI else flags & 0xFF)
            start = data.find(ELF_MAGIC, start + 1)
    return tuple(f"sm{code}" for code in sorted(found))


def identity(library: Path) -> tuple[str, str]:
    """File name and SHA-256 of the library."""
    return library.name, sha256(library)


def contains(plan: Path, library: Path) -> bool:
    """Whether the library lies, byte for byte, in the plan."""
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(library.read_bytes()) >= 0


def holds_host_code(plan: bytes) -> bool:
    """Whether a plan holds a file that a processor runs: an ELF file that is for no GPU.

    TensorRT-RTX 1.7 loads a library in a plan whether its host code is allowed or not, and a sidecar may deny that
    there is one. So the plan is asked itself, before TensorRT has it.
    """
    at = plan.find(ELF_MAGIC)
    while at >= 0 and at + MACHINE + 2 <= len(plan):
        bits, order, version = plan[at + 4 : at + 7]  # weights may hold the magic alone by chance
        machine = int.from_bytes(plan[at + MACHINE : at + MACHINE + 2], "little")
        if bits in (1, 2) and order in (1, 2) and version == 1 and machine != EM_CUDA:
            return True
        at = plan.find(ELF_MAGIC, at + 1)
    return False


def _serves(code: str, target: str) -> bool:
    return code[:-1] == target[:-1] and int(code[-1]) <= int(target[-1])


def _installed() -> Path:
    try:
        import infsa_plugins

        library = Path(infsa_plugins.library_path())
        reason = f"{library} does not exist."
    except ImportError as error:
        library, reason = None, f"{error}."
    if library is None or not library.is_file():
        raise HostError(
            "the plugin library is not installed.",
            reason,
            "install a build with plugins, give one with --plugins PATH, or take --plugins off.",
        )
    return library
