//! Which kernel serves which shape: every such choice, with its reason, in one place.

use crate::entry::Bits;
use crate::options::{GpuOptions, Native, TileRows};

/// Rows of a pass up to which products read each weight once per simdgroup (vector kernels); above it tiles do.
/// Eight rows of f32 accumulators still fit the registers of a lane.
pub const FEW_ROWS: usize = 8;

/// A layer's work is its rows times the positions that they look at, with the rest of the layer worth as much as some
/// thousand positions. From so much on it is a command buffer of its own: on the smallest chips half a second, where
/// buffers of several seconds are known to be ended by the system.
pub const LAYER_POSITIONS: usize = 4096;
pub const LAYER_WORK: usize = 1 << 20;

/// Rows of a pass whose attention must be brief, at a context of `position`: a power of two, so that 32M pairs of row and
/// position are not passed. On a chip of 2.6 TFLOP/s one layer's attention over so many takes about half a second.
pub fn brief_rows(position: usize) -> usize {
    let most = (1usize << 25) / position.max(1);
    (most + 1).next_power_of_two().div_ceil(2).clamp(64, 1 << 16)
}

/// Rows that one launch of a vector kernel multiplies together: 1, 2, 4 or 8.
pub fn vector_rows(rows: usize) -> usize {
    rows.next_power_of_two().clamp(1, FEW_ROWS)
}

/// Outputs that a simdgroup of `project` makes, by the rows it multiplies: with many rows accumulators take the room.
/// `kernels/project.metal` says the same.
pub fn project_outputs(vector_rows: usize) -> usize {
    if vector_rows > 2 { 2 } else { 4 }
}

/// Values that a simdgroup of `experts_gate_up` makes.
pub const GATE_OUTPUTS: usize = 2;

/// Threads of `project` and of `experts_gate_up`.
pub const PROJECT_THREADS: u32 = 256;

/// Threads of `output` and `experts_down`, a simdgroup an output: their sums are long and their outputs few.
pub const OUTPUT_THREADS: u32 = 512;

/// Consecutive inputs of a lane in the vector kernels for rows of `cols` inputs in groups of `group` (`lib/vector.h`): the
/// widest load with which all lanes have work and no lane's inputs belong to two groups. With many rows their activations
/// take the registers.
pub fn lane_inputs(cols: usize, group: usize, vector_rows: usize) -> usize {
    let most = (64 / vector_rows).min(32).min(group);
    [32, 16, 8].into_iter().find(|&inputs| inputs <= most && cols.is_multiple_of(inputs) && 32 * inputs <= cols).unwrap_or(8)
}

/// Simdgroups of a threadgroup of `output_mma` and the mma kernels of several rows, and of the others at most: as many as of
/// `project`. `kernels/cuda/span.h` says the same, and of the next two.
pub const MMA_SIMDGROUPS: usize = PROJECT_THREADS as usize / 32;

/// Inputs of one quantisation group that the mma kernels cover.
pub const MMA_GROUP: usize = 64;

/// Spans of all choices of a row, at most: simdgroups of `experts_down_mma`.
pub const DOWN_SPANS_MAX: usize = 14;

/// Inputs of a span, which one simdgroup multiplies with sixteen weight rows: sixteen words a lane.
pub fn span_inputs(bits: Bits) -> usize {
    match bits {
        Bits::Q4 => 512,
        Bits::Q8 => 256,
        Bits::B16 => unreachable!("plain matrices have no mma kernel"),
    }
}

/// Spans of a row of `cols` inputs for the mma kernels of few rows; `None` for what they do not cover.
pub fn mma_spans(bits: Bits, group: usize, cols: usize) -> Option<usize> {
    if bits == Bits::B16 || group != MMA_GROUP || !cols.is_multiple_of(span_inputs(bits)) {
        return None;
    }
    let spans = cols / span_inputs(bits);
    (MMA_SIMDGROUPS.is_multiple_of(spans)).then_some(spans)
}

/// Tiles of sixteen weight rows that a simdgroup of `project_mma` and `experts_gate_up_mma` multiplies. Two share what is
/// loaded of the activations; of eight bits they would take all registers.
pub fn mma_tiles(bits: Bits) -> usize {
    if bits == Bits::Q4 { 2 } else { 1 }
}

/// Simdgroups of a threadgroup of `project_mma` and `experts_gate_up_mma`: few threads leave registers for the next launch,
/// which may then begin while this one runs.
pub fn mma_simdgroups(bits: Bits, spans: usize) -> usize {
    spans.max(MMA_SIMDGROUPS / mma_tiles(bits))
}

/// Inputs of a row that `project_mma_rows` covers: threadgroup memory holds four rows, and leaves room for three threadgroups
/// of this launch and some of the next. `kernels/cuda/span_rows.h` says the same.
pub const MMA_ROWS_INPUTS: usize = 2048;

/// Whether an mma kernel multiplies four rows of `cols` inputs at once, rather than one after the other: a single row would
/// be a fourth of what it stages.
pub fn mma_rows(rows: usize, cols: usize) -> bool {
    rows > 1 && cols <= MMA_ROWS_INPUTS
}

/// Outputs of a tile of the wgmma kernels, and columns of `experts_gate_up_wgmma`.
pub const WG_ROWS: usize = 128;

/// Threads of the wgmma kernels.
pub const WG_THREADS: u32 = 256;

/// Rows of activations of a tile of the wgmma kernels, for `rows` rows that share a weight matrix. Larger than [`tile_rows`]:
/// a tile of twice the rows dequantises no more weights, which pays for some padding.
pub fn wgmma_rows(options: &GpuOptions, rows: usize) -> u32 {
    match options.tile_rows {
        TileRows::ByShape if rows > 40 => 128,
        TileRows::ByShape if rows > 20 => 64,
        _ => tile_rows(options, rows),
    }
}

/// The same where there are `tiles` tiles of outputs for each: smaller while they would leave a fourth of the multiprocessors
/// without one.
pub fn wgmma_spread(options: &GpuOptions, rows: usize, tiles: usize, multiprocessors: usize) -> u32 {
    let mut tile = wgmma_rows(options, rows);
    while options.tile_rows == TileRows::ByShape && tile > 16 && tiles * rows.div_ceil(tile as usize) * 4 < multiprocessors * 3 {
        tile /= 2;
    }
    tile
}

/// Rows of activations of a tile of `project_wgmma_wide`, and inputs that it multiplies between two barriers.
/// `kernels/cuda/project_wgmma_wide.metal` says the same.
pub const WG_WIDE_ROWS: usize = 256;
pub const WG_WIDE_INPUTS: usize = 128;

/// Whether `tiles` tiles of outputs by `rows` rows are worth the widest tiles: a threadgroup has a multiprocessor to itself,
/// and nearly all of them should have one. Where a second round is half empty, narrower tiles would need as long: theirs
/// are more, and slower by a third.
pub fn wgmma_wide(rows: usize, cols: usize, tiles: usize, multiprocessors: usize) -> bool {
    let threadgroups = tiles * rows.div_ceil(WG_WIDE_ROWS);
    rows > WG_WIDE_ROWS / 2 && cols.is_multiple_of(WG_WIDE_INPUTS) && threadgroups * 8 >= multiprocessors * 7
}

/// Rows of a tile of the fitted expert kernels, at most. `kernels/cuda/experts_fitted.metal` says the same, and of the rest.
pub const FITTED_ROWS: usize = 160;
const FITTED_STEP: usize = 16;
const FITTED_INPUTS: usize = 128;
const FITTED_GATE_INPUTS: usize = 2048;
const FITTED_OUTPUTS: usize = 256;
const FITTED_DOWN_VALUES: usize = FITTED_ROWS * 512;
const FITTED_DOWN_NUMBERS: usize = 9216;

/// Threads of the fitted expert kernels, of which a multiprocessor runs one threadgroup at a time.
pub const FITTED_THREADS: u32 = 512;

/// Rows of a tile of the fitted expert kernels, at most, for down projections of `width` inputs, which threadgroup memory holds.
pub fn fitted_rows(width: usize) -> usize {
    FITTED_ROWS.min(FITTED_DOWN_VALUES / width / FITTED_STEP * FITTED_STEP)
}

/// Outputs of a threadgroup of `experts_down_fitted`, at most: their scales and biases are in threadgroup memory too.
fn fitted_part(width: usize) -> usize {
    FITTED_DOWN_NUMBERS / ((width / MMA_GROUP) | 1) / FITTED_OUTPUTS * FITTED_OUTPUTS
}

/// Whether the fitted kernels cover experts of these widths.
pub fn fitted_covers(hidden: usize, widths: [usize; 2]) -> bool {
    let inputs = |cols: usize| cols.is_multiple_of(FITTED_INPUTS);
    let down = widths.iter().all(|&width| inputs(width) && fitted_rows(width) > 0 && fitted_part(width) > 0);
    down && inputs(hidden) && hidden <= FITTED_GATE_INPUTS && hidden.is_multiple_of(FITTED_OUTPUTS)
}

/// What a threadgroup takes beside its products, in rows: dequantising, and where it begins and ends.
const FITTED_EXTRA_ROWS: usize = 32;
/// What a part costs beside its outputs, in outputs.
const FITTED_EXTRA_OUTPUTS: usize = 200;

/// Rows of the tiles of `rows` rows, at most `most`, of which `room` threadgroups run at once, `columns` for each tile; and how long
/// they take, in rows.
pub fn fitted_dense(rows: usize, most: usize, columns: usize, room: usize) -> (usize, usize) {
    let tile = |tiles: usize| rows.div_ceil(tiles).next_multiple_of(FITTED_STEP);
    let time = |tile: usize| (rows.div_ceil(tile) * columns).div_ceil(room) * (tile + FITTED_EXTRA_ROWS);
    let tiles = (rows.div_ceil(most)..=rows.div_ceil(FITTED_STEP)).map(tile).filter(|&tile| tile <= most);
    tiles.map(|tile| (tile, time(tile))).min_by_key(|&(tile, time)| (time, usize::MAX - tile)).expect("a tile of sixteen rows")
}

/// Outputs of a threadgroup of `experts_down_fitted` for experts of `width` inputs and `hidden` outputs: those for which `time`,
/// by parts, of so many outputs each, is least.
pub fn fitted_parts(width: usize, hidden: usize, time: impl Fn(usize) -> usize) -> usize {
    let parts = [4 * FITTED_OUTPUTS, 2 * FITTED_OUTPUTS, FITTED_OUTPUTS].into_iter().filter(|&part| part <= fitted_part(width));
    parts.min_by_key(|&part| time(hidden.div_ceil(part)) * (part + FITTED_EXTRA_OUTPUTS)).expect("256 outputs fit")
}

/// Rows of a tile of the thin expert kernels, at most, their threads, and inputs of a row that they cover.
/// `kernels/cuda/thin.h` says the same.
pub const THIN_ROWS: usize = 32;
pub const THIN_THREADS: u32 = 512;
const THIN_STEP: usize = 512;
/// Outputs of a threadgroup of theirs. Experts are in halves so that the last round of threadgroups is a small one: with whole ones
/// an H200's multiprocessors worked 71 % of the time.
pub const THIN_GATE_PART: usize = 256;
pub const THIN_DOWN_PART: usize = 1024;
const THIN_GATE_INPUTS: usize = 2048;
const THIN_DOWN_INPUTS: usize = 1024;

/// Whether the thin kernels cover experts of this width.
pub fn thin_covers(hidden: usize, width: usize) -> bool {
    let inputs = |cols: usize, most: usize| cols.is_multiple_of(THIN_STEP) && cols <= most;
    inputs(hidden, THIN_GATE_INPUTS) && inputs(width, THIN_DOWN_INPUTS)
}

/// Whether experts of `assignments` rows together go through the thin kernels. On an H200 a prompt of 256 tokens, eight rows an
/// expert, gained 7 %; one of 512 lost 2 %.
pub fn thin_suits(assignments: usize, experts: usize) -> bool {
    assignments <= 10 * experts
}

/// Rows of activations of a tile of `project_bytes`.
pub const BYTES_ROWS: usize = 32;

/// Whether `project_bytes` takes a product of so many tiles of outputs: where tiles of 64 rows would leave multiprocessors
/// without one. On an H200 the router took 22.7 µs at 512 rows, 33.9 with `project_matmul_q8_64`.
pub fn bytes_suit(rows: usize, tiles: usize, multiprocessors: usize) -> bool {
    tiles * rows.div_ceil(64) < multiprocessors
}

/// Inputs of an expert's down projection, at most: threadgroup memory holds whole choices.
pub const EXPERT_WIDTH_MAX: usize = 2048;

/// Threads of `attn_combine`, and values of a head that they make: sixteen threads share the parts of each, eight parts on
/// their way at a time, so that [`SPLITS_MMA`] parts take one round.
pub const COMBINE_THREADS: u32 = 512;
pub const COMBINE_VALUES: usize = 32;

/// Threads of `delta_step`: a simdgroup takes 8 of 128 columns, and each value of a head has a thread.
pub const DELTA_STEP_THREADS: u32 = 512;

/// Threadgroups of `delta_step_tiled` that share a value head, and their threads: with one threadgroup for each of 32 heads most
/// of a large GPU stands idle. `kernels/lib/output.h` adds the sums of four tiles.
pub const DELTA_TILES: usize = 4;
pub const DELTA_TILE_THREADS: u32 = 256;

/// Whether `delta_step` may leave its norm to the projection behind it, which finds the heads of its inputs by a shift and loads
/// eight inputs of a head together.
pub fn delta_tiles_cover(dim_v: usize) -> bool {
    dim_v.is_power_of_two() && dim_v >= 8
}

/// Outputs of a tile of the matrix kernels, and columns of `experts_gate_up_matmul` (half of its tile is gate rows).
pub const TILE_COLS: usize = 64;
pub const TILE_GATE_COLS: usize = 32;

/// Threads of the matrix kernels.
pub const TILE_THREADS: u32 = 128;

/// Rows of a tile for `rows` rows that share a weight matrix: few padding rows, then few readings of the weights.
pub fn tile_rows(options: &GpuOptions, rows: usize) -> u32 {
    match options.tile_rows {
        TileRows::Fixed(rows) => rows,
        // Rows of experts scatter around their mean: a tile of twice the mean is rarely too small, and a second tile reads
        // the weights again.
        TileRows::ByShape if rows <= 8 => 16,
        TileRows::ByShape if rows <= 32 => 32,
        TileRows::ByShape => 64,
    }
}

/// How decode cuts a context into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    /// Parts; those behind a row's context are empty.
    pub splits: u32,
    /// Positions of a part; 0: the context divided by `splits`.
    pub block_tokens: u32,
}

/// Contexts from which on parts have a fixed size, as in the engine that this one measures itself against.
pub const LONG_CONTEXT: usize = 32 * 1024;

/// Positions of a fixed block, unless the context is so long that there would be more than [`PARTS_MAX`].
pub const BLOCK_TOKENS: usize = 512;

/// Parts of a context, at most: `attn_combine` keeps a number for each.
pub const PARTS_MAX: usize = 1024;

/// Parts of `attn_decode_mma`, at most. For each of the real model's two key heads they are 256 threadgroups, which a card of
/// 132 multiprocessors runs together, two on each: a longer context makes longer parts, and none is left for a second round.
pub const SPLITS_MMA: usize = 128;

/// Parts for rows whose longest context is `context`. Recorded passes are kept per answer, so there are few answers:
/// the number grows by powers of two.
pub(crate) fn attention_parts(options: &GpuOptions, native: Native, context: usize) -> Parts {
    if native.attention_few {
        // A threadgroup takes 64 positions in one step, all of them on their way before the launch before has ended: up to
        // 4,096 positions a step is all that there is. Twice the parts, which `attn_combine` must read, wait until each has two.
        let splits = (context / 64).next_power_of_two().clamp(4, 64);
        let splits = if context >= 128 * SPLITS_MMA { SPLITS_MMA } else { splits };
        return Parts { splits: splits as u32, block_tokens: 0 };
    }
    if options.fixed_blocks && context >= LONG_CONTEXT {
        let room = context.next_multiple_of(LONG_CONTEXT);
        let block_tokens = BLOCK_TOKENS.max((room / PARTS_MAX).next_power_of_two());
        return Parts { splits: room.div_ceil(block_tokens) as u32, block_tokens: block_tokens as u32 };
    }
    let splits = (context / 32).next_power_of_two().clamp(4, 64);
    Parts { splits: splits as u32, block_tokens: 0 }
}

/// The most parts that `attention_parts` gives for contexts up to `context_max`.
pub fn attention_parts_max(context_max: usize) -> usize {
    (context_max.next_multiple_of(LONG_CONTEXT) / BLOCK_TOKENS).clamp(SPLITS_MMA, PARTS_MAX)
}

/// Query heads of a threadgroup of `attn_decode_mma`; `kernels/cuda/attention_decode_mma.metal` says the same.
const DECODE_MMA_HEADS: usize = 8;

/// Threadgroups of `attn_decode_mma` that take the `per_kv` query heads of a key head.
pub fn decode_mma_tiles(per_kv: usize) -> usize {
    per_kv.div_ceil(DECODE_MMA_HEADS)
}

/// Query heads that one threadgroup of `attn_decode` packs, of `per_kv` that share a key head.
pub fn packed_heads(options: &GpuOptions, per_kv: usize) -> usize {
    match per_kv {
        _ if !options.packed_heads => 1,
        many if many.is_multiple_of(4) => 4,
        even if even.is_multiple_of(2) => 2,
        _ => 1,
    }
}

/// Query rows of a tile of `attn_flash`, and of `attn_flash_mma` and `attn_flash_wgmma`.
pub const FLASH_ROWS: usize = 32;
pub const FLASH_MMA_ROWS: usize = 128;

/// Head sizes of `attn_flash_mma`, `attn_flash_wgmma` and `attn_decode_mma`.
pub const ATTENTION_MMA_DIMS: [usize; 3] = [64, 128, 256];

/// Tokens of a tile of `flash_rows` query rows: all heads of a key head.
pub fn flash_tokens(flash_rows: usize, per_kv: usize) -> usize {
    (flash_rows / per_kv).max(1)
}

/// What a scan of the DeltaNet state solves together.
pub struct ScanBlock {
    pub tokens: usize,
    /// Floats of what is made for them and a value head before.
    pub factors: usize,
    /// Values of a threadgroup.
    pub columns: usize,
}

impl ScanBlock {
    /// Of `delta_scan_mma` if `chunked`, else of `delta_scan_blocked`.
    pub fn new(chunked: bool) -> Self {
        let (tokens, factors) = if chunked { (32, 2144) } else { (4, 32) };
        ScanBlock { tokens, factors, columns: 32 }
    }
}

#[cfg(test)]
mod tests {
    use super::{brief_rows, fitted_dense, wgmma_wide};

    #[test]
    fn passes_shrink_as_their_context_grows() {
        for (position, rows) in
            [(0, 1 << 16), (16_384, 2048), (16_385, 1024), (32_768, 1024), (131_072, 256), (262_144, 128), (1 << 25, 64)]
        {
            assert_eq!(brief_rows(position), rows, "at {position}");
        }
    }

    /// The full model on an H200: input projections of a DeltaNet layer have 97 tiles of outputs, output projections 16.
    #[test]
    fn the_widest_tiles_wait_until_they_keep_a_device_busy() {
        for (tiles, cols, rows, wide) in [
            (97, 2048, 256, false),
            (97, 2048, 257, true),
            (97, 2048, 4096, true),
            (97, 2112, 4096, false),
            (16, 4096, 1024, false),
            (16, 4096, 2048, true),
            (3000, 2048, 128, false),
        ] {
            assert_eq!(wgmma_wide(rows, cols, tiles, 132), wide, "{tiles} tiles of rows of {cols} by {rows} rows");
        }
    }

    /// The shared expert on an H200: 4,096 rows keep all threadgroups busy in 32 tiles.
    #[test]
    fn dense_tiles_fill_a_device() {
        for (rows, columns, room, tile) in [(4096, 4, 132, 128), (512, 4, 132, 16), (17, 8, 8, 32), (9, 4, 132, 16)] {
            assert_eq!(fitted_dense(rows, 160, columns, room).0, tile, "{rows} rows, {columns} columns, {room} at once");
        }
    }
}
