#include "worker/comm/link_probe.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "base/median.h"
#include "base/status.h"
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

class Probe {
 public:
  explicit Probe(Communicator& all) : all_(all) {}

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
    std::vector<double> values(static_cast<size_t>(all_.size()));
    values[static_cast<size_t>(all_.index())] = own;
    std::vector<int64_t> offsets;
    for (int member = 0; member <= all_.size(); ++member) {
      offsets.push_back(static_cast<int64_t>(sizeof(double)) * member);
    }
    CADRE_RETURN_IF_ERROR(all_.AllGatherBytes(std::as_writable_bytes(std::span(values)), offsets));
    return *std::max_element(values.begin(), values.end());
  }

  absl::Status MeasureAlpha() {
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
    std::vector<std::byte> out(kMostExchange);
    std::vector<std::byte> in(kMostExchange);
    for (size_t bytes = kLeastExchange;; bytes *= 4) {
      const auto shift = [&] {
        return Shift(std::span(out).first(bytes), std::span(in).first(bytes));
      };
      CADRE_RETURN_IF_ERROR(shift());
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
    std::vector<float> sum(kSumBytes / sizeof(float));
    const std::vector<float> values(sum.size());
    const Combine combine = SumOf(DType::kFloat32);
    const auto add = [&] {
      combine.add(reinterpret_cast<std::byte*>(sum.data()),
                  reinterpret_cast<const std::byte*>(values.data()), kSumBytes);
      return absl::OkStatus();
    };
    CADRE_ASSIGN_OR_RETURN(const double seconds, MedianOf(kMostReadings, 4, add));
    measured_.gamma = seconds / static_cast<double>(kSumBytes);
    return absl::OkStatus();
  }

  absl::Status MeasureSamples() {
    const Clock::time_point start = Clock::now();
    const double budget =
        std::clamp(kSampleBytes * measured_.beta, kLeastSampleSeconds, kMostSampleSeconds);
    // What a round of all algorithms may take at the first size: the ring has most messages, the
    // butterfly most bytes.
    const double steps = 2.0 * (all_.size() - 1);
    double round = kSampled.size() * (steps * measured_.alpha +
                                      kLeastSample * measured_.beta * std::log2(all_.size() + 1));
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
    const double link_seconds = static_cast<double>(kSampled.size() * bytes) * measured_.beta;
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
    std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
    const std::span<std::byte> raw = std::as_writable_bytes(std::span(data));
    const auto all_reduce = [&](size_t which) {
      return [this, raw, which] { return all_.AllReduce(kSampled[which], DType::kFloat32, raw); };
    };
    for (int round = RoundsToDrain(bytes, expected); round > 0; --round) {
      for (size_t which = 0; which < kSampled.size(); ++which) {
        CADRE_RETURN_IF_ERROR(all_reduce(which)());
      }
    }
    const int runs = RunsPerReading(expected / kSampled.size());
    // Half of what is left at most: larger sizes want some, too.
    const int readings =
        static_cast<int>(std::clamp(left / 2 / (expected * runs), 1.0 * kLeastReadings,
                                    1.0 * (may_be_shaped() ? kMostSteadyReadings : kMostReadings)));
    std::array<std::vector<double>, kSampled.size()> seconds;
    for (int reading = 0; reading < readings; ++reading) {
      for (size_t turn = 0; turn < kSampled.size(); ++turn) {
        // Another begins each time: nobody always follows the same one.
        const size_t which = (turn + static_cast<size_t>(reading)) % kSampled.size();
        CADRE_ASSIGN_OR_RETURN(const double once, Reading(runs, all_reduce(which)));
        seconds[which].push_back(once);
      }
    }
    double round = 0;
    for (size_t which = 0; which < kSampled.size(); ++which) {
      CADRE_ASSIGN_OR_RETURN(const double agreed, Agree(MiddleMean(std::move(seconds[which]))));
      measured_.samples.push_back({kSampled[which], bytes, agreed});
      round += agreed;
    }
    return round;
  }

  Communicator& all_;
  LinkMeasure measured_;
};

}  // namespace

absl::StatusOr<LinkMeasure> MeasureLink(Communicator& all, const LinkProbeOptions& options) {
  if (all.size() == 1) return LinkMeasure{};
  return Probe(all).Measure(options);
}

}  // namespace cadre
