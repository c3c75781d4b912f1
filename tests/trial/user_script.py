"""A training script as a user writes it: their own model and data, isthmus only where regions meet."""

import torch
from torch.utils.data import TensorDataset

import isthmus


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(4096, 32)
    dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    with isthmus.join() as cluster:
        model = cluster.parallelize(torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with cluster.sync(model, optimizer):
            for batch in cluster.batches(dataset, batch_size=16):
                cluster.step(model, batch, torch.nn.functional.mse_loss)
                optimizer.step()
                optimizer.zero_grad()


main()
