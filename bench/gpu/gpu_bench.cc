// The device is created as a worker creates it (worker/compute.h), so that a benchmark uses the
// same streams, libraries and algorithms as training.
//
// Events on a stream record when the device reaches them. If the device were idle when the host
// enqueues the first operation, the interval between two events would contain the time that the
// host needs to enqueue the following ones. Occupy therefore enqueues large copies first: while
// they run, the host enqueues everything, and the device then executes it without gaps. The time of
// one such copy is measured when the timer is created.
//
// SecondsWithoutGaps records one event at the beginning and one at the end of every stream; the
// longest of these intervals is the time of work that uses several streams.
#include "bench/gpu/gpu_bench.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "bench/harness.h"
#include "device/cuda/cuda_machine.h"
#include "device/gpu_environment.h"

namespace cadre {
namespace {

constexpr int kExitNoGpu = 3;
constexpr int kExitNoPlan = 4;

int ExitCode(const absl::Status& error) {
  if (HasReason(error, kReasonNoGpu)) return kExitNoGpu;
  return HasReason(error, kReasonNoPlan) ? kExitNoPlan : 1;
}

// Long enough that the host enqueues the next copy meanwhile; less on devices with little memory.
size_t CopyBytes(const CudaDevice& device) {
  return std::clamp<int64_t>(device.memory_limit() / 64, 1 << 20, 256 << 20);
}

}  // namespace

absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device, const std::string& libraries) {
  BenchGpu gpu;
  CADRE_ASSIGN_OR_RETURN(
      gpu.compute, MakeCompute({.device = device,
                                .libraries = absl::StrSplit(libraries, ',', absl::SkipEmpty()),
                                .synchronous = SynchronousGpu()}));
  gpu.device = dynamic_cast<CudaDevice*>(&gpu.compute->kernels().device());
  if (gpu.device == nullptr) {
    return absl::InvalidArgumentError("--device must be cuda or cuda:N");
  }
  return gpu;
}

nlohmann::ordered_json GpuFields(const BenchGpu& gpu) {
  return {{"device", gpu.device->name()},
          {"cuda", DescribeCuda(gpu.device->api()).value_or("unknown")},
          {"libraries", gpu.compute->libraries()}};
}

int GpuBenchMain(int argc, char** argv, const char* source, const char* usage,
                 const std::function<absl::Status()>& run) {
  return BenchMain(argc, argv, source, usage, run, ExitCode);
}

absl::StatusOr<EventTimer> EventTimer::Make(CudaDevice& device) {
  EventTimer timer(device);
  const CudaApi& api = device.api();
  // cudaEventDefault: unlike the events that order streams, these record times.
  bool made = device.Check(api.event_create(&timer.begin_, cudaEventDefault), "event");
  for (cudaEvent_t& end : timer.ends_) {
    made = made && device.Check(api.event_create(&end, cudaEventDefault), "event");
  }
  const size_t bytes = CopyBytes(device);
  timer.from_ = DeviceArray<std::byte>(device, bytes, "benchmark");
  timer.to_ = DeviceArray<std::byte>(device, bytes, "benchmark");
  CADRE_RETURN_IF_ERROR(device.status());
  timer.Copy();
  CADRE_ASSIGN_OR_RETURN(const double copies, timer.SecondsWithoutGaps(/*enqueuing=*/0, [&] {
    for (int i = 0; i < 8; ++i) timer.Copy();
    return absl::OkStatus();
  }));
  timer.copy_seconds_ = std::max(copies / 8, 1e-6);
  return timer;
}

EventTimer::EventTimer(EventTimer&& other) noexcept
    : device_(other.device_),
      begin_(std::exchange(other.begin_, nullptr)),
      from_(std::move(other.from_)),
      to_(std::move(other.to_)),
      copy_seconds_(other.copy_seconds_) {
  for (int stream = 0; stream < kDeviceStreams; ++stream) {
    ends_[stream] = std::exchange(other.ends_[stream], nullptr);
  }
}

EventTimer::~EventTimer() {
  if (begin_ != nullptr) device_.api().event_destroy(begin_);
  for (const cudaEvent_t end : ends_) {
    if (end != nullptr) device_.api().event_destroy(end);
  }
}

void EventTimer::Occupy(double seconds) {
  const OnStream on(device_, Stream::kCompute);
  for (double left = seconds; left > 0; left -= copy_seconds_) Copy();
}

absl::StatusOr<double> EventTimer::Seconds(const std::function<void()>& work, int rounds) {
  const TimedRun run = [&](int iterations) {
    return SecondsWithoutGaps(1e-3 + iterations * 10e-6, [&] {
      const OnStream on(device_, Stream::kCompute);
      for (int i = 0; i < iterations; ++i) work();
      return absl::OkStatus();
    });
  };
  CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                         MeasureInterleaved({run}, {.rounds = rounds}));
  return timings[0].seconds;
}

absl::StatusOr<double> EventTimer::SecondsWithoutGaps(double enqueuing,
                                                      const std::function<absl::Status()>& work) {
  const CudaApi& api = device_.api();
  CADRE_RETURN_IF_ERROR(device_.Synchronize());
  Occupy(enqueuing);
  {
    const OnStream on(device_, Stream::kCompute);
    device_.Check(api.event_record(begin_, device_.stream()), "event");
  }
  CADRE_RETURN_IF_ERROR(work());
  for (int stream = 0; stream < kDeviceStreams; ++stream) {
    device_.Check(api.event_record(ends_[stream], device_.stream(static_cast<Stream>(stream))),
                  "event");
  }
  CADRE_RETURN_IF_ERROR(device_.Synchronize());
  float longest = 0;
  for (const cudaEvent_t end : ends_) {
    float milliseconds = 0;
    device_.Check(api.event_elapsed(&milliseconds, begin_, end), "event");
    longest = std::max(longest, milliseconds);
  }
  CADRE_RETURN_IF_ERROR(device_.status());
  return longest * 1e-3;
}

}  // namespace cadre
