"""A TCP proxy at a rank's door that can flip bits of what passes, after TCP's own checksum and before whoever reads it.

It begins to listen when the target does. SIGUSR1: one bit of a byte that passes later is flipped, some ten kB on.
"""

import asyncio
import contextlib
import signal
import socket
import sys

SKIP_BYTES = 10_000


class Flips:
    """How many flips are owed, and how many bytes still pass before the next."""

    def __init__(self) -> None:
        self.owed, self.left = 0, SKIP_BYTES

    def arm(self) -> None:
        """Owe one more."""
        self.owed, self.left = self.owed + 1, SKIP_BYTES

    def spoil(self, data: bytes) -> bytes:
        """`data`, with a bit flipped where one is due."""
        if not self.owed:
            return data
        if self.left >= len(data):
            self.left -= len(data)
            return data
        spoiled = bytearray(data)
        spoiled[self.left] ^= 1
        self.owed -= 1
        print("chaos: flipped a bit on the wire", file=sys.stderr, flush=True)
        return bytes(spoiled)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flips: Flips) -> None:
    """Carry one direction until it ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(flips.spoil(data))
            await writer.drain()
        writer.write_eof()


async def serve(listen: tuple[str, int], target: tuple[str, int]) -> None:
    """Listen for ever."""
    flips = Flips()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, flips.arm)
    while not listens(target[1]):
        await asyncio.sleep(0.05)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*target)
        except OSError:
            reset(writer)
            return
        for each in (writer, back):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(pump(reader, back, flips), pump(there, writer, flips))
        writer.close()
        back.close()

    server = await asyncio.start_server(carry, *listen)
    async with server:
        await server.serve_forever()


def listens(port: int) -> bool:
    """Whether a process of this network namespace listens on `port`; asked of the kernel, not by knocking."""
    with open("/proc/net/tcp", encoding="ascii") as stream:
        rows = [line.split() for line in stream][1:]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a dead process's kernel would."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def split(address: str) -> tuple[str, int]:
    """host:port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def preload() -> None:
    """Nothing but this file is to be loaded before a fork."""


def main(listen: str, target: str) -> None:
    """Until it is ended."""
    asyncio.run(serve(split(listen), split(target)))
