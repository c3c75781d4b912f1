"""Eight lanes of float32 or uint32 as values inside kernels: what the compiler does not make of loops by itself.

numba has no vector type; here are two, `<8 x float>` and `<8 x i32>` of LLVM, with the few operations that the levels need, each
one instruction of LLVM's. No operation may be reordered or fused (no fast-math flags), so lanes hold the bits that the same
arithmetic gives one element at a time; a machine with narrower vectors is given the same in pieces.

Arrays are contiguous and addressed by their first element and an index, unchecked.
"""

# numba's and llvmlite's own types are unknown to the type checker.
# pyright: reportUnknownLambdaType=false
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

__all__ = [
    "add", "as_bits", "as_float", "as_floats", "both", "ceiled", "either", "floats_at", "highest", "highest_of_each",
    "lanes", "larger", "lowest_one", "minus", "mixed", "ones", "over", "plus", "product", "put_bytes", "put_floats", "put_words",
    "reaching", "shifted", "smaller_float", "spread", "times", "truncated", "widened", "words_at", "zero_unless_positive",
]  # fmt: skip

operation: Any = intrinsic  # which the type checker takes for a function of the typing context as well
_FLOAT, _WORD, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(8)
_LANES = 8


class _Floats(types.Type):
    def __init__(self) -> None:
        super().__init__(name="8 x float32")


class _Words(types.Type):
    def __init__(self) -> None:
        super().__init__(name="8 x uint32")


FLOATS, WORDS = _Floats(), _Words()
_F8, _W8 = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_WORD, _LANES)


@register_model(_Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _F8)


@register_model(_Words)
class _WordsModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _W8)


def _binary(name: str, kind: Any) -> Any:
    @operation
    def op(typingctx: Any, a: Any, b: Any) -> Any:
        return kind(kind, kind), lambda context, builder, signature, args: getattr(builder, name)(*args)

    return op


def _maximum(compare: str, builder: Any, a: Any, b: Any) -> Any:
    test = builder.icmp_unsigned if a.type.element == _WORD else builder.fcmp_ordered
    return builder.select(test(compare, a, b), a, b)


def _chosen(kind: Any, compare: str) -> Any:
    @operation
    def op(typingctx: Any, a: Any, b: Any) -> Any:
        return kind(kind, kind), lambda context, builder, signature, args: _maximum(compare, builder, *args)

    return op


plus, minus, times, over = (_binary(name, FLOATS) for name in ("fadd", "fsub", "fmul", "fdiv"))
"""a + b, a - b, a x b, a / b of floats."""
add, product, both, either, mixed = (_binary(name, WORDS) for name in ("add", "mul", "and_", "or_", "xor"))
"""a + b, a x b modulo 2^32; bitwise and, or, exclusive or."""
larger, smaller_float = _chosen(WORDS, ">"), _chosen(FLOATS, "<")
"""The larger of two words; the smaller of two floats (the second where one is no number)."""


def _converted(source: Any, target: Any, build: Callable[[Any, Any], Any]) -> Any:
    @operation
    def op(typingctx: Any, a: Any) -> Any:
        return target(source), lambda context, builder, signature, args: build(builder, args[0])

    return op


as_bits = _converted(FLOATS, WORDS, lambda builder, a: builder.bitcast(a, _W8))
as_floats = _converted(WORDS, FLOATS, lambda builder, a: builder.bitcast(a, _F8))
truncated = _converted(FLOATS, WORDS, lambda builder, a: builder.fptosi(a, _W8))
"""Towards zero; between -2^31 and 2^31."""


def _ceil(builder: Any, a: Any) -> Any:
    below = builder.sitofp(builder.fptosi(a, _W8), _F8)
    one = ir.Constant(_F8, [1.0] * _LANES)
    return builder.select(builder.fcmp_ordered("<", below, a), builder.fadd(below, one), below)


ceiled = _converted(FLOATS, FLOATS, _ceil)
"""The next whole number; between 0 and 2^31."""


def _positive(builder: Any, a: Any, b: Any) -> Any:
    zero = ir.Constant(_F8, [0.0] * _LANES)
    return builder.select(builder.fcmp_ordered(">", b, zero), a, zero)


@operation
def zero_unless_positive(typingctx: Any, a: Any, b: Any) -> Any:
    """Floats of `a` where `b` is above zero, zero elsewhere."""
    return FLOATS(FLOATS, FLOATS), lambda context, builder, signature, args: _positive(builder, *args)


@operation
def shifted(typingctx: Any, a: Any, count: Any) -> Any:
    """Words shifted right by a constant."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = builder.trunc(args[1], _WORD) if args[1].type.width > 32 else args[1]
        return builder.lshr(args[0], _splat(builder, count, _W8))

    return WORDS(WORDS, count), build


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_W8, [0] * _LANES))


@operation
def spread(typingctx: Any, value: Any) -> Any:
    """A float32 or uint32 in every lane."""
    kind, native = (FLOATS, _F8) if value == types.float32 else (WORDS, _W8)
    assert value in (types.float32, types.uint32), value
    return kind(value), lambda context, builder, signature, args: _splat(builder, args[0], native)


@operation
def as_float(typingctx: Any, word: Any) -> Any:
    """A uint32 as the float32 of the same bits."""
    return types.float32(types.uint32), lambda context, builder, signature, args: builder.bitcast(args[0], _FLOAT)


@operation
def lanes(typingctx: Any) -> Any:
    """0, 1, ..., 7 as words."""
    return WORDS(), lambda context, builder, signature, args: ir.Constant(_W8, list(range(_LANES)))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, native: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), native.as_pointer())


def _reader(native: Any, kind: Any, build: Callable[[Any, Any], Any]) -> Any:
    @operation
    def op(typingctx: Any, array: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            index = context.cast(builder, args[1], at, types.intp)
            return build(builder, builder.load(_pointer(context, builder, array, args[0], index, native), align=1))

        return kind(array, at), code

    return op


floats_at = _reader(_F8, FLOATS, lambda builder, found: found)
words_at = _reader(_W8, WORDS, lambda builder, found: found)
"""Eight elements of a float32 (either: or uint32) array, from `at` on."""
widened = _reader(ir.VectorType(_BYTE, _LANES), WORDS, lambda builder, found: builder.zext(found, _W8))
"""Eight bytes of a uint8 array, from `at` on, as words."""


def _writer(native: Any, kind: Any) -> Any:
    @operation
    def op(typingctx: Any, array: Any, at: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            index = context.cast(builder, args[1], at, types.intp)
            builder.store(args[2], _pointer(context, builder, array, args[0], index, native), align=1)
            return context.get_dummy_value()

        return types.void(array, at, kind), code

    return op


put_floats, put_words = _writer(_F8, FLOATS), _writer(_W8, WORDS)
"""Eight elements into an array, from `at` on."""


def _together(builder: Any, parts: Sequence[Any]) -> Any:
    """One vector of all lanes of vectors of one size, in order; their number a power of two."""
    while len(parts) > 1:
        width = 2 * parts[0].type.count
        every = ir.Constant(ir.VectorType(_WORD, width), list(range(width)))
        parts = [builder.shuffle_vector(parts[i], parts[i + 1], every) for i in range(0, len(parts), 2)]
    return parts[0]


@operation
def put_bytes(typingctx: Any, array: Any, at: Any, words: Any) -> Any:
    """The low bytes of a tuple of 1, 2 or 4 vectors of words into a uint8 array, from `at` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = context.cast(builder, args[1], at, types.intp)
        whole = _together(builder, [builder.extract_value(args[2], number) for number in range(len(words))])
        native = ir.VectorType(_BYTE, whole.type.count)
        builder.store(builder.trunc(whole, native), _pointer(context, builder, array, args[0], index, native), align=1)
        return context.get_dummy_value()

    return types.void(array, at, words), code


def _folded(builder: Any, a: Any, b: Any, kept: Sequence[int], distance: int) -> Any:
    """Of a and b, 16 lanes together: the larger of each lane of `kept` and the one at `distance` from it."""
    picked = [builder.shuffle_vector(a, b, ir.Constant(_W8, order)) for order in (list(kept), [lane ^ distance for lane in kept])]
    return _maximum(">", builder, *picked)


@operation
def highest_of_each(typingctx: Any, rows: Any) -> Any:
    """Of a tuple of 8 vectors of words: the largest of each, in order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = [builder.extract_value(args[0], number) for number in range(_LANES)]
        for distance, kept in (4, (0, 1, 2, 3, 8, 9, 10, 11)), (2, (0, 1, 8, 9, 4, 5, 12, 13)), (1, (0, 2, 8, 10, 4, 6, 12, 14)):
            found = [_folded(builder, found[i], found[i + 1], kept, distance) for i in range(0, len(found), 2)]
        # Lanes hold rows 0, 2, 4, 6, 1, 3, 5, 7 now.
        return builder.shuffle_vector(found[0], found[0], ir.Constant(_W8, [0, 4, 1, 5, 2, 6, 3, 7]))

    return WORDS(rows), code


@operation
def highest(typingctx: Any, words: Any) -> Any:
    """The largest of eight words."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = args[0]
        for distance in (4, 2, 1):
            other = builder.shuffle_vector(found, found, ir.Constant(_W8, [lane ^ distance for lane in range(_LANES)]))
            found = _maximum(">", builder, found, other)
        return builder.extract_element(found, ir.Constant(_WORD, 0))

    return types.uint32(words), code


@operation
def reaching(typingctx: Any, words: Any, least: Any) -> Any:
    """A byte whose bit i says whether word i is at least that of `least`; all below 2^31."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.icmp_signed(">=", *args), _BYTE)

    return types.uint8(WORDS, WORDS), code


@operation
def ones(typingctx: Any, bits: Any) -> Any:
    """How many bits of an unsigned integer are set, of its own type."""
    return bits(bits), lambda context, builder, signature, args: builder.ctpop(args[0])


@operation
def lowest_one(typingctx: Any, bits: Any) -> Any:
    """The number of the lowest set bit of an unsigned integer, of its own type; how wide that is where none is set."""
    return bits(bits), lambda context, builder, signature, args: builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))
