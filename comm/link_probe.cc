// Measures alpha (latency), beta (seconds per byte), gamma (seconds per added byte) and, if
// requested, whole all-reduces: the inputs of the planner's cost formulas.
//
// Agreement. All members must execute the same calls, so every repetition count and every decision
// to stop is a function of numbers that all members share: the measurements of all members are
// exchanged, and the maximum is used (MaxOverMembers).
//
// Terms. A reading is the time of one series of equal calls (Reading). A round is one all-reduce by
// each of the algorithms.
//
// Alpha comes from barriers, whose messages are empty: seconds divided by the steps of the
// dissemination algorithm. A device transport has no barrier; there alpha is the time of one 4-byte
// exchange of several that are enqueued together.
//
// Beta comes from exchanges in which every member sends to the next and receives from the previous,
// as in a ring. The size grows until an exchange takes kExchangeSeconds or the maximum size is
// reached.
//
// Shaped links. Cloud networks limit bandwidth by token buckets: a burst passes at full speed and
// only then does the sustained rate apply. A probe that fits into the burst measures the wrong
// number. So beta is measured on a continuous stream of exchanges of which the first reading is
// discarded, and before samples are timed the burst is used up (kDrainSeconds, kDrainBytes).
//
// Noise. Medians for latency, trimmed means for bandwidth (a median jumps between readings that
// differ by one packet). Algorithms are interleaved and their order rotates, so that none of them
// always runs after the same other one.
//
// Cost: kSampleBytes * beta seconds for samples, between kMinSampleSeconds and kMaxSampleSeconds,
// and about as much for the rest. Limits: the group is measured as one link; a matrix of pairs is
// worker/probe/link_matrix.h.
#include "comm/link_probe.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "base/median.h"
#include "base/status.h"
#include "device/device.h"
#include "tensor/reduce.h"

namespace cadre {
namespace {

// A clock that is never adjusted.
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Time spent on barriers.
constexpr double kBarrierSeconds = 0.02;
// The size of exchanges grows until one takes this long, so that latency is a small part of it.
constexpr double kExchangeSeconds = 2e-2;
constexpr size_t kMinExchange = size_t{64} << 10;
constexpr size_t kMaxExchange = size_t{4} << 20;
// Seconds of one reading of a stream of exchanges, for exchanges shorter and longer than
// kExchangeSeconds. Shaped links pass bursts of some milliseconds and then packets in batches, so a
// reading must cover several batches; the first reading only uses up the burst.
constexpr double kFastReadingSeconds = 16e-3;
constexpr double kSlowReadingSeconds = 50e-3;
constexpr int kStreamReadings = 5;
// Addition is timed on data in the second-level cache, because received data is in that cache.
constexpr size_t kSumBytes = size_t{128} << 10;
// Time spent on all-reduces: as long as the link needs for so many bytes, within these limits.
constexpr double kSampleBytes = 64e6;
constexpr double kMinSampleSeconds = 0.15;
constexpr double kMaxSampleSeconds = 1;
// Sizes of all-reduces in bytes.
constexpr int64_t kMinSample = int64_t{1} << 10;
constexpr int64_t kMaxSample = int64_t{16} << 20;
constexpr int64_t kSampleFactor = 4;
// Before a size is timed, the burst of a shaped link is used up: for so many seconds or the time of
// so many bytes on the link, whichever is longer, but at most for kMaxDrainSeconds.
constexpr double kDrainSeconds = 5e-3;
constexpr double kDrainBytes = 256 << 10;
constexpr double kMaxDrainSeconds = 12e-3;
// A reading covers enough all-reduces to take kReadingSeconds; on a link that may be shaped (a byte
// takes more than kShapedByteSeconds), enough to cover several bursts. The number of readings per
// size and algorithm depends on their cost.
constexpr double kReadingSeconds = 4e-4;
constexpr double kShapedByteSeconds = 1e-9;
constexpr double kSteadySeconds = 4e-3;
constexpr double kSteadyBytes = 192 << 10;
constexpr int kMaxPerReading = 128;
constexpr int kMaxReadings = 15;
constexpr int kMaxSteadyReadings = 5;
constexpr int kMinReadings = 3;
constexpr std::array<Algorithm, 3> kSampled = {Algorithm::kRing, Algorithm::kButterfly,
                                               Algorithm::kHalvingDoubling};
// On a device, calls that are enqueued together are timed together: this number of exchanges, and
// sums that are large enough to hide the time of a kernel launch.
constexpr int kDeviceExchanges = 16;
constexpr size_t kDeviceSumBytes = size_t{8} << 20;

// Processor seconds of this thread, which moves its messages itself; includes system time.
double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// The mean without the lowest and highest quarter: more stable than a median, which jumps between
// readings that differ by a packet, and insensitive to outliers.
double TrimmedMean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const int64_t trimmed = std::ssize(values) / 4;
  const double sum = std::accumulate(values.begin() + trimmed, values.end() - trimmed, 0.0);
  return sum / (std::ssize(values) - 2 * trimmed);
}

// Where the probe's data is, and how received data is added there.
struct Medium {
  Device& device;
  std::function<void(std::span<std::byte> sum, std::span<const std::byte> values)> add;
  // Size of the sums that are timed.
  size_t sum_bytes = 0;
};

class LinkProbe {
 public:
  // `host` equals `all` unless `all` is over a device transport.
  LinkProbe(Communicator& all, Communicator& host, const Medium& medium)
      : all_(all),
        host_(host),
        medium_(medium),
        done_(medium.device.MakeEvent()),
        algorithms_(kSampled.begin(), kSampled.end()) {
    if (all_.has_native()) algorithms_.push_back(Algorithm::kNative);
  }

  absl::StatusOr<LinkProfile> Measure(bool samples) {
    CADRE_RETURN_IF_ERROR(MeasureAlpha());
    CADRE_RETURN_IF_ERROR(MeasureBeta());
    CADRE_RETURN_IF_ERROR(MeasureGamma());
    if (samples) CADRE_RETURN_IF_ERROR(MeasureSamples());
    return std::move(measured_);
  }

 private:
  // Zeroed memory, valid until the next call with the same `slot`.
  absl::StatusOr<std::span<std::byte>> Memory(size_t slot, size_t bytes) {
    memory_[slot] = {};
    memory_[slot] = DeviceArray<float>(medium_.device, bytes / sizeof(float), "link probe");
    CADRE_RETURN_IF_ERROR(medium_.device.Synchronize());
    return std::as_writable_bytes(memory_[slot].span());
  }

  // Seconds per run of one measurement of `runs` runs, up to the end of all enqueued work.
  absl::StatusOr<double> Reading(int runs, const std::function<absl::Status()>& run) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < runs; ++i) CADRE_RETURN_IF_ERROR(run());
    medium_.device.Record(*done_);
    CADRE_RETURN_IF_ERROR(medium_.device.Await(*done_));
    return SecondsSince(start) / runs;
  }

  absl::StatusOr<std::vector<double>> Readings(int count, int runs,
                                               const std::function<absl::Status()>& run) {
    std::vector<double> seconds(count);
    for (double& reading : seconds) {
      CADRE_ASSIGN_OR_RETURN(reading, Reading(runs, run));
    }
    return seconds;
  }

  absl::StatusOr<double> MedianOf(int readings, int runs,
                                  const std::function<absl::Status()>& run) {
    CADRE_ASSIGN_OR_RETURN(std::vector<double> seconds, Readings(readings, runs, run));
    return MaxOverMembers(Median(std::move(seconds)));
  }

  // The maximum over the members.
  absl::StatusOr<double> MaxOverMembers(double own) {
    std::vector<double> values(host_.size());
    values[host_.index()] = own;
    CADRE_RETURN_IF_ERROR(host_.AllReduceSum(std::span(values)));
    return *std::max_element(values.begin(), values.end());
  }

  absl::Status MeasureAlpha() { return &all_ == &host_ ? TimeBarriers() : TimeShortExchanges(); }

  absl::Status TimeBarriers() {
    const auto barrier = [this] { return all_.Barrier(); };
    // The first barrier waits for late members and touches cold buffers.
    CADRE_RETURN_IF_ERROR(barrier());
    CADRE_ASSIGN_OR_RETURN(const double first, MedianOf(1, 2, barrier));
    const int readings = std::clamp(kBarrierSeconds / std::max(first, 1e-7), 3.0, 999.0);
    CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(readings, 1, barrier));
    // Steps of the dissemination algorithm.
    const unsigned last_member = all_.size() - 1;
    const int steps = std::bit_width(last_member);
    measured_.alpha = seconds / steps;
    return absl::OkStatus();
  }

  absl::Status TimeShortExchanges() {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> out, Memory(0, sizeof(float)));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> in, Memory(1, sizeof(float)));
    const auto shift = [&] { return ShiftExchange(out, in); };
    // The first exchange connects the members.
    CADRE_RETURN_IF_ERROR(Reading(1, shift).status());
    CADRE_ASSIGN_OR_RETURN(const double first, MedianOf(1, kDeviceExchanges, shift));
    const double each = kBarrierSeconds / std::max(kDeviceExchanges * first, 1e-7);
    const int readings = std::clamp(each, 3.0, 99.0);
    CADRE_ASSIGN_OR_RETURN(measured_.alpha, MedianOf(readings, kDeviceExchanges, shift));
    return absl::OkStatus();
  }

  // Every member sends `out` to the next one and receives `in` from the previous one.
  absl::Status ShiftExchange(std::span<const std::byte> out, std::span<std::byte> in) {
    const int size = all_.size();
    std::vector<std::span<const std::byte>> send(size);
    std::vector<std::span<std::byte>> receive(size);
    send[(all_.index() + 1) % size] = out;
    receive[(all_.index() + size - 1) % size] = in;
    return all_.AllToAll(send, receive);
  }

  absl::Status MeasureBeta() {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> out, Memory(0, kMaxExchange));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> in, Memory(1, kMaxExchange));
    for (size_t bytes = kMinExchange;; bytes *= 4) {
      const auto shift = [&] { return ShiftExchange(out.first(bytes), in.first(bytes)); };
      CADRE_RETURN_IF_ERROR(Reading(1, shift).status());
      CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(kMinReadings, 1, shift));
      if (seconds >= kExchangeSeconds || bytes * 4 > kMaxExchange) {
        return MeasureStream(bytes, seconds, shift);
      }
    }
  }

  // A stream of exchanges of `bytes`, each of which takes about `expected`.
  absl::Status MeasureStream(size_t bytes, double expected,
                             const std::function<absl::Status()>& shift) {
    const double target = expected < kExchangeSeconds ? kFastReadingSeconds : kSlowReadingSeconds;
    const int runs = std::max(1L, std::lround(target / std::max(expected, 1e-6)));
    CADRE_RETURN_IF_ERROR(Reading(runs, shift).status());
    const double before = ProcessorSeconds();
    CADRE_ASSIGN_OR_RETURN(std::vector<double> seconds, Readings(kStreamReadings, runs, shift));
    const double processor = (ProcessorSeconds() - before) / (kStreamReadings * runs);
    CADRE_ASSIGN_OR_RETURN(const double each, MaxOverMembers(TrimmedMean(std::move(seconds))));
    CADRE_ASSIGN_OR_RETURN(const double maximum, MaxOverMembers(processor));
    // If latency varies, alpha may exceed the measured time.
    const double moving = std::max(each - measured_.alpha, each / 10);
    measured_.beta = moving / bytes;
    measured_.processor = maximum / bytes;
    return absl::OkStatus();
  }

  absl::Status MeasureGamma() {
    const size_t bytes = medium_.sum_bytes;
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> sum, Memory(0, bytes));
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> values, Memory(1, bytes));
    const auto add = [&] {
      medium_.add(sum, values);
      return absl::OkStatus();
    };
    CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(kMaxReadings, 4, add));
    measured_.gamma = seconds / bytes;
    return absl::OkStatus();
  }

  absl::Status MeasureSamples() {
    const Clock::time_point start = Clock::now();
    const double budget =
        std::clamp(kSampleBytes * measured_.beta, kMinSampleSeconds, kMaxSampleSeconds);
    // Upper estimate for a round of all algorithms at the first size: the ring sends the most
    // messages, the butterfly the most bytes.
    const double steps = 2.0 * (all_.size() - 1);
    double round = algorithms_.size() * (steps * measured_.alpha +
                                         kMinSample * measured_.beta * std::log2(all_.size() + 1));
    for (int64_t bytes = kMinSample; bytes <= kMaxSample; bytes *= kSampleFactor) {
      CADRE_ASSIGN_OR_RETURN(const double spent, MaxOverMembers(SecondsSince(start)));
      // At least one round precedes the readings.
      if ((kMinReadings + 1) * round > budget - spent) break;
      CADRE_ASSIGN_OR_RETURN(round, MeasureSize(bytes, round, budget - spent));
      round *= kSampleFactor;
    }
    return absl::OkStatus();
  }

  // Number of rounds, of about `expected` seconds each, that use up the burst before the readings.
  int RoundsToDrain(int64_t bytes, double expected) const {
    const double link_seconds = measured_.beta * bytes * algorithms_.size();
    const double target = std::max(kDrainSeconds, kDrainBytes * measured_.beta) / link_seconds;
    const double limit = kMaxDrainSeconds / expected;
    return std::max(1.0, std::min(std::ceil(target), limit));
  }

  bool may_be_shaped() const { return measured_.beta > kShapedByteSeconds; }

  // Number of all-reduces of about `each` seconds in a reading.
  int RunsPerReading(double each) const {
    double target = kReadingSeconds;
    if (may_be_shaped()) {
      target = std::max(kSteadySeconds, kSteadyBytes * measured_.beta);
    }
    return std::clamp(target / std::max(each, 1e-7), 1.0, 1.0 * kMaxPerReading);
  }

  // Appends the samples of one size. At most `left` seconds may be spent; a round is expected to
  // take `expected`. Returns the measured seconds of a round.
  absl::StatusOr<double> MeasureSize(int64_t bytes, double expected, double left) {
    CADRE_ASSIGN_OR_RETURN(const std::span<std::byte> raw, Memory(0, bytes));
    const auto all_reduce = [&](size_t which) {
      return
          [this, raw, which] { return all_.AllReduce(algorithms_[which], DType::kFloat32, raw); };
    };
    for (int round = RoundsToDrain(bytes, expected); round > 0; --round) {
      for (size_t which = 0; which < algorithms_.size(); ++which) {
        CADRE_RETURN_IF_ERROR(Reading(1, all_reduce(which)).status());
      }
    }
    const int runs = RunsPerReading(expected / algorithms_.size());
    // At most half of the remaining time, since larger sizes follow.
    const int readings = std::clamp(left / 2 / (expected * runs), 1.0 * kMinReadings,
                                    1.0 * (may_be_shaped() ? kMaxSteadyReadings : kMaxReadings));
    std::vector<std::vector<double>> seconds(algorithms_.size());
    for (int reading = 0; reading < readings; ++reading) {
      for (size_t position = 0; position < algorithms_.size(); ++position) {
        // The order rotates, so that no algorithm always follows the same one.
        const size_t which = (position + reading) % algorithms_.size();
        CADRE_ASSIGN_OR_RETURN(const double one, Reading(runs, all_reduce(which)));
        seconds[which].push_back(one);
      }
    }
    double round = 0;
    for (size_t which = 0; which < algorithms_.size(); ++which) {
      CADRE_ASSIGN_OR_RETURN(const double maximum,
                             MaxOverMembers(TrimmedMean(std::move(seconds[which]))));
      measured_.samples.push_back({algorithms_[which], all_.size(), bytes, maximum});
      round += maximum;
    }
    return round;
  }

  Communicator& all_;
  Communicator& host_;
  const Medium& medium_;
  const std::unique_ptr<DeviceEvent> done_;
  std::array<DeviceArray<float>, 2> memory_;
  std::vector<Algorithm> algorithms_;
  LinkProfile measured_;
};

}  // namespace

absl::StatusOr<LinkProfile> MeasureLink(Communicator& all, bool samples) {
  if (all.size() == 1) return LinkProfile{};
  const std::unique_ptr<Device> host = MakeHostDevice();
  const Combine combine = SumOf(DType::kFloat32);
  const Medium medium{
      .device = *host,
      .add = [&](auto sum, auto values) { combine.add(sum.data(), values.data(), values.size()); },
      .sum_bytes = kSumBytes};
  return LinkProbe(all, all, medium).Measure(samples);
}

absl::StatusOr<LinkProfile> MeasureDeviceLink(Communicator& all, Communicator& host,
                                              Backend& kernels) {
  if (all.size() == 1) return LinkProfile{};
  const Medium medium{.device = kernels.device(),
                      .add =
                          [&](auto sum, auto values) {
                            kernels.memory().AccumulateReceived(DType::kFloat32, sum, values);
                          },
                      .sum_bytes = kDeviceSumBytes};
  return LinkProbe(all, host, medium).Measure(/*samples=*/true);
}

}  // namespace cadre
