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
    // Rounds to nearest, ties to even; NaN stays NaN.
    bits = x != x ? word >> 16 | 0x40 : (word + 0x7FFF + (word >> 16 & 1)) >> 16;
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

using Reducer = void (*)(const std::vector<Bytes>& inputs, size_t offset, size_t count,
                         ncclRedOp_t op, void* to);
struct TypeInfo {
  ncclDataType_t type;
  const char* name;
  size_t bytes;
  Reducer reduce;
};
template <typename T, typename Sum = T>
constexpr TypeInfo InfoOf(ncclDataType_t type, const char* name) {
  return {type, name, sizeof(T), &Reduce<T, Sum>};
}
constexpr TypeInfo kTypes[] = {
    InfoOf<int8_t>(ncclInt8, "int8"),          InfoOf<uint8_t>(ncclUint8, "uint8"),
    InfoOf<Bf16, float>(ncclBfloat16, "bf16"), InfoOf<int32_t>(ncclInt32, "int32"),
    InfoOf<uint32_t>(ncclUint32, "uint32"),    InfoOf<int64_t>(ncclInt64, "int64"),
    InfoOf<uint64_t>(ncclUint64, "uint64"),    InfoOf<float>(ncclFloat32, "fp32"),
    InfoOf<double>(ncclFloat64, "fp64"),
};

// 0 bytes for a type that is not emulated.
TypeInfo Find(ncclDataType_t type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  return {.type = type, .name = "elements of an unsupported type", .bytes = 0, .reduce = nullptr};
}

}  // namespace

size_t SizeOfNccl(ncclDataType_t type) { return Find(type).bytes; }

const char* NameOfNccl(ncclDataType_t type) { return Find(type).name; }

bool CanReduce(ncclDataType_t type, ncclRedOp_t op) {
  return SizeOfNccl(type) > 0 && op >= ncclSum && op <= ncclAvg;
}

void ReduceNccl(const std::vector<Bytes>& inputs, size_t offset, size_t count, ncclDataType_t type,
                ncclRedOp_t op, void* to) {
  Find(type).reduce(inputs, offset, count, op, to);
}

}  // namespace cadre::emulated
