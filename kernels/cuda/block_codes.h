// The codes of kernels/codec by a block of threads, which codes one unit from shared memory. For
// *.cu only, compiled without contraction.
//
// Equal bits. What is computed from a single value, and maxima, do not depend on the order of
// threads. Sums do: those of stat2 have eight lanes, each added by one thread in the order of the
// values (32 threads add the four levels at a time), and those of top-k are added by one thread.
// That thread also writes the bits of top-k, which are a sequence; `keep` is small, and many blocks
// run at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/codec/codec.h"
#include "kernels/codec/elements.h"
#include "kernels/cuda/block_sums.h"

namespace cadre {

// One thread for each value of a block of int8 and E3M0.
inline constexpr int kCodecThreads = codes::kScaleBlock;
inline constexpr int64_t kWord = sizeof(uint32_t);

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

__device__ inline int32_t EncodeInt8(const float* x, int32_t n, uint8_t* to) {
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

__device__ inline int32_t EncodeE3m0(const float* x, int32_t n, uint8_t* to) {
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

// The code of a value of stat2.
struct Stat2Thresholds {
  float low, middle, high;
  __device__ int operator()(float value) const {
    return (value >= low ? 1 : 0) + (value >= middle ? 1 : 0) + (value >= high ? 1 : 0);
  }
};

// `lanes` is in shared memory.
__device__ inline Stat2Thresholds ThresholdsOf(const float* x, int32_t n, double* lanes) {
  const auto mean_of = [=](const auto& of_value) {
    if (threadIdx.x < codes::kLanes) {
      double sum = 0;
      for (int32_t i = threadIdx.x; i < n; i += codes::kLanes) {
        sum += of_value(static_cast<double>(x[i]));
      }
      lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    const double mean = SumOfLanes(lanes) / static_cast<double>(n);
    __syncthreads();
    return mean;
  };
  const double mean = mean_of([](double value) { return value; });
  const double variance = mean_of([=](double value) { return (value - mean) * (value - mean); });
  const double step = 1.5 * sqrt(variance);
  return {static_cast<float>(mean - step), static_cast<float>(mean),
          static_cast<float>(mean + step)};
}

__device__ inline int32_t EncodeStat2(const float* x, int32_t n, uint8_t* to) {
  constexpr int kBuckets = 4;
  __shared__ double lanes[kBuckets][codes::kLanes];
  __shared__ int32_t counts[kBuckets][codes::kLanes];
  __shared__ uint16_t levels[kBuckets];
  const int thread = threadIdx.x;
  const Stat2Thresholds code_of = ThresholdsOf(x, n, lanes[0]);
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
__device__ inline KeptMagnitudes FindKept(const float* x, int32_t n, int32_t wanted,
                                          int32_t* shared) {
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
__device__ inline int32_t CollectKept(const float* x, int32_t n, KeptMagnitudes kept,
                                      uint16_t* indices, int32_t (*counts)[2]) {
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
__device__ inline KeptLevels LevelsOfKept(const float* x, const uint16_t* indices, int32_t count) {
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

__device__ inline int32_t EncodeTopK(uint32_t keep_of_block, const float* x, int32_t n,
                                     uint32_t* to) {
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

}  // namespace cadre
