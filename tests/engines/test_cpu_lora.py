"""LoRA products by groups: the numbers of vLLM's own operators, token by token, on adapters mixed in a batch."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfrag.engines.vllm import multiply_by_groups

RANK, WIDE, OUT = 2, 5, 4


class Wrapper:
    """What is used of vLLM's, for three slots of which the last one is empty."""

    def __init__(self, indices: list[int]) -> None:
        self.token_lora_indices = torch.tensor(indices)

    def _apply_shrink(self) -> None: ...

    def _apply_expand(self) -> None: ...


def worker(*wrappers: object) -> SimpleNamespace:
    mapping = dict(enumerate(wrappers))
    manager = SimpleNamespace(_adapter_manager=SimpleNamespace(punica_wrapper_mapping=mapping))
    return SimpleNamespace(model_runner=SimpleNamespace(lora_manager=manager))


def matrices(seed: int, *shape: int) -> torch.Tensor:
    made = torch.randn(3, 1, *shape, generator=torch.Generator().manual_seed(seed))
    made[2] = 0
    return made


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-1, 1), min_size=1, max_size=9), st.integers(0, 99), st.booleans())
def test_products_are_those_of_every_token_alone(indices: list[int], seed: int, add: bool) -> None:
    wrapper = Wrapper(indices)
    assert multiply_by_groups(worker(wrapper, wrapper)) == 1
    a, b = matrices(seed, RANK, WIDE), matrices(seed + 1, OUT, RANK)
    x = torch.randn(len(indices), WIDE, generator=torch.Generator().manual_seed(seed))
    between = torch.zeros(len(indices), RANK)
    wrapper._apply_shrink(between, x, a, 0.5)  # type: ignore[call-arg]
    torch.testing.assert_close(between, torch.stack([0.5 * a[i, 0] @ row for i, row in zip(indices, x, strict=True)]))
    y = torch.ones(len(indices), OUT + 2)
    wrapper._apply_expand(y, between, b, 1, OUT, add)  # type: ignore[call-arg]
    products = torch.stack([b[i, 0] @ row for i, row in zip(indices, between, strict=True)])
    torch.testing.assert_close(y[:, 1:-1], products + (1 if add else 0))
    assert (y[:, 0] == 1).all()
    assert (y[:, -1] == 1).all()


def test_a_worker_without_adapters_or_of_another_make_stays_as_it_is() -> None:
    assert multiply_by_groups(SimpleNamespace(model_runner=SimpleNamespace())) == 0
    assert multiply_by_groups(worker(SimpleNamespace(token_lora_indices=None))) == 0
