#include "tests/emulator/fake_nccl.h"

#include <cuda_bf16.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using in_process::TypeOf;

struct OwnedBytes final : in_process::Mark {
  OwnedBytes(const void* begin, size_t bytes)
      : values(static_cast<const char*>(begin), static_cast<const char*>(begin) + bytes) {}
  const std::vector<char> values;
};

// The sums of elements of type T, taken in type Wide and rounded once.
template <typename T, typename Wide = T>
void AddRanks(const std::vector<const char*>& inputs, size_t offset, size_t count, void* to) {
  for (size_t i = 0; i < count; ++i) {
    const auto element = [at = (offset + i) * sizeof(T)](const char* input) {
      T value;
      std::memcpy(&value, input + at, sizeof(T));
      return static_cast<Wide>(value);
    };
    Wide sum = element(inputs[0]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) sum += element(inputs[rank]);
    const T result(sum);
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace

ncclResult_t FakeNccl::Submit(const Member& member, Operations operations, cudaStream_t stream) {
  const cudaError_t error =
      EmulatedCuda::Enqueue(stream, [this, member, stream, operations = std::move(operations)] {
        Perform(member, operations, stream);
        return cudaSuccess;
      });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

absl::StatusOr<in_process::Offer> FakeNccl::MakeOffer(const Operation& operation, int rank,
                                                      int ranks, cudaStream_t /*stream*/) {
  const size_t bytes = Reads(operation, rank, ranks) * TypeOf(operation.type).bytes;
  if (bytes == 0) return Offer();
  auto owned = std::make_shared<OwnedBytes>(operation.from, bytes);
  const char* const data = owned->values.data();
  return Offer{.data = data, .ready = std::move(owned)};
}

absl::Status FakeNccl::Copy(const void* from, void* to, size_t bytes, cudaStream_t /*stream*/) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status FakeNccl::Sum(ncclDataType_t type, const std::vector<const char*>& inputs,
                           size_t offset, size_t count, void* to, cudaStream_t /*stream*/) {
  switch (type) {
    case ncclUint8:
      AddRanks<uint8_t>(inputs, offset, count, to);
      break;
    case ncclBfloat16:
      AddRanks<__nv_bfloat16, float>(inputs, offset, count, to);
      break;
    case ncclUint64:
      AddRanks<uint64_t>(inputs, offset, count, to);
      break;
    case ncclFloat32:
      AddRanks<float>(inputs, offset, count, to);
      break;
    case ncclFloat64:
      AddRanks<double>(inputs, offset, count, to);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("sums of ", TypeOf(type).name));
  }
  return absl::OkStatus();
}

ncclResult_t FakeNccl::CheckBuffers(const Operation& operation,
                                    const in_process::Communicator& member, cudaStream_t stream) {
  const int ranks = member.clique->size;
  if (!EmulatedCuda::IsOf(stream, member.devices)) {
    ADD_FAILURE() << member.clique->name << ": " << Describe(operation, member.rank)
                  << ", on a stream of another device than the one that was the thread's when the "
                     "communicator was made";
    return ncclUnhandledCudaError;
  }
  const auto fits = [&](const void* memory, size_t elements) {
    return elements == 0 ||
           EmulatedCuda::OnDevice(stream, memory, elements * TypeOf(operation.type).bytes);
  };
  if (!fits(operation.from, Reads(operation, member.rank, ranks)) ||
      !fits(operation.to, Writes(operation, member.rank, ranks))) {
    ADD_FAILURE() << member.clique->name << ": " << Describe(operation, member.rank)
                  << ", which does not lie within an allocation of its device";
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

std::map<uint64_t, int> FakeNccl::CurrentDevices() const { return EmulatedCuda::ChosenDevices(); }

void FakeNccl::OnMistake(const std::string& what) { ADD_FAILURE() << what; }

}  // namespace cadre
