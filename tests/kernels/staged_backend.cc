#include <algorithm>
#include <deque>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "kernels/host_backend.h"
#include "tests/kernels/rig.h"

namespace cadre {
namespace {

// Device copies of the arguments of one call. Spans of the same host memory share device memory,
// for operations in place. Activations are converted to `type` and back.
class Stage {
 public:
  Stage(Device& device, int64_t shift, DType type) : device_(device), shift_(shift), type_(type) {}

  // The device's copy of the argument.
  template <typename T>
  const T& Copied(const T& extents) {
    return extents;
  }
  template <typename T>
  std::span<T> Copied(std::span<T> host) {
    using Element = std::remove_const_t<T>;
    auto* const begin = const_cast<Element*>(host.data());
    const Argument& argument = CopyOf(begin, host.size_bytes(), sizeof(T), [&](void* to) {
      device_.CopyIn(begin, to, host.size_bytes());
    });
    if constexpr (!std::is_const_v<T>) {
      Writes(begin, [this, host, from = argument.on_device] {
        return device_.CopyOut(from, host.data(), host.size_bytes());
      });
    }
    return {static_cast<T*>(argument.on_device), host.size()};
  }
  std::vector<FloatSpan> Copied(std::span<const FloatSpan> host) {
    std::vector<FloatSpan> copies;
    for (const FloatSpan span : host) copies.push_back(Copied(span));
    return copies;
  }
  ConstValues Copied(ConstValues host) {
    if (type_ == DType::kFloat32) return Copied(host.floats());
    const std::span<const float> floats = host.floats();
    auto* const begin = const_cast<float*>(floats.data());
    const Argument& argument = CopyOf(begin, 2 * floats.size(), 2, [&](void* to) {
      std::vector<uint16_t> narrow(floats.size());
      std::transform(floats.begin(), floats.end(), narrow.begin(), ToBf16);
      device_.CopyIn(narrow.data(), to, 2 * narrow.size());
    });
    return {argument.on_device, floats.size(), type_};
  }
  Values Copied(Values host) {
    if (type_ == DType::kFloat32) return Copied(host.floats());
    const ConstValues copy = Copied(ConstValues(host));
    Writes(host.data(), [this, copy, to = host.floats()] {
      std::vector<uint16_t> narrow(to.size());
      const absl::Status status = device_.CopyOut(copy.data(), narrow.data(), 2 * to.size());
      std::transform(narrow.begin(), narrow.end(), to.begin(), FromBf16);
      return status;
    });
    return {const_cast<void*>(copy.data()), copy.size(), type_};
  }
  // Copies the outputs to the host.
  void Finish() {
    for (const Argument& argument : arguments_) {
      if (argument.bytes == 0 || !argument.copy_out) continue;
      const absl::Status status = argument.copy_out();
      CHECK(status.ok()) << status;
    }
    CHECK(device_.status().ok()) << device_.status();
  }

 private:
  struct Argument {
    const void* on_host = nullptr;
    size_t bytes = 0;
    DeviceArray<std::byte> memory;
    void* on_device = nullptr;
    // Null for inputs.
    std::function<absl::Status()> copy_out;
  };

  Argument& CopyOf(const void* host, size_t bytes, size_t element,
                   const std::function<void(void*)>& copy_in) {
    for (Argument& argument : arguments_) {
      if (bytes > 0 && argument.on_host == host && argument.bytes == bytes) return argument;
    }
    Argument& argument = arguments_.emplace_back();
    argument.on_host = host;
    argument.bytes = bytes;
    if (bytes == 0) return argument;
    argument.memory = DeviceArray<std::byte>(device_, bytes + shift_ * element, "test");
    argument.on_device = argument.memory.data() + shift_ * element;
    copy_in(argument.on_device);
    return argument;
  }
  void Writes(const void* host, std::function<absl::Status()> copy_out) {
    for (Argument& argument : arguments_) {
      if (argument.on_host == host) argument.copy_out = copy_out;
    }
  }

  Device& device_;
  const size_t shift_;
  const DType type_;
  std::deque<Argument> arguments_;
};

// The rig, and the placement of data on its device.
struct StagedRig {
  Rig rig;
  int64_t shift;
  DType type;
};

// The Caller (host_backend.h) that runs an operation of the rig's family on copies of the
// arguments.
template <typename Family, Family& (Backend::*kFamily)()>
class StagedCaller {
 public:
  using Operations = Family;

  explicit StagedCaller(StagedRig& rig) : rig_(rig) {}

 protected:
  template <typename Result, typename... Parameters, typename... Arguments>
  Result Call(Result (Family::*operation)(Parameters...), const Arguments&... arguments) {
    Stage stage(rig_.rig.kernels->device(), rig_.shift, rig_.type);
    Family& family = ((*rig_.rig.kernels).*kFamily)();
    if constexpr (std::is_void_v<Result>) {
      (family.*operation)(stage.Copied(arguments)...);
      stage.Finish();
    } else {
      const Result result = (family.*operation)(stage.Copied(arguments)...);
      stage.Finish();
      return result;
    }
  }

 private:
  StagedRig& rig_;
};

class StagedBackend final : public HostBackend {
 public:
  StagedBackend(Rig rig, int64_t shift, DType type)
      : HostBackend("its activations are fp32 on the host"), rig_{std::move(rig), shift, type} {
    if (type == DType::kBFloat16) {
      CHECK(rig_.rig.kernels->SetPrecision(Precision::kBf16).ok());
    }
    families_ = {
        .memory = std::make_unique<HostMemory<StagedCaller<MemoryKernels, &Backend::memory>>>(rig_),
        .dense = std::make_unique<HostDense<StagedCaller<DenseKernels, &Backend::dense>>>(rig_),
        .window = std::make_unique<HostWindow<StagedCaller<WindowKernels, &Backend::window>>>(rig_),
        .norm = std::make_unique<HostNorm<StagedCaller<NormKernels, &Backend::norm>>>(rig_),
        .pointwise =
            std::make_unique<HostPointwise<StagedCaller<PointwiseKernels, &Backend::pointwise>>>(
                rig_),
        .optimizer =
            std::make_unique<HostOptimizer<StagedCaller<OptimizerKernels, &Backend::optimizer>>>(
                rig_),
        .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }

 private:
  StagedRig rig_;
};

}  // namespace

std::unique_ptr<Backend> MakeStagedBackend(Rig rig, int64_t shift, DType type) {
  return std::make_unique<StagedBackend>(std::move(rig), shift, type);
}

}  // namespace cadre
