// Order statistics of the window that ends at each element of lines, n each: N read, N written.
//
// A block stages the elements of nt * `stretch` results of a line, and w - 1 before them, in shared memory. A thread
// has `stretch` results side by side, an odd number, so that threads at the same place of their windows read from
// different banks. It keeps a mark, an element of its window, and how many are below it and equal to it:
//
//     window   a b c d e f          goes: a    comes: g          the mark moves by a rank or two, to the next
//     next       b c d e f g        below, equal: +1, 0, -1      value, which one look at the window finds
//
// So a result takes about two looks at its window. The first mark, and one that is far off, come bit by bit from the
// keys of the elements. NaN compare false with everything, so nothing but a number of elements depends on them. Short
// windows are kept in order in registers.
#pragma once

#include "config.cuh"
#include "order_keys.cuh"

namespace coop {

// A quantile of a negative q is the median.
struct OrderSpec {
  int length, min_count, first;
  double q;
};

__device__ inline float round_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double round_product(double a, double b) { return __dmul_rn(a, b); }

// Returns the nearest element above a value, or below it, and how many are equal to that. There is one.
template <bool above, typename T>
__device__ T nearest(const T* window, int length, T from, int& equal) {
  T best = T(above ? 1 : -1) / T(0);
  int count = 0;
#pragma unroll 4
  for (int j = 0; j < length; ++j) {
    T x = window[j];
    bool beyond = above ? x > from : x < from, better = above ? x < best : x > best;
    if (beyond && better) {
      best = x;
      count = 0;
    }
    count += beyond && x == best;
  }
  equal = count;
  return best;
}

// Returns the element at a rank, which is that of one that is not NaN.
template <typename T>
__device__ T element_at(const T* window, int length, int rank) {
  using Key = OrderKey<T>;
  using K = typename Key::K;
  K found = 0;
  for (K bit = Key::top; bit; bit >>= 1) {
    K candidate = found | bit;
    int below = 0;
#pragma unroll 4
    for (int j = 0; j < length; ++j) below += Key::get(window[j]) < candidate;
    if (below <= rank) found = candidate;
  }
  return Key::element(found);
}

// The ranks beside a quantile of `count` elements, and how far behind the first it is.
struct OrderRanks {
  int low, high;
  double gamma;

  __device__ OrderRanks(int count, double q) : low((count - 1) / 2), high(count / 2), gamma(0) {
    if (q >= 0) {
      // NumPy's virtual index.
      int last = count - 1;
      double index = round_product(q, double(last));
      low = index >= last ? last : int(index);
      high = low < last ? low + 1 : last;
      gamma = index - low;
    }
  }

  template <typename T> __device__ T between(T a, T b, double q) {
    if (q < 0) return a == b ? a : round_product(a + b, T(0.5));
    T distance = b - a;
    return gamma >= 0.5 ? b - round_product(distance, T(1 - gamma)) : a + round_product(distance, T(gamma));
  }
};

// Windows of up to `room` elements, sorted; infinities stand for those that are missing.
template <typename T, int room> struct WindowSorted {
  T sorted[room];
  int count = 0;

  __device__ static T known(T x) { return x == x ? x : T(1) / T(0); }
  __device__ static T least(T a, T b) { return b < a ? b : a; }
  __device__ static T greatest(T a, T b) { return b > a ? b : a; }

  // Takes out the first element that is not below `gone`, which is equal to it.
  __device__ void replace(T gone, T come) {
    T previous = T(-1) / T(0);
#pragma unroll
    for (int j = 0; j < room; ++j) {
      T here = sorted[j], next = j + 1 < room ? sorted[(j + 1) % room] : T(1) / T(0);
      T kept = here < gone ? here : next;
      sorted[j] = greatest(previous, least(come, kept));
      previous = kept;
    }
  }
  __device__ void begin(const T* window, OrderSpec spec) {
#pragma unroll
    for (int j = 0; j < room; ++j) sorted[j] = T(1) / T(0);
    for (int j = 0; j < spec.length; ++j) {
      replace(T(1) / T(0), known(window[j]));
      count += window[j] == window[j];
    }
  }
  __device__ void step(T gone, T come, OrderSpec) {
    count += (come == come) - (gone == gone);
    replace(known(gone), known(come));
  }
  // Registers have no addresses, so the bits of a rank choose halves.
  template <int half> __device__ static T choose(const T* some, int rank) {
    if constexpr (half == 0) return some[0];
    else {
      T chosen[half];
#pragma unroll
      for (int j = 0; j < half; ++j) {
        T low = some[j], high = some[j + half];
        chosen[j] = rank & half ? high : low;
      }
      return choose<half / 2>(chosen, rank);
    }
  }
  __device__ T result(const T*, OrderSpec spec) {
    OrderRanks ranks(count, spec.q);
    return ranks.between(choose<room / 2>(sorted, ranks.low), choose<room / 2>(sorted, ranks.high), spec.q);
  }
};

template <typename T> struct WindowQuantile {
  T mark = 0;
  int count = 0, below = 0, equal = 0;

  __device__ void look(const T* window, int length) {
    count = below = equal = 0;
#pragma unroll 4
    for (int j = 0; j < length; ++j) {
      T x = window[j];
      count += x == x;
      below += x < mark;
      equal += x == mark;
    }
  }

  __device__ void begin(const T* window, OrderSpec spec) { look(window, spec.length); }

  __device__ void step(T gone, T come, OrderSpec) {
    count += (come == come) - (gone == gone);
    below += (come < mark) - (gone < mark);
    equal += (come == mark) - (gone == mark);
  }

  __device__ void move(const T* window, int length, int rank) {
    // Each of these steps takes a look; the bits of a key take one each.
    constexpr int far = 4 * sizeof(T);
    if (rank + far < below || rank >= below + equal + far) {
      mark = element_at(window, length, rank);
      look(window, length);
    }
    while (rank < below) {
      mark = nearest<false>(window, length, mark, equal);
      below -= equal;
    }
    while (rank >= below + equal) {
      below += equal;
      mark = nearest<true>(window, length, mark, equal);
    }
  }

  __device__ T result(const T* window, OrderSpec spec) {
    OrderRanks ranks(count, spec.q);
    move(window, spec.length, ranks.low);
    T high = mark;
    int equals;
    if (ranks.high >= below + equal) high = nearest<true>(window, spec.length, mark, equals);
    return ranks.between(mark, high, spec.q);
  }
};

template <typename T> struct WindowRank {
  int count = 0;

  __device__ void begin(const T* window, OrderSpec spec) {
    for (int j = 0; j < spec.length; ++j) count += window[j] == window[j];
  }
  __device__ void step(T gone, T come, OrderSpec) { count += (come == come) - (gone == gone); }
  __device__ T result(const T* window, OrderSpec spec) {
    T last = window[spec.length - 1];
    if (last != last) return last;
    int more = 0;
#pragma unroll 4
    for (int j = 0; j < spec.length; ++j) more += (window[j] < last) - (window[j] > last);
    return count > 1 ? T(double(more) / (count - 1)) : T(0);
  }
};

// How many elements before the last one the least or the greatest is: the `first` of several, or the last.
template <typename T, bool lowest> struct WindowPlace {
  T best = 0;
  int count = 0, place = 0;

  __device__ static bool beats(T x, T y) { return lowest ? x < y : x > y; }

  __device__ void take(T x, OrderSpec spec) {
    if (x == x && (place < 0 || beats(x, best) || (!spec.first && x == best))) {
      best = x;
      place = 0;
    }
  }
  __device__ void look(const T* window, OrderSpec spec) {
    place = -1;
    for (int j = 0; j < spec.length; ++j) {
      place += place >= 0;
      take(window[j], spec);
    }
  }
  __device__ void begin(const T* window, OrderSpec spec) {
    for (int j = 0; j < spec.length; ++j) count += window[j] == window[j];
    look(window, spec);
  }
  __device__ void step(T gone, T come, OrderSpec spec) {
    count += (come == come) - (gone == gone);
    place += place >= 0;
    if (place < spec.length) take(come, spec);
  }
  __device__ T result(const T* window, OrderSpec spec) {
    if (place >= spec.length) look(window, spec);
    return T(place);
  }
};

// A block makes blockDim.x * stretch results of a line, of which there are so many `parts`. halo has `before` elements
// of each line, fewer than a window has.
template <typename T, typename Statistic, int stretch>
__device__ void window_order(const T* x, const T* halo, T* y, i64 n, int before, i64 parts, OrderSpec spec) {
  alignas(16) extern __shared__ unsigned char bytes[];
  T* staged = reinterpret_cast<T*>(bytes);
  T nothing = T(0) / T(0);
  int nt = blockDim.x, tid = threadIdx.x, tile = nt * stretch, reach = spec.length - 1;
  i64 line = blockIdx.x / parts, begin = (blockIdx.x - line * parts) * tile;
  int length = n - begin < tile ? int(n - begin) : tile;
  const T* source = x + line * n + begin - reach;
  const T* earlier = halo + line * before + before + begin - reach;
#pragma unroll 4
  for (int e = tid; e < length + reach; e += nt) {
    i64 at = begin - reach + e;
    staged[e] = at >= 0 ? source[e] : at >= -before ? earlier[e] : nothing;
  }
  __syncthreads();

  int stop = (tid + 1) * stretch < length ? (tid + 1) * stretch : length;
  T* target = y + line * n + begin;
  Statistic statistic;
  for (int i = tid * stretch; i < stop; ++i) {
    const T* window = staged + i;
    if (i == tid * stretch) statistic.begin(window, spec);
    else statistic.step(window[-1], window[reach], spec);
    target[i] = statistic.count >= spec.min_count ? statistic.result(window, spec) : nothing;
  }
}

}  // namespace coop
