"""How carefully to measure."""

from __future__ import annotations

from dataclasses import replace

from infsa_deploy.measurements import Settings
from infsa_deploy.runtime.cores import thread_count


def settings_for(threads: int | None, device: str, *, quick: bool, energy: bool) -> Settings:
    """The usual settings, or short ones; threads default to every core."""
    chosen = Settings(threads=thread_count(threads), device=device, energy=energy)
    if not quick:
        return chosen
    return replace(chosen, rounds=2, most_rounds=2, turn_s=0.2, warm_up_calls=5, slow_call_s=2.0)
