"""Text of torch.distributed benchmarks to the tables of `nccl_tests`: the Markdown table of ml-engineering's all_reduce_bench.

    The average bandwidth of all_reduce over 32 ranks (5 warmups / 20 trials):
    | payload |    busbw   |    algbw   |
    | ------: | ---------: | ---------: |
    |   32KiB |   1.44GBps |   0.82GBps |

Times are worked out of algbw, whose two decimals say little below about 0.1 GB/s: such rows are passed over.
"""

import re

from isthmus.formats.nccl_tests import Table, TableRow

__all__ = ["read_torch_bench"]

_TITLE = re.compile(r"average bandwidth of all_reduce over (\d+) ranks")
_ROW = re.compile(r"\|\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B\s*\|\s*(\d+\.\d+)\s*GBps\s*\|\s*(\d+\.\d+)\s*GBps\s*\|")
_NCCL = re.compile(r"nccl=\((\d+), (\d+), (\d+)\)")
_DEVICE = re.compile(r"name='([^']+)'")
_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ALGBW_MIN_BYTES_PER_S = 0.1e9


def read_torch_bench(text: str) -> tuple[Table, ...]:
    """Every table in `text`; empty where there is none. The payloads of the benchmark are powers of two."""
    tables: list[Table] = []
    version, devices = "", ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := _NCCL.search(line):
            version = ".".join(found.groups())
        if found := _DEVICE.search(line):
            devices = (found[1],)
        if found := _TITLE.search(line):
            tables.append(Table(number, "all-reduce", int(found[1]), 0, devices, version))
        elif tables and (row := _ROW.search(line)) and float(row[4]) * 1e9 >= ALGBW_MIN_BYTES_PER_S:
            size, algbw = int(float(row[1]) * _BINARY[row[2]]), float(row[4]) * 1e9
            tables[-1].rows.append(TableRow(number, size, None, size / algbw, algbw, float(row[3]) * 1e9, None))
    return tuple(table for table in tables if table.rows)
