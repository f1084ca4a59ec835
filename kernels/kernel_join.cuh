// Chunks copied into one array, as words of 1 to 16 bytes.
#pragma once

#include "config.cuh"

namespace coop {

template <int bytes> struct join_word;
template <> struct join_word<1> { using type = unsigned char; };
template <> struct join_word<2> { using type = unsigned short; };
template <> struct join_word<4> { using type = unsigned int; };
template <> struct join_word<8> { using type = u64; };
template <> struct join_word<16> { using type = uint4; };

// A contiguous chunk: its address, where it begins in the array, and its rows; in words.
struct JoinedChunk {
  u64 address;
  i64 begin, row, rows;
};

// Copies chunks into an array whose rows are `pitch` words apart; `tiles` blocks take a chunk.
template <int bytes, int nt, int unroll>
__device__ void join_chunks(const JoinedChunk* chunks, i64 tiles, i64 pitch, void* out) {
  using Word = typename join_word<bytes>::type;
  const JoinedChunk chunk = chunks[blockIdx.x / tiles];
  const Word* source = reinterpret_cast<const Word*>(chunk.address);
  Word* target = static_cast<Word*>(out) + chunk.begin;
  const i64 size = chunk.row * chunk.rows, tile = i64(nt) * unroll;
  for (i64 begin = blockIdx.x % tiles * tile; begin < size; begin += tiles * tile) {
    Word words[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      i64 i = begin + u * nt + threadIdx.x;
      if (i < size) words[u] = source[i];
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      i64 i = begin + u * nt + threadIdx.x;
      if (i < size) target[chunk.rows == 1 ? i : i / chunk.row * pitch + i % chunk.row] = words[u];
    }
  }
}

}  // namespace coop
