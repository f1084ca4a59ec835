// Kernels that decode and gather what files have, each by one thread of the host.
#include "kernel_cells.cuh"
#include "kernel_lz4.cuh"
#include "kernel_zstd.cuh"

using namespace coop;

// As the programs are launched: all frames, and all blocks of LZ4.
extern "C" void zstd_frames_of(const Frame* frames, i64 n, const ZstdBlock* blocks, const u8* stored,
                               const u8* literals, const Sequence* sequences, const ZstdEnd* ends, u8* out, int* failed) {
  for (i64 f = 0; f < n; ++f) {
    Decoded part = {out + frames[f].target, frames[f].bytes, 0};
    failed[f] = !zstd_frame(Lanes<1>{0}, blocks, frames[f].first, frames[f + 1].first, stored, literals, sequences, ends, part);
  }
}

extern "C" void zstd_blocks_of(const ZstdBlock* blocks, i64 n, const u8* stored, u8* literals, Sequence* sequences,
                               ZstdEnd* ends) {
  static ZstdTables memory;
  ZstdLengths lengths;
  set_lengths(0, 1, lengths);
  for (i64 b = 0; b < n; ++b) {
    for (int role = 0; role < 2 && blocks[b].kind == stored_compressed; ++role) {
      zstd_block(Lanes<1>{0}, role, blocks, b, stored, memory, lengths, literals, sequences, ends);
    }
  }
}

extern "C" void lz4_blocks_of(const Lz4Block* blocks, i64 n, const u8* stored, u8* out, int* failed) {
  Lz4Batch<1> batch;
  for (i64 b = 0; b < n; ++b) {
    Lz4Block block = blocks[b];
    const u8* x = stored + block.begin;
    i64 bytes = block.end - block.begin;
    Decoded part = {out + block.target, block.size, 0};
    failed[b] = !(block.is_raw ? bytes == block.size && append(Lanes<1>{0}, bytes, x, false, part)
                               : lz4_block(Lanes<1>{0}, x, bytes, part, batch));
  }
}

extern "C" void cells_of(int size, const u64* cells, const CellAxes<8>* axes, i64 n, i64 elements, i64 block,
                         int swapped, u64 fill_low, u64 fill_high, void* out) {
  switch (size) {
    case 1: return gather_cells<1, 1, 8>(cells, *axes, n, elements, block, swapped, fill_low, fill_high, out);
    case 2: return gather_cells<2, 1, 8>(cells, *axes, n, elements, block, swapped, fill_low, fill_high, out);
    case 4: return gather_cells<4, 1, 8>(cells, *axes, n, elements, block, swapped, fill_low, fill_high, out);
    case 8: return gather_cells<8, 1, 8>(cells, *axes, n, elements, block, swapped, fill_low, fill_high, out);
    default: return gather_cells<16, 1, 8>(cells, *axes, n, elements, block, swapped, fill_low, fill_high, out);
  }
}
