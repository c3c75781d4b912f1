"""The communication thread."""

import pytest

from isthmus.runtime.courier import Courier, VoidError


def test_a_job_given_after_the_end_is_refused_and_does_not_hang_its_caller() -> None:
    courier = Courier()
    assert courier.submit(lambda: 7).result(10) == 7
    courier.close()
    with pytest.raises(RuntimeError, match="the communication thread has ended"):
        courier.submit(lambda: 8)


def test_a_void_job_stops_no_later_one_and_a_failed_job_stops_all() -> None:
    class Void(VoidError):
        pass

    def void() -> None:
        raise Void

    def fail() -> None:
        raise OSError("the wire")

    courier = Courier()
    with pytest.raises(Void):
        courier.submit(void).result(10)
    courier.raise_failure()
    assert courier.submit(lambda: 7).result(10) == 7
    for job in (fail, lambda: 7):
        with pytest.raises(OSError, match="the wire"):
            courier.submit(job).result(10)
    courier.close()
