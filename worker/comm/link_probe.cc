#include "worker/comm/link_probe.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/median.h"
#include "base/status.h"
#include "device/device.h"
#include "worker/comm/reduce.h"

namespace cadre {
namespace {

// One that is never set.
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What barriers get.
constexpr double kBarrierSeconds = 0.02;
// An exchange that lasts so long tells about how fast the link is: little of it is latency.
constexpr double kExchangeSeconds = 2e-2;
constexpr size_t kLeastExchange = size_t{64} << 10;
constexpr size_t kMostExchange = size_t{4} << 20;
// Shaped links let some milliseconds' worth through at first, and then so many packets at a time:
// the bandwidth is that of a stream of exchanges, one behind the other, cut into readings of so
// many seconds where an exchange is shorter, or longer, than the above. The first reading only
// empties what was saved up.
constexpr double kFastReadingSeconds = 16e-3;
constexpr double kSlowReadingSeconds = 50e-3;
constexpr int kStreamReadings = 5;
// Adding is timed on what a processor's second cache holds: what has just arrived is there.
constexpr size_t kSumBytes = size_t{128} << 10;
// All-reduces get the time of so many bytes on the link, but at least and at most so many seconds.
constexpr double kSampleBytes = 64e6;
constexpr double kLeastSampleSeconds = 0.15;
constexpr double kMostSampleSeconds = 1;
// Sizes of the all-reduces that are timed.
constexpr int64_t kLeastSample = int64_t{1} << 10;
constexpr int64_t kMostSample = int64_t{16} << 20;
constexpr int64_t kSampleFactor = 4;
// Before a size is timed, what a shaped link has saved up is used: so many seconds on the link, and
// so many bytes; as long as that does not take longer than the last, for small messages never do.
constexpr double kDrainSeconds = 5e-3;
constexpr double kDrainBytes = 256 << 10;
constexpr double kMostDrainSeconds = 12e-3;
// One reading covers so many all-reduces that it takes at least that long; on a link that may be
// shaped, which is one on which a byte takes so long, also several times what passes at once. A
// size gets so many readings by each algorithm: many where they are cheap.
constexpr double kReadingSeconds = 4e-4;
constexpr double kShapedByteSeconds = 1e-9;
constexpr double kSteadySeconds = 4e-3;
constexpr double kSteadyBytes = 192 << 10;
constexpr int kMostPerReading = 128;
constexpr int kMostReadings = 15;
constexpr int kMostSteadyReadings = 5;
constexpr int kLeastReadings = 3;
constexpr std::array<Algorithm, 3> kSampled = {Algorithm::kRing, Algorithm::kButterfly,
                                               Algorithm::kHalvingDoubling};
// On a device what is enqueued together is timed together: so many exchanges, and sums of so much
// that starting them is little of it.
constexpr int kDeviceExchanges = 16;
constexpr size_t kDeviceSumBytes = size_t{8} << 20;

// Processor seconds of this thread, which carries its messages itself; the kernel's in its name are
// among them.
double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of the middle half and a little more: steady where a median would jump between readings that
// differ by a packet, and not moved by one that was disturbed.
double MiddleMean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t aside = values.size() / 4;
  double sum = 0;
  for (size_t i = aside; i < values.size() - aside; ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - 2 * aside);
}

// Where the data lies, and what is peculiar to that.
class Medium {
 public:
  virtual ~Medium() = default;
  // Zeros, until the next call with the same `slot`.
  virtual absl::StatusOr<std::span<std::byte>> Memory(size_t slot, size_t bytes) = 0;
  // Returns when everything that was asked for has happened.
  virtual absl::Status Finish() = 0;
  virtual void Add(std::span<std::byte> sum, std::span<const std::byte> values) = 0;
  virtual size_t sum_bytes() const = 0;

 protected:
  static constexpr size_t kSlots = 2;
};

class HostMedium final : public Medium {
 public:
  absl::StatusOr<std::span<std::byte>> Memory(size_t slot, size_t bytes) override {
    memory_[slot] = std::vector<float>(bytes / sizeof(float));
    return std::as_writable_bytes(std::span(memory_[slot]));
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  void Add(std::span<std::byte> sum, std::span<const std::byte> values) override {
    combine_.add(sum.data(), values.data(), values.size());
  }
  size_t sum_bytes() const override { return kSumBytes; }

 private:
  std::array<std::vector<float>, kSlots> memory_;
  const Combine combine_ = SumOf(DType::kFloat32);
};

class DeviceMedium final : public Medium {
 public:
  explicit DeviceMedium(Kernels& kernels)
      : kernels_(kernels), device_(kernels.device()), done_(device_.MakeEvent()) {}

  absl::StatusOr<std::span<std::byte>> Memory(size_t slot, size_t bytes) override {
    memory_[slot] = {};
    memory_[slot] = DeviceArray<float>(device_, bytes / sizeof(float), "measuring links");
    CADRE_RETURN_IF_ERROR(device_.Synchronize());
    return std::as_writable_bytes(memory_[slot].span());
  }
  absl::Status Finish() override {
    device_.Record(*done_);
    return device_.Await(*done_);
  }
  void Add(std::span<std::byte> sum, std::span<const std::byte> values) override {
    kernels_.AddArrived(DType::kFloat32, sum, values);
  }
  size_t sum_bytes() const override { return kDeviceSumBytes; }

 private:
  Kernels& kernels_;
  Device& device_;
  const std::unique_ptr<DeviceEvent> done_;
  std::array<DeviceArray<float>, kSlots> memory_;
};

class Probe {
 public:
  // Over a device's transport, `host` is another; otherwise both are one.
  Probe(Communicator& all, Communicator& host, Medium& medium)
      : all_(all), host_(host), medium_(medium), algorithms_(kSampled.begin(), kSampled.end()) {
    if (all_.has_native()) algorithms_.push_back(Algorithm::kNative);
  }

  absl::StatusOr<LinkMeasure> Measure(const LinkProbeOptions& options) {
    CADRE_RETURN_IF_ERROR(MeasureAlpha());
    CADRE_RETURN_IF_ERROR(MeasureBeta());
    CADRE_RETURN_IF_ERROR(MeasureGamma());
    if (options.samples) CADRE_RETURN_IF_ERROR(MeasureSamples());
    return std::move(measured_);
  }

 private:
  // One time of `runs` runs, per run.
  absl::StatusOr<double> Reading(int runs, const std::function<absl::Status()>& run) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < runs; ++i) CADRE_RETURN_IF_ERROR(run());
    CADRE_RETURN_IF_ERROR(medium_.Finish());
    return SecondsSince(start) / runs;
  }

  absl::StatusOr<double> MedianOf(int readings, int runs,
                                  const std::function<absl::Status()>& run) {
    std::vector<double> seconds;
    for (int i = 0; i < readings; ++i) {
      CADRE_ASSIGN_OR_RETURN(const double reading, Reading(runs, run));
      seconds.push_back(reading);
    }
    return Agree(Median(std::move(seconds)));
  }

  // The largest of what the members have.
  absl::StatusOr<double> Agree(double own) {
    std::vector<double> values(static_cast<size_t>(host_.size()));
    values[static_cast<size_t>(host_.index())] = own;
    std::vector<int64_t> offsets;
    for (int member = 0; member <= host_.size(); ++member) {
      offsets.push_back(static_cast<int64_t>(sizeof(double)) * member);
    }
    CADRE_RETURN_IF_ERROR(host_.AllGatherBytes(std::as_writable_bytes(std::span(values)), offsets));
    return *std::max_element(values.begin(), values.end());
  }

  absl::Status MeasureAlpha() { return &all_ == &host_ ? TimeBarriers() : TimeShortExchanges(); }

  absl::Status TimeBarriers() {
    const auto barrier = [this] { return all_.Barrier(); };
    // The first meets members that come late and buffers that are cold.
    CADRE_RETURN_IF_ERROR(barrier());
    CADRE_ASSIGN_OR_RETURN(const double first, MedianOf(1, 2, barrier));
    const int readings =
        static_cast<int>(std::clamp(kBarrierSeconds / std::max(first, 1e-7), 3.0, 999.0));
    CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(readings, 1, barrier));
    // Messages that wait for one another in a barrier.
    const int rounds = std::bit_width(static_cast<unsigned>(all_.size() - 1));
    measured_.alpha = seconds / rounds;
    return absl::OkStatus();
  }

  absl::Status TimeShortExchanges() {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> out, medium_.Memory(0, sizeof(float)));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> in, medium_.Memory(1, sizeof(float)));
    const auto shift = [&] { return Shift(out, in); };
    // The first connects the members.
    CADRE_RETURN_IF_ERROR(Reading(1, shift).status());
    CADRE_ASSIGN_OR_RETURN(const double first, MedianOf(1, kDeviceExchanges, shift));
    const double each = kBarrierSeconds / std::max(kDeviceExchanges * first, 1e-7);
    const int readings = static_cast<int>(std::clamp(each, 3.0, 99.0));
    CADRE_ASSIGN_OR_RETURN(measured_.alpha, MedianOf(readings, kDeviceExchanges, shift));
    return absl::OkStatus();
  }

  // Every member sends `bytes` to the next and gets as many from the one before.
  absl::Status Shift(std::span<const std::byte> out, std::span<std::byte> in) {
    const auto size = static_cast<size_t>(all_.size());
    const auto own = static_cast<size_t>(all_.index());
    std::vector<std::span<const std::byte>> send(size);
    std::vector<std::span<std::byte>> receive(size);
    send[(own + 1) % size] = out;
    receive[(own + size - 1) % size] = in;
    return all_.AllToAll(send, receive);
  }

  absl::Status MeasureBeta() {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> out, medium_.Memory(0, kMostExchange));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> in, medium_.Memory(1, kMostExchange));
    for (size_t bytes = kLeastExchange;; bytes *= 4) {
      const auto shift = [&] { return Shift(out.first(bytes), in.first(bytes)); };
      CADRE_RETURN_IF_ERROR(Reading(1, shift).status());
      CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(kLeastReadings, 1, shift));
      if (seconds >= kExchangeSeconds || bytes * 4 > kMostExchange) {
        return MeasureStream(bytes, seconds, shift);
      }
    }
  }

  // A stream of exchanges of `bytes`, each of which takes about `expected`.
  absl::Status MeasureStream(size_t bytes, double expected,
                             const std::function<absl::Status()>& shift) {
    const double wanted = expected < kExchangeSeconds ? kFastReadingSeconds : kSlowReadingSeconds;
    const int runs = std::max(1, static_cast<int>(std::lround(wanted / std::max(expected, 1e-6))));
    CADRE_RETURN_IF_ERROR(Reading(runs, shift).status());
    std::vector<double> seconds;
    const double before = ProcessorSeconds();
    for (int i = 0; i < kStreamReadings; ++i) {
      CADRE_ASSIGN_OR_RETURN(const double reading, Reading(runs, shift));
      seconds.push_back(reading);
    }
    const double processor = (ProcessorSeconds() - before) / (kStreamReadings * runs);
    CADRE_ASSIGN_OR_RETURN(const double each, Agree(MiddleMean(std::move(seconds))));
    CADRE_ASSIGN_OR_RETURN(const double agreed, Agree(processor));
    // Latency that varies may be more than all of it.
    const double moving = std::max(each - measured_.alpha, each / 10);
    measured_.beta = moving / static_cast<double>(bytes);
    measured_.processor = agreed / static_cast<double>(bytes);
    return absl::OkStatus();
  }

  absl::Status MeasureGamma() {
    const size_t bytes = medium_.sum_bytes();
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> sum, medium_.Memory(0, bytes));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> values, medium_.Memory(1, bytes));
    const auto add = [&] {
      medium_.Add(sum, values);
      return absl::OkStatus();
    };
    CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(kMostReadings, 4, add));
    measured_.gamma = seconds / static_cast<double>(bytes);
    return absl::OkStatus();
  }

  absl::Status MeasureSamples() {
    const Clock::time_point start = Clock::now();
    const double budget =
        std::clamp(kSampleBytes * measured_.beta, kLeastSampleSeconds, kMostSampleSeconds);
    // What a round of all algorithms may take at the first size: the ring has most messages, the
    // butterfly most bytes.
    const double steps = 2.0 * (all_.size() - 1);
    double round =
        static_cast<double>(algorithms_.size()) *
        (steps * measured_.alpha + kLeastSample * measured_.beta * std::log2(all_.size() + 1));
    for (int64_t bytes = kLeastSample; bytes <= kMostSample; bytes *= kSampleFactor) {
      CADRE_ASSIGN_OR_RETURN(const double spent, Agree(SecondsSince(start)));
      // One round at least comes before the readings.
      if ((kLeastReadings + 1) * round > budget - spent) break;
      CADRE_ASSIGN_OR_RETURN(round, MeasureSize(bytes, round, budget - spent));
      round *= kSampleFactor;
    }
    return absl::OkStatus();
  }

  // Rounds of a size that come before its readings, of about `expected` seconds.
  int RoundsToDrain(int64_t bytes, double expected) const {
    const double link_seconds =
        static_cast<double>(algorithms_.size()) * static_cast<double>(bytes) * measured_.beta;
    const double wanted = std::max(kDrainSeconds, kDrainBytes * measured_.beta) / link_seconds;
    const double most = kMostDrainSeconds / expected;
    return static_cast<int>(std::max(1.0, std::min(std::ceil(wanted), most)));
  }

  bool may_be_shaped() const { return measured_.beta > kShapedByteSeconds; }

  // All-reduces of about `each` seconds in a reading.
  int RunsPerReading(double each) const {
    double wanted = kReadingSeconds;
    if (may_be_shaped()) {
      wanted = std::max(kSteadySeconds, kSteadyBytes * measured_.beta);
    }
    return static_cast<int>(std::clamp(wanted / std::max(each, 1e-7), 1.0, 1.0 * kMostPerReading));
  }

  // Appends the samples of one size, on which `left` seconds at most may be spent, a round taking
  // about `expected`. Returns what a round took.
  absl::StatusOr<double> MeasureSize(int64_t bytes, double expected, double left) {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> raw,
                           medium_.Memory(0, static_cast<size_t>(bytes)));
    const auto all_reduce = [&](size_t which) {
      return
          [this, raw, which] { return all_.AllReduce(algorithms_[which], DType::kFloat32, raw); };
    };
    for (int round = RoundsToDrain(bytes, expected); round > 0; --round) {
      for (size_t which = 0; which < algorithms_.size(); ++which) {
        CADRE_RETURN_IF_ERROR(Reading(1, all_reduce(which)).status());
      }
    }
    const int runs = RunsPerReading(expected / static_cast<double>(algorithms_.size()));
    // Half of what is left at most: larger sizes want some, too.
    const int readings =
        static_cast<int>(std::clamp(left / 2 / (expected * runs), 1.0 * kLeastReadings,
                                    1.0 * (may_be_shaped() ? kMostSteadyReadings : kMostReadings)));
    std::vector<std::vector<double>> seconds(algorithms_.size());
    for (int reading = 0; reading < readings; ++reading) {
      for (size_t turn = 0; turn < algorithms_.size(); ++turn) {
        // Another begins each time: nobody always follows the same one.
        const size_t which = (turn + static_cast<size_t>(reading)) % algorithms_.size();
        CADRE_ASSIGN_OR_RETURN(const double once, Reading(runs, all_reduce(which)));
        seconds[which].push_back(once);
      }
    }
    double round = 0;
    for (size_t which = 0; which < algorithms_.size(); ++which) {
      CADRE_ASSIGN_OR_RETURN(const double agreed, Agree(MiddleMean(std::move(seconds[which]))));
      measured_.samples.push_back({algorithms_[which], bytes, agreed});
      round += agreed;
    }
    return round;
  }

  Communicator& all_;
  Communicator& host_;
  Medium& medium_;
  std::vector<Algorithm> algorithms_;
  LinkMeasure measured_;
};

}  // namespace

absl::StatusOr<LinkMeasure> MeasureLink(Communicator& all, const LinkProbeOptions& options) {
  if (all.size() == 1) return LinkMeasure{};
  HostMedium medium;
  return Probe(all, all, medium).Measure(options);
}

absl::StatusOr<LinkMeasure> MeasureDeviceLink(Communicator& all, Communicator& host,
                                              Kernels& kernels, const LinkProbeOptions& options) {
  if (all.size() == 1) return LinkMeasure{};
  DeviceMedium medium(kernels);
  return Probe(all, host, medium).Measure(options);
}

}  // namespace cadre
