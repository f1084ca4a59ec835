// The decoders of kernel_zstd.cuh and kernel_lz4.cuh, each by one thread of the host.
#include "kernel_lz4.cuh"
#include "kernel_zstd.cuh"

using namespace coop;

extern "C" int zstd(const ZstdBlock* blocks, i64 n, const u8* stored, u8* literals, Sequence* sequences,
                    ZstdEnd* ends, u8* out, i64 size) {
  static ZstdTables memory;
  ZstdLengths lengths;
  Lanes<1> lanes = {0};
  set_lengths(0, 1, lengths);
  for (i64 b = 0; b < n; ++b) {
    if (blocks[b].kind != stored_compressed) continue;
    for (int role = 0; role < 2; ++role) {
      zstd_block(lanes, role, blocks, b, stored, memory, lengths, literals, sequences, ends);
    }
  }
  return !zstd_frame(lanes, blocks, 0, n, stored, literals, sequences, ends, Decoded{out, size, 0});
}

extern "C" int lz4(const u8* stored, i64 bytes, u8* out, i64 size) {
  Lz4Batch<1> batch;
  return !lz4_block(Lanes<1>{0}, stored, bytes, Decoded{out, size, 0}, batch);
}
