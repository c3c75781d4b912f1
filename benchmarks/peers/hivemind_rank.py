"""One region of the comparison under hivemind: DecentralizedAverager over all parameters.

At its defaults, `step()` finds a group and averages. With equal time-outs it is set up to be quick: groups of two are
complete as soon as there are two, and the search for the group runs during the window, as hivemind.Optimizer does it.
After an error or a time-out the region goes on with its own parameters, which is what hivemind.Optimizer falls back to;
its `averaging_timeout`, 60 s by default, then bounds the wait.
"""

import time
from typing import Any

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.utils import get_dht_time
from window import Record, Settings, Trained, read_settings

OPTIMIZER_AVERAGING_TIMEOUT_S = 60.0  # hivemind.Optimizer's default
MATCHMAKING_S = 2.0


def meet(settings: Settings) -> hivemind.DHT:
    """Join the DHT; the first region tells the second by a file where it is."""
    path = settings.folder / "hivemind-peers.txt"
    initial = None
    if settings.region > 0:
        while not path.exists():
            time.sleep(0.05)
        initial = path.read_text().split()
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{settings.address}/tcp/0"], initial_peers=initial, start=True)
    if settings.region == 0:
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(map(str, dht.get_visible_maddrs())))
        partial.rename(path)
    return dht


def main() -> None:
    """Train windows; after each, average."""
    settings = read_settings()
    torch.set_num_threads(1)
    model = Trained()
    record = Record(settings, model)
    limit_s = settings.equal_timeouts_s
    options: dict[str, Any] = {}
    if limit_s is not None:
        options = {
            "target_group_size": 2, "min_matchmaking_time": MATCHMAKING_S, "request_timeout": MATCHMAKING_S / 2,
            "next_chunk_timeout": limit_s, "sender_timeout": limit_s,  # reducers must wait longer; by default twice as long
        }
    averager = DecentralizedAverager([*model.bulk], meet(settings), start=True, prefix="peers", **options)
    controls: dict[int, Any] = {}

    def schedule(window: int) -> None:
        """Look for the group of this window's sync while the window trains."""
        if limit_s is not None:
            window_s = max(settings.steps * settings.step_s, MATCHMAKING_S)
            controls[window] = averager.step(
                scheduled_time=get_dht_time() + window_s, timeout=window_s + limit_s, wait=False, require_trigger=True,
            )

    def sync(window: int) -> dict[str, Any]:
        try:
            if limit_s is None:
                found = averager.step(timeout=OPTIMIZER_AVERAGING_TIMEOUT_S)
            else:
                controls[window].allow_allreduce()
                found = controls[window].result()
            outcome = {"committed": True, "alone": False, "group": len(found or ())}
        except Exception as error:
            outcome = {"committed": True, "alone": True, "error": repr(error)[:200]}
        schedule(window + 1)
        return outcome

    schedule(0)
    record.loop(sync)


if __name__ == "__main__":
    main()
