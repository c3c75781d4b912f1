"""The communication thread."""

import pytest

from isthmus.runtime.courier import Courier


def test_a_job_given_after_the_end_is_refused_and_does_not_hang_its_caller() -> None:
    courier = Courier()
    assert courier.submit(lambda: 7).result(10) == 7
    courier.close()
    with pytest.raises(RuntimeError, match="the communication thread has ended"):
        courier.submit(lambda: 8)
