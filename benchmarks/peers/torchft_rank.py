"""One region of the comparison under torchft: DiLoCo over gloo, as its README sets it up."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo
from window import Record, Trained, read_settings


def main() -> None:
    """Train windows; `meeting` is the lighthouse's URL."""
    settings = read_settings()
    torch.set_num_threads(1)
    model = Trained()
    record = Record(settings, model)
    inner = torch.optim.SGD(model.small.parameters(), lr=0.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    store = dist.TCPStore(settings.address, 0, is_master=True, wait_for_workers=False)
    times: dict[str, Any] = {}
    group_s = 60.0
    if settings.equal_timeouts_s is not None:
        group_s = settings.equal_timeouts_s
        span = timedelta(seconds=group_s)
        times = {"timeout": span, "connect_timeout": span}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=group_s)),
        min_replica_size=1,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        use_async_quorum=False,  # DiLoCo demands it
        rank=0,
        world_size=1,
        store_addr=settings.address,
        store_port=store.port,
        lighthouse_addr=settings.meeting,
        replica_id=f"region{settings.region}",
        hostname=settings.address,
        init_sync=False,  # as its documentation says where all regions begin with equal parameters
        **times,
    )

    def sync(window: int) -> dict[str, Any]:
        step = manager.current_step()
        inner.step()
        return {"committed": manager.current_step() > step, "alone": manager.num_participants() == 1}

    with DiLoCo(manager, [model], inner, outer, sync_every=1):
        record.loop(sync)


if __name__ == "__main__":
    main()
