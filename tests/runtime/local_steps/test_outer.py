"""The outer rule against torch's own SGD."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.plan import Outer
from isthmus.runtime.local_steps.outer import outer_step_


@settings(deadline=None)
@given(
    lr=st.floats(0.1, 1.5),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_outer_rule_is_torch_sgd(lr: float, momentum: float, nesterov: bool, seed: int) -> None:
    nesterov = nesterov and momentum > 0
    generator = torch.Generator().manual_seed(seed)
    outer = torch.randn(7, generator=generator)
    held = torch.nn.Parameter(outer.clone())
    reference = torch.optim.SGD([held], lr=lr, momentum=momentum, nesterov=nesterov)
    state = torch.zeros(7)
    for _ in range(4):
        held.grad = torch.randn(7, generator=generator)
        outer_step_(outer, state, held.grad.clone(), Outer(lr=lr, momentum=momentum, nesterov=nesterov))
        reference.step()
    torch.testing.assert_close(outer, held.detach(), rtol=1e-5, atol=1e-6)
