// Copies of arrays whose axes are put in another order, N read and N written.
//
// Elements are bytes that are moved, of size 1, 2, 4, 8 or 16, and what is copied lies in C order. Where
// the axis that is fastest in the input is not the fastest in the output, neighbours of the one go
// through shared memory to become neighbours of the other:
//
//   transpose_tiles   square tiles of two long axes
//   transpose_boxes   boxes of up to three axes, of which some are short, or of strided elements
//   copy_rows         rows that stay rows
#pragma once

#include "load.cuh"

namespace coop {

template <int bytes> struct element_of;
template <> struct element_of<1> { using type = unsigned char; };
template <> struct element_of<2> { using type = unsigned short; };
template <> struct element_of<4> { using type = unsigned; };
template <> struct element_of<8> { using type = u64; };
template <> struct element_of<16> { using type = Vector<unsigned, 4>; };

// Divides by the shorter instructions where they will do.
__device__ inline u64 divide(u64 a, u64 b) {
  return (a | b) >> 32 ? a / b : u64(unsigned(a) / unsigned(b));
}

// Axes, slowest first, along which neither order is fastest; strides are in elements.
template <int dims> struct Batch {
  i64 size[dims], from[dims], to[dims];

  // Adds to both offsets what leads to an item, and returns what is left of its number.
  __device__ u64 locate(u64 item, i64& source, i64& target) const {
#pragma unroll
    for (int d = dims - 1; d >= 0; --d) {
      u64 rest = divide(item, size[d]);
      i64 i = i64(item - rest * size[d]);
      source += i * from[d];
      target += i * to[d];
      item = rest;
    }
    return item;
  }
};

// Transposes 4 x 4 bytes, a row in a word.
__device__ inline void transpose_bytes(unsigned (&r)[4]) {
  unsigned a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[0], r[1], 0x7362);
  unsigned c = __byte_perm(r[2], r[3], 0x5140), d = __byte_perm(r[2], r[3], 0x7362);
  r[0] = __byte_perm(a, c, 0x5410);
  r[1] = __byte_perm(a, c, 0x7632);
  r[2] = __byte_perm(b, d, 0x5410);
  r[3] = __byte_perm(b, d, 0x7632);
}

// Transposes 2 x 2 elements of 2 bytes, a row in a word.
__device__ inline void transpose_pairs(unsigned (&r)[2]) {
  unsigned a = __byte_perm(r[0], r[1], 0x5410);
  r[1] = __byte_perm(r[0], r[1], 0x7632);
  r[0] = a;
}

// What holds v elements: whole words where it can, lest the compiler take bytes apart one by one.
template <typename E, int v, bool words = (sizeof(E) < 4 && v * sizeof(E) % 4 == 0)>
struct vector_of { using type = Vector<E, v>; };
template <typename E, int v> struct vector_of<E, v, true> {
  using type = Vector<unsigned, v * int(sizeof(E)) / 4>;
};

// Returns v x v elements transposed; rows narrower than a word go element by element.
template <typename E, int v, typename V>
__device__ void transpose_block(const V (&rows)[v], V (&columns)[v]) {
  constexpr int side = 4 / int(sizeof(E));
  if constexpr (side > 1 && v % (side > 1 ? side : 1) == 0) {
    constexpr int words = v / side;
    unsigned from[v][words], to[v][words];
    memcpy(from, rows, sizeof(from));
#pragma unroll
    for (int i = 0; i < words; ++i) {
#pragma unroll
      for (int j = 0; j < words; ++j) {
        unsigned block[side];
#pragma unroll
        for (int k = 0; k < side; ++k) block[k] = from[i * side + k][j];
        if constexpr (side == 4) transpose_bytes(block);
        else transpose_pairs(block);
#pragma unroll
        for (int k = 0; k < side; ++k) to[j * side + k][i] = block[k];
      }
    }
    memcpy(columns, to, sizeof(to));
  } else {
#pragma unroll
    for (int i = 0; i < v; ++i) {
#pragma unroll
      for (int j = 0; j < v; ++j) columns[j].values[i] = rows[i].values[j];
    }
  }
}

// A block of nt threads for every tile of side x side elements of every item of the batch. The input's
// fastest axis has n elements and the output's m; the output's has stride `from` in the input, and the
// input's `to` in the output. All of these and both addresses are multiples of v elements.
//
// The tile lies in shared memory as it goes out, a line of `side` elements for every column of the input;
// vectors of v elements are exchanged within a line so that neither side meets a bank twice.
template <int bytes, int v, int side, int nt, int band, int dims>
__device__ void transpose_tiles(const void* x, void* y, i64 m, i64 n, i64 from, i64 to, Batch<dims> batch) {
  using E = typename element_of<bytes>::type;
  using V = typename vector_of<E, v>::type;
  constexpr unsigned vectors = side / v, rounds = vectors * vectors / nt, width_bytes = v * bytes;
  constexpr int grain = width_bytes < 4 ? 4 : width_bytes, grains = 128 / grain;
  static_assert(side * bytes % 128 == 0 && vectors * vectors % nt == 0, "");
  alignas(16) __shared__ unsigned char tile[side * side * bytes];
  auto address = [&](int column, int row) {
    return reinterpret_cast<V*>(tile + column * side * bytes +
                                (row * width_bytes ^ (column / v % grains) * grain));
  };

  // Neighbouring blocks go over `band` tiles of a row, and then to the next row.
  unsigned wide = unsigned((n + side - 1) / side), high = unsigned((m + side - 1) / side);
  unsigned at = blockIdx.x, item = at / (wide * high);
  at -= item * wide * high;
  unsigned first = at / (band * high) * band, width = wide - first < band ? wide - first : band;
  at -= first * high;
  i64 r = i64(at / width) * side, c = i64(first + at % width) * side;
  i64 source = r * from + c, target = c * to + r;
  batch.locate(item, source, target);
  int rows = m - r < side ? int(m - r) : side, columns = n - c < side ? int(n - c) : side;
  const E* in = static_cast<const E*>(x) + source;
  E* out = static_cast<E*>(y) + target;

  int tid = threadIdx.x;
  constexpr int flight = rounds * v > 16 ? 16 / v : rounds;
#pragma unroll 1
  for (int first_round = 0; first_round < rounds; first_round += flight) {
    int start = tid + first_round * nt;
    V loaded[flight][v];
#pragma unroll
    for (int u = 0; u < flight; ++u) {
      int column = (start + u * nt) % vectors * v, row = (start + u * nt) / vectors * v;
      if (row < rows && column < columns) {
#pragma unroll
        for (int i = 0; i < v; ++i) {
          loaded[u][i] = *reinterpret_cast<const V*>(in + (row + i) * from + column);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < flight; ++u) {
      int column = (start + u * nt) % vectors * v, row = (start + u * nt) / vectors;
      V turned[v];
      transpose_block<E, v>(loaded[u], turned);
#pragma unroll
      for (int j = 0; j < v; ++j) *address(column + j, row) = turned[j];
    }
  }
  __syncthreads();
#pragma unroll 16
  for (int u = 0; u < rounds * v; ++u) {
    int row = (tid + u * nt) % vectors, column = (tid + u * nt) / vectors;
    if (row * v < rows && column < columns) {
      *reinterpret_cast<V*>(out + column * to + row * v) = *address(column, row);
    }
  }
}

// Three axes of a box in the order of one side, slowest first.
struct BoxAxes {
  i64 size[3], stride[3];
  int box[3];
};

// Quotients and remainders of numbers below 2^16 by one of them.
struct Divider {
  unsigned by, magic;
  __device__ explicit Divider(unsigned d) : by(d), magic(d > 1 ? 0xffffffffu / d + 1 : 0) {}
  // Returns the quotient, and leaves the remainder.
  __device__ unsigned operator()(unsigned& x) const {
    unsigned q = magic ? __umulhi(x, magic) : x;
    x -= q * by;
    return q;
  }
};

// Indexes an array that stays in registers.
template <typename T>
__device__ T pick(const T (&values)[3], int i) {
  return i == 0 ? values[0] : i == 1 ? values[1] : values[2];
}

// A block of nt threads for every box of `in.box` rows of `group` elements. Axis d of the output's order
// is axis order[d] of the input's, and an axis has the same size and box in both. The grid counts boxes
// along the input's axes, inside of the batch's items. A box has at most `capacity` elements.
template <int bytes, int capacity, int nt, int dims>
__device__ void transpose_boxes(const void* x, void* y, BoxAxes in, BoxAxes out, const int (&order)[3],
                                int group, Batch<dims> batch) {
  using E = typename element_of<bytes>::type;
  // One element of every 128 bytes is left out, which spreads strides of powers of two over the banks.
  constexpr int pad = bytes < 4 ? 32 : 128 / bytes;
  alignas(16) __shared__ unsigned char storage[(capacity + capacity / pad) * bytes];
  E* tile = reinterpret_cast<E*>(storage);

  u64 item = blockIdx.x;
  i64 start[3];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    u64 count = divide(in.size[d] + in.box[d] - 1, in.box[d]), rest = divide(item, count);
    start[d] = i64(item - rest * count) * in.box[d];
    item = rest;
  }
  i64 source = 0, target = 0;
  batch.locate(item, source, target);
  int left[3], apart[3], steps[3] = {in.box[1] * in.box[2] * group, in.box[2] * group, group};
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    source += start[d] * in.stride[d];
    target += pick(start, order[d]) * out.stride[d];
    left[d] = in.size[d] - start[d] < in.box[d] ? int(in.size[d] - start[d]) : in.box[d];
    apart[d] = pick(steps, order[d]);
  }
  const E* from = static_cast<const E*>(x) + source;
  E* to = static_cast<E*>(y) + target;
  unsigned volume = unsigned(in.box[0] * steps[0]);

  Divider by_group(group), by_2(in.box[2]), by_1(in.box[1]);
  for (unsigned e = threadIdx.x; e < volume; e += nt) {
    unsigned g = e, i2 = by_group(g), i1 = by_2(i2), i0 = by_1(i1);
    if (int(i0) < left[0] && int(i1) < left[1] && int(i2) < left[2]) {
      tile[e + e / pad] = from[i0 * in.stride[0] + i1 * in.stride[1] + i2 * in.stride[2] + g];
    }
  }
  __syncthreads();
  int left_out[3] = {pick(left, order[0]), pick(left, order[1]), pick(left, order[2])};
  Divider out_2(out.box[2]), out_1(out.box[1]);
  for (unsigned e = threadIdx.x; e < volume; e += nt) {
    unsigned g = e, i2 = by_group(g), i1 = out_2(i2), i0 = out_1(i1);
    if (int(i0) < left_out[0] && int(i1) < left_out[1] && int(i2) < left_out[2]) {
      unsigned at = i0 * apart[0] + i1 * apart[1] + i2 * apart[2] + g;
      to[i0 * out.stride[0] + i1 * out.stride[1] + i2 * out.stride[2] + g] = tile[at + at / pad];
    }
  }
}

// A warp for every `unroll` * 32 elements of every row of `length` contiguous elements; the rows are the
// items of the batch, one after the other in the output.
template <int bytes, int unroll, int nt, int dims>
__device__ void copy_rows(const void* x, void* y, i64 length, i64 rows, Batch<dims> batch) {
  using E = typename element_of<bytes>::type;
  constexpr int span = unroll * warp_size;
  u64 warp = u64(blockIdx.x) * (nt / warp_size) + threadIdx.x / warp_size;
  u64 tiles = (length + span - 1) / span, row = divide(warp, tiles);
  if (row >= u64(rows)) return;
  i64 source = 0, target = 0;
  batch.locate(row, source, target);
  i64 first = i64(warp - row * tiles) * span + threadIdx.x % warp_size;
  const E* in = static_cast<const E*>(x) + source + first;
  E* out = static_cast<E*>(y) + target + first;
  E loaded[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (first + u * warp_size < length) loaded[u] = in[u * warp_size];
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (first + u * warp_size < length) out[u * warp_size] = loaded[u];
  }
}

}  // namespace coop
