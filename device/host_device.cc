// The host as a device: all work is complete when the call returns, so streams, events and waiting
// have no effect. Memory is counted, so that the peak of a run on the CPU can be compared with the
// plan's prediction, as on a GPU.
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "glog/logging.h"

namespace cadre {
namespace {

constexpr size_t kAlignment = 256;

class HostDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override { return "cpu"; }
  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  void Fail(absl::Status error) override {
    absl::MutexLock lock(&mutex_);
    status_.Update(error);
  }

  void* Allocate(size_t bytes, absl::string_view purpose) override {
    if (bytes == 0) return nullptr;
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const memory = std::aligned_alloc(kAlignment, rounded);
    CHECK(memory != nullptr) << "out of memory: " << bytes << " bytes for " << purpose;
    std::memset(memory, 0, bytes);
    absl::MutexLock lock(&mutex_);
    sizes_[memory] = bytes;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return memory;
  }
  void Free(void* memory) override {
    if (memory == nullptr) return;
    absl::MutexLock lock(&mutex_);
    const auto found = sizes_.find(memory);
    CHECK(found != sizes_.end()) << "not this device's memory";
    in_use_ -= found->second;
    sizes_.erase(found);
    std::free(memory);
  }
  void* AllocateHost(size_t bytes) override { return Allocate(bytes, "host memory"); }
  void FreeHost(void* memory) override { Free(memory); }
  int64_t bytes_in_use() const override {
    absl::MutexLock lock(&mutex_);
    return in_use_;
  }
  int64_t peak_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return peak_;
  }

  void Use(Stream stream) override { current_ = stream; }
  Stream current_stream() const override { return current_; }
  std::unique_ptr<DeviceEvent> MakeEvent() override { return std::make_unique<DeviceEvent>(); }
  void Record(DeviceEvent& /*event*/) override {}
  void WaitFor(const DeviceEvent& /*event*/) override {}
  absl::Status Await(const DeviceEvent& /*event*/) override { return status(); }
  absl::Status Synchronize() override { return status(); }
  int64_t host_syncs() const override { return 0; }

  void CopyIn(const void* host, void* device, size_t bytes) override { Copy(host, device, bytes); }
  void CopyToDeviceAsync(const void* host, void* device, size_t bytes) override {
    Copy(host, device, bytes);
  }
  absl::Status CopyOut(const void* device, void* host, size_t bytes) override {
    Copy(device, host, bytes);
    return status();
  }
  void CopyToHostAsync(const void* device, void* host, size_t bytes) override {
    Copy(device, host, bytes);
  }
  void Copy(const void* from, void* to, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* memory, size_t bytes) override {
    if (bytes > 0) std::memset(memory, 0, bytes);
  }

 private:
  Stream current_ = Stream::kCompute;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, int64_t> sizes_ ABSL_GUARDED_BY(mutex_);
  int64_t in_use_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace cadre
