// The codes of kernels/codec/codec.cc on a GPU, bit for bit.
//
// Idea. Units are independent, so a block of threads encodes a unit at a time, from shared memory.
// The lengths of codes depend on the values: each unit is first encoded into a slot that has room
// for its longest code; then one block adds the lengths, and a third kernel copies the codes to
// where they are in the frame, whose bytes are all that the host reads. A fourth kernel decodes the
// slots, to compute what the code leaves out.
//
// Equal bits. What is computed from a single value, and maxima, do not depend on the order of
// threads. Sums do: those of stat2 have eight lanes, each added by one thread in the order of the
// values (32 threads add the four levels at a time), and those of top-k are added by one thread.
// That thread also writes the bits of top-k, which are a sequence; `keep` is small, and many blocks
// run at a time. The file is compiled without contraction (--fmad=false); square roots and
// divisions in double are rounded exactly by default, and denormals are kept.
//
// Limits. Memory: two buffers of the length of the longest possible frame. Frames that were
// received are decoded on the host: what is decoded here was encoded here, and is not checked.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "device/cuda/launch.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/elements.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// One thread for each value of a block of int8 and E3M0.
constexpr int kCodecThreads = codes::kScaleBlock;
constexpr int64_t kWord = sizeof(uint32_t);

struct UnitSlot {
  // Offsets of its first value and of its slot.
  int64_t value;
  int64_t word;
  int32_t size;
  bool coded;
  bool trained;
};

// What the host reads after the codes were made.
struct FrameResult {
  int64_t words;
  int32_t not_finite;
};

struct UnitTable {
  Codec codec;
  int64_t count;
  const UnitSlot* units;
  // The codes in their slots, and the words of each.
  uint32_t* slots;
  uint32_t* words;
  // Offset of each unit in the frame.
  int64_t* offsets;
  uint32_t* frame;
  FrameResult* result;
};

__device__ inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

__device__ inline void StoreU16(uint16_t value, uint8_t* to) {
  to[0] = static_cast<uint8_t>(value);
  to[1] = static_cast<uint8_t>(value >> 8);
}
__device__ inline uint16_t LoadU16(const uint8_t* from) {
  return static_cast<uint16_t>(from[0] | from[1] << 8);
}

// How many of the values that are left are in the next block of int8 or E3M0.
__device__ inline int32_t InBlock(int32_t left) {
  return left < kCodecThreads ? left : kCodecThreads;
}

// ---- Encoding. Every function is called by all threads of a block, and returns the same number of
// bytes to all of them. `x` is in shared memory.

__device__ int32_t EncodeInt8(const float* x, int32_t n, uint8_t* to) {
  __shared__ uint32_t shared[32];
  int32_t at = 0;
  for (int32_t begin = 0; begin < n; begin += kCodecThreads) {
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
    const float value = i < n ? x[i] : 0;
    const uint32_t max = OverBlock(BitsOf(value) & codes::kMagnitude, Larger(), shared);
    const codes::Int8Scale scale = codes::Int8ScaleOf(max);
    if (threadIdx.x == 0) to[at] = static_cast<uint8_t>(scale.exponent);
    ++at;
    if (scale.exponent == 0) continue;
    if (i < n) {
      int32_t q = codes::RoundInt8(value, scale.factor);
      if (scale.clamped && fabsf(value) >= scale.limit) q = value < 0 ? -127 : 127;
      to[at + i - begin] = static_cast<uint8_t>(q);
    }
    at += InBlock(n - begin);
  }
  return at;
}

__device__ int32_t EncodeE3m0(const float* x, int32_t n, uint8_t* to) {
  __shared__ uint32_t shared[32];
  int32_t at = 0;
  for (int32_t begin = 0; begin < n; begin += kCodecThreads) {
    const int32_t size = InBlock(n - begin);
    const int32_t thread = threadIdx.x;
    const uint32_t magnitude = thread < size ? BitsOf(x[begin + thread]) & codes::kMagnitude : 0;
    const uint32_t e = codes::NearestPower(OverBlock(magnitude, Larger(), shared));
    if (thread == 0) to[at] = static_cast<uint8_t>(e);
    ++at;
    if (e == 0) continue;
    if (2 * thread < size) {
      const int32_t i = begin + 2 * thread;
      const uint8_t low = codes::E3m0CodeOf(BitsOf(x[i]), static_cast<int32_t>(e));
      const uint8_t high =
          2 * thread + 1 < size ? codes::E3m0CodeOf(BitsOf(x[i + 1]), static_cast<int32_t>(e)) : 0;
      to[at + thread] = static_cast<uint8_t>(low | high << 4);
    }
    at += (size + 1) / 2;
  }
  return at;
}

__device__ inline double SumOfLanes(const double* lanes) {
  double sum = 0;
  for (int lane = 0; lane < codes::kLanes; ++lane) sum += lanes[lane];
  return sum;
}

__device__ int32_t EncodeStat2(const float* x, int32_t n, uint8_t* to) {
  constexpr int kBuckets = 4;
  __shared__ double lanes[kBuckets][codes::kLanes];
  __shared__ int32_t counts[kBuckets][codes::kLanes];
  __shared__ uint16_t levels[kBuckets];
  const int thread = threadIdx.x;
  if (thread < codes::kLanes) {
    double sum = 0;
    for (int32_t i = thread; i < n; i += codes::kLanes) sum += static_cast<double>(x[i]);
    lanes[0][thread] = sum;
  }
  __syncthreads();
  const double mean = SumOfLanes(lanes[0]) / static_cast<double>(n);
  __syncthreads();
  if (thread < codes::kLanes) {
    double sum = 0;
    for (int32_t i = thread; i < n; i += codes::kLanes) {
      const double d = static_cast<double>(x[i]) - mean;
      sum += d * d;
    }
    lanes[0][thread] = sum;
  }
  __syncthreads();
  const double step = 1.5 * sqrt(SumOfLanes(lanes[0]) / static_cast<double>(n));
  const auto low = static_cast<float>(mean - step);
  const auto middle = static_cast<float>(mean);
  const auto high = static_cast<float>(mean + step);
  const auto code_of = [=](float value) {
    return (value >= low ? 1 : 0) + (value >= middle ? 1 : 0) + (value >= high ? 1 : 0);
  };
  __syncthreads();
  if (thread < kBuckets * codes::kLanes) {
    const int bucket = thread / codes::kLanes;
    const int lane = thread % codes::kLanes;
    double sum = 0;
    int32_t count = 0;
    for (int32_t i = lane; i < n; i += codes::kLanes) {
      if (code_of(x[i]) != bucket) continue;
      sum += static_cast<double>(x[i]);
      ++count;
    }
    lanes[bucket][lane] = sum;
    counts[bucket][lane] = count;
  }
  __syncthreads();
  if (thread < kBuckets) {
    int32_t count = 0;
    for (int lane = 0; lane < codes::kLanes; ++lane) count += counts[thread][lane];
    uint16_t level =
        count == 0 ? 0 : codes::ToBf16(static_cast<float>(SumOfLanes(lanes[thread]) / count));
    if (level == codes::kNegativeZeroBf16) level = 0;
    levels[thread] = level;
    StoreU16(level, to + 2 * thread);
  }
  __syncthreads();
  constexpr int32_t kHead = kBuckets * 2;
  bool zero = true;
  for (const uint16_t level : levels) zero = zero && level == 0;
  if (zero) return kHead;
  const int32_t bytes = (n + 3) / 4;
  for (int32_t byte = thread; byte < bytes; byte += kCodecThreads) {
    int packed = 0;
    for (int k = 0; k < 4 && 4 * byte + k < n; ++k) packed |= code_of(x[4 * byte + k]) << (2 * k);
    to[kHead + byte] = static_cast<uint8_t>(packed);
  }
  return kHead + bytes;
}

// Writes bits to whole words, the lowest bit first. Used by one thread.
class WordWriter {
 public:
  __device__ explicit WordWriter(uint32_t* to) : to_(to) {}

  // Requires: value < 2^bits, bits <= 32.
  __device__ void Write(uint32_t value, uint32_t bits) {
    pending_ |= uint64_t{value} << count_;
    count_ += bits;
    if (count_ < 32) return;
    to_[words_++] = static_cast<uint32_t>(pending_);
    pending_ >>= 32;
    count_ -= 32;
  }
  // As BitWriter::WriteRice.
  __device__ void WriteRice(uint32_t value, uint32_t bits) {
    uint32_t ones = value >> bits;
    for (; ones > 16; ones -= 16) Write(0xFFFF, 16);
    const uint32_t lowest = value & ((1U << bits) - 1);
    Write(((1U << ones) - 1) | lowest << (ones + 1), ones + 1 + bits);
  }
  // Returns the bytes of all bits; the rest of the last word is 0.
  __device__ int32_t Finish() {
    if (count_ > 0) to_[words_] = static_cast<uint32_t>(pending_);
    return static_cast<int32_t>(words_ * kWord + (count_ + 7) / 8);
  }

 private:
  uint32_t* to_;
  uint64_t pending_ = 0;
  uint32_t count_ = 0;
  int64_t words_ = 0;
};

// Reads what WordWriter has written. Used by one thread.
class WordReader {
 public:
  __device__ explicit WordReader(const uint32_t* from) : from_(from) {}

  __device__ uint32_t Read(uint32_t bits) {
    uint32_t value = 0;
    for (uint32_t done = 0; done < bits;) {
      const uint32_t offset = position_ % 32;
      const uint32_t part = std::min(bits - done, 32 - offset);
      const auto mask = static_cast<uint32_t>((uint64_t{1} << part) - 1);
      value |= (from_[position_ / 32] >> offset & mask) << done;
      done += part;
      position_ += part;
    }
    return value;
  }
  __device__ uint32_t ReadRice(uint32_t bits) {
    uint32_t ones = 0;
    while (Read(1) != 0) ++ones;
    return (ones << bits) + Read(bits);
  }

 private:
  const uint32_t* from_;
  uint32_t position_ = 0;
};

// The smallest magnitude that is kept, and the number of values equal to it that are kept. These
// are the ones with the lowest indices.
struct KeptMagnitudes {
  int32_t low;
  int32_t ties;
};

// By the binary search of codec.cc.
__device__ KeptMagnitudes FindKept(const float* x, int32_t n, int32_t wanted, int32_t* shared) {
  const auto count_at_least = [&](int32_t threshold) {
    int32_t count = 0;
    for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
      count += static_cast<int32_t>(BitsOf(x[i]) & codes::kMagnitude) >= threshold ? 1 : 0;
    }
    return OverBlock(count, Plus(), shared);
  };
  int32_t largest = 0;
  for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
    largest = std::max(largest, static_cast<int32_t>(BitsOf(x[i]) & codes::kMagnitude));
  }
  int32_t low = 1;
  int32_t high = OverBlock(largest, Larger(), shared) + 1;
  int32_t count = count_at_least(low);
  while (count > wanted && high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    const int32_t above = count_at_least(middle);
    if (above >= wanted) {
      low = middle;
      count = above;
    } else {
      high = middle;
    }
  }
  return {low, count > wanted ? wanted - count_at_least(low + 1) : n};
}

// Writes the indices that are kept, in order, and returns their number.
__device__ int32_t CollectKept(const float* x, int32_t n, KeptMagnitudes kept, uint16_t* indices,
                               int32_t (*counts)[2]) {
  // Each thread has neighbouring values, and counts those above and those equal to `low`.
  const int thread = threadIdx.x;
  const int32_t each = (n + kCodecThreads - 1) / kCodecThreads;
  const int32_t begin = std::min(n, thread * each);
  const int32_t end = std::min(n, begin + each);
  const auto magnitude = [&](int32_t i) {
    return static_cast<int32_t>(BitsOf(x[i]) & codes::kMagnitude);
  };
  int32_t above = 0;
  int32_t equal = 0;
  for (int32_t i = begin; i < end; ++i) {
    above += magnitude(i) > kept.low ? 1 : 0;
    equal += magnitude(i) == kept.low ? 1 : 0;
  }
  counts[thread][0] = above;
  counts[thread][1] = equal;
  __syncthreads();
  above = 0;
  equal = 0;
  for (int before = 0; before < thread; ++before) {
    above += counts[before][0];
    equal += counts[before][1];
  }
  for (int32_t i = begin; i < end; ++i) {
    const bool is_equal = magnitude(i) == kept.low;
    if (magnitude(i) > kept.low || (is_equal && equal < kept.ties)) {
      indices[above + std::min(equal, kept.ties)] = static_cast<uint16_t>(i);
    }
    above += magnitude(i) > kept.low ? 1 : 0;
    equal += is_equal ? 1 : 0;
  }
  __syncthreads();
  int32_t total = 0;
  equal = 0;
  for (int t = 0; t < kCodecThreads; ++t) {
    total += counts[t][0];
    equal += counts[t][1];
  }
  return total + std::min(equal, kept.ties);
}

// Means on both sides of a threshold, as LevelsOf of codec.cc. For one thread.
struct KeptLevels {
  double threshold;
  double low;
  double high;
};
__device__ KeptLevels LevelsOfKept(const float* x, const uint16_t* indices, int32_t count) {
  double sum = 0;
  for (int32_t k = 0; k < count; ++k) sum += static_cast<double>(fabsf(x[indices[k]]));
  KeptLevels levels{
      .threshold = sum / static_cast<double>(std::max(1, count)), .low = 0, .high = 0};
  for (int step = 0;; ++step) {
    double low = 0;
    double high = 0;
    int32_t lows = 0;
    for (int32_t k = 0; k < count; ++k) {
      const auto magnitude = static_cast<double>(fabsf(x[indices[k]]));
      const bool is_low = magnitude < levels.threshold;
      low += is_low ? magnitude : 0.0;
      high += is_low ? 0.0 : magnitude;
      lows += is_low ? 1 : 0;
    }
    const int32_t highs = count - lows;
    levels.low = lows > 0 ? low / static_cast<double>(lows) : 0.0;
    levels.high = highs > 0 ? high / static_cast<double>(highs) : 0.0;
    if (lows == 0 || step == codes::kLevelSteps) return levels;
    levels.threshold = (levels.low + levels.high) / 2;
  }
}

__device__ int32_t EncodeTopK(uint32_t keep_of_block, const float* x, int32_t n, uint32_t* to) {
  __shared__ int32_t shared[32];
  __shared__ int32_t counts[kCodecThreads][2];
  __shared__ uint16_t indices[kCodecBlock];
  __shared__ int32_t bytes;
  const uint32_t keep = codes::Kept(keep_of_block, n);
  const KeptMagnitudes kept = FindKept(x, n, static_cast<int32_t>(keep), shared);
  const int32_t count = CollectKept(x, n, kept, indices, counts);
  if (threadIdx.x == 0) {
    const KeptLevels means = LevelsOfKept(x, indices, count);
    const uint16_t low = codes::ToBf16(static_cast<float>(means.low));
    const uint16_t high = codes::ToBf16(static_cast<float>(means.high));
    const bool zero = high == 0;
    const bool fewer = !zero && static_cast<uint32_t>(count) < keep;
    WordWriter bits(to);
    bits.Write(low | (fewer ? codes::kCountFollows : 0U), 16);
    bits.Write(high, 16);
    if (fewer) bits.Write(static_cast<uint32_t>(count), 16);
    const uint32_t rice = codes::RiceBits(keep_of_block);
    uint32_t next = 0;
    for (int32_t k = 0; k < count && !zero; ++k) {
      const float value = x[indices[k]];
      bits.WriteRice(indices[k] - next, rice);
      const bool is_high = static_cast<double>(fabsf(value)) >= means.threshold;
      bits.Write(BitsOf(value) >> 31 | (is_high ? 2U : 0U), 2);
      next = indices[k] + 1U;
    }
    bytes = bits.Finish();
  }
  __syncthreads();
  const int32_t result = bytes;
  __syncthreads();
  return result;
}

__global__ void __launch_bounds__(kCodecThreads)
    EncodeUnits(UnitTable table, const float* __restrict__ values) {
  __shared__ float x[kCodecBlock];
  __shared__ int32_t shared[32];
  for (int64_t u = blockIdx.x; u < table.count; u += gridDim.x) {
    const UnitSlot unit = table.units[u];
    const int32_t n = unit.size;
    int32_t not_finite = 0;
    for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
      x[i] = values[unit.value + i];
      if (!codes::IsFinite(BitsOf(x[i]) & codes::kMagnitude)) not_finite = 1;
    }
    not_finite = OverBlock(not_finite, Larger(), shared);
    uint32_t* const slot = table.slots + unit.word;
    auto* const to = reinterpret_cast<uint8_t*>(slot);
    int32_t bytes = 0;
    if (not_finite != 0) {
      // Every block stores the same value.
      if (threadIdx.x == 0) table.result->not_finite = 1;
    } else if (!unit.coded || table.codec.kind == CodecKind::kFp32) {
      for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) slot[i] = BitsOf(x[i]);
      bytes = n * static_cast<int32_t>(kWord);
    } else if (table.codec.kind == CodecKind::kBf16) {
      for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
        StoreU16(codes::ToBf16(x[i]), to + 2 * i);
      }
      bytes = 2 * n;
    } else if (table.codec.kind == CodecKind::kInt8) {
      bytes = EncodeInt8(x, n, to);
    } else if (table.codec.kind == CodecKind::kE3m0) {
      bytes = EncodeE3m0(x, n, to);
    } else if (table.codec.kind == CodecKind::kStat2) {
      bytes = EncodeStat2(x, n, to);
    } else {
      bytes = EncodeTopK(table.codec.keep, x, n, slot);
    }
    if (threadIdx.x == 0) {
      const uint32_t words = static_cast<uint32_t>((bytes + kWord - 1) / kWord);
      for (int64_t byte = bytes; byte < words * kWord; ++byte) to[byte] = 0;
      table.words[u] = words;
    }
    __syncthreads();
  }
}

// One block.
__global__ void __launch_bounds__(kCodecThreads) ComputeOffsets(UnitTable table) {
  __shared__ int64_t sums[kCodecThreads];
  const int64_t each = (table.count + kCodecThreads - 1) / kCodecThreads;
  const int64_t begin = threadIdx.x * each;
  const int64_t end = begin + each < table.count ? begin + each : table.count;
  int64_t sum = 0;
  for (int64_t u = begin; u < end; ++u) sum += table.words[u];
  sums[threadIdx.x] = sum;
  __syncthreads();
  int64_t offset = 0;
  for (int before = 0; before < static_cast<int>(threadIdx.x); ++before) offset += sums[before];
  if (threadIdx.x == kCodecThreads - 1) table.result->words = offset + sum;
  for (int64_t u = begin; u < end; ++u) {
    table.offsets[u] = offset;
    offset += table.words[u];
  }
}

__global__ void __launch_bounds__(kCodecThreads) CopyCodes(UnitTable table) {
  for (int64_t u = blockIdx.x; u < table.count; u += gridDim.x) {
    const uint32_t* const from = table.slots + table.units[u].word;
    uint32_t* const to = table.frame + table.offsets[u];
    for (uint32_t i = threadIdx.x; i < table.words[u]; i += kCodecThreads) to[i] = from[i];
  }
}

// ---- Decoding of slots. Calls use(i, value) for each value of the unit, from one thread each.

template <typename Use>
__device__ void DecodeInt8(const uint8_t* from, int32_t n, const Use& use) {
  int32_t at = 0;
  for (int32_t begin = 0; begin < n; begin += kCodecThreads) {
    const uint32_t scale = from[at++];
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
    if (i < n) {
      use(i, scale == 0 ? 0.0F
                        : static_cast<float>(static_cast<int8_t>(from[at + i - begin])) *
                              codes::PowerOfTwo(scale - 6));
    }
    if (scale != 0) at += InBlock(n - begin);
  }
}

template <typename Use>
__device__ void DecodeE3m0(const uint8_t* from, int32_t n, const Use& use) {
  int32_t at = 0;
  for (int32_t begin = 0; begin < n; begin += kCodecThreads) {
    const int32_t e = from[at++];
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
    if (i < n) {
      const int32_t code = e == 0 ? 0 : from[at + (i - begin) / 2] >> (4 * ((i - begin) % 2)) & 0xF;
      use(i, codes::E3m0ValueOf(code, e));
    }
    if (e != 0) at += (InBlock(n - begin) + 1) / 2;
  }
}

template <typename Use>
__device__ void DecodeStat2(const uint8_t* from, int32_t n, const Use& use) {
  constexpr int kBuckets = 4;
  uint16_t levels[kBuckets];
  bool zero = true;
  for (int level = 0; level < kBuckets; ++level) {
    levels[level] = LoadU16(from + 2 * level);
    zero = zero && levels[level] == 0;
  }
  for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
    const int code = zero ? 0 : from[2 * kBuckets + i / 4] >> (2 * (i % 4)) & 3;
    use(i, codes::FromBf16(levels[code]));
  }
}

// Requires: a second call of `use` for the same value replaces the first.
template <typename Use>
__device__ void DecodeTopK(uint32_t keep_of_block, const uint32_t* from, int32_t n,
                           const Use& use) {
  for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) use(i, 0.0F);
  __syncthreads();
  if (threadIdx.x != 0) return;
  WordReader bits(from);
  const uint32_t first = bits.Read(16);
  const uint16_t levels[] = {static_cast<uint16_t>(first & ~uint32_t{codes::kCountFollows}),
                             static_cast<uint16_t>(bits.Read(16))};
  if (levels[1] == 0) return;
  const uint32_t count =
      (first & codes::kCountFollows) != 0 ? bits.Read(16) : codes::Kept(keep_of_block, n);
  const uint32_t rice = codes::RiceBits(keep_of_block);
  uint32_t next = 0;
  for (uint32_t k = 0; k < count; ++k) {
    next += bits.ReadRice(rice);
    const uint32_t code = bits.Read(2);
    const float level = codes::FromBf16(levels[code >> 1]);
    // The difference, so that no zero has a sign.
    use(static_cast<int32_t>(next++), (code & 1) != 0 ? 0.0F - level : level);
  }
}

__global__ void __launch_bounds__(kCodecThreads)
    SubtractDecoded(UnitTable table, const float* __restrict__ values,
                    float* __restrict__ left_out) {
  for (int64_t u = blockIdx.x; u < table.count; u += gridDim.x) {
    const UnitSlot unit = table.units[u];
    const int32_t n = unit.size;
    const float* const x = values + unit.value;
    float* const y = left_out + unit.value;
    const uint32_t* const slot = table.slots + unit.word;
    const auto* const from = reinterpret_cast<const uint8_t*>(slot);
    const auto use = [=](int32_t i, float decoded) { y[i] = x[i] - decoded; };
    if (!unit.coded || !unit.trained || table.codec.kind == CodecKind::kFp32) {
      for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) y[i] = 0;
    } else if (table.codec.kind == CodecKind::kBf16) {
      for (int32_t i = threadIdx.x; i < n; i += kCodecThreads) {
        use(i, codes::FromBf16(LoadU16(from + 2 * i)));
      }
    } else if (table.codec.kind == CodecKind::kInt8) {
      DecodeInt8(from, n, use);
    } else if (table.codec.kind == CodecKind::kE3m0) {
      DecodeE3m0(from, n, use);
    } else if (table.codec.kind == CodecKind::kStat2) {
      DecodeStat2(from, n, use);
    } else {
      DecodeTopK(table.codec.keep, slot, n, use);
    }
  }
}

// ---- Error feedback

__global__ void __launch_bounds__(kCodecThreads)
    ReplaceByChange(UnitTable table, const float* __restrict__ version,
                    const float* __restrict__ carried, float* __restrict__ values) {
  for (int64_t u = blockIdx.x; u < table.count; u += gridDim.x) {
    const UnitSlot unit = table.units[u];
    if (!unit.trained) continue;
    for (int64_t i = unit.value + threadIdx.x; i < unit.value + unit.size; i += kCodecThreads) {
      values[i] = (values[i] - version[i]) + carried[i];
    }
  }
}

__global__ void __launch_bounds__(kCodecThreads)
    CarryOver(UnitTable table, float factor, const float* __restrict__ x,
              float* __restrict__ carried) {
  for (int64_t u = blockIdx.x; u < table.count; u += gridDim.x) {
    const UnitSlot unit = table.units[u];
    for (int64_t i = unit.value + threadIdx.x; i < unit.value + unit.size; i += kCodecThreads) {
      carried[i] = unit.trained ? factor * x[i] : 0;
    }
  }
}

// ---- On the host

class CudaCodedUnits final : public CodedUnits {
 public:
  CudaCodedUnits(CudaDevice& device, const Codec& codec, std::span<const CodedUnit> units)
      : codec_(codec) {
    std::vector<UnitSlot> unit_slots;
    int64_t words = 0;
    for (const CodedUnit& unit : units) {
      CHECK(unit.size >= 1 && unit.size <= kCodecBlock) << unit.size << " values in a unit";
      unit_slots.push_back({.value = values_,
                            .word = words,
                            .size = static_cast<int32_t>(unit.size),
                            .coded = unit.coded,
                            .trained = unit.trained});
      values_ += unit.size;
      const Codec of_unit = unit.coded ? codec : Codec{CodecKind::kFp32};
      words += (MaxCodedBytes(of_unit, unit.size) + kWord - 1) / kWord;
    }
    units_ = DeviceArray<UnitSlot>(device, unit_slots.size(), kPurpose);
    slots_ = DeviceArray<uint32_t>(device, words, kPurpose);
    frame_ = DeviceArray<uint32_t>(device, words, kPurpose);
    words_ = DeviceArray<uint32_t>(device, unit_slots.size(), kPurpose);
    offsets_ = DeviceArray<int64_t>(device, unit_slots.size(), kPurpose);
    result_ = DeviceArray<FrameResult>(device, 1, kPurpose);
    if (!device.status().ok()) return;
    device.CopyIn(unit_slots.data(), units_.data(), units_.span().size_bytes());
  }

  UnitTable table() const {
    return {.codec = codec_,
            .count = std::ssize(units_.span()),
            .units = units_.data(),
            .slots = slots_.data(),
            .words = words_.data(),
            .offsets = offsets_.data(),
            .frame = frame_.data(),
            .result = result_.data()};
  }
  // Number of values of all units.
  int64_t values() const { return values_; }

 private:
  static constexpr char kPurpose[] = "codes of contributions";

  const Codec codec_;
  int64_t values_ = 0;
  DeviceArray<UnitSlot> units_;
  DeviceArray<uint32_t> slots_;
  DeviceArray<uint32_t> frame_;
  DeviceArray<uint32_t> words_;
  DeviceArray<int64_t> offsets_;
  DeviceArray<FrameResult> result_;
};

class CudaCodecs final : public CodecKernels {
 public:
  explicit CudaCodecs(CudaContext& cuda) : device_(cuda.device) {}

  std::unique_ptr<CodedUnits> MakeUnits(const Codec& codec,
                                        std::span<const CodedUnit> units) override {
    CHECK(CheckCodec(codec).ok()) << CheckCodec(codec);
    return std::make_unique<CudaCodedUnits>(device_, codec, units);
  }

  void TakeChange(const CodedUnits& units, ConstFloatSpan version, ConstFloatSpan carried,
                  FloatSpan values) override {
    CheckSizes(
        Of(units).values(),
        {{"version", version.size()}, {"carried", carried.size()}, {"values", values.size()}});
    LaunchOf(units, "change since the version", ReplaceByChange, version.data(), carried.data(),
             values.data());
  }

  bool Encode(CodedUnits& units, ConstFloatSpan values, FloatSpan left_out,
              std::string* frame) override {
    CheckSizes(Of(units).values(), {{"values", values.size()}, {"left_out", left_out.size()}});
    const UnitTable table = Of(units).table();
    if (table.count == 0 || device_.failed()) return true;
    device_.Zero(table.result, sizeof(*table.result));
    LaunchOf(units, "codes", EncodeUnits, values.data());
    Launch(device_, "offsets of codes", ComputeOffsets, LaunchShape{.block = dim3(kCodecThreads)},
           table);
    LaunchOf(units, "copy codes", CopyCodes);
    FrameResult result{};
    if (!device_.CopyOut(table.result, &result, sizeof(result)).ok()) return true;
    if (result.not_finite != 0) return false;
    LaunchOf(units, "what codes leave out", SubtractDecoded, values.data(), left_out.data());
    const size_t begin = frame->size();
    frame->resize(begin + result.words * kWord);
    // status() has an error.
    device_.CopyOut(table.frame, frame->data() + begin, result.words * kWord).IgnoreError();
    return true;
  }

  void Carry(const CodedUnits& units, float factor, ConstFloatSpan x, FloatSpan carried) override {
    CheckSizes(Of(units).values(), {{"x", x.size()}, {"carried", carried.size()}});
    LaunchOf(units, "error feedback", CarryOver, factor, x.data(), carried.data());
  }

 private:
  static const CudaCodedUnits& Of(const CodedUnits& units) {
    return static_cast<const CudaCodedUnits&>(units);
  }

  // A block for each unit, as far as the device has room for them.
  template <typename Kernel, typename... Arguments>
  void LaunchOf(const CodedUnits& units, const char* name, Kernel kernel, Arguments... arguments) {
    const UnitTable table = Of(units).table();
    if (table.count == 0) return;
    Launch(device_, name, kernel, Strided(device_, table.count * kCodecThreads, kCodecThreads),
           table, arguments...);
  }

  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<CodecKernels> MakeCudaCodecs(CudaContext& cuda) {
  return std::make_unique<CudaCodecs>(cuda);
}

}  // namespace cadre
