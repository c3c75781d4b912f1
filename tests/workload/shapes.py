"""Model shapes for the tests, and a second way to count them: every tensor and every matrix product,
listed."""

from collections.abc import Iterator

from hypothesis import strategies as st

from isthmus.workload import ModelShape

Tensor = tuple[int, ...]


def tensors(shape: ModelShape, active: bool = False) -> Iterator[Tensor]:
    """Every tensor of the model as its public implementation allocates it; `active` keeps visited experts
    only."""
    yield (shape.vocabulary, shape.hidden)
    if shape.positions:
        yield (shape.positions, shape.hidden)
    for layer in range(shape.layers):
        yield from attention_tensors(shape)
        yield from norms(shape, shape.block_norms)
        if shape.experts and layer >= shape.dense_layers:
            yield from expert_tensors(shape, active)
        else:
            yield from feed_forward_tensors(shape, shape.ffn)
    yield from norms(shape, 1)
    if not shape.tied:
        yield (shape.vocabulary, shape.hidden)


def norms(shape: ModelShape, count: int) -> Iterator[Tensor]:
    for _ in range(count * shape.norm_tensors):
        yield (shape.hidden,)


def linear(rows: int, columns: int, bias: bool) -> Iterator[Tensor]:
    yield (rows, columns)
    if bias:
        yield (rows,)


def attention_tensors(shape: ModelShape) -> Iterator[Tensor]:
    h, d = shape.hidden, shape.head_dim
    if shape.attention == "mla":
        if shape.q_rank:
            yield from (
                (shape.q_rank, h),
                (shape.q_rank,),
                (shape.heads * (shape.nope_dim + shape.rope_dim), shape.q_rank),
            )
        else:
            yield (shape.heads * (shape.nope_dim + shape.rope_dim), h)
        yield from ((shape.kv_rank + shape.rope_dim, h), (shape.kv_rank,))
        yield (shape.heads * (shape.nope_dim + d), shape.kv_rank)
        yield (h, shape.heads * d)
        return
    for heads in (shape.heads, shape.kv_heads, shape.kv_heads):
        yield from linear(heads * d, h, shape.biases or shape.qkv_biases)
    yield from linear(h, shape.heads * d, shape.biases)
    if shape.qk_norm:
        yield from ((d,), (d,))


def feed_forward_tensors(shape: ModelShape, width: int) -> Iterator[Tensor]:
    for _ in range(2 if shape.gated else 1):
        yield from linear(width, shape.hidden, shape.biases)
    yield from linear(shape.hidden, width, shape.biases)


def expert_tensors(shape: ModelShape, active: bool) -> Iterator[Tensor]:
    yield (shape.experts, shape.hidden)
    if shape.router_bias:
        yield (shape.experts,)
    if shape.shared_gate:
        yield (1, shape.hidden)
    for _ in range((shape.experts_active if active else shape.experts) + shape.shared_experts):
        yield from feed_forward_tensors(shape, shape.expert_ffn)


small = st.integers(1, 7)


@st.composite
def model_shapes(draw: st.DrawFn) -> ModelShape:
    """Any mixture of the families' features, far beyond the published combinations."""
    kv_heads, mla, experts = draw(small), draw(st.booleans()), draw(st.integers(0, 6))
    layers, heads = draw(small), kv_heads * draw(small)
    fields: dict[str, object] = {}
    if mla:
        kv_heads = heads
        fields |= {
            "attention": "mla",
            "q_rank": draw(st.integers(0, 5)),
            "kv_rank": draw(small),
            "rope_dim": draw(small),
            "nope_dim": draw(small),
        }
    else:
        fields |= {
            "biases": draw(st.booleans()),
            "qkv_biases": draw(st.booleans()),
            "qk_norm": draw(st.booleans()),
        }
    if experts:
        fields |= {
            "experts": experts,
            "experts_active": draw(st.integers(1, experts)),
            "expert_ffn": draw(small),
            "shared_experts": draw(st.integers(0, 3)),
            "shared_gate": draw(st.booleans()),
            "router_bias": draw(st.booleans()),
            "dense_layers": draw(st.integers(0, layers - 1)),
        }
    return ModelShape(
        name="any",
        layers=layers,
        hidden=draw(st.integers(1, 40)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=draw(small),
        ffn=draw(small),
        gated=draw(st.booleans()),
        vocabulary=draw(st.integers(1, 50)),
        tied=draw(st.booleans()),
        positions=draw(st.integers(0, 30)),
        norm_tensors=draw(st.integers(1, 2)),
        block_norms=draw(st.integers(2, 4)),
        dropout=draw(st.booleans()),
        **fields,  # type: ignore[arg-type]
    )
