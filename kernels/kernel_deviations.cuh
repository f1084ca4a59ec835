// Sums of products of deviations of variables from shifts, in float64.
//
// A block has a tile of `side` variables by `side` others, and a part of the samples. It turns `depth` samples
// at a time into deviations in shared memory, while the next ones are on their way, and multiplies them by
// the tensor cores' instructions for float64 (sm_80 and newer):
//
//   a  --minus shifts-->  side x depth -+
//                                       +--> side x side products of the block's samples
//   b  --minus shifts-->  side x depth -+
#pragma once

#include "config.cuh"

namespace coop {

// Rows of variables: sample k of variable i is data[i * row + k * column].
template <typename T> struct Variables {
  const T* data;
  const double* shifts;
  i64 count, row, column;
};

// c += a * b for an 8 x 4 by a 4 x 8 matrix. Of a, a lane holds [lane / 4][lane % 4]; of b,
// [lane % 4][lane / 4]; of c, [lane / 4][lane % 4 * 2] and the next one.
__device__ inline void multiply_add(double (&c)[2], double a, double b) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a), "d"(b));
#endif
}

constexpr int deviations_side = 64, deviations_depth = 32, deviations_threads = 256;
// Rows of shared memory begin on different banks.
constexpr int deviations_pitch = deviations_depth + 4;

// The elements of a side of a tile that a thread brings. Neighbouring threads read neighbouring elements.
template <typename T> struct SideLoads {
  static constexpr int each = deviations_side * deviations_depth / deviations_threads;
  T values[each];
  // The variable and the sample of the first element, and from each element to the next.
  int variable, sample, variables, samples;

  __device__ explicit SideLoads(const Variables<T>& v) {
    constexpr int side = deviations_side, depth = deviations_depth, threads = deviations_threads;
    bool by_column = v.row < v.column;
    variable = by_column ? threadIdx.x % side : threadIdx.x / depth;
    sample = by_column ? threadIdx.x / side : threadIdx.x % depth;
    variables = by_column ? 0 : threads / depth;
    samples = by_column ? threads / side : 0;
  }
  // Brings elements of variables from `first` on, of which there are `count`, and of samples from `begin` on, of
  // which there are `left`.
  __device__ void fetch(const Variables<T>& v, i64 first, int count, i64 begin, int left) {
    const T* from = v.data + (first + variable) * v.row + (begin + sample) * v.column;
    i64 step = variables * v.row + samples * v.column;
#pragma unroll
    for (int u = 0; u < each; ++u, from += step) {
      if (variable + u * variables < count && sample + u * samples < left) values[u] = *from;
    }
  }
  __device__ void store(const double* shifts, int count, int left, double* side) const {
#pragma unroll
    for (int u = 0; u < each; ++u) {
      int i = variable + u * variables, k = sample + u * samples;
      side[i * deviations_pitch + k] = i < count && k < left ? convert<double>(values[u]) - shifts[i] : 0;
    }
  }
};

// A number of elements, of which a tile has no more than `deviations_side`.
__device__ inline int least(i64 n) { return n < deviations_side ? int(n) : deviations_side; }

// The sum of the deviations of variable threadIdx.x / 4, of which four neighbours add a part each.
__device__ inline double add_deviations(const double* side) {
  const double* row = side + threadIdx.x / 4 * deviations_pitch + threadIdx.x % 4;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < deviations_depth; k += 4) sum += row[k];
  return sum;
}

// products gets, for each of `spans` parts of n samples, a table of a.count by b.count sums of products, and
// sums_a and sums_b the sums of deviations. `same` says that b is a. Blocks of one tile follow one another.
template <typename T>
__device__ void multiply_deviations(Variables<T> a, Variables<T> b, int same, i64 n, i64 spans,
                                    double* products, double* sums_a, double* sums_b) {
  constexpr int side = deviations_side, depth = deviations_depth, pitch = deviations_pitch;
  extern __shared__ double shared[];
  i64 wide = (b.count + side - 1) / side, tile = blockIdx.x / spans, span = blockIdx.x % spans;
  i64 first_a = tile / wide * side, first_b = tile % wide * side;
  bool twice = same && first_a == first_b;
  i64 length = (n + spans - 1) / spans;
  i64 begin = span * length, end = begin + length < n ? begin + length : n;
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  // A warp multiplies 16 variables of a by 32 of b.
  int row = warp % 4 * 16 + lane / 4, column = warp / 4 * 32 + lane / 4;
  double c[2][4][2] = {};
  double sum_a = 0, sum_b = 0;
  SideLoads<T> next_a(a), next_b(b);
  const double *shifts_a = a.shifts + first_a, *shifts_b = b.shifts + first_b;
  int count_a = least(a.count - first_a), count_b = least(b.count - first_b);
  if (begin < end) {
    next_a.fetch(a, first_a, count_a, begin, least(end - begin));
    if (!twice) next_b.fetch(b, first_b, count_b, begin, least(end - begin));
  }
  for (int turn = 0; begin < end; begin += depth, turn ^= 1) {
    double* of_a = shared + turn * 2 * side * pitch;
    double* of_b = twice ? of_a : of_a + side * pitch;
    next_a.store(shifts_a, count_a, least(end - begin), of_a);
    if (!twice) next_b.store(shifts_b, count_b, least(end - begin), of_b);
    // One barrier is enough: who stores again has passed the next one.
    __syncthreads();
    if (begin + depth < end) {
      next_a.fetch(a, first_a, count_a, begin + depth, least(end - begin - depth));
      if (!twice) next_b.fetch(b, first_b, count_b, begin + depth, least(end - begin - depth));
    }
    sum_a += add_deviations(of_a);
    if (!twice) sum_b += add_deviations(of_b);
#pragma unroll
    for (int k = 0; k < depth; k += 4) {
      double left[2], right[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) left[i] = of_a[(row + 8 * i) * pitch + k + lane % 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) right[j] = of_b[(column + 8 * j) * pitch + k + lane % 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_add(c[i][j], left[i], right[j]);
      }
    }
  }
  double* table = products + span * a.count * b.count;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        i64 of_a = first_a + row + 8 * i, of_b = first_b + warp / 4 * 32 + 8 * j + lane % 4 * 2 + k;
        if (of_a < a.count && of_b < b.count) table[of_a * b.count + of_b] = c[i][j][k];
      }
    }
  }
  if (twice) sum_b = sum_a;
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    sum_a += __shfl_xor_sync(full_mask, sum_a, offset);
    sum_b += __shfl_xor_sync(full_mask, sum_b, offset);
  }
  i64 of_a = first_a + threadIdx.x / 4, of_b = first_b + threadIdx.x / 4;
  if (threadIdx.x % 4 == 0) {
    if (first_b == 0 && of_a < a.count) sums_a[span * a.count + of_a] = sum_a;
    if (first_a == 0 && of_b < b.count) sums_b[span * b.count + of_b] = sum_b;
  }
}

}  // namespace coop
