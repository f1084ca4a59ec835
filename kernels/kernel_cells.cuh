// Elements of decoded cells put in place, and numbers unpacked from codes.
//
// A file is stored in cells, each decoded by itself. The elements that an index selects are gathered from the
// cells that it meets, in the machine's byte order:
//
//   cells       0 1 2 | 3 4 5 | 6 7 8
//   result          2   3 4 5   6 7
#pragma once

#include "kernel_transpose.cuh"

namespace coop {

// An axis of the result: its elements, the place of the first one in its cell, the elements of a cell, the
// cells that the result meets, and how far apart neighbours are within a cell, in elements.
struct CellAxis {
  i64 size, first, cell, cells, stride;
};

template <int dims> struct CellAxes {
  CellAxis of[dims];
};

// Fills `out` with n elements of cells of `elements`, and with `fill` where the address of a cell is 0.
// If `block`, each so many elements of a cell have their first bytes side by side, then their second ones, and
// so on; the last block may be shorter. If `swapped`, the first byte becomes the last.
template <int size, int nt, int dims>
__device__ void gather_cells(const u64* cells, CellAxes<dims> axes, i64 n, i64 elements, i64 block, int swapped,
                             u64 fill_low, u64 fill_high, void* out) {
  using Word = typename element_of<size>::type;
  for (i64 i = i64(blockIdx.x) * nt + threadIdx.x; i < n; i += i64(gridDim.x) * nt) {
    u64 rest = i;
    i64 number = 0, count = 1, at = 0;
#pragma unroll
    for (int d = dims - 1; d >= 0; --d) {
      const CellAxis& axis = axes.of[d];
      u64 above = divide(rest, axis.size);
      u64 along = rest - above * axis.size + axis.first;
      u64 cell = divide(along, axis.cell);
      at += i64(along - cell * axis.cell) * axis.stride;
      number += i64(cell) * count;
      count *= axis.cells;
      rest = above;
    }
    const unsigned char* source = reinterpret_cast<const unsigned char*>(cells[number]);
    alignas(16) unsigned char bytes[size];
    if (source == nullptr) {
      u64 fill[2] = {fill_low, fill_high};
      memcpy(bytes, fill, size);
    } else {
      if (block) {
        i64 begin = i64(divide(at, block)) * block;
        i64 plane = elements - begin < block ? elements - begin : block;
        source += begin * size + (at - begin);
#pragma unroll
        for (int b = 0; b < size; ++b) bytes[b] = source[b * plane];
      } else {
        Word word = reinterpret_cast<const Word*>(source)[at];
        memcpy(bytes, &word, size);
      }
      if (swapped) {
#pragma unroll
        for (int b = 0; b < size / 2; ++b) {
          unsigned char byte = bytes[b];
          bytes[b] = bytes[size - 1 - b];
          bytes[size - 1 - b] = byte;
        }
      }
    }
    Word word;
    memcpy(&word, bytes, size);
    static_cast<Word*>(out)[i] = word;
  }
}

__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double sum(double a, double b) { return __dadd_rn(a, b); }

// Fills `out` with what codes stand for: code * scale + offset, rounded after each step as NumPy does, or NaN.
template <typename Code, typename Number, typename Scale, typename Offset, int nt>
__device__ void unpack_codes(const Code* codes, i64 n, bool has_fill, Code fill, bool is_scaled, Scale scale,
                             bool is_shifted, Offset offset, Number* out) {
  for (i64 i = i64(blockIdx.x) * nt + threadIdx.x; i < n; i += i64(gridDim.x) * nt) {
    Code code = codes[i];
    Number number = Number(code);
    // By the functions that the compiler does not fuse.
    if (is_scaled) number = Number(product(Scale(number), scale));
    if (is_shifted) number = Number(sum(Offset(number), offset));
    out[i] = has_fill && code == fill ? Number(__int_as_float(0x7fc00000)) : number;
  }
}

}  // namespace coop
