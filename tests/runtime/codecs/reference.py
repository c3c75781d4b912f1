"""A second witness of the codecs: plain numpy, block after block, written from the format's description, not from the kernels."""

import numpy as np

F, U = np.float32, np.uint32
M64 = (1 << 64) - 1


def mixed64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def noise(seed, block):
    """256 numbers below 2^14: the lowest bits of 128 hashes, then their highest."""
    key = mixed64((seed + block * 0x9E3779B97F4A7C15) & M64)
    x = (np.arange(128, dtype=np.uint64) * 0x9E3779B9 + (key & 0xFFFFFFFF)).astype(U)
    x ^= x >> U(16)
    x *= U(0x7FEB352D)
    x ^= x >> U(15)
    x ^= U(key >> 32)
    x *= U(0x846CA68B)
    x ^= x >> U(16)
    return np.concatenate([x & U(0x3FFF), x >> U(18)]).astype(np.int64)


def planes(codes, bits):
    found = []
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = -(-codes.size * width // 8)
            plane = np.zeros(stride, np.uint8)
            for i, code in enumerate(codes):
                plane[i % stride] |= (int(code) & ((1 << width) - 1)) << (i // stride * width)
            found.append(plane)
            codes = codes >> width
    return np.concatenate([np.empty(0, np.uint8), *found])


def levels(values, bits, seed, residual=None):
    """(bytes, decoded, residual afterwards) of int2 .. int8."""
    top, offset = (1 << (bits - 1)) - 1, 1 << (bits - 1)
    scales, subs, codes, decoded, left = [], [], [], [], []
    for first in range(0, values.size, 256):
        x = values[first : first + 256]
        if residual is not None:
            x = residual[first : first + 256] + x
        parts = [x[at : at + 32] for at in range(0, x.size, 32)]
        if not np.isfinite(x).all():
            scale, shares, code = F(np.nan), [255] * len(parts), np.full(x.size, offset + 1)
            x, steps = np.zeros_like(x), np.full(x.size, F(np.nan))
        else:
            scale = np.abs(x).max() * (F(1) / F(top if bits == 8 else 255 * top))
            scale = scale if scale >= F(1e-34) else F(0)
            inverse = F(1) / (scale * F(top)) if scale > 0 else F(0)
            shares = [1 if bits == 8 else min(255, int(np.ceil(np.abs(part).max() * inverse))) for part in parts]
            steps = np.repeat([scale * F(share) for share in shares], 32)[: x.size].astype(F)
            back = np.array([F(1) / step if step > 0 else F(0) for step in steps], F)
            if residual is not None:
                code = np.rint(x * back).astype(np.int64) + offset
            else:
                code = (np.rint(x * (back * F(2**14))).astype(np.int64) + noise(seed, first // 256)[: x.size] >> 14) + offset
            assert ((code >= 1) & (code < 1 << bits)).all(), "a level outside -L .. L"
        value = (code - offset).astype(F) * steps
        scales.append(scale)
        subs += shares if bits < 8 else []
        codes.append(planes(code, bits))
        decoded.append(value)
        left.append(np.where(np.isfinite(value), x - value, F(0)))
    raw = np.array(scales, F).tobytes() + bytes(subs) + b"".join(plane.tobytes() for plane in codes)
    return raw, np.concatenate([np.empty(0, F), *decoded]), np.concatenate([np.empty(0, F), *left])


def signs(values, residual=None):
    scales, codes, decoded, left = [], [], [], []
    for first in range(0, values.size, 256):
        x = values[first : first + 256]
        if residual is not None:
            x = residual[first : first + 256] + x
        rows = np.abs(np.pad(x, (0, 256 - x.size))).reshape(8, 32) * F(2**-8)
        lanes = rows[0]
        for row in rows[1:]:
            lanes = lanes + row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        scale = lanes[0] * (F(256) / F(x.size))
        if not np.isfinite(scale):
            scale, bit, x = F(np.nan), np.zeros(x.size, np.uint8), np.zeros_like(x)
        else:
            scale = scale if scale >= F(1e-34) else F(0)
            bit = np.signbit(x).astype(np.uint8)
        value = np.where(bit == 1, -scale, scale).astype(F)
        scales.append(scale)
        codes.append(planes(bit, 1))
        decoded.append(value)
        left.append(np.where(np.isfinite(value), x - value, F(0)))
    raw = np.array(scales, F).tobytes() + b"".join(plane.tobytes() for plane in codes)
    return raw, np.concatenate([np.empty(0, F), *decoded]), np.concatenate([np.empty(0, F), *left])


def top_places(values, per_block):
    """Places of the kept ones: by magnitude (NaN, then infinity, above all), the first of equals, in order."""
    found = []
    for first in range(0, values.size, 4096):
        bits = values[first : first + 4096].view(U) & U(0x7FFFFFFF)
        keep = -(-per_block * bits.size // 4096)
        found.append(first + np.sort(np.argsort(-bits.astype(np.int64), kind="stable")[:keep]))
    return np.concatenate([np.empty(0, np.int64), *found])
