"""Triton kernels of attention over pages; `attention.triton.plan` makes their arguments.

A *tile* is a block of queries of one sequence against one key-value head. Its rows are (query, head of the group), so
the heads that share keys are rows of one product. Keys are read through *pieces*: one page each, some of whose slots
are keys. Slot s of a sequence is slot s % page_size of its piece s // page_size. Softmax runs over blocks of slots
(Milakov and Gimelshein 2018), with powers of 2. Keys may be split over programs; `merge_splits` adds their parts.

Triton does not specialize on sizes that change from batch to batch; otherwise they would compile the kernels again.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)  # below all scores; finite, so that differences are no NaN


@triton.jit
def _tanh(x):
    """tanh, by the exponential of a negative number, which cannot overflow."""
    small = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def _count_bits(x):
    """The number of bits set in each uint32."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (((x & 0xFF) + ((x >> 8) & 0xFF)) + (((x >> 16) & 0xFF) + ((x >> 24) & 0xFF))).to(tl.int32)


@triton.jit
def _is_key(bits, offset):
    """Whether the slots at `offset` of pieces with these bits are keys."""
    return ((bits >> offset.to(tl.uint32)) & 1) != 0


@triton.jit
def write_rows(
    cache,  # one layer
    key_value,  # [T, WIDTH, HEAD_DIM]
    slots,  # int32 [T]
    row_stride,
    head_stride,
    PAGE_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,  # key heads and value heads
    HEAD_DIM: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """Writes the keys and values of one row to its slot. Grid (T,)."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    head = tl.arange(0, PADDED_WIDTH)[:, None]
    dim = tl.arange(0, PADDED_DIM)[None, :]
    within = (head < WIDTH) & (dim < HEAD_DIM)
    vectors = tl.load(key_value + row.to(tl.int64) * row_stride + head * head_stride + dim, mask=within)
    page = (slot // PAGE_SIZE).to(tl.int64) * (WIDTH * PAGE_SIZE * HEAD_DIM)
    tl.store(cache + page + (head * PAGE_SIZE + slot % PAGE_SIZE) * HEAD_DIM + dim, vectors, mask=within)


@triton.jit(do_not_specialize=["window"])
def find_first_visible(
    tile_begin,  # int32 [tiles], starts as tile_end; becomes the first slot that the window shows to any query
    tile_sequence,
    tile_first,
    tile_end,
    row_start,
    piece_start,
    piece_page,
    piece_bits,
    key_positions,  # int32 [slots of the cache]
    query_positions,  # int32 [T]
    window,
    PAGE_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,  # in a tile
    PADDED_QUERIES: tl.constexpr,
    HOLES: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks that one program looks at
):
    """Finds the first slot that the window shows to a tile. Grid (tiles, spans of BLOCKS blocks of slots)."""
    tile = tl.program_id(0)
    sequence = tl.load(tile_sequence + tile)
    first_row = tl.load(row_start + sequence) + tl.load(tile_first + tile)
    rows = first_row + tl.arange(0, PADDED_QUERIES)
    own = (tl.arange(0, PADDED_QUERIES) < QUERIES) & (rows < tl.load(row_start + sequence + 1))
    oldest = tl.min(tl.load(query_positions + rows, mask=own, other=2147483647), 0)
    pieces = tl.load(piece_start + sequence)
    end = tl.load(tile_end + tile)
    span = tl.program_id(1) * (BLOCKS * BLOCK_SLOTS)
    first = end
    for start in range(span, tl.minimum(end, span + BLOCKS * BLOCK_SLOTS), BLOCK_SLOTS):
        slot = start + tl.arange(0, BLOCK_SLOTS)
        inside = slot < end
        piece = pieces + slot // PAGE_SIZE
        offset = slot % PAGE_SIZE
        page = tl.load(piece_page + piece, mask=inside, other=0)
        if HOLES:
            inside &= _is_key(tl.load(piece_bits + piece, mask=inside, other=0).to(tl.uint32, bitcast=True), offset)
        position = tl.load(key_positions + page * PAGE_SIZE + offset, mask=inside, other=0)
        seen = inside & (position.to(tl.int64) > oldest.to(tl.int64) - window)
        first = tl.minimum(first, tl.min(tl.where(seen, slot, end), 0))
    if first < end:
        tl.atomic_min(tile_begin + tile, first)


@triton.jit(do_not_specialize=["window", "splits", "num_rows"])
def attend_tiles(
    output,  # [T, heads, HEAD_DIM]; SPLIT: float32 [splits, T, heads, HEAD_DIM]
    log_sums,  # SPLIT: float32 [splits, T, heads], base 2; else None
    query,  # [T, heads, HEAD_DIM]
    cache,  # one layer
    row_start,  # int32 [N + 1]: rows of each sequence
    num_keys,  # int32 [N]
    piece_start,  # int32 [N + 1]: pieces of each sequence
    piece_page,  # int32 [pieces]
    piece_bits,  # HOLES: int32 [pieces], which slots are keys
    piece_rank,  # HOLES: int32 [pieces], keys before the piece
    tile_sequence,  # int32 [tiles]
    tile_first,  # int32 [tiles], first query
    tile_begin,  # WINDOWED: int32 [tiles], slots to look at
    tile_end,  # int32 [tiles]
    mask_start,  # MASKED: int64 [N], byte at which a sequence's mask starts; -1: it has none
    mask_bits,  # MASKED: uint8
    key_positions,  # WINDOWED: int32 [slots of the cache]
    query_positions,  # WINDOWED: int32 [T]
    scale,
    soft_cap,
    window,
    splits,
    num_rows,
    query_stride,
    head_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    HOLES: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SPLIT: tl.constexpr,
    LEAST_SHARE: tl.constexpr,  # slots of a split
):
    """Attends with the queries of each tile. Grid (tiles, KV_HEADS, splits)."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tile_sequence + tile)
    start = tl.load(row_start + sequence)
    num_queries = tl.load(row_start + sequence + 1) - start
    keys = tl.load(num_keys + sequence)
    pieces = tl.load(piece_start + sequence)

    place = tl.arange(0, TILE_ROWS)
    number = tl.load(tile_first + tile) + place // GROUP
    valid = (place < TILE_ROWS // GROUP * GROUP) & (number < num_queries)
    row = (start + number).to(tl.int64)
    head = kv_head * GROUP + place % GROUP
    dim = tl.arange(0, PADDED_DIM)
    in_dim = dim < HEAD_DIM
    own = valid[:, None] & in_dim[None, :]
    vectors = tl.load(
        query + row[:, None] * query_stride + head[:, None] * head_stride + dim[None, :], mask=own, other=0.0
    )

    limit = keys - num_queries + number + 1  # keys that a query sees by the causal rule
    if MASKED:
        mask_byte = tl.load(mask_start + sequence) + tl.zeros([TILE_ROWS], tl.int64)
        limit = tl.where(mask_byte >= 0, keys, limit)
        mask_bit = mask_byte * 8 + number.to(tl.int64) * keys
    if WINDOWED:
        oldest = tl.load(query_positions + row, mask=valid, other=0).to(tl.int64) - window
        begin = tl.load(tile_begin + tile)
    else:
        begin = 0
    end = tl.load(tile_end + tile)
    if SPLIT:
        share = tl.maximum(tl.cdiv(tl.cdiv(end - begin, splits), BLOCK_SLOTS) * BLOCK_SLOTS, LEAST_SHARE)
        begin += split * share
        end = tl.minimum(end, begin + share)

    highest = tl.full([TILE_ROWS], LOWEST, tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    for block in range(begin, end, BLOCK_SLOTS):
        slot = block + tl.arange(0, BLOCK_SLOTS)
        inside = slot < end
        piece = pieces + slot // PAGE_SIZE
        offset = slot % PAGE_SIZE
        page = tl.load(piece_page + piece, mask=inside, other=0)
        if HOLES:
            bits = tl.load(piece_bits + piece, mask=inside, other=0).to(tl.uint32, bitcast=True)
            below = (tl.full([BLOCK_SLOTS], 1, tl.uint32) << offset.to(tl.uint32)) - 1
            rank = tl.load(piece_rank + piece, mask=inside, other=0) + _count_bits(bits & below)
            inside &= _is_key(bits, offset)
        else:
            rank = slot
        at = page.to(tl.int64) * (2 * KV_HEADS * PAGE_SIZE * HEAD_DIM) + (kv_head * PAGE_SIZE + offset) * HEAD_DIM
        key = tl.load(cache + at[None, :] + dim[:, None], mask=inside[None, :] & in_dim[:, None], other=0.0)
        scores = tl.dot(vectors, key, input_precision="ieee") * scale
        if CAPPED:
            scores = soft_cap * _tanh(scores / soft_cap)

        visible = inside[None, :] & (rank[None, :] < limit[:, None]) & valid[:, None]
        if MASKED:
            bit = mask_bit[:, None] + rank[None, :]
            byte = tl.load(mask_bits + (bit >> 3), mask=visible & (mask_byte >= 0)[:, None], other=255)
            visible &= ((byte.to(tl.int32) >> (bit & 7).to(tl.int32)) & 1) != 0
        if WINDOWED:
            position = tl.load(key_positions + page * PAGE_SIZE + offset, mask=inside, other=0).to(tl.int64)
            visible &= position[None, :] > oldest[:, None]
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))

        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        highest = higher
        values = cache + at + KV_HEADS * PAGE_SIZE * HEAD_DIM
        value = tl.load(values[:, None] + dim[None, :], mask=inside[:, None] & in_dim[None, :], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")

    seeing = total != 0  # NaN, which must not be lost, sees too
    total = tl.where(seeing, total, 1.0)
    result = mixed / total[:, None]
    if SPLIT:
        row += split.to(tl.int64) * num_rows
        tl.store(
            log_sums + row * (KV_HEADS * GROUP) + head,
            tl.where(seeing, highest + tl.log2(total), float("-inf")),
            mask=valid,
        )
        own = own & seeing[:, None]
    at_row = (row * (KV_HEADS * GROUP) + head) * HEAD_DIM
    tl.store(output + at_row[:, None] + dim[None, :], result.to(output.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["splits", "num_rows"])
def merge_splits(
    output,  # [T, heads, HEAD_DIM]
    parts,  # float32 [splits, T, heads, HEAD_DIM]
    log_sums,  # float32 [splits, T, heads]
    row_start,
    tile_sequence,
    tile_first,
    splits,
    num_rows,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Adds the parts that `attend_tiles` wrote with SPLIT, weighted by their sums, all at once: one after the other,
    each would wait for memory. Grid (tiles, KV_HEADS, blocks of ROWS rows of a tile)."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tile_sequence + tile)
    place = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    row = tl.load(row_start + sequence) + tl.load(tile_first + tile) + place // GROUP
    valid = (place < TILE_ROWS // GROUP * GROUP) & (row < tl.load(row_start + sequence + 1))
    at = row.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + place % GROUP
    split = tl.arange(0, PADDED_SPLITS)
    part = split[:, None] * (num_rows.to(tl.int64) * (KV_HEADS * GROUP)) + at[None, :]
    log_sum = tl.load(log_sums + part, mask=(split < splits)[:, None] & valid[None, :], other=float("-inf"))
    weight = tl.exp2(log_sum - tl.maximum(tl.max(log_sum, 0), LOWEST)[None, :])

    dim = tl.arange(0, PADDED_DIM)
    in_dim = dim < HEAD_DIM
    wanted = (weight != 0)[:, :, None] & in_dim[None, None, :]  # parts without a key were never written
    vectors = tl.load(parts + part[:, :, None] * HEAD_DIM + dim[None, None, :], mask=wanted, other=0.0)
    total = tl.sum(weight, 0)
    result = tl.sum(vectors * weight[:, :, None], 0) / tl.where(total != 0, total, 1.0)[:, None]
    own = valid[:, None] & in_dim[None, :]
    tl.store(output + at[:, None] * HEAD_DIM + dim[None, :], result.to(output.dtype.element_ty), mask=own)
