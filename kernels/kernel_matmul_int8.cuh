// Products of matrices of integers on tensor cores, which multiply bytes (sm_80 on).
//
// An integer of P bytes is the sum of its bytes times 2^8i, so that modulo 2^8P a product of matrices is
//
//   sum over s = 0 .. P-1 of 2^8s * (sum over i = 0 .. s of A_i B_(s-i))
//
// with A_i the matrix of bytes i: 10 products of bytes for P = 4, 3 for 2, 1 for 1. They are summed from
// the greatest s on, and the sums shifted by 8 bits between one s and the next, so that one set of sums
// of 32 bits, which wrap, is enough. Signs don't matter modulo 2^8P.
//
//   split_rows       a to planes of bytes, (plane, row, k)
//   split_columns    b to planes of bytes, turned: (plane, column, k)
//   multiply_planes  the products
//
// Planes are padded with zeros to whole tiles, m to 128, n to 256 and k to 128.
#pragma once

#include "async.cuh"
#include "load.cuh"

namespace coop {

// The tile of a block, its depth and threads; a warp makes 64 x 64 sums.
struct BytesTile {
  static constexpr int bm = 128, bn = 256, kt = 128, nt = 256;
};

// The word of bytes `plane` of four integers.
__device__ inline unsigned gather_bytes(const unsigned (&x)[4], int plane) {
  unsigned pair = plane | (4 + plane) << 4;
  return __byte_perm(__byte_perm(x[0], x[1], pair), __byte_perm(x[2], x[3], pair), 0x5410);
}

// Splits matrices of m x k integers, four along k a thread; y is (matrix, plane, mp, kp).
template <typename T, int nt>
__device__ void split_rows(const T* x, unsigned* y, i64 matrices, i64 m, i64 k, i64 mp, i64 kp) {
  constexpr int planes = sizeof(T);
  i64 words = kp / 4, at = i64(blockIdx.x) * nt + threadIdx.x;
  if (at >= matrices * mp * words) return;
  i64 word = at % words, line = at / words, row = line % mp, matrix = line / mp;
  unsigned values[4] = {};
  if (row < m) {
    const T* from = x + (matrix * m + row) * k + word * 4;
    using V = Vector<T, 4>;
    if (k % 4 == 0 && reinterpret_cast<u64>(x) % sizeof(V) == 0) {
      if (word * 4 < k) {
        V v = *reinterpret_cast<const V*>(from);
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = unsigned(v.values[e]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (word * 4 + e < k) values[e] = unsigned(from[e]);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < planes; ++p) {
    y[((matrix * planes + p) * mp + row) * words + word] = gather_bytes(values, p);
  }
}

// Splits and turns matrices of k x n integers, a tile of 128 along k and 32 along n a block of 256
// threads; y is (matrix, plane, np, kp).
template <typename T>
__device__ void split_columns(const T* x, unsigned* y, i64 k, i64 n, i64 np, i64 kp) {
  constexpr int planes = sizeof(T), pitch = 33;
  __shared__ unsigned shared[planes][32 * pitch];
  i64 deep = (kp + 127) / 128, wide = np / 32;
  i64 at = blockIdx.x, tile_k = at % deep * 128;
  at /= deep;
  i64 tile_n = at % wide * 32, matrix = at / wide;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 column = tile_n + lane;
  x += matrix * k * n + column;
  unsigned values[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      i64 row = tile_k + (u * 8 + warp) * 4 + e;
      values[u][e] = column < n && row < k ? unsigned(x[row * n]) : 0;
    }
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int p = 0; p < planes; ++p) {
      shared[p][lane * pitch + u * 8 + warp] = gather_bytes(values[u], p);
    }
  }
  __syncthreads();
  i64 words = kp / 4, word = tile_k / 4 + lane;
  if (word >= words) return;
#pragma unroll
  for (int p = 0; p < planes; ++p) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      int line = u * 8 + warp;
      y[((matrix * planes + p) * np + tile_n + line) * words + word] = shared[p][line * pitch + lane];
    }
  }
}

// Reads four matrices of 8 rows of 16 bytes, of which each lane gives one row's address.
__device__ inline void read_matrices(unsigned (&x)[4], unsigned address) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
#endif
}

// Adds a product of 16 x 32 and 32 x 8 bytes to the warp's 16 x 8 sums, which wrap.
__device__ inline void multiply_add(unsigned (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// A block for every tile of 128 x 256 of every product of a batch, whose strides are in matrices. Rows
// of planes are `kp` bytes. The ring of `stages` stages of 48 KiB is dynamic shared memory.
template <typename R, int planes, int stages>
__device__ void multiply_planes(const unsigned char* a, const unsigned char* b, R* c, i64 m, i64 n, i64 kp,
                                i64 inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner) {
  constexpr int bm = BytesTile::bm, bn = BytesTile::bn, kt = BytesTile::kt, band = 16;
  constexpr int stage_bytes = (bm + bn) * kt;
  alignas(128) extern __shared__ unsigned char ring[];

  // Neighbouring blocks share what they read: they go down `band` rows of tiles, then to the right.
  unsigned high = unsigned((m + bm - 1) / bm), wide = unsigned((n + bn - 1) / bn);
  unsigned at = blockIdx.x, item = at / (wide * high);
  at -= item * wide * high;
  unsigned first = at / (band * wide) * band, height = high - first < band ? high - first : band;
  at -= first * wide;
  i64 m0 = i64(first + at % height) * bm, n0 = i64(at / height) * bn;
  i64 outer = item / unsigned(inner), in = item % unsigned(inner);
  i64 plane_a = i64(high) * bm * kp, plane_b = i64(wide) * bn * kp;

  // A thread copies 16 bytes of every 32nd row. Within a row of 128 bytes its eight vectors are exchanged,
  // so that 8 neighbouring rows of a vector meet all banks.
  constexpr int vectors = kt / 16, lines = BytesTile::nt / vectors;
  unsigned tid = threadIdx.x, vector = tid % vectors, line = tid / vectors;
  a += (outer * a_outer + in * a_inner) * planes * plane_a + (m0 + line) * kp + vector * 16;
  b += (outer * b_outer + in * b_inner) * planes * plane_b + (n0 + line) * kp + vector * 16;
  unsigned to = line * kt + (vector ^ (line % vectors)) * 16;
  int fetch_s = planes - 1, fetch_i = 0, slot = 0;
  i64 fetch_k = 0;
  auto fetch = [&] {
    if (fetch_s >= 0) {
      const unsigned char* from_a = a + fetch_i * plane_a + fetch_k;
      const unsigned char* from_b = b + (fetch_s - fetch_i) * plane_b + fetch_k;
      unsigned char* stage = ring + slot * stage_bytes + to;
#pragma unroll
      for (int u = 0; u < bm; u += lines) copy_async<16>(stage + u * kt, from_a + u * kp);
#pragma unroll
      for (int u = 0; u < bn; u += lines) copy_async<16>(stage + (bm + u) * kt, from_b + u * kp);
      fetch_k += kt;
      if (fetch_k == kp) {
        fetch_k = 0;
        if (++fetch_i > fetch_s) {
          --fetch_s;
          fetch_i = 0;
        }
      }
    }
    slot = slot + 1 < stages ? slot + 1 : 0;
    commit_copies();
  };

  unsigned lane = tid % warp_size, warp = tid / warp_size;
  unsigned row = warp / 4 * 64 + lane % 16, column = warp % 4 * 64 + lane / 16 * 8 + lane % 8;
  unsigned base = shared_address(ring);
  unsigned at_a = base + row * kt + ((lane / 16) ^ (row % vectors)) * 16;
  unsigned at_b = base + (bm + column) * kt + ((lane / 8 % 2) ^ (column % vectors)) * 16;

  unsigned sums[4][8][4] = {};
  for (int s = 0; s < stages - 1; ++s) fetch();
  unsigned stage = 0;
#pragma unroll 1
  for (int s = planes - 1; s >= 0; --s) {
    i64 steps = (s + 1) * (kp / kt);
#pragma unroll 1
    for (i64 step = 0; step < steps; ++step) {
      wait_for_copies<stages - 2>();
      // What this fetches into was read by all before.
      __syncthreads();
      fetch();
#pragma unroll
      for (int depth = 0; depth < kt; depth += 32) {
        unsigned as[4][4], bs[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          read_matrices(as[i], (at_a ^ depth) + stage * stage_bytes + i * 16 * kt);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          read_matrices(bs[j], (at_b ^ depth) + stage * stage_bytes + j * 16 * kt);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            multiply_add(sums[i][j], as[i], bs[j / 2][j % 2 * 2], bs[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
      stage = stage + 1 < stages ? stage + 1 : 0;
    }
    if (s > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] <<= 8;
        }
      }
    }
  }

  m0 += warp / 4 * 64 + lane / 4;
  n0 += warp % 4 * 64 + lane % 4 * 2;
  c += i64(item) * m * n;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    i64 r = m0 + i * 8;
    if (r >= m) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      i64 at = n0 + j * 8;
      R first_sum = R(sums[i / 2][j][i % 2 * 2]), second = R(sums[i / 2][j][i % 2 * 2 + 1]);
      if (n % 2 == 0) {
        if (at < n) *reinterpret_cast<Vector<R, 2>*>(c + r * n + at) = {{first_sum, second}};
      } else {
        if (at < n) c[r * n + at] = first_sum;
        if (at + 1 < n) c[r * n + at + 1] = second;
      }
    }
  }
}

}  // namespace coop
