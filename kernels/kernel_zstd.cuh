// Frames of Zstd (RFC 8878) decoded, in two steps.
//
//   zstd_blocks   for some compressed blocks, of any frames, two warps: literals, and sequences
//   zstd_frames   for every frame a warp that carries out the sequences of its blocks, one after another
//
// The host has looked through the headers of frames and blocks (ZstdBlock). What it could not see is checked
// here: no read leaves a block, no write the memory of its result.
#pragma once

#include "sequences.cuh"

namespace coop {

// What the host knows of a block; positions are in bytes from the begin of the stored bytes, or of a block.
struct ZstdBlock {
  i64 source, bytes, kind, frame;
  // Of literals: how they are stored, where, their bytes there, their number, their streams, and the block
  // that has the Huffman code.
  i64 literals_kind, literals_from, literals_bytes, literals, streams, huffman;
  // Of sequences: their number, where the tables begin, how these are stored, and the blocks that have them.
  i64 sequences, tables_from, modes, tables[3];
  // Where literals and sequences are put.
  i64 literals_at, sequences_at;
};
enum { stored_raw = 0, stored_one = 1, stored_compressed = 2 };
enum { table_usual = 0, table_one = 1, table_described = 2 };
enum { of_literals = 0, of_offsets = 1, of_matches = 2 };

// The last three offsets after a block; symbolic where they depend on those before it.
struct ZstdEnd {
  unsigned offsets[3];
  int failed;
};

constexpr int huffman_log = 11, most_symbols = 256;
constexpr unsigned symbolic = 1u << 31;

// What a state of FSE stands for, the bits that lead to the next one, and how these are read.
struct FseEntry {
  u8 symbol, bits;
  unsigned short base;
};

// What is needed to decode a block.
struct ZstdTables {
  unsigned short huffman[1 << huffman_log];
  FseEntry of_literals[512], of_offsets[256], of_matches[512];
  FseEntry weight_table[64];
  short weight_counts[16], counts[64];
  u8 weights[most_symbols];
  unsigned short starts[most_symbols];
};

// The lengths that codes begin with, and their bits above `more_at`.
constexpr int more_at = 24;
struct ZstdLengths {
  unsigned of_literals[36], of_matches[53];
};

__device__ inline int log2_of(unsigned x) { return 31 - __clz(int(x)); }

// Bits that are read from the end of a stream to its begin, 32 of them at a time.
struct BackwardBits {
  const unsigned* words;
  // The next bits are those of `high` behind the first `used`, and then those of `low`, and of word `next`.
  unsigned high, low, ahead;
  int used, next, first_bit;

  // Returns false if the stream does not end as one does. It has less than 2^28 bytes.
  __device__ bool begin(const u8* stream, i64 bytes) {
    if (bytes <= 0 || stream[bytes - 1] == 0) return false;
    words = reinterpret_cast<const unsigned*>(reinterpret_cast<u64>(stream) & ~u64(3));
    int skipped = int(reinterpret_cast<u64>(stream) & 3), last = skipped + int(bytes) - 1;
    first_bit = skipped * 8;
    next = last / 4;
    used = 32 - (last % 4 * 8 + log2_of(stream[bytes - 1]));
    high = word();
    low = word();
    ahead = word();
    move();
    return true;
  }
  // Behind the begin there are zeros, or other bytes of the frame.
  __device__ unsigned word() {
    unsigned x = next >= 0 ? words[next] : 0;
    --next;
    return x;
  }
  __device__ void move() {
    if (used >= 32) {
      used -= 32;
      high = low;
      low = ahead;
      ahead = word();
    }
  }
  // The next 32 bits.
  __device__ unsigned peek() const { return __funnelshift_l(low, high, used); }
  __device__ void drop(int n) {
    used += n;
    move();
  }
  // Up to 32 bits.
  __device__ unsigned take(int n) {
    unsigned x = n ? peek() >> (32 - n) : 0;
    drop(n);
    return x;
  }
  // How many bits there are; negative if more were taken.
  __device__ int left() const { return (next + 4) * 32 - used - first_bit; }
};

// Returns 16 bits from a position on; behind the end they are zeros.
__device__ inline unsigned bits_at(const u8* x, i64 bytes, i64 bit) {
  unsigned word = 0;
  for (int k = 0; k < 3; ++k) {
    i64 i = (bit >> 3) + k;
    if (i < bytes) word |= unsigned(x[i]) << 8 * k;
  }
  return word >> (bit & 7) & 0xffff;
}

// Reads the counts of a table of FSE; returns its bytes, or -1. Counts have room for most_symbols.
__device__ inline i64 read_counts(const u8* x, i64 bytes, int most_log, int symbols, short* counts, int& log) {
  if (bytes < 1) return -1;
  log = (x[0] & 15) + 5;
  if (log > most_log) return -1;
  i64 bit = 4;
  int remaining = (1 << log) + 1, threshold = 1 << log, width = log + 1, symbol = 0;
  bool was_zero = false;
  while (remaining > 1 && symbol < symbols) {
    if (was_zero) {
      unsigned zeros = 3;
      while (zeros == 3) {
        zeros = bits_at(x, bytes, bit) & 3;
        bit += 2;
        for (unsigned k = 0; k < zeros; ++k) {
          if (symbol == symbols) return -1;
          counts[symbol++] = 0;
        }
      }
      if (symbol == symbols) return -1;
    }
    unsigned next = bits_at(x, bytes, bit);
    int most = 2 * threshold - 1 - remaining, count;
    if (int(next & (threshold - 1)) < most) {
      count = next & (threshold - 1);
      bit += width - 1;
    } else {
      count = next & (2 * threshold - 1);
      if (count >= threshold) count -= most;
      bit += width;
    }
    --count;
    remaining -= count < 0 ? -count : count;
    counts[symbol++] = short(count);
    was_zero = count == 0;
    while (remaining < threshold && threshold > 1) {
      --width;
      threshold >>= 1;
    }
  }
  if (remaining != 1 || (bit + 7) / 8 > bytes) return -1;
  while (symbol < symbols) counts[symbol++] = 0;
  return (bit + 7) / 8;
}

// Makes the decoding table of counts, and overwrites these. The counts' sum is the size of the table.
__device__ inline void build_fse(short* counts, int symbols, int log, FseEntry* table) {
  int size = 1 << log, high = size - 1, step = (size >> 1) + (size >> 3) + 3, at = 0;
  for (int s = 0; s < symbols; ++s) {
    if (counts[s] == -1) table[high--].symbol = u8(s);
  }
  for (int s = 0; s < symbols; ++s) {
    for (int k = 0; k < counts[s]; ++k) {
      table[at].symbol = u8(s);
      do at = (at + step) & (size - 1);
      while (at > high);
    }
    if (counts[s] == -1) counts[s] = 1;
  }
  for (int i = 0; i < size; ++i) {
    int next = counts[table[i].symbol]++;
    int bits = log - log2_of(next);
    table[i].bits = u8(bits);
    table[i].base = (unsigned short)((next << bits) - size);
  }
}

// Reads the weights of a Huffman code by one thread; returns the bytes of the description, or -1.
__device__ inline i64 read_weights(const u8* x, i64 bytes, ZstdTables& memory, int& symbols) {
  if (bytes < 1) return -1;
  int head = x[0];
  u8* weights = memory.weights;
  if (head >= 128) {
    symbols = head - 127;
    if (1 + (symbols + 1) / 2 > bytes) return -1;
    for (int i = 0; i < symbols; ++i) weights[i] = i & 1 ? x[1 + i / 2] & 15 : x[1 + i / 2] >> 4;
    return 1 + (symbols + 1) / 2;
  }
  if (1 + head > bytes) return -1;
  int log;
  i64 used = read_counts(x + 1, head, 6, 16, memory.weight_counts, log);
  if (used < 0) return -1;
  build_fse(memory.weight_counts, 16, log, memory.weight_table);
  BackwardBits bits;
  if (!bits.begin(x + 1 + used, head - used)) return -1;
  unsigned states[2];
  for (unsigned& state : states) state = bits.take(log);
  if (bits.left() < 0) return -1;
  symbols = 0;
  for (int turn = 0;; turn ^= 1) {
    if (symbols > most_symbols - 3) return -1;
    FseEntry entry = memory.weight_table[states[turn]];
    weights[symbols++] = entry.symbol;
    states[turn] = entry.base + bits.take(entry.bits);
    if (bits.left() < 0) {
      weights[symbols++] = memory.weight_table[states[turn ^ 1]].symbol;
      return 1 + head;
    }
  }
}

// Makes the table of a Huffman code by a warp; returns the bytes of its description, or -1.
template <int team>
__device__ i64 read_huffman(Lanes<team> lanes, const u8* x, i64 bytes, ZstdTables& memory, int& log) {
  i64 used = -1;
  int symbols = 0;
  log = 0;
  if (lanes.lane == 0) {
    used = read_weights(x, bytes, memory, symbols);
    if (used >= 0) {
      u8* weights = memory.weights;
      unsigned sum = 0, ones = 0;
      bool fits = true;
      for (int i = 0; i < symbols; ++i) {
        fits &= weights[i] <= huffman_log;
        sum += weights[i] && weights[i] <= huffman_log ? 1u << (weights[i] - 1) : 0;
        ones += weights[i] == 1;
      }
      log = sum ? log2_of(sum) + 1 : 0;
      unsigned last = (1u << log) - sum;
      fits = fits && sum && log <= huffman_log && (last & (last - 1)) == 0;
      if (fits) {
        weights[symbols] = u8(log2_of(last) + 1);
        ones += weights[symbols++] == 1;
        unsigned start = 0;
        for (int w = 1; w <= log; ++w) {
          for (int s = 0; s < symbols; ++s) {
            if (weights[s] == w) {
              memory.starts[s] = (unsigned short)start;
              start += 1u << (w - 1);
            }
          }
        }
      }
      if (!fits || ones < 2 || ones % 2) used = -1;
    }
  }
  used = lanes.of(used, 0);
  symbols = lanes.of(symbols, 0);
  log = lanes.of(log, 0);
  lanes.sync();
  if (used < 0) return -1;
  for (int s = lanes.lane; s < symbols; s += team) {
    int weight = memory.weights[s];
    for (int i = 0; i < (weight ? 1 << (weight - 1) : 0); ++i) {
      memory.huffman[memory.starts[s] + i] = (unsigned short)(s | (log + 1 - weight) << 8);
    }
  }
  lanes.sync();
  return used;
}

// Decodes n symbols of a stream of Huffman codes by one thread; returns whether it is one of n symbols.
__device__ inline bool read_stream(const u8* x, i64 bytes, const ZstdTables& memory, int log, u8* out, i64 n) {
  BackwardBits bits;
  if (!bits.begin(x, bytes)) return false;
  auto next = [&] {
    unsigned entry = memory.huffman[bits.peek() >> (32 - log)];
    bits.drop(entry >> 8);
    return entry & 255;
  };
  i64 i = 0;
  for (; i < n && reinterpret_cast<u64>(out + i) % 4; ++i) out[i] = u8(next());
  for (; i + 4 <= n; i += 4) {
    unsigned word = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) word |= next() << 8 * k;
    *reinterpret_cast<unsigned*>(out + i) = word;
  }
  for (; i < n; ++i) out[i] = u8(next());
  return bits.left() == 0;
}

// Decodes the literals of a block; returns whether they are as they should be.
template <int team>
__device__ bool zstd_literals(Lanes<team> lanes, const ZstdBlock* blocks, const ZstdBlock& block,
                              const u8* stored, ZstdTables& memory, u8* out) {
  if (block.literals_kind < 2) return true;
  const ZstdBlock& coded = blocks[block.huffman];
  int log;
  i64 used = read_huffman(lanes, stored + coded.source + coded.literals_from, coded.literals_bytes, memory, log);
  if (used < 0) return false;
  if (block.literals_kind == 3) used = 0;
  const u8* x = stored + block.source + block.literals_from + used;
  i64 bytes = block.literals_bytes - used, n = block.literals;
  if (block.streams == 1) {
    return lanes.all(lanes.lane > 0 || (bytes > 0 && read_stream(x, bytes, memory, log, out, n)));
  }
  i64 each = (n + 3) / 4;
  if (bytes < 6 || 3 * each > n) return false;
  bool right = true;
  for (int k = lanes.lane; k < 4; k += team) {
    i64 begin = 6;
    for (int j = 0; j < k; ++j) begin += x[2 * j] | x[2 * j + 1] << 8;
    i64 end = k < 3 ? begin + (x[2 * k] | x[2 * k + 1] << 8) : bytes;
    right &= begin < end && end <= bytes &&
             read_stream(x + begin, end - begin, memory, log, out + k * each, k < 3 ? each : n - 3 * each);
  }
  return lanes.all(right);
}

__device__ const short usual_literals[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
__device__ const short usual_offsets[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1,
                                            1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
__device__ const short usual_matches[53] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
// The lengths that codes begin with, and their bits.
__device__ const unsigned literals_bases[36] = {0,  1,  2,  3,  4,  5,  6,  7,   8,   9,   10,   11,   12,   13,    14,    15, 16, 18,
                                                20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
__device__ const u8 literals_bits[36] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1,
                                         1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
__device__ const unsigned match_bases[53] = {3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,  15,  16,  17,   18,   19,   20,
                                             21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,  33,  34,  35,   37,   39,   41,
                                             43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
__device__ const u8 match_bits[53] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                      0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// Fills the table of lengths by some threads.
__device__ inline void set_lengths(int thread, int threads, ZstdLengths& lengths) {
  for (int s = thread; s < 36; s += threads) lengths.of_literals[s] = literals_bases[s] | literals_bits[s] << more_at;
  for (int s = thread; s < 53; s += threads) lengths.of_matches[s] = match_bases[s] | match_bits[s] << more_at;
}

// Makes table number `which` of a block by one thread; returns its log, or -1.
__device__ inline int read_table(const ZstdBlock* blocks, const ZstdBlock& block, const u8* stored, int which,
                                 ZstdTables& memory) {
  constexpr int symbols[3] = {36, 32, 53}, logs[3] = {9, 8, 9}, usual_symbols[3] = {36, 29, 53}, usual_logs[3] = {6, 5, 6};
  const ZstdBlock& of = blocks[block.tables[which]];
  const u8* x = stored + of.source + of.tables_from;
  i64 bytes = of.bytes - of.tables_from;
  short* counts = memory.counts;
  FseEntry* table = which == of_literals ? memory.of_literals
                    : which == of_offsets ? memory.of_offsets : memory.of_matches;
  for (int t = 0; t <= which; ++t) {
    int mode = int(of.modes >> (6 - 2 * t)) & 3, log = 0;
    i64 used = 0;
    if (mode == table_usual && t == which) {
      const short* usual = t == of_literals ? usual_literals : t == of_offsets ? usual_offsets : usual_matches;
      log = usual_logs[t];
      for (int s = 0; s < usual_symbols[t]; ++s) counts[s] = usual[s];
      build_fse(counts, usual_symbols[t], log, table);
    } else if (mode == table_one) {
      used = 1;
      if (bytes < 1 || x[0] >= symbols[t]) return -1;
      table[0] = {x[0], 0, 0};
    } else if (mode == table_described) {
      used = read_counts(x, bytes, logs[t], symbols[t], counts, log);
      if (used < 0) return -1;
      if (t == which) build_fse(counts, symbols[t], log, table);
    }
    if (t == which) return log;
    x += used;
    bytes -= used;
  }
  return -1;
}

// Returns where the tables of a block end, or -1.
__device__ inline i64 tables_end(const ZstdBlock& block, const u8* stored, ZstdTables& memory) {
  constexpr int symbols[3] = {36, 32, 53}, logs[3] = {9, 8, 9};
  i64 at = block.tables_from;
  for (int t = 0; t < 3; ++t) {
    int mode = int(block.modes >> (6 - 2 * t)) & 3, log;
    i64 used = mode == table_one ? 1 : 0;
    if (mode == table_described) {
      used = read_counts(stored + block.source + at, block.bytes - at, logs[t], symbols[t], memory.counts, log);
      if (used < 0) return -1;
    }
    at += used;
  }
  return at;
}

// The last three offsets.
struct Offsets {
  unsigned first, second, third;

  // Returns the offset that a value of a sequence means; 0 if none.
  __device__ unsigned next(unsigned value, bool has_literals) {
    unsigned offset;
    if (value > 3) {
      offset = value - 3;
      // No output is so long.
      if (offset >= symbolic) return 0;
    } else {
      unsigned which = value - has_literals;
      if (which == 0) return first;
      if (which == 3) {
        // A symbolic one counts by how much it is less above its lowest bits.
        offset = first & symbolic ? first + 4 : first - 1;
      } else {
        offset = which == 1 ? second : third;
      }
      if (which == 1) {
        second = first;
        first = offset;
        return offset;
      }
    }
    third = second;
    second = first;
    first = offset;
    return offset;
  }
};

// Decodes the sequences of a block by one thread; returns whether they are as they should be.
__device__ inline bool zstd_sequences(const ZstdBlock* blocks, const ZstdBlock& block, const u8* stored,
                                      ZstdTables& memory, const ZstdLengths& lengths, Sequence* out,
                                      unsigned (&ends)[3]) {
  Offsets offsets = {symbolic, symbolic + 1, symbolic + 2};
  if (block.sequences) {
    int logs[3];
    for (int t = 0; t < 3; ++t) {
      logs[t] = read_table(blocks, block, stored, t, memory);
      if (logs[t] < 0) return false;
    }
    i64 begin = tables_end(block, stored, memory);
    BackwardBits bits;
    if (begin < 0 || !bits.begin(stored + block.source + begin, block.bytes - begin)) return false;
    unsigned literals_state = bits.take(logs[of_literals]);
    unsigned offset_state = bits.take(logs[of_offsets]);
    unsigned match_state = bits.take(logs[of_matches]);
    for (i64 i = 0; i < block.sequences; ++i) {
      FseEntry of_length = memory.of_literals[literals_state];
      FseEntry of_match = memory.of_matches[match_state];
      FseEntry of_offset = memory.of_offsets[offset_state];
      unsigned length = lengths.of_literals[of_length.symbol], match = lengths.of_matches[of_match.symbol];
      unsigned value = (1u << of_offset.symbol) + bits.take(of_offset.symbol);
      // Two lengths, and then three states, at a time: neither has more than 32 bits.
      int more = length >> more_at;
      unsigned added = bits.take(int(match >> more_at) + more);
      match = (match & ((1u << more_at) - 1)) + (added >> more);
      unsigned literals = (length & ((1u << more_at) - 1)) + (added & ((1u << more) - 1));
      unsigned offset = offsets.next(value, literals > 0);
      if (offset == 0) return false;
      out[i] = {literals, match, offset};
      if (i + 1 < block.sequences) {
        int of_two = of_match.bits + of_offset.bits;
        unsigned states = bits.take(of_length.bits + of_two);
        literals_state = of_length.base + (states >> of_two);
        match_state = of_match.base + (states >> of_offset.bits & ((1u << of_match.bits) - 1));
        offset_state = of_offset.base + (states & ((1u << of_offset.bits) - 1));
      }
    }
    if (bits.left() != 0) return false;
  }
  ends[0] = offsets.first;
  ends[1] = offsets.second;
  ends[2] = offsets.third;
  return true;
}

// Decodes what a block says. `ends` has an entry for each block.
template <int team>
__device__ void zstd_block(Lanes<team> lanes, int role, const ZstdBlock* blocks, i64 number, const u8* stored,
                           ZstdTables& memory, const ZstdLengths& lengths, u8* literals, Sequence* sequences,
                           ZstdEnd* ends) {
  const ZstdBlock& block = blocks[number];
  bool right = true;
  if (role == 0) {
    right = zstd_literals(lanes, blocks, block, stored, memory, literals + block.literals_at);
  } else if (lanes.lane == 0) {
    right = zstd_sequences(blocks, block, stored, memory, lengths, sequences + block.sequences_at, ends[number].offsets);
  }
  if (!right && lanes.lane == 0) ends[number].failed = 1;
}

// Returns an offset in terms of those before the block; 0 if it is none.
__device__ inline unsigned resolved(unsigned offset, const unsigned (&before)[3]) {
  if (!(offset & symbolic)) return offset;
  unsigned which = offset & 3, less = (offset & ~symbolic) >> 2;
  unsigned base = which == 0 ? before[0] : which == 1 ? before[1] : before[2];
  return base > less ? base - less : 0;
}

// Carries out the blocks [first, last) of a frame; returns whether they make all of its output.
template <int team>
__device__ bool zstd_frame(Lanes<team> lanes, const ZstdBlock* blocks, i64 first, i64 last, const u8* stored,
                           const u8* literals, const Sequence* sequences, const ZstdEnd* ends, Decoded out) {
  unsigned before[3] = {1, 4, 8};
  for (i64 b = first; b < last; ++b) {
    const ZstdBlock& block = blocks[b];
    const u8* bytes = stored + block.source;
    if (block.kind != stored_compressed) {
      if (!append(lanes, block.literals, bytes, block.kind == stored_one, out)) return false;
      continue;
    }
    if (ends[b].failed) return false;
    const u8* list = block.literals_kind < 2 ? bytes + block.literals_from : literals + block.literals_at;
    bool is_one = block.literals_kind == stored_one;
    i64 used = 0;
    const Sequence* mine = sequences + block.sequences_at + lanes.lane;
    i64 left = block.sequences - lanes.lane;
    Sequence next = left > 0 ? *mine : Sequence{0, 0, 0};
    for (i64 i = 0; i < block.sequences; i += team) {
      Sequence s = next;
      s.offset = resolved(s.offset, before);
      // On its way while this one is carried out.
      next = left > i + team ? mine[i + team] : Sequence{0, 0, 0};
      unsigned end = lanes.inclusive_sum(s.literals);
      const u8* source = is_one ? list : list + used + (end - s.literals);
      used += lanes.of(end, team - 1);
      if (used > block.literals || !carry_out(lanes, s, source, is_one, out)) return false;
    }
    if (!append(lanes, block.literals - used, is_one ? list : list + used, is_one, out)) return false;
    unsigned after[3];
    for (int k = 0; k < 3; ++k) after[k] = resolved(ends[b].offsets[k], before);
    for (int k = 0; k < 3; ++k) before[k] = after[k];
  }
  return out.at == out.size;
}

// A frame: its first block, and its output, in bytes from the begin of all outputs.
struct Frame {
  i64 first, target, bytes;
};

// Decodes literals and sequences of n blocks: one warp those, and another one these, of `together` blocks.
template <int together>
__device__ void zstd_blocks(const ZstdBlock* blocks, i64 n, const u8* stored, u8* literals, Sequence* sequences,
                            ZstdEnd* ends) {
  constexpr int team = warp_size / together;
  static_assert(team >= 4, "");
  __shared__ ZstdTables memory[together];
  __shared__ ZstdLengths lengths;
  set_lengths(threadIdx.x, 2 * warp_size, lengths);
  __syncthreads();
  int lane = threadIdx.x % warp_size, mine = lane / team;
  i64 number = i64(blockIdx.x) * together + mine;
  if (number >= n || blocks[number].kind != stored_compressed) return;
  Lanes<team> lanes = {lane % team, (full_mask >> (warp_size - team)) << mine * team};
  zstd_block(lanes, threadIdx.x / warp_size, blocks, number, stored, memory[mine], lengths, literals, sequences, ends);
}

// Carries out the blocks of frames, by a warp each; `failed` has an entry for each frame. Behind the last
// frame stands the number of all blocks.
__device__ inline void zstd_frames(const Frame* frames, const ZstdBlock* blocks, const u8* stored, const u8* literals,
                                   const Sequence* sequences, const ZstdEnd* ends, u8* outputs, int* failed) {
  Frame frame = frames[blockIdx.x];
  Lanes<warp_size> lanes = {int(threadIdx.x)};
  Decoded out = {outputs + frame.target, frame.bytes, 0};
  bool right = zstd_frame(lanes, blocks, frame.first, frames[blockIdx.x + 1].first, stored, literals, sequences, ends, out);
  if (lanes.lane == 0) failed[blockIdx.x] = !right;
}

}  // namespace coop
