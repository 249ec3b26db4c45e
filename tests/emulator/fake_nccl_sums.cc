#include "tests/emulator/fake_nccl_sums.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace cadre::emulated {
namespace {

struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    // To the nearest, ties to even; not-a-number stays one.
    bits = x != x ? static_cast<uint16_t>(word >> 16 | 0x40)
                  : static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <typename Sum>
Sum Combine(ncclRedOp_t op, Sum a, Sum b) {
  switch (op) {
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    case ncclProd:
      return a * b;
    default:
      return a + b;
  }
}

template <typename T, typename Sum>
void Reduce(const std::vector<Bytes>& inputs, size_t offset, size_t count, ncclRedOp_t op,
            void* to) {
  for (size_t i = 0; i < count; ++i) {
    Sum sum = {};
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      T element;
      std::memcpy(&element, inputs[rank].data() + (offset + i) * sizeof(T), sizeof(T));
      const Sum value = static_cast<Sum>(element);
      sum = rank == 0 ? value : Combine(op, sum, value);
    }
    if (op == ncclAvg) sum = sum / static_cast<Sum>(inputs.size());
    const T result(sum);
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace

size_t SizeOfNccl(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

const char* NameOfNccl(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "int8";
    case ncclUint8:
      return "uint8";
    case ncclBfloat16:
      return "bf16";
    case ncclInt32:
      return "int32";
    case ncclUint32:
      return "uint32";
    case ncclFloat32:
      return "fp32";
    case ncclInt64:
      return "int64";
    case ncclUint64:
      return "uint64";
    case ncclFloat64:
      return "fp64";
    default:
      return "of a type that is not played";
  }
}

bool CanReduce(ncclDataType_t type, ncclRedOp_t op) {
  return SizeOfNccl(type) > 0 && op >= ncclSum && op <= ncclAvg;
}

void ReduceNccl(const std::vector<Bytes>& inputs, size_t offset, size_t count, ncclDataType_t type,
                ncclRedOp_t op, void* to) {
  switch (type) {
    case ncclInt8:
      return Reduce<int8_t, int8_t>(inputs, offset, count, op, to);
    case ncclUint8:
      return Reduce<uint8_t, uint8_t>(inputs, offset, count, op, to);
    case ncclBfloat16:
      return Reduce<Bf16, float>(inputs, offset, count, op, to);
    case ncclInt32:
      return Reduce<int32_t, int32_t>(inputs, offset, count, op, to);
    case ncclUint32:
      return Reduce<uint32_t, uint32_t>(inputs, offset, count, op, to);
    case ncclFloat32:
      return Reduce<float, float>(inputs, offset, count, op, to);
    case ncclInt64:
      return Reduce<int64_t, int64_t>(inputs, offset, count, op, to);
    case ncclUint64:
      return Reduce<uint64_t, uint64_t>(inputs, offset, count, op, to);
    case ncclFloat64:
      return Reduce<double, double>(inputs, offset, count, op, to);
    default:
      return;
  }
}

}  // namespace cadre::emulated
