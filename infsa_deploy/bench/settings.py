"""How carefully to measure."""

from __future__ import annotations

from infsa_deploy.bench.quietness import free_cores
from infsa_deploy.measurements import Settings

VERY_SLOW = 4  # times a slow call: what a first call does once is then lost in it


def settings_for(threads: int | None, device: str, *, quick: bool, energy: bool) -> Settings:
    """The usual settings, or short ones; threads default to every core that others leave free."""
    chosen = Settings(threads=threads or free_cores(), device=device, energy=energy)
    if not quick:
        return chosen
    return Settings(chosen.threads, device, rounds=2, turn_s=0.2, warm_up_calls=5, slow_call_s=2.0, energy=energy)
