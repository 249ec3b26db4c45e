// The codes of kernels/codec/codec.cc on a GPU, bit for bit.
//
// Idea. Units are independent, so a block of threads encodes a unit at a time, from shared memory.
// The lengths of codes depend on the values: each unit is first encoded into a slot that has room
// for its longest code; then one block adds the lengths, and a third kernel copies the codes to
// where they are in the frame, whose bytes are all that the host reads. A fourth kernel decodes the
// slots, to compute what the code leaves out.
//
// Equal bits. block_codes.h has the codes of a unit. The file is compiled without contraction
// (--fmad=false); square roots and divisions in double are rounded exactly by default, and
// denormals are kept.
//
// Limits. Memory: two buffers of the length of the longest possible frame. Frames that were
// received are decoded on the host: what is decoded here was encoded here, and is not checked.
#include <string>
#include <vector>

#include "device/cuda/launch.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/elements.h"
#include "kernels/cuda/block_codes.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

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
