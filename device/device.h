// A compute device (the host's CPU or a GPU): its memory, and the order in which work on it runs.
//
// Work (kernels, copies, collectives) is enqueued on a stream and runs later, in the order of its
// stream. A stream waits for another, and the host for a stream, only by events. Enqueuing does not
// block; host_syncs() counts how often the host did block. On the host device all work is complete
// when the call returns, and events have no effect.
//
// Errors are sticky: the first one is kept, later work does nothing, and status() returns that
// error, at the latest after the next Await or Synchronize. Codes:
//   ResourceExhausted   out of memory: how much was requested for which purpose, and what holds it
//   Unavailable         the device is lost (Xid, fallen off the bus); another device may work
//   FailedPrecondition  no driver, or one that is too old: a retry cannot succeed
//   DeadlineExceeded    enqueued work did not end
//   Internal            a kernel failed: a bug
//
// Threads: one thread enqueues; status() and name() are thread-safe. All objects that a device made
// must be destroyed before it.
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

// Streams of a device. Work on different streams runs concurrently.
enum class Stream : uint8_t {
  kCompute,        // forward and backward
  kMoves,          // activations moved between ranks while the rank computes
  kMessages,       // activations sent to, and received from, ranks with other layers
  kCommunication,  // collectives on gradients and weights, and updates
  kCopies,         // between host and device
};
inline constexpr int kDeviceStreams = 5;

// A point in a stream's work. Made by a device; can be recorded any number of times.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Work that was captured once and can be launched any number of times (a CUDA graph).
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  bool is_host() const { return kind() == DeviceKind::kHost; }
  // For messages and for measurements: "cpu", "cuda:NVIDIA H200".
  virtual std::string name() const = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;
  // Records an error from outside the device, such as a failed collective, as the device's own.
  // Requires: !error.ok().
  virtual void Fail(absl::Status error) = 0;
  // True if the device itself is lost to this process: a new Device in the same process would fail,
  // too, so the process must exit.
  virtual bool lost() const { return false; }

  // --- memory ------------------------------------------------------------------------------------
  // `bytes` of zeros, aligned to 256. Out-of-memory messages name the `purpose` ("weights",
  // "activations"). Null for 0 bytes and after an error: see status().
  virtual void* Allocate(size_t bytes, absl::string_view purpose) = 0;
  virtual void Free(void* memory) = 0;
  // Pinned host memory, which copies use directly. Null for 0 bytes and after an error.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Sets a label for the following allocations, such as "layer 'conv3'", for out-of-memory
  // messages. It may be empty.
  virtual void set_allocation_label(absl::string_view /*label*/) {}
  // Bytes allocated now, and their maximum so far.
  virtual int64_t bytes_in_use() const = 0;
  virtual int64_t peak_bytes() const = 0;

  // --- streams -----------------------------------------------------------------------------------
  // The following work is enqueued on `stream`, the current stream. Initially that is kCompute.
  virtual void Use(Stream stream) = 0;
  virtual Stream current_stream() const = 0;
  virtual std::unique_ptr<DeviceEvent> MakeEvent() = 0;
  // The event completes with the work enqueued on the current stream so far.
  virtual void Record(DeviceEvent& event) = 0;
  // The following work of the current stream runs after the event. No effect if the event was never
  // recorded.
  virtual void WaitFor(const DeviceEvent& event) = 0;
  // Blocks the host until the event has completed.
  virtual absl::Status Await(const DeviceEvent& event) = 0;
  // Blocks the host until all work has completed.
  virtual absl::Status Synchronize() = 0;
  // How often the host blocked: in Await, Synchronize and CopyOut, in copies that waited for
  // staging memory, and in allocations that returned cached memory to the driver.
  virtual int64_t host_syncs() const = 0;

  // --- copies, on the current stream -------------------------------------------------------------
  // The host's bytes are read before the call returns (a GPU copies them to staging memory).
  virtual void CopyIn(const void* host, void* device, size_t bytes) = 0;
  // The same, but the bytes are read when the work runs, and must not change until then. Requires:
  // `host` is from AllocateHost.
  virtual void CopyToDeviceAsync(const void* host, void* device, size_t bytes) = 0;
  // Blocks until the bytes have arrived.
  virtual absl::Status CopyOut(const void* device, void* host, size_t bytes) = 0;
  // The same without blocking. Requires: `host` is from AllocateHost.
  virtual void CopyToHostAsync(const void* device, void* host, size_t bytes) = 0;
  // Within the device. Requires: no overlap.
  virtual void Copy(const void* from, void* to, size_t bytes) = 0;
  virtual void Zero(void* memory, size_t bytes) = 0;

  // --- graphs ------------------------------------------------------------------------------------
  virtual bool can_capture() const { return false; }
  // Captures, without running it, what `work` enqueues on the current stream and on streams that
  // `work` forks from it and joins to it by events. Null if the work cannot be captured (`work`
  // failed, or synchronised with the host, or a library refused): see capture_refusal(). Then
  // nothing has run. Requires: can_capture(), and all memory that the work uses is allocated.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> CaptureGraph(
      const std::function<absl::Status()>& /*work*/) {
    return absl::UnimplementedError("this device cannot capture graphs");
  }
  // Why the last CaptureGraph returned null; empty if it did not.
  virtual std::string capture_refusal() const { return ""; }
  // Enqueues the captured work on the current stream.
  virtual void LaunchGraph(DeviceGraph& /*graph*/) {}
};

// Makes another stream current during the object's lifetime.
class OnStream {
 public:
  OnStream(Device& device, Stream stream) : device_(device), before_(device.current_stream()) {
    device.Use(stream);
  }
  ~OnStream() { device_.Use(before_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Device& device_;
  const Stream before_;
};

// An array of T that is freed with the object. Used as DeviceArray and PinnedArray (below).
template <typename T, bool kPinned>
class BasicDeviceArray {
 public:
  BasicDeviceArray() = default;
  BasicDeviceArray(Device& device, size_t size, absl::string_view purpose) requires(!kPinned)
      : device_(&device),
        data_(static_cast<T*>(device.Allocate(size * sizeof(T), purpose))),
        size_(size) {}
  BasicDeviceArray(Device& device, size_t size) requires(kPinned)
      : device_(&device),
        data_(static_cast<T*>(device.AllocateHost(size * sizeof(T)))),
        size_(size) {}
  BasicDeviceArray(BasicDeviceArray&& other) noexcept { *this = std::move(other); }
  BasicDeviceArray& operator=(BasicDeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~BasicDeviceArray() {
    if (data_ != nullptr) kPinned ? device_->FreeHost(data_) : device_->Free(data_);
  }

  T* data() const { return data_; }
  // The requested number of elements, even if the allocation failed (see Device::status()).
  size_t size() const { return size_; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// An array in a device's memory, zeros at first; and one in pinned host memory.
template <typename T>
using DeviceArray = BasicDeviceArray<T, false>;
template <typename T>
using PinnedArray = BasicDeviceArray<T, true>;

// The host's CPU as a device. It only counts its memory.
std::unique_ptr<Device> MakeHostDevice();

}  // namespace cadre
