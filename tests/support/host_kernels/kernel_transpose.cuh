// Stands for kernels/kernel_transpose.cuh, of which kernel_cells.cuh needs two definitions.
#pragma once

#include <cstring>

#include "config.cuh"

namespace coop {

struct Word16 {
  u64 low, high;
};
template <int bytes> struct element_of;
template <> struct element_of<1> { using type = unsigned char; };
template <> struct element_of<2> { using type = unsigned short; };
template <> struct element_of<4> { using type = unsigned; };
template <> struct element_of<8> { using type = u64; };
template <> struct element_of<16> { using type = Word16; };

inline u64 divide(u64 a, u64 b) { return a / b; }

}  // namespace coop

static inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
