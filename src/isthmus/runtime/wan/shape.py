"""How a rail is cut to its links: streams, from rate and round trip; shares of three and more regions, from their rates."""

from collections.abc import Sequence
from math import ceil, sqrt

__all__ = ["choose_shares", "choose_streams"]

STREAMS_MAX = 16
WINDOW_BYTES = 1 << 21
PACKET_BYTES = 1500
SLOW_BYTES_PER_S = 32e6
_TINY = 1e-12


def choose_streams(rate_bytes_per_s: float, rtt_s: float, rails: int = 1, loss: float = 0.0) -> int:
    """TCP connections for one rail to one other region.

        streams = max(ceil(r T / (n w)), ceil(2 r / (n m))), at least 1 (2 where r / n > 32 MB/s), at most 16
        m = 1500 / T x sqrt(3 / (2 p))

    r = rate_bytes_per_s of the whole link, T = rtt_s, n = rails that share it, w = 2 MiB: what one stream keeps in flight
    with as much again in reserve, where net.ipv4.tcp_wmem has its usual maximum of 4 MiB. p = loss, the part of packets lost
    at random; m is what a loss-based congestion control reaches at it (M. Mathis et al., Comput. Commun. Rev. 27(3), 1997),
    twice as much is kept in reserve, as streams do not lose in turns. No more than needed: paced streams send bursts of
    their own, and more streams mean smaller bursts and chunks, which cost processor time on the whole path. Measured on two
    cores while other programs were running, 1, 2 and 4 streams a rail: 100 Mb/s and 18 ms took 1.04, 1.05 and 1.18 times the
    limit, three regions over links of 100, 100 and 50 Mb/s 1.03, 1.17 and 1.9 times; 8, 4 and 2 at 1 Gb/s and 60 ms 3.1,
    1.7 and 1.5 times.
    """
    share = rate_bytes_per_s / rails
    lossy = 2 * share * rtt_s / (PACKET_BYTES * sqrt(1.5 / loss)) if loss else 0.0
    wanted = max(share * rtt_s / WINDOW_BYTES, lossy)
    return min(max(ceil(wanted), 1 if share <= SLOW_BYTES_PER_S else 2), STREAMS_MAX)


def choose_shares(rates_bytes_per_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Which part of a tensor each of R >= 3 regions adds up, so that unequal links finish together.

        minimise max over pairs (x_i + x_j) / r_ij,  x >= 0,  sum(x) = 1

    r_ij = rates_bytes_per_s[i][j] (symmetric; the diagonal is not read). On the way i to j go the contribution to j's part and
    the result of i's own part, (x_i + x_j) of the tensor. Three regions all of whose links are busy to the end take
    2 / (r_01 + r_02 + r_12) seconds a byte, with x_i = 1 - 2 r_jk / (r_01 + r_02 + r_12).

    Solved as: maximise sum(y) with y_i + y_j <= r_ij and y >= 0; then x = y / sum(y). The simplex method begins at y = 0 and
    takes Bland's pivots (R. G. Bland, Math. Oper. Res. 2(2), 1977), which end, and are the same on every machine.
    """
    regions = len(rates_bytes_per_s)
    pairs = [(i, j) for i in range(regions) for j in range(i + 1, regions)]
    unit = max(rates_bytes_per_s[i][j] for i, j in pairs)
    columns = regions + len(pairs)  # the regions, then the slack of each pair; the last place of a row is its right side
    rows = [
        [float(column in (i, j, regions + number)) for column in range(columns)] + [rates_bytes_per_s[i][j] / unit]
        for number, (i, j) in enumerate(pairs)
    ]
    gains, basis = [1.0] * regions + [0.0] * (len(pairs) + 1), list(range(regions, columns))
    while (enter := next((column for column in range(columns) if gains[column] > _TINY), None)) is not None:
        bounded = [(row[-1] / row[enter], basis[number], number) for number, row in enumerate(rows) if row[enter] > _TINY]
        _, _, leave = min(bounded)
        pivot = rows[leave] = [value / rows[leave][enter] for value in rows[leave]]
        for row in [*rows[:leave], *rows[leave + 1 :], gains]:
            factor = row[enter]
            row[:] = [value - factor * pivoted for value, pivoted in zip(row, pivot, strict=True)]
        basis[leave] = enter
    amounts = [0.0] * columns
    for number, column in enumerate(basis):
        amounts[column] = max(rows[number][-1], 0.0)
    total = sum(amounts[:regions])
    return tuple(amount / total for amount in amounts[:regions])
