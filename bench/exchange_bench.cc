// Speed of what a rank computes to exchange its values with one aggregator (member/shard_values), a
// codec in both directions, beside a copy of the same values, which the memory bounds. One JSON
// line for each codec and number of threads.
//
//   bench_exchange
//
// `make`: the frame of the change since the version, and of what earlier frames have left out.
// `decide`: what the frame has left out, when the version includes it. `add`: the frame of a
// version is added. `gb_per_second` counts the bytes of the fp32 values. `bytes_per_value` is what
// each has to read and write at least in the memory, so `of_copy` is how near it comes to the
// bandwidth that one thread's copy shows (8 bytes for each value).
#include <gflags/gflags.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/hardware.h"
#include "base/status.h"
#include "bench/harness.h"
#include "member/shard_values.h"
#include "model/frame.h"

DEFINE_int32(features, 4096, "The model is a matrix of so many rows and columns, and a bias.");
DEFINE_double(seconds, 4, "Measured seconds for each codec and number of threads.");
DEFINE_int32(threads, 0, "Threads beside one; 0: one for each core.");

namespace cadre {
namespace {

// What one rank, which is alone in its group, exchanges with the only aggregator.
class Exchange {
 public:
  Exchange(const ParameterIndex& index, const ExchangeUnits& units, v1::Codec codec, int threads)
      : form_{.index = index, .units = &units, .averaging = AveragingOf(codec), .threads = threads},
        owned_(index.size()),
        values_(form_, {{{0, index.size()}, owned_}}) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (float& value : owned_) value = normal(random);
    values_.SetInitial();
    for (float& value : owned_) value += 0.01F * normal(random);
    std::vector<float> change(owned_.size());
    for (float& value : change) value = 0.01F * normal(random);
    status_ = EncodeFrame(units.In({0, index.size()}), CodecOf(*form_.down), change, &frame_.bytes);
    status_.Update(Make());
    values_.Decide(1, /*included=*/true, /*screened=*/false, progress_);
  }

  absl::Status status() const { return status_; }
  int64_t size() const { return std::ssize(owned_); }
  double bits() const { return 8.0 * static_cast<double>(frame_.bytes.size()) / size(); }

  absl::Status Make() {
    values_.BeginContribution(++round_, /*fragment=*/0);
    return values_.MakeContribution(progress_);
  }
  void Decide() { values_.Decide(round_, /*included=*/true, /*screened=*/false, progress_); }
  absl::Status Add() { return values_.AddFrame(frame_, progress_); }

 private:
  static v1::Averaging AveragingOf(v1::Codec codec) {
    v1::Averaging averaging;
    averaging.mutable_up()->set_codec(codec);
    averaging.mutable_down()->set_codec(codec);
    return averaging;
  }

  const ExchangeForm form_;
  std::vector<float> owned_;
  ShardValues values_;
  PulledFrame frame_;
  TrainerProgress progress_;
  absl::Status status_;
  uint32_t round_ = 0;
};

// Seconds of `iterations` calls of `work`, before each of which `before` is called, uncounted.
TimedRun Timed(std::function<absl::Status()> before, std::function<absl::Status()> work) {
  return [=](int iterations) -> absl::StatusOr<double> {
    double seconds = 0;
    for (int i = 0; i < iterations; ++i) {
      CADRE_RETURN_IF_ERROR(before());
      absl::Status status;
      seconds += SecondsOf([&] { status = work(); });
      CADRE_RETURN_IF_ERROR(status);
    }
    return seconds;
  };
}

absl::Status Measure(const ParameterIndex& index, const ExchangeUnits& units, const char* name,
                     v1::Codec codec, int threads) {
  Exchange exchange(index, units, codec, threads);
  CADRE_RETURN_IF_ERROR(exchange.status());
  const auto nothing = [] { return absl::OkStatus(); };
  std::vector<float> from(exchange.size(), 1);
  std::vector<float> to(exchange.size());
  CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                         MeasureInterleaved({Timed(nothing, [&] { return exchange.Make(); }),
                                             Timed([&] { return exchange.Make(); },
                                                   [&] {
                                                     exchange.Decide();
                                                     return absl::OkStatus();
                                                   }),
                                             Timed(nothing, [&] { return exchange.Add(); }),
                                             Timed(nothing,
                                                   [&] {
                                                     std::memcpy(to.data(), from.data(),
                                                                 to.size() * sizeof(float));
                                                     return absl::OkStatus();
                                                   })},
                                            {.rounds = 51, .seconds = FLAGS_seconds}));
  nlohmann::ordered_json line = BenchLine("exchange");
  line["codec"] = name;
  line["threads"] = threads;
  line["values"] = exchange.size();
  line["bits_per_value"] = Rounded(exchange.bits(), 4);
  const auto rate = [&](const Timing& timing) {
    return 1e-9 * static_cast<double>(exchange.size()) * sizeof(float) / timing.seconds;
  };
  const double copy = rate(timings[3]);
  line["copy_gb_per_second"] = Rounded(copy, 2);
  // Values, version, what is carried, and the frame; the same, and what is carried is written; the
  // version is read and written, and the frame read.
  const double frame = exchange.bits() / 8;
  const std::pair<const char*, double> phases[] = {
      {"make", 12 + frame}, {"decide", 16 + frame}, {"add", 8 + frame}};
  for (size_t i = 0; i < std::size(phases); ++i) {
    const auto& [phase, bytes] = phases[i];
    line[absl::StrCat(phase, "_gb_per_second")] = Rounded(rate(timings[i]), 2);
    line[absl::StrCat(phase, "_bytes_per_value")] = Rounded(bytes, 2);
    line[absl::StrCat(phase, "_of_copy")] = Rounded(rate(timings[i]) * bytes / (copy * 8), 3);
  }
  PrintLine(line);
  return absl::OkStatus();
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(
      RequirePositive({{"features", FLAGS_features}, {"seconds", FLAGS_seconds}}));
  v1::Model model;
  model.mutable_input()->set_channels(1);
  model.mutable_input()->set_height(1);
  model.mutable_input()->set_width(FLAGS_features);
  v1::Layer& layer = *model.add_layer();
  layer.set_name("fc");
  layer.mutable_fully_connected()->set_out_features(FLAGS_features);
  v1::Layer& loss = *model.add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(model));
  const ExchangeUnits units(index);
  std::vector<int> numbers = {1};
  const int more = FLAGS_threads > 0 ? FLAGS_threads : UsableCores();
  if (more > 1) numbers.push_back(more);
  const std::pair<const char*, v1::Codec> codecs[] = {
      {"bf16", v1::CODEC_BF16}, {"int8", v1::CODEC_INT8}, {"e3m0", v1::CODEC_E3M0}};
  for (const auto& [name, codec] : codecs) {
    for (const int threads : numbers) {
      CADRE_RETURN_IF_ERROR(Measure(index, units, name, codec, threads));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_exchange [flags]", cadre::Run);
}
