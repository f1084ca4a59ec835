// Blocks of LZ4 decoded by a warp each: one lane reads the lengths of up to 32 sequences, all carry them out.
#pragma once

#include "sequences.cuh"

namespace coop {

// A block: where its stored bytes begin and end, where its output goes, how long this is, and whether it is stored
// as it is.
struct Lz4Block {
  i64 begin, end, target, size, is_raw;
};

// The sequences that a warp carries out next, and where their literals are.
template <int team> struct Lz4Batch {
  Sequence sequences[team];
  i64 literals[team];
  i64 at;
  int state;
};
enum { lz4_goes_on = 0, lz4_ends = 1, lz4_fails = 2 };

// Adds the bytes of a length that did not fit into its token; returns false if it is longer than `most`.
__device__ inline bool read_length(const u8* x, i64 bytes, i64& at, unsigned& length, i64 most) {
  if (length < 15) return length <= most;
  u8 more = 255;
  while (more == 255) {
    if (at >= bytes || length > most) return false;
    more = x[at++];
    length += more;
  }
  return length <= most;
}

// Reads the next sequences of a block by one thread.
template <int team>
__device__ void read_batch(const u8* x, i64 bytes, i64 room, Lz4Batch<team>& batch) {
  i64 at = batch.at;
  batch.state = lz4_goes_on;
  for (int k = 0; k < team; ++k) {
    Sequence s = {0, 0, 0};
    i64 from = 0;
    if (batch.state == lz4_goes_on) {
      unsigned token = at < bytes ? x[at] : 0;
      bool fits = at < bytes;
      ++at;
      s.literals = token >> 4;
      fits = fits && read_length(x, bytes, at, s.literals, room) && s.literals <= bytes - at;
      from = at;
      at += s.literals;
      room -= s.literals;
      if (fits && at < bytes) {
        fits = at + 2 <= bytes;
        s.offset = fits ? x[at] | x[at + 1] << 8 : 0;
        at += 2;
        s.match = token & 15;
        fits = fits && read_length(x, bytes, at, s.match, room) && s.match + 4 <= room;
        s.match += 4;
        room -= s.match;
      } else {
        batch.state = lz4_ends;
      }
      if (!fits) {
        batch.state = lz4_fails;
        s = {0, 0, 0};
      }
    }
    batch.sequences[k] = s;
    batch.literals[k] = from;
  }
  batch.at = at;
}

// Decodes a block; returns whether it makes all of its output.
template <int team>
__device__ bool lz4_block(Lanes<team> lanes, const u8* x, i64 bytes, Decoded out, Lz4Batch<team>& batch) {
  if (lanes.lane == 0) batch.at = 0;
  while (true) {
    lanes.sync();
    if (lanes.lane == 0) read_batch(x, bytes, out.size - out.at, batch);
    lanes.sync();
    int state = batch.state;
    if (state == lz4_fails) return false;
    const u8* source = x + batch.literals[lanes.lane];
    if (!carry_out(lanes, batch.sequences[lanes.lane], source, false, out)) return false;
    if (state == lz4_ends) return out.at == out.size;
  }
}

// Decodes blocks by a warp each; `failed` has an entry for each.
__device__ inline void lz4_blocks(const Lz4Block* blocks, const u8* stored, u8* outputs, int* failed) {
  __shared__ Lz4Batch<warp_size> batch;
  Lz4Block block = blocks[blockIdx.x];
  Lanes<warp_size> lanes = {int(threadIdx.x)};
  Decoded out = {outputs + block.target, block.size, 0};
  const u8* x = stored + block.begin;
  i64 bytes = block.end - block.begin;
  bool right = block.is_raw ? bytes == block.size && append(lanes, bytes, x, false, out)
                            : lz4_block(lanes, x, bytes, out, batch);
  if (lanes.lane == 0) failed[blockIdx.x] = !right;
}

}  // namespace coop
