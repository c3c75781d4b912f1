import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.units import (
    BYTES,
    BYTES_PER_SECOND,
    FLOP_PER_SECOND,
    FRACTION,
    METRES,
    SECONDS,
    WATTS,
    QuantityError,
    quantity,
    show_bytes,
    show_rate,
    show_seconds,
)

UNITS = (BYTES, BYTES_PER_SECOND, FLOP_PER_SECOND, FRACTION, METRES, SECONDS, WATTS)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("100 Gb/s", BYTES_PER_SECOND, 12.5e9),  # 100e9 bits / 8
        ("100 GB/s", BYTES_PER_SECOND, 100e9),
        ("100Gbps", BYTES_PER_SECOND, 12.5e9),
        ("1 GiB/s", BYTES_PER_SECOND, 2.0**30),
        ("31.2ms", SECONDS, 0.0312),
        ("4.9 µs", SECONDS, 4.9e-6),
        ("1_000 km", METRES, 1e6),
        ("80 GB", BYTES, 80e9),
        ("64 KiB", BYTES, 65536),
        ("0.1%", FRACTION, 1e-3),
        ("1e-5", FRACTION, 1e-5),
        (".5", FRACTION, 0.5),
        ("989 TFLOP/s", FLOP_PER_SECOND, 989e12),
        ("10.2 kW", WATTS, 10200),
        ("-3 m", METRES, -3),
    ],
)
def test_a_quantity_is_read_in_si_units(text: str, unit: object, value: float) -> None:
    assert quantity(text, unit) == pytest.approx(value, rel=1e-14)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("18", SECONDS, "'18' has no unit (write a time such as '18 ms')"),
        ("18 msec", SECONDS, "'18 msec' has no known unit: 'msec' (write a time such as '18 ms')"),
        ("100 gb/s", BYTES_PER_SECOND, "'100 gb/s' has no known unit: 'gb/s' "
         "(did you mean Gb/s or GB/s? (b is a bit, B a byte))"),
        ("5 MS", SECONDS, "'5 MS' has no known unit: 'MS' (did you mean ms?)"),
        ("ms", SECONDS, "'ms' is not a time (write a time such as '18 ms')"),
        ("", BYTES, "'' is not a size (write a size such as '80 GB')"),
        ("1e999 GB", BYTES, "'1e999 GB' is too large (write a size such as '80 GB')"),
        ("nan GB", BYTES, "'nan GB' is not a size (write a size such as '80 GB')"),
        ("٣ GB", BYTES, "'٣ GB' is not a size (write a size such as '80 GB')"),
        ("1.2.3 GB", BYTES, "'1.2.3 GB' has no known unit: '.3 GB' (write a size such as '80 GB')"),
    ],
)  # fmt: skip
def test_a_wrong_quantity_says_what_to_write(text: str, unit: object, message: str) -> None:
    with pytest.raises(QuantityError) as error:
        quantity(text, unit)  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_example_of_every_unit_is_a_quantity_of_it(unit: object) -> None:
    assert quantity(unit.example, unit) > 0  # type: ignore[attr-defined, arg-type]


@given(text=st.text(max_size=30), unit=st.sampled_from(UNITS))
def test_no_text_does_anything_but_parse_or_refuse(text: str, unit: object) -> None:
    try:
        value = quantity(text, unit)  # type: ignore[arg-type]
    except QuantityError:
        return
    assert abs(value) < float("inf")


@given(seconds=st.floats(1e-9, 1e6))
def test_a_shown_time_reads_back_within_its_three_figures(seconds: float) -> None:
    assert quantity(show_seconds(seconds), SECONDS) == pytest.approx(seconds, rel=6e-3)


@given(size=st.floats(1, 9e17))
def test_a_shown_size_reads_back_within_its_three_figures(size: float) -> None:
    assert quantity(show_bytes(size), BYTES) == pytest.approx(size, rel=6e-3)


def test_rates_are_shown_in_bits_as_links_are_sold() -> None:
    assert show_rate(12.5e9) == "100 Gb/s"
