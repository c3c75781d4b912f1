"""Where cities lie, and the least time that light in fibre needs between them."""

from math import asin, cos, radians, sin, sqrt

from isthmus.fabric.entries import entry, number

__all__ = ["city_key", "fibre_rtt_s", "great_circle_m", "rtt_floor_s"]

EARTH_RADIUS_M = 6_371_008.8  # mean radius, IUGG


def city_key(city: str) -> str:
    """The catalogue's name for a city as people write it: `Hong Kong` -> `hong-kong`."""
    return "-".join(city.lower().replace("'", "").split())


def great_circle_m(city_a: str, city_b: str) -> float:
    """Metres along the Earth's surface, by the haversine formula on a sphere (within 0.5% of the ellipsoid).

        d = 2 r asin sqrt(sin^2((p2 - p1) / 2) + cos p1 cos p2 sin^2((l2 - l1) / 2))

    r = mean radius, p = latitude, l = longitude.

    Raises:
        InputError: The catalogue does not know a city.
    """
    (lat_a, lon_a), (lat_b, lon_b) = _position(city_a), _position(city_b)
    half = sin((lat_b - lat_a) / 2) ** 2 + cos(lat_a) * cos(lat_b) * sin((lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_RADIUS_M * asin(sqrt(half))


def fibre_rtt_s(distance_m: float) -> float:
    """Seconds for light to cross `distance_m` of standard single-mode fibre both ways, and nothing else.

    Source: catalogue `fibre single-mode delay`, 4.897 us/km one way.
    """
    return 2 * distance_m * number("fibre", "single-mode", "delay") / 1e3


def rtt_floor_s(city_a: str, city_b: str) -> float:
    """Seconds no round trip between the cities can beat: fibre along the great circle.

    Leaves out: detours of the route (1.2-1.5 times), equipment, and that cables do not start in town centres.
    """
    return fibre_rtt_s(great_circle_m(city_a, city_b))


def _position(city: str) -> tuple[float, float]:
    place = entry("cities", city_key(city))
    return radians(place.figure("latitude").number), radians(place.figure("longitude").number)
