// Codes of labels: the number of the group of each label, as int32. Labels of no group get a negative one.
//
//   RangeCodes   integers that follow one another are groups
//   TableCodes   a table has the code of every integer from the least label of a group to the largest
//   SortedCodes  labels of groups, sorted, are searched
#pragma once

#include "bins.cuh"
#include "load.cuh"

namespace coop {

// As unsigned numbers, integers below `first` are beyond all others.
template <typename T> struct RangeCodes {
  u64 first, n;

  __device__ void stage(void*) {}
  __device__ int get(T label) const {
    u64 at = u64(label) - first;
    return at < n ? int(at) : -1;
  }
};

template <typename T> struct TableCodes {
  u64 first, n;
  const int* codes;

  __device__ void stage(void*) {}
  __device__ int get(T label) const {
    u64 at = u64(label) - first;
    return at < n ? codes[at] : -1;
  }
};

// The left edge of every bin is the label of a group; `codes` of the sorted labels may be null.
template <typename T, typename E> struct SortedCodes {
  SearchedBins<E> bins;
  const int* codes;

  __device__ void stage(void* shared) { bins.stage(shared); }
  __device__ int get(T label) const {
    E value = convert<E>(label);
    unsigned bin = bins.find(value);
    if (bin >= unsigned(bins.n) || bins.edges[bin] != value) return -1;
    return codes ? codes[bin] : int(bin);
  }
};

// Dynamic shared memory has what the codes stage. `out` is aligned for four codes.
template <typename T, typename C, int nt>
__device__ void write_codes(const T* labels, i64 size, C codes, int* out) {
  extern __shared__ u64 code_shared[];
  codes.stage(code_shared);
  __syncthreads();
  constexpr int v = 4;
  using Labels = Vector<T, v>;
  i64 vectors = reinterpret_cast<u64>(labels) % sizeof(Labels) == 0 ? size / v : 0;
  i64 stride = i64(gridDim.x) * nt, first = i64(blockIdx.x) * nt + threadIdx.x;
  for (i64 j = first; j < vectors; j += stride) {
    Labels some = reinterpret_cast<const Labels*>(labels)[j];
    Vector<int, v> found;
#pragma unroll
    for (int k = 0; k < v; ++k) found.values[k] = codes.get(some.values[k]);
    reinterpret_cast<Vector<int, v>*>(out)[j] = found;
  }
  for (i64 i = vectors * v + first; i < size; i += stride) out[i] = codes.get(labels[i]);
}

}  // namespace coop
