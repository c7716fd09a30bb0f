import pytest

from selfrag.training.run import rate


def test_warm_up_then_decay():
    assert [rate(step, 10, 2) for step in range(10)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    )

    assert [rate(step, 6, 2, "cosine") for step in range(6)] == pytest.approx(
        [0.5, 1.0, 1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]
    )


def test_a_run_of_one_step_has_the_full_rate():
    assert rate(0, 1, 1) == 1.0
