// Products of matrices over semirings: c[i][j] is the sum, of one kind, of the products, of another, of
// a[i][l] and b[l][j].
//
// A block makes a tile of 128 x 128 results and a thread 8 x 8 of them in registers. What a block reads,
// 128 x bk of a and bk x 128 of b, is on its way to a ring in shared memory while earlier stages are
// worked on. a is turned on the way, so that a thread reads its rows 16 bytes at a time, as its columns.
//
// A semiring S has
//   S::Word             what lies in memory
//   S::Sum              what a thread keeps; zero() is neutral
//   S::step(sum, a, b)  adds a product
// Narrow integers come widened to int, and their sums are cut to T, as if computed in T.
#pragma once

#include "async.cuh"
#include "load.cuh"
#include "monoids.cuh"

namespace coop {

template <typename T> struct word_of { using type = int; };
template <> struct word_of<unsigned> { using type = unsigned; };
template <> struct word_of<i64> { using type = i64; };
template <> struct word_of<u64> { using type = u64; };
template <> struct word_of<float> { using type = float; };
template <> struct word_of<double> { using type = double; };

// The sum as T has it: integers wrap.
template <typename T>
__device__ typename word_of<T>::type add_as(typename word_of<T>::type a, typename word_of<T>::type b) {
  if constexpr (is_float<T>::value) return a + b;
  else if constexpr (sizeof(T) == 8) return T(u64(a) + u64(b));
  else return T(unsigned(a) + unsigned(b));
}

// The least and the greatest; NaN wins, as in NumPy.
template <typename W>
__device__ W least(W a, W b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (is_same<W, float>::value) {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
  }
#endif
  if constexpr (is_float<W>::value) return a < b || a != a ? a : b;
  else return a < b ? a : b;
}
template <typename W>
__device__ W greatest(W a, W b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (is_same<W, float>::value) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
  }
#endif
  if constexpr (is_float<W>::value) return a > b || a != a ? a : b;
  else return a > b ? a : b;
}

template <typename T> struct PlusTimes {
  using Word = T;
  using Sum = T;
  __device__ static Sum zero() { return 0; }
  __device__ static void step(Sum& sum, Word a, Word b) { sum += a * b; }
};

// Four products of bytes in a step, kept in 32 bits.
template <typename T> struct PlusTimesBytes {
  using Word = unsigned;
  using Sum = unsigned;
  __device__ static Sum zero() { return 0; }
  __device__ static void step(Sum& sum, Word a, Word b) {
#if __CUDA_ARCH__ >= 610
    if constexpr (is_same<T, signed char>::value) sum = unsigned(__dp4a(int(a), int(b), int(sum)));
    else sum = __dp4a(a, b, sum);
#endif
  }
};

// 32 products of bits in a step; the sum is true where a bit is set.
struct OrAnd {
  using Word = unsigned;
  using Sum = unsigned;
  __device__ static Sum zero() { return 0; }
  __device__ static void step(Sum& sum, Word a, Word b) { sum |= a & b; }
};

template <typename T> struct MinPlus {
  using Word = typename word_of<T>::type;
  using Sum = Word;
  __device__ static Sum zero() { return convert<Word>(limits<T>::high()); }
  __device__ static void step(Sum& sum, Word a, Word b) { sum = least(sum, add_as<T>(a, b)); }
};

template <typename T> struct MaxPlus {
  using Word = typename word_of<T>::type;
  using Sum = Word;
  __device__ static Sum zero() { return convert<Word>(limits<T>::low()); }
  __device__ static void step(Sum& sum, Word a, Word b) { sum = greatest(sum, add_as<T>(a, b)); }
};

template <typename T> struct MaxMin {
  using Word = typename word_of<T>::type;
  using Sum = Word;
  __device__ static Sum zero() { return convert<Word>(limits<T>::low()); }
  __device__ static void step(Sum& sum, Word a, Word b) { sum = greatest(sum, least(a, b)); }
};

// Up to two axes of a batch, and the slices that k is cut into, with what leads to their items. Rows of b
// have `pitch` words.
struct Products {
  i64 m, n, k, pitch;
  i64 slice, slices, inner;
  i64 a_outer, a_inner, b_outer, b_inner;
};

// The tile of a block and its threads. A warp makes 64 x 32 results, a thread 8 x 8 in groups of 16
// bytes, so that the lanes of a warp read neighbouring groups.
template <typename W> struct MatmulTile {
  static constexpr int side = 128, nt = 256, vt = 8, group = 16 / int(sizeof(W));
  static constexpr int groups = vt / group;
  static constexpr int pitch = side + group;

  // The first row and the first column of the thread; others follow every 8 and every 4 groups.
  __device__ static int first_row() {
    int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    return warp / 4 * 64 + (lane / 16 * 4 + lane / 2 % 2 + lane / 8 % 2 * 2) * group;
  }
  __device__ static int first_column() {
    int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    return warp % 4 * 32 + (lane % 2 + lane / 4 % 2 * 2) * group;
  }
  __device__ static int row(int i) { return i / group * 8 * group + i % group; }
  __device__ static int column(int j) { return j / group * 4 * group + j % group; }
};

// Makes the tile (r, c) of the product of m x k by k x n, of which a thread keeps 8 x 8 sums. Rows of a
// and b have `pitch_a` and `pitch_b` words; b and its rows are aligned to 16 bytes, by which they are
// copied. The ring of `stages` stages is the block's dynamic shared memory.
template <typename S, int bk, int stages>
__device__ void matmul_tile(const typename S::Word* a, const typename S::Word* b, i64 m, i64 n, i64 k,
                            i64 pitch_a, i64 pitch_b, i64 r, i64 c, typename S::Sum (&sums)[8][8]) {
  using W = typename S::Word;
  using Tile = MatmulTile<W>;
  using V = Vector<W, Tile::group>;
  constexpr int side = Tile::side, nt = Tile::nt, vt = Tile::vt, group = Tile::group;
  constexpr int wide = side / group;
  constexpr int stage_words = bk * (Tile::pitch + side);
  alignas(16) extern __shared__ unsigned char ring[];
  int tid = threadIdx.x;

  int a_k = tid % bk, a_row = tid / bk, b_row = tid / wide, b_column = tid % wide * group;
  int rows = m - r < side ? int(m - r) : side, columns = n - c < side ? int(n - c) : side;
  const W* a_from = a + (r + a_row) * pitch_a + a_k;
  const W* b_from = b + b_row * pitch_b + c + b_column;
  W* a_to = reinterpret_cast<W*>(ring) + a_k * Tile::pitch + a_row;
  W* b_to = reinterpret_cast<W*>(ring) + bk * Tile::pitch + b_row * side + b_column;
  i64 left = k;
  int slot = 0;
  auto fetch = [&] {
    if (a_k < left) {
#pragma unroll
      for (int i = 0; i < side * bk / nt; ++i) {
        int row = i * (nt / bk);
        if (a_row + row < rows) {
          copy_async<sizeof(W)>(a_to + slot * stage_words + row, a_from + row * pitch_a);
        }
      }
    }
    if (b_column < columns) {
#pragma unroll
      for (int i = 0; i < wide * bk / nt; ++i) {
        int row = i * (nt / wide);
        if (b_row + row < left) {
          copy_async<16>(b_to + slot * stage_words + row * side, b_from + row * pitch_b);
        }
      }
    }
    a_from += bk;
    b_from += bk * pitch_b;
    left -= bk;
    slot = slot + 1 < stages ? slot + 1 : 0;
    commit_copies();
  };

#pragma unroll
  for (int i = 0; i < vt; ++i) {
#pragma unroll
    for (int j = 0; j < vt; ++j) sums[i][j] = S::zero();
  }
  W of_a[2][vt], of_b[2][vt];
  const W* a_at = reinterpret_cast<const W*>(ring) + Tile::first_row();
  const W* b_at = reinterpret_cast<const W*>(ring) + bk * Tile::pitch + Tile::first_column();
  auto read = [&](int stage, int l, W(&as)[vt], W(&bs)[vt]) {
#pragma unroll
    for (int g = 0; g < Tile::groups; ++g) {
      V av = *reinterpret_cast<const V*>(a_at + stage * stage_words + l * Tile::pitch + g * 8 * group);
      V bv = *reinterpret_cast<const V*>(b_at + stage * stage_words + l * side + g * 4 * group);
#pragma unroll
      for (int e = 0; e < group; ++e) {
        as[g * group + e] = av.values[e];
        bs[g * group + e] = bv.values[e];
      }
    }
  };
  auto work = [&](const W(&as)[vt], const W(&bs)[vt]) {
#pragma unroll
    for (int i = 0; i < vt; ++i) {
#pragma unroll
      for (int j = 0; j < vt; ++j) S::step(sums[i][j], as[i], bs[j]);
    }
  };

  for (int s = 0; s < stages - 1; ++s) fetch();
  int stage = 0;
  i64 rest = k;
  for (; rest >= bk; rest -= bk) {
    wait_for_copies<stages - 2>();
    // What this fetches into was read by all before.
    __syncthreads();
    fetch();
    read(stage, 0, of_a[0], of_b[0]);
#pragma unroll
    for (int l = 0; l < bk; ++l) {
      if (l + 1 < bk) read(stage, l + 1, of_a[(l + 1) % 2], of_b[(l + 1) % 2]);
      work(of_a[l % 2], of_b[l % 2]);
    }
    stage = stage + 1 < stages ? stage + 1 : 0;
  }
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll 1
  for (int l = 0; l < int(rest); ++l) {
    read(stage, l, of_a[0], of_b[0]);
    work(of_a[0], of_b[0]);
  }
}

// A block of 256 threads for every tile of every slice of every item of the batch. Results of slices lie
// one after the other, (item, slice, m, n), and k is cut every `slice` words.
template <typename S, typename R, int bk, int stages>
__device__ void matmul(const typename S::Word* a, const typename S::Word* b, R* out, Products of) {
  using Tile = MatmulTile<typename S::Word>;
  constexpr int side = Tile::side, band = 8;
  unsigned high = unsigned((of.m + side - 1) / side), wide = unsigned((of.n + side - 1) / side);
  unsigned at = blockIdx.x, item = at / (wide * high);
  at -= item * wide * high;
  // Neighbouring blocks share what they read: they go down `band` rows of tiles, then to the right.
  unsigned first = at / (band * wide) * band, height = high - first < band ? high - first : band;
  at -= first * wide;
  i64 r = i64(first + at % height) * side, c = i64(at / height) * side;

  unsigned slice = item % unsigned(of.slices), matrix = item / unsigned(of.slices);
  i64 outer = matrix / unsigned(of.inner), inner = matrix % unsigned(of.inner);
  i64 begin = slice * of.slice, length = of.k - begin < of.slice ? of.k - begin : of.slice;
  a += outer * of.a_outer + inner * of.a_inner + begin;
  b += outer * of.b_outer + inner * of.b_inner + begin * of.pitch;
  out += i64(item) * of.m * of.n;

  typename S::Sum sums[8][8];
  matmul_tile<S, bk, stages>(a, b, of.m, of.n, length, of.k, of.pitch, r, c, sums);
  r += Tile::first_row();
  c += Tile::first_column();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    i64 row = r + Tile::row(i);
    if (row < of.m) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        i64 column = c + Tile::column(j);
        if (column < of.n) out[row * of.n + column] = convert<R>(sums[i][j]);
      }
    }
  }
}

}  // namespace coop
