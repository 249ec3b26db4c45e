// A compute device: its memory, and the order in which work on it happens.
//
// Work (kernels, copies, collectives) is enqueued on a lane and happens later, in the order of its
// lane. Lanes wait for one another, and the host for them, only by events. So whoever enqueues
// never waits, and what waits says so: waits() counts every time that the host stood still. On the
// host device (host_device.h) all work has happened when the call returns, and events are nothing.
//
// Errors are the device's last word, as a transport's are: the first one is kept, later work does
// nothing, and status() tells it, at the latest at the next Await or Synchronize after it happened.
// Codes:
//   ResourceExhausted   out of memory: what was asked for which purpose, and what holds how much
//   Unavailable         the device is lost (Xid, fallen off the bus); another one may do
//   FailedPrecondition  no driver, or one that is too old: nothing that a retry would mend
//   DeadlineExceeded    what was enqueued did not end
//   Internal            a kernel failed: a bug
//
// Threads: one thread enqueues; status() and name() are thread-safe. Everything that is made from a
// device must be gone before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

enum class DeviceKind : uint8_t { kHost, kCuda };

// What may go on beside each other.
enum class Lane : uint8_t {
  kCompute,        // the rank's own: forward, backward
  kMoves,          // activations that travel while the rank computes
  kCommunication,  // gradients and weights of the group, updates
  kCopies,         // between host and device
};
inline constexpr int kDeviceLanes = 4;

// A point in a lane's work. Made by a device; may be recorded again and again.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Work that was captured once and can be played as often as is liked (a CUDA graph).
class DeviceRecording {
 public:
  virtual ~DeviceRecording() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  bool is_host() const { return kind() == DeviceKind::kHost; }
  // For people and for records of what was measured: "cpu", "cuda:NVIDIA H200".
  virtual std::string name() const = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;
  // From outside the device, such as a collective that failed: as if it were the device's own.
  // Requires: !error.ok().
  virtual void Fail(absl::Status error) = 0;
  // True where the device itself is lost to this process, not only what was done with it: a new
  // Device of the same process would fail, too. The process has to end.
  virtual bool lost() const { return false; }

  // --- memory ------------------------------------------------------------------------------------
  // `bytes` of zeros, aligned to 256. `purpose`, for people: what a message about lack of memory
  // names ("weights", "activations"). Null for 0 bytes, and after an error: see status().
  virtual void* Allocate(size_t bytes, absl::string_view purpose) = 0;
  virtual void Free(void* memory) = 0;
  // Host memory that copies reach without a detour (pinned). Null as above.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Who asks for memory from now on, such as "layer 'conv3'": a message about lack of it names
  // them. Empty: nobody.
  virtual void set_asking(absl::string_view /*who*/) {}
  // Bytes that Allocate has given out, and the most at any time.
  virtual int64_t bytes_in_use() const = 0;
  virtual int64_t peak_bytes() const = 0;

  // --- lanes -------------------------------------------------------------------------------------
  // What is enqueued from now on goes to `lane`. kCompute at first.
  virtual void Use(Lane lane) = 0;
  virtual Lane lane() const = 0;
  virtual std::unique_ptr<DeviceEvent> MakeEvent() = 0;
  // The event is now what the current lane has been given so far.
  virtual void Record(DeviceEvent& event) = 0;
  // What the current lane is given from now on happens after the event. One never recorded: at
  // once.
  virtual void WaitFor(const DeviceEvent& event) = 0;
  // The host stands still until the event has happened.
  virtual absl::Status Await(const DeviceEvent& event) = 0;
  // Until everything has happened.
  virtual absl::Status Synchronize() = 0;
  // Times that the host stood still: Await, Synchronize, CopyOut, and allocations that had to.
  virtual int64_t waits() const = 0;

  // --- copies, on the current lane ---------------------------------------------------------------
  // The host's bytes are read before the call returns (a device stages them).
  virtual void CopyIn(const void* host, void* device, size_t bytes) = 0;
  // The same, read later: `host` is AllocateHost's and stays as it is until then.
  virtual void CopyInLater(const void* host, void* device, size_t bytes) = 0;
  // Stands still until the bytes are there.
  virtual absl::Status CopyOut(const void* device, void* host, size_t bytes) = 0;
  // The bytes come later; `host` is AllocateHost's.
  virtual void CopyOutLater(const void* device, void* host, size_t bytes) = 0;
  // Within the device; no overlap.
  virtual void Copy(const void* from, void* to, size_t bytes) = 0;
  virtual void Zero(void* memory, size_t bytes) = 0;

  // --- recordings --------------------------------------------------------------------------------
  virtual bool can_record() const { return false; }
  // Keeps what `work` enqueues on the current lane, and on others that it leads there and back by
  // events, instead of doing it. Null where the work could not be recorded (`work` failed, or did
  // what a recording cannot keep); nothing was done then. Requires: can_record(); everything that
  // work needs to allocate is there already.
  virtual absl::StatusOr<std::unique_ptr<DeviceRecording>> RecordWork(
      const std::function<absl::Status()>& /*work*/) {
    return absl::UnimplementedError("this device records nothing");
  }
  // Enqueues what was recorded, on the current lane.
  virtual void Play(DeviceRecording& /*recording*/) {}
};

// Uses another lane for as long as it lives.
class OnLane {
 public:
  OnLane(Device& device, Lane lane) : device_(device), before_(device.lane()) { device.Use(lane); }
  ~OnLane() { device_.Use(before_); }
  OnLane(const OnLane&) = delete;
  OnLane& operator=(const OnLane&) = delete;

 private:
  Device& device_;
  const Lane before_;
};

// Memory of a device that is freed with the object. Zeros at first.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, size_t size, absl::string_view purpose)
      : device_(&device),
        data_(static_cast<T*>(device.Allocate(size * sizeof(T), purpose))),
        size_(size) {}
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) device_->Free(data_);
  }

  T* data() const { return data_; }
  // Elements, also where the memory could not be had (Device::status()).
  size_t size() const { return size_; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// The same of pinned host memory.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  PinnedArray(Device& device, size_t size)
      : device_(&device),
        data_(static_cast<T*>(device.AllocateHost(size * sizeof(T)))),
        size_(size) {}
  PinnedArray(PinnedArray&& other) noexcept { *this = std::move(other); }
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedArray() {
    if (data_ != nullptr) device_->FreeHost(data_);
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// The one host device there is to have; it has no state but what it counts.
std::unique_ptr<Device> MakeHostDevice();

}  // namespace cadre
