"""One region of the comparison under isthmus: local steps by the front door, as a user's script has them."""

import os
from typing import Any

import torch
from window import TOKENS_PER_STEP, Record, Trained, read_settings

import isthmus.runtime as isthmus


def main() -> None:
    """Train windows; the plan (ISTHMUS_PLAN) says K = 1, and one step of the optimizer is one window."""
    settings = read_settings()
    torch.set_num_threads(1)
    model = Trained()
    record = Record(settings, model)
    batch = torch.zeros(TOKENS_PER_STEP * settings.steps, 1), torch.zeros(TOKENS_PER_STEP * settings.steps, 1)
    with isthmus.join(timeout_s=60.0) as cluster:
        wrapped = cluster.parallelize(model)
        optimizer = torch.optim.SGD(model.small.parameters(), lr=0.0)
        with cluster.sync(wrapped, optimizer):

            def sync(window: int) -> dict[str, Any]:
                cluster.step(wrapped, batch, torch.nn.functional.mse_loss)
                optimizer.step()
                return {"committed": True}

            record.loop(sync)
            os._exit(0)  # the comparison ends here; regions may be dead, and leaving in good order is not measured


if __name__ == "__main__":
    main()
