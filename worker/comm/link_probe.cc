#include "worker/comm/link_probe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "base/status.h"
#include "worker/comm/reduce.h"

namespace cadre {
namespace {

// One that is never set.
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Everything together, where links are fast.
constexpr double kBudgetSeconds = 0.25;
// Of that, what barriers get.
constexpr double kBarrierSeconds = 0.02;
// An exchange that lasts so long tells the bandwidth: little of it is latency, or what a shaped
// link lets through at first.
constexpr double kExchangeSeconds = 5e-3;
constexpr size_t kLeastExchange = size_t{64} << 10;
constexpr size_t kMostExchange = size_t{4} << 20;
// Adding is timed on what a processor's second cache holds: what has just arrived is there.
constexpr size_t kSumBytes = size_t{128} << 10;
// Sizes of the all-reduces that are timed.
constexpr int64_t kLeastSample = int64_t{1} << 10;
constexpr int64_t kMostSample = int64_t{16} << 20;
constexpr int64_t kSampleFactor = 4;
// One reading covers so many all-reduces that it takes at least that long, and a size gets so many
// readings by each algorithm: many where they are cheap, for the median to be worth something.
constexpr double kReadingSeconds = 2e-4;
constexpr int kMostPerReading = 64;
constexpr int kMostReadings = 15;
constexpr int kLeastReadings = 3;
constexpr std::array<Algorithm, 3> kSampled = {Algorithm::kRing, Algorithm::kButterfly,
                                               Algorithm::kHalvingDoubling};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Probe {
 public:
  explicit Probe(Communicator& all) : all_(all) {}

  absl::StatusOr<LinkMeasure> Measure() {
    CADRE_RETURN_IF_ERROR(MeasureAlpha());
    CADRE_RETURN_IF_ERROR(MeasureBeta());
    CADRE_RETURN_IF_ERROR(MeasureGamma());
    CADRE_RETURN_IF_ERROR(MeasureSamples());
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

  absl::StatusOr<double> SecondsLeft() {
    CADRE_ASSIGN_OR_RETURN(const double spent, Agree(SecondsSince(start_)));
    return kBudgetSeconds - spent;
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
      if (seconds < kExchangeSeconds && bytes * 4 <= kMostExchange) continue;
      // Latency that varies may be more than all of it.
      const double moving = std::max(seconds - measured_.alpha, seconds / 10);
      measured_.beta = moving / static_cast<double>(bytes);
      return absl::OkStatus();
    }
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
    // What a round of all algorithms may take at the first size: the ring has most messages, the
    // butterfly most bytes.
    const double steps = 2.0 * (all_.size() - 1);
    double round = kSampled.size() * (steps * measured_.alpha +
                                      kLeastSample * measured_.beta * std::log2(all_.size() + 1));
    for (int64_t bytes = kLeastSample; bytes <= kMostSample; bytes *= kSampleFactor) {
      CADRE_ASSIGN_OR_RETURN(const double left, SecondsLeft());
      // One round comes before the readings.
      if ((kLeastReadings + 1) * round > left) break;
      CADRE_ASSIGN_OR_RETURN(round, MeasureSize(bytes, round, left));
      round *= kSampleFactor;
    }
    return absl::OkStatus();
  }

  // Appends the samples of one size, on which `left` seconds at most may be spent, a round taking
  // about `expected`. Returns what a round took.
  absl::StatusOr<double> MeasureSize(int64_t bytes, double expected, double left) {
    std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
    const std::span<std::byte> raw = std::as_writable_bytes(std::span(data));
    const auto all_reduce = [&](size_t which) {
      return [this, raw, which] { return all_.AllReduce(kSampled[which], DType::kFloat32, raw); };
    };
    for (size_t which = 0; which < kSampled.size(); ++which) {
      CADRE_RETURN_IF_ERROR(all_reduce(which)());
    }
    const double each = expected / kSampled.size();
    const int runs = static_cast<int>(
        std::clamp(kReadingSeconds / std::max(each, 1e-7), 1.0, 1.0 * kMostPerReading));
    // Half of what is left at most: larger sizes want some, too.
    const int readings = static_cast<int>(
        std::clamp(left / 2 / (expected * runs), 1.0 * kLeastReadings, 1.0 * kMostReadings));
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
      CADRE_ASSIGN_OR_RETURN(const double agreed, Agree(Median(std::move(seconds[which]))));
      measured_.samples.push_back({kSampled[which], bytes, agreed});
      round += agreed;
    }
    return round;
  }

  Communicator& all_;
  const Clock::time_point start_ = Clock::now();
  LinkMeasure measured_;
};

}  // namespace

absl::StatusOr<LinkMeasure> MeasureLink(Communicator& all) {
  if (all.size() == 1) return LinkMeasure{};
  return Probe(all).Measure();
}

}  // namespace cadre
