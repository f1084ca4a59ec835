// Histogram of weighted samples: the weights of each bin are added as integers, so that their order does
// not matter and results do not change from run to run.
//
// Float weights are multiples of a unit, 2^-(main_bits + 32) of a power of two above the largest of them, and
// integers of 64 bits: a main word and a low one, which few have of those with 24 bits. Those that would lose
// bits so are rare, and added in finer words (add_apart): a bin of light weights keeps its digits beside a heavy
// one, down to 2^-167 of the largest weight. Which is the largest is guessed from some of them; heavier ones are
// added apart too, and where that does not reach, all is done once more. Integers are added as they are, and
// wrap as NumPy's.
//
//   weigh_shared  sums in the shared memory of each block, for a window of the bins
//   weigh_global  sums in global memory
//
// settle() makes the results of them. Infinite weights and NaN are added to the result at once, where they win.
//
// Of groups, a Term counts the weights in the same read, leaves out NaN, or adds squares of the weights' deviations
// from means, which average() makes of sums and counts.
#pragma once

#include "kernel_histogram.cuh"

namespace coop {

// The bits of the main word of the largest weight: what is left are its sums until they wrap.
constexpr int main_bits = 30;

// The words of the weights of a bin that are added apart, 32 bits each and the rest for carries, and the bits by
// which their unit is finer.
constexpr int apart_words = 6, finer = 106;

// The largest biased float64 exponent of some finite weights, and of those that were too heavy for it.
struct Exponents {
  int guessed, beyond;
};

// The exponent of the power of two by which float weights are multiplied. Below 2^-959 weights are light rather
// than the unit beyond its range.
__device__ inline int at_least(int exponent) { return exponent > 64 ? exponent : 64; }
__device__ inline int unit_power(int exponent) { return main_bits + 31 - (at_least(exponent) - 1023); }
__device__ inline double power_of_two(int power) { return __longlong_as_double(i64(power + 1023) << 52); }

// The exponent by which a round is made: 0 where there is nothing to do.
__device__ inline int exponent_of(const Exponents* exponents, int round) {
  return round ? exponents->beyond : at_least(exponents->guessed);
}

// Looks at every `step`-th group of four weights, of which weight(i) is one; the exponents are zero before.
template <int nt, typename F>
__device__ void largest_of(i64 size, i64 step, Exponents* exponents, F weight) {
  int most = 0;
  i64 groups = (size + 3) / 4, stride = i64(gridDim.x) * nt * step;
  for (i64 i = (i64(blockIdx.x) * nt + threadIdx.x) * step; i < groups; i += stride) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (4 * i + k >= size) break;
      int mine = int(__double_as_longlong(weight(4 * i + k)) >> 52 & 0x7ff);
      if (mine < 0x7ff && mine > most) most = mine;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    int other = __shfl_xor_sync(full_mask, most, offset);
    most = other > most ? other : most;
  }
  if (threadIdx.x % warp_size == 0) atomicMax(&exponents->guessed, most);
}

template <typename W, int nt>
__device__ void largest(const W* weights, i64 size, i64 step, Exponents* exponents) {
  largest_of<nt>(size, step, exponents, [=](i64 i) { return convert<double>(weights[i]); });
}

// What grows with the size of a number as its exponent does; all that counts of it is the exponent.
template <typename W> __device__ unsigned size_of(W weight) {
  if constexpr (sizeof(W) == 8) return unsigned(__double2hiint(double(weight))) & 0x7fffffff;
  else return __float_as_uint(convert<float>(weight)) & 0x7fffffff;
}

// What is added of a weight, and how many digits of it matter; `counts`, if they are wanted, may be null, and `sizes`
// gets the largest size of a bin.
template <typename W, bool is_counted, bool skips_nan, bool is_sized> struct Term {
  using Weight = W;
  static constexpr bool squares = false, counted = is_counted, sized = is_sized;
  static constexpr int digits = sizeof(W) < 8 ? 23 : 52;

  u64* counts;
  unsigned* sizes;

  // A bin beyond all others leaves a weight out.
  __device__ W get(W weight, unsigned& bin, unsigned) const {
    if (skips_nan && is_nan(weight)) bin = ~0u;
    return weight;
  }
};

// The square of the deviation from the bin's mean, which is scaled by a power of two, so that no bin is much lighter
// than others: `scales` have its upper 16 bits. Bins whose mean is not finite get nothing, nor do NaN.
template <typename W> struct SquareTerm {
  using Weight = double;
  static constexpr bool squares = true, counted = false, sized = false;
  // Squares that are lighter than 2^-21 of the largest are added apart.
  static constexpr int digits = 40;

  const double* means;
  const unsigned short* scales;

  __device__ double get(W weight, unsigned& bin, unsigned count) const {
    bool inside = bin < count;
    double mean = inside ? means[bin] : 0, off = convert<double>(weight) - mean;
    unsigned scale = inside ? scales[bin] : 0;
    if ((__double2hiint(mean) & 0x7ff00000) == 0x7ff00000 || off != off) bin = ~0u;
    off *= scale_of(scale);
    return off * off;
  }
  __device__ static double scale_of(unsigned upper) { return __longlong_as_double(i64(upper) << 48); }
};

template <typename T, typename W, int nt>
__device__ void largest_square(const T* x, const W* weights, i64 size, unsigned bins, SquareTerm<W> term, i64 step,
                               Exponents* exponents) {
  largest_of<nt>(size, step, exponents, [=](i64 i) {
    unsigned bin = unsigned(x[i]);
    double square = term.get(weights[i], bin, bins);
    return bin < bins ? square : 0.0;
  });
}

// Clears the sums for another round, if there has to be one.
__device__ inline void clear(u64* sums, i64 size, const Exponents* exponents) {
  if (!exponents->beyond) return;
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += i64(gridDim.x) * blockDim.x) sums[i] = 0;
}

// Where the sums of floats go: their main and low words, and what is added apart.
struct WeightSums {
  double* table;
  u64 *high, *low, *apart;
  Exponents* exponents;
};

// Adds a double as integers with its sign, or to the result if it is not finite. A call, for there are few such
// weights, and it would be inlined for each sample of a group.
__device__ __noinline__ void add_apart(double weight, double* result, u64* apart, Exponents* exponents,
                                       int exponent) {
  i64 bits = __double_as_longlong(weight);
  int power = int(bits >> 52 & 0x7ff);
  if (power == 0x7ff) {
    atomicAdd(result, weight);
    return;
  }
  u64 digits = u64(bits) & 0xfffffffffffffull;
  if (power) digits |= 1ull << 52;
  int shift = (power ? power : 1) - 1075 + unit_power(exponent) + finer;
  if (shift > 32 * (apart_words - 2) - 1) {
    atomicMax(&exponents->beyond, power);
    return;
  }
  if (shift < 0) {
    digits = shift < -60 ? 0 : (digits + (1ull << (-shift - 1))) >> -shift;
    shift = 0;
  }
  int word = shift / 32, by = shift % 32;
  u64 middle = digits >> 32 << by;
  u64 added[3] = {digits << by & 0xffffffff,
                  (((digits & 0xffffffff) << by) >> 32) + (middle & 0xffffffff), middle >> 32};
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    if (added[k]) atomicAdd(apart + word + k, bits < 0 ? 0 - added[k] : added[k]);
  }
}

// Weights as integers of 64 bits.
template <typename W, bool is_float, int digits> struct Weights {
  static constexpr bool narrow = sizeof(W) < 8;
  // Of a weight this much lighter than the largest the last digit is a multiple of the unit yet.
  static constexpr int depth = main_bits + 31 - digits;
  // The bits behind those of an exponent, in the upper word of a weight without its sign.
  static constexpr int behind = narrow ? 24 : 21, bias = narrow ? 1023 - 127 : 0;

  unsigned lightest, span, shift;
  double scale;

  __device__ explicit Weights(int exponent) {
    int power = unit_power(exponent), least = exponent - depth - bias, most = exponent - bias;
    if (least < 1) least = 1;
    lightest = unsigned(least) << behind;
    span = most < least ? 0 : unsigned(most - least + 1) << behind;
    shift = unsigned(power) << 23;
    scale = power_of_two(power);
    // Or all this would be computed for every group.
    asm("" : "+r"(lightest), "+r"(span), "+r"(shift));
  }

  // Returns whether the integer is all of the weight.
  __device__ bool get(W weight, i64& integer) const {
    if constexpr (!is_float) {
      integer = i64(weight);
      return true;
    } else if constexpr (narrow) {
      unsigned bits = __float_as_uint(convert<float>(weight));
      integer = __float2ll_rn(__uint_as_float(bits + shift));
      return bits * 2 - lightest < span;
    } else {
      integer = __double2ll_rn(weight * scale);
      return unsigned(__double2hiint(weight)) * 2 - lightest < span;
    }
  }
};

// Adds a weight of a bin that is not all of its integer.
template <typename W>
__device__ void add_apart(W weight, i64 bin, const WeightSums& sums, int exponent) {
  double value = convert<double>(weight);
  if (value == 0) return;
  add_apart(value, sums.table + bin, sums.apart + bin * apart_words, sums.exponents, exponent);
}

// Four elements, as aligned as a load needs.
template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
  T values[4];
};

// Calls f(samples, weights, count) for groups of up to four of them, spread over the nt threads of a block. The
// loads of the next group are under way while f works on one, if x and w are aligned alike; more of them would
// take registers that f needs. n is less than 2^32.
template <int nt, typename T, typename W, typename F>
__device__ void for_each_group(const T* x, const W* w, i64 n, F f) {
  using X = Four<T>;
  using V = Four<W>;
  unsigned off = unsigned(reinterpret_cast<u64>(x) / sizeof(T)) % 4, head = off ? 4 - off : 0;
  head = head < n ? head : unsigned(n);
  unsigned body = unsigned((n - head) / 4), tail = unsigned((n - head) % 4), j = threadIdx.x;
  const X* xs = reinterpret_cast<const X*>(x + head) + j;
  const V* ws = reinterpret_cast<const V*>(w + head) + j;
  bool aligned = (reinterpret_cast<u64>(w + head) & (alignof(V) - 1)) == 0;
  // Behind the body come its tail and what is before it.
  unsigned groups = body + (tail > 0) + (head > 0), loaded = aligned ? body : 0;
  X samples;
  V weights;
  if (j < loaded) {
    samples = *xs;
    weights = *ws;
  }
#pragma unroll 1
  for (; j < groups; j += nt) {
    unsigned count = 4;
    if (j >= loaded) {
      unsigned begin = head + j * 4;
      if (j >= body) {
        bool last = j == body && tail;
        count = last ? tail : head;
        begin = last ? begin : 0;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned at = begin + (k < count ? k : 0);
        samples.values[k] = x[at];
        weights.values[k] = w[at];
      }
    }
    X now = samples;
    V own = weights;
    xs += nt;
    ws += nt;
    if (j + nt < loaded) {
      samples = *xs;
      weights = *ws;
    }
    f(now.values, own.values, count);
  }
}

// Adds to a word of shared memory and returns what was there.
__device__ inline unsigned add_shared(unsigned address, unsigned value) {
  unsigned old;
  asm volatile("atom.relaxed.cta.shared::cta.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(value) : "memory");
  return old;
}

// The sums of bins, of signed words: of each a main word, one for how often that was exceeded and, unsigned and of
// floats only, one for what is below it. A `lean` table has only the main words here, those of the first `held`
// bins, and the others in global memory.
template <bool is_float, bool lean> struct WeightTable {
  unsigned main, above, below;  // addresses in shared memory
  int held;
  u64 *high, *low;  // of a lean table

  // Adds integers, the low 32 bits of which are below the main words of floats.
  template <int m> __device__ void add(const unsigned (&bin)[m], const i64 (&integer)[m]) const {
    unsigned words[m], over[m], any = 0;
#pragma unroll
    for (int k = 0; k < m; ++k) {
      words[k] = unsigned(is_float ? u64(integer[k]) >> 32 : u64(integer[k]));
      over[k] = is_float ? 0 : unsigned(u64(integer[k]) >> 32) + (words[k] >> 31);
      any |= unsigned(integer[k]);
    }
    if (is_float && any) add_below(bin, integer, words);
    add_main(bin, words, over);
  }
  // The main words are not the largest, so that they take a carry.
  template <int m>
  __device__ void add_below(const unsigned (&bin)[m], const i64 (&integer)[m], unsigned (&words)[m]) const {
#pragma unroll
    for (int k = 0; k < m; ++k) {
      unsigned word = unsigned(integer[k]);
      if (!word) continue;
      if constexpr (lean) atomicAdd(low + bin[k], u64(word));
      else words[k] += add_shared(below + bin[k] * 4, word) + word < word;
    }
  }
  template <int m>
  __device__ void add_main(const unsigned (&bin)[m], const unsigned (&words)[m], unsigned (&over)[m]) const {
    unsigned old[m], any = 0;
#pragma unroll
    for (int k = 0; k < m; ++k) {
      old[k] = 0;
      if (!lean || int(bin[k]) < held) old[k] = add_shared(main + bin[k] * 4, words[k]);
    }
#pragma unroll
    for (int k = 0; k < m; ++k) {
      unsigned sum = old[k] + words[k];
      old[k] = (old[k] ^ sum) & (words[k] ^ sum) & 0x80000000;
      any |= old[k] | over[k];
      if (lean) any |= int(bin[k]) >= held;
    }
    if (!any) return;
#pragma unroll
    for (int k = 0; k < m; ++k) {
      if (old[k]) over[k] += int(words[k]) < 0 ? -1 : 1;
      if constexpr (lean) {
        u64 more = u64(over[k]) << 32;
        if (int(bin[k]) >= held) more += u64(i64(int(words[k])));
        if (more) atomicAdd(high + bin[k], more);
      } else if (over[k]) {
        add_shared(above + bin[k] * 4, over[k]);
      }
    }
  }
};

// What a thread has added up of neighbouring samples in one bin.
template <bool is_float, bool counted> struct Run {
  unsigned bin;
  u64 high = 0, low = 0;
  unsigned count = 0;

  __device__ void add(i64 integer) {
    high += is_float ? u64(integer >> 32) : u64(integer);
    if (is_float) low += u64(integer) & 0xffffffff;
    if (counted) ++count;
  }
  template <typename Table, typename Tally> __device__ void flush(const Table& table, const Tally& tally) {
    if (counted && count) tally.add(bin, count);
    count = 0;
    unsigned at[1] = {bin}, none[1] = {0};
    i64 rest[1] = {i64(low & 0xffffffff)};
    if (is_float) table.add_below(at, rest, none);
    u64 all = high + (low >> 32) + none[0];
    unsigned words[1] = {unsigned(all)}, over[1] = {unsigned(all >> 32) + unsigned(all >> 31 & 1)};
    table.add_main(at, words, over);
    high = low = 0;
  }
};

// How many weights bins get, and the largest of their sizes: in shared memory, where the table is, or else in global
// memory.
template <typename V, bool shared> struct Tally {
  unsigned *words, *tops;
  u64* counts;
  unsigned* sizes;
  unsigned held;

  __device__ void add(unsigned bin, unsigned count) const {
    if constexpr (V::counted && shared) atomicAdd(words + int(bin), count);
    else if constexpr (V::counted) {
      if (counts && bin < held) atomicAdd(counts + bin, u64(count));
    }
  }
  __device__ void look_at(unsigned bin, unsigned size) const {
    if (!V::sized || bin >= held) return;
    unsigned* top = (shared ? tops : sizes) + bin;
    if (size > *const_cast<volatile unsigned*>(top)) atomicMax(top, size);
  }
  __device__ void flush(int i) const {
    if (V::counted && shared && counts && words[i]) atomicAdd(counts + i, u64(words[i]));
    if (V::sized && shared && tops[i]) atomicMax(sizes + i, tops[i]);
  }
};

// The bin below `count` that more than one in 16 of a block's samples are in, as far as some of them tell; `none`
// where there is none. The words of these bins are zero and are again; the one before them is zero, and is not.
template <int nt, typename T, typename B>
__device__ unsigned crowded_bin(const T* x, i64 size, const B& bins, unsigned count, unsigned* words, unsigned none) {
  unsigned& most = words[-1];
  unsigned bin[1] = {~0u};
  if (size) {
    T sample[1] = {x[i64(double(threadIdx.x) / nt * size)]};
    bins.find(sample, bin);
  }
  bool inside = bin[0] < count;
  if (inside) atomicAdd(words + bin[0], 1u);
  __syncthreads();
  // Bins have 20 bits here, and their samples what is left.
  if (inside && words[bin[0]] > nt / 16) atomicMax(&most, words[bin[0]] << 20 | bin[0]);
  __syncthreads();
  if (inside) words[bin[0]] = 0;
  return most ? most & 0xfffff : none;
}

// `splits` neighbouring blocks read the same samples and sum a window of `window` bins each, and the last what is
// behind these; only a lean table has more than one window, or anything behind them. Dynamic shared memory holds
// what `bins` stages, the means of a table that is not lean, and the table, which is added to the sums at the end: of
// integers to sums.high. A block takes fewer than 2^31 samples.
template <typename T, typename B, typename W, bool is_float, bool lean, int nt, typename V>
__device__ void weigh_shared(const T* x, const W* w, i64 size, B bins, WeightSums sums, int round, int window,
                             int splits, V term) {
  extern __shared__ u64 shared[];
  using Weight = typename V::Weight;
  constexpr int tallies = lean ? 0 : V::counted + V::sized;
  int exponent = is_float ? exponent_of(sums.exponents, round) : 0;
  if (is_float && !exponent) return;
  unsigned* words = reinterpret_cast<unsigned*>(shared) + bins.stage(shared) / 4;
  int split = blockIdx.x % splits, first = split * window, count = bins.n - first;
  if (split < splits - 1) count = window;
  int held = count < window ? count : window;
  bins.begin_at(first);
  if constexpr (V::squares) {
    term.means += first;
    term.scales += first;
    if constexpr (!lean) {
      double* means = reinterpret_cast<double*>(words);
      auto* scales = reinterpret_cast<unsigned short*>(means + held);
      for (int i = threadIdx.x; i < held; i += nt) {
        means[i] = term.means[i];
        scales[i] = term.scales[i];
      }
      term.means = means;
      term.scales = scales;
      words += 2 * held + (held + 1) / 2;
    }
  }
  // Before them, for what is in none of the bins, a word for each lane.
  int rows = warp_size + held;
  unsigned none = threadIdx.x % warp_size - warp_size, *own_words = words + warp_size;
  for (int i = threadIdx.x; i < (lean ? 1 : 2 + is_float + tallies) * rows; i += nt) words[i] = 0;
  __syncthreads();
  SampleTile tile(size, gridDim.x / splits, blockIdx.x / splits);
  unsigned address = shared_address(own_words);
  WeightTable<is_float, lean> table{address, address + rows * 4, address + rows * 8, held, sums.high + first,
                                    sums.low + first};
  Weights<Weight, is_float, V::digits> weights(exponent);
  unsigned* tallied = own_words + (2 + is_float) * rows;
  Tally<V, !lean> tally{tallied, tallied + rows, nullptr, nullptr, unsigned(count)};
  if constexpr (V::counted) {
    // A second round counts nothing.
    tally.counts = round || !term.counts ? nullptr : term.counts + first;
    tally.sizes = term.sizes + first;
  }
  Run<is_float, V::counted> run{crowded_bin<nt>(x + tile.begin, tile.size, bins, held, own_words, none)};
  __syncthreads();
  for_each_group<nt>(
      x + tile.begin, w + tile.begin, tile.size, [&](const T(&samples)[4], const W(&own)[4], unsigned given) {
        unsigned bin[4], last = 0;
        i64 integer[4];
        Weight weight[4];
        bool whole = given == 4;
        bins.find(samples, bin);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          weight[k] = term.get(own[k], bin[k], count);
          if (V::sized) tally.look_at(bin[k], size_of(own[k]));
          last = bin[k] > last ? bin[k] : last;
          whole &= weights.get(weight[k], integer[k]);
        }
        if (!whole || last >= count) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            bool inside = k < given && bin[k] < count;
            i64 unused;
            if (inside && weights.get(weight[k], unused)) continue;
            if (is_float && inside) {
              add_apart(weight[k], i64(first) + bin[k], sums, exponent);
              tally.add(bin[k], 1);
            }
            bin[k] = none;
            integer[k] = 0;
          }
        }
        bool same = (bin[0] == bin[1]) & (bin[0] == bin[2]) & (bin[0] == bin[3]), again = same;
#pragma unroll
        for (int k = 0; k < 4; ++k) again |= bin[k] == run.bin;
        if (again) {
          if (same && bin[0] != run.bin) {
            run.flush(table, tally);
            run.bin = bin[0];
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (bin[k] == run.bin) {
              run.add(integer[k]);
              bin[k] = none;
              integer[k] = 0;
            }
          }
          if (same) return;
        }
        table.add(bin, integer);
        if constexpr (V::counted) {
#pragma unroll
          for (int k = 0; k < 4; ++k) tally.add(bin[k], 1);
        }
      });
  run.flush(table, tally);
  __syncthreads();
  for (int i = threadIdx.x; i < held; i += nt) {
    u64 high = u64(i64(int(own_words[i])));
    if (!lean) high += u64(own_words[rows + i]) << 32;
    if (high) atomicAdd(table.high + i, high);
    if (is_float && !lean && own_words[2 * rows + i]) atomicAdd(table.low + i, u64(own_words[2 * rows + i]));
    tally.flush(i);
  }
}

// The sums in global memory.
template <typename T, typename B, typename W, bool is_float, int nt, typename V>
__device__ void weigh_global(const T* x, const W* w, i64 size, B bins, WeightSums sums, int round, V term) {
  int exponent = is_float ? exponent_of(sums.exponents, round) : 0;
  if (is_float && !exponent) return;
  SampleTile tile(size, gridDim.x, blockIdx.x);
  Weights<typename V::Weight, is_float, V::digits> weights(exponent);
  Tally<V, false> tally{nullptr, nullptr, nullptr, nullptr, unsigned(bins.n)};
  if constexpr (V::counted) {
    tally.counts = round ? nullptr : term.counts;
    tally.sizes = term.sizes;
  }
  for_each_group<nt>(
      x + tile.begin, w + tile.begin, tile.size, [&](const T(&samples)[4], const W(&own)[4], unsigned given) {
        unsigned bin[4];
        bins.find(samples, bin);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k >= given) continue;
          auto weight = term.get(own[k], bin[k], bins.n);
          if (bin[k] >= bins.n) continue;
          i64 integer;
          tally.add(bin[k], 1);
          if (V::sized) tally.look_at(bin[k], size_of(own[k]));
          if (!weights.get(weight, integer)) {
            add_apart(weight, i64(bin[k]), sums, exponent);
            continue;
          }
          u64 high = u64(is_float ? integer >> 32 : integer), low = u64(integer) & 0xffffffff;
          if (high) atomicAdd(sums.high + bin[k], high);
          if (is_float && low) atomicAdd(sums.low + bin[k], low);
        }
      });
}

// What a bin's weights that were added apart come to, in the unit of the others.
__device__ inline double sum_apart(const u64* apart) {
  unsigned digits[apart_words];
  i64 carry = 0;
  for (int k = 0; k < apart_words; ++k) {
    carry += i64(apart[k]);
    digits[k] = unsigned(carry);
    carry >>= 32;
  }
  // Digits of the magnitude: those of a negative number would cancel after rounding.
  bool negative = carry < 0;
  u64 borrow = negative;
  double sum = 0, power = power_of_two(-finer);
  for (int k = 0; k < apart_words; ++k) {
    if (negative) {
      borrow += u64(~digits[k] & 0xffffffffu);
      digits[k] = unsigned(borrow);
      borrow >>= 32;
    }
    sum += digits[k] * power;
    power *= 4294967296.0;
  }
  sum += double(negative ? i64(u64(~carry) + borrow) : carry) * power;
  return negative ? -sum : sum;
}

__device__ inline double sum_of(const WeightSums& sums, i64 i) {
  i64 above = i64(sums.high[i]) + i64(sums.low[i] >> 32), below = i64(sums.low[i] & 0xffffffff);
  double sum = double(above) * 4294967296.0 + double(below) + sum_apart(sums.apart + i * apart_words);
  int exponent = exponent_of(sums.exponents, sums.exponents->beyond > 0);
  return sum / power_of_two(unit_power(exponent));
}

// Adds the sums of floats to the table, an element a thread.
__device__ inline void settle(const WeightSums& sums, int n) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) sums.table[i] += sum_of(sums, i);
}

// The same of scaled squares.
template <typename W> __device__ void settle_squares(const WeightSums& sums, const unsigned short* scales, int n) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double scale = SquareTerm<W>::scale_of(scales[i]);
  sums.table[i] = (sums.table[i] + sum_of(sums, i)) / scale / scale;
}

// Writes the mean of a bin, 0 of none, what squares of deviations are added to, NaN where it is not finite, and by
// what deviations are scaled so that all are less than 4.
template <typename A, bool wide>
__device__ void average(const A* totals, const i64* counts, const unsigned* sizes, double* means, double* squares,
                        unsigned short* scales, int n) {
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double mean = counts[i] ? double(totals[i]) / double(counts[i]) : 0;
  means[i] = mean;
  squares[i] = (mean - mean) * 0;
  int exponent = wide ? int(sizes[i] >> 20) - 1023 : int(sizes[i] >> 23) - 127;
  exponent = exponent < -1000 ? -1000 : exponent > 1022 ? 1022 : exponent;
  scales[i] = static_cast<unsigned short>((1023 - exponent) << 4);
}

}  // namespace coop
