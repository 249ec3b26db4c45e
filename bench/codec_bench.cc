// Speed and size of the codecs (kernels/codec) on one core, on normally distributed values, beside
// a copy of the same memory, which bounds them. One JSON line for each codec.
//
//   bench_codec
//
// `encode_gb_per_second` and `decode_gb_per_second` count the bytes of the fp32 values. They are
// medians; `best_` is the fastest round, which hardly depends on what else the machine computes.
//
//   bench_codec --parameters=25557032 --period_seconds=66
//
// relates the fastest ones to a round of averaging with this model (Round).
#include <gflags/gflags.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "bench/harness.h"
#include "kernels/codec/codec.h"

DEFINE_int32(values, 1 << 20, "Values of a run.");
DEFINE_double(seconds, 2, "Measured seconds for each codec.");
DEFINE_double(parameters, 0, "Parameters of a model, to estimate its rounds; 0: none.");
DEFINE_double(period_seconds, 60, "Seconds that a group trains between two rounds.");
DEFINE_double(gbit_per_second, 1, "Speed of the link of a group.");
DEFINE_int32(groups, 2, "Groups of the run, each of one rank; it has one aggregator.");

namespace cadre {
namespace {

// A round with a codec in both directions, in which nothing overlaps: the group trains, encodes its
// change and decodes it, to know what the code leaves out, and sends it. The aggregator decodes the
// changes of all groups, as a check, and again to average them, encodes the change of the model and
// decodes it. The group receives and decodes it. All codecs run on one core.
struct Round {
  // Times of the whole model.
  double encode_seconds;
  double decode_seconds;
  double bits_per_value;

  double rank_seconds() const { return encode_seconds + 2 * decode_seconds; }
  double aggregator_seconds() const {
    return encode_seconds + (2 * FLAGS_groups + 1) * decode_seconds;
  }
  double coding_seconds() const { return rank_seconds() + aggregator_seconds(); }
  // In both directions, of values of `bits`.
  static double TransferSeconds(double bits) {
    return 2 * FLAGS_parameters * bits / (1e9 * FLAGS_gbit_per_second);
  }
  double seconds() const {
    return FLAGS_period_seconds + coding_seconds() + TransferSeconds(bits_per_value);
  }

  void AddTo(nlohmann::ordered_json& line) const {
    line["parameters"] = FLAGS_parameters;
    line["groups"] = FLAGS_groups;
    line["gbit_per_second"] = FLAGS_gbit_per_second;
    line["period_seconds"] = FLAGS_period_seconds;
    line["rank_seconds"] = Rounded(rank_seconds(), 4);
    line["aggregator_seconds"] = Rounded(aggregator_seconds(), 4);
    line["transfer_seconds"] = Rounded(TransferSeconds(bits_per_value), 4);
    line["fp32_transfer_seconds"] = Rounded(TransferSeconds(32), 4);
    line["coding_share"] = Rounded(coding_seconds() / seconds(), 5);
    // With a period of this length, the share is 5 %.
    const double rest = seconds() - FLAGS_period_seconds;
    line["period_for_5_percent"] = Rounded(std::max(0.0, coding_seconds() / 0.05 - rest), 3);
  }
};

// Prints the line of one codec.
absl::Status Measure(const char* name, const Codec& codec, const std::vector<float>& values) {
  const double gigabytes = 1e-9 * static_cast<double>(values.size() * sizeof(float));
  std::string coded;
  std::vector<float> decoded(values.size());
  CADRE_RETURN_IF_ERROR(Encode(codec, values, &coded));
  const std::string code = coded;
  const auto timed = [](const std::function<void()>& work) {
    return [work](int iterations) -> absl::StatusOr<double> {
      return SecondsOf([&] {
        for (int i = 0; i < iterations; ++i) work();
      });
    };
  };
  CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                         MeasureInterleaved({timed([&] {
                                               coded.clear();
                                               Encode(codec, values, &coded).IgnoreError();
                                             }),
                                             timed([&] {
                                               absl::string_view rest = code;
                                               Decode(codec, &rest, decoded).IgnoreError();
                                             }),
                                             timed([&] {
                                               std::memcpy(decoded.data(), values.data(),
                                                           values.size() * sizeof(float));
                                             })},
                                            {.rounds = 201, .seconds = FLAGS_seconds}));
  nlohmann::ordered_json line = BenchLine("codec");
  line["codec"] = name;
  line["values"] = values.size();
  const double bits = 8.0 * static_cast<double>(code.size()) / static_cast<double>(values.size());
  line["bits_per_value"] = Rounded(bits, 4);
  const char* const names[] = {"encode", "decode", "copy"};
  for (size_t i = 0; i < timings.size(); ++i) {
    const std::string field = absl::StrCat(names[i], "_gb_per_second");
    line[field] = Rounded(gigabytes / timings[i].seconds, 2);
    line["best_" + field] = Rounded(gigabytes / timings[i].min_seconds, 2);
  }
  if (FLAGS_parameters > 0) {
    const double scale = FLAGS_parameters / static_cast<double>(values.size());
    Round{.encode_seconds = timings[0].min_seconds * scale,
          .decode_seconds = timings[1].min_seconds * scale,
          .bits_per_value = bits}
        .AddTo(line);
  }
  PrintLine(line);
  return absl::OkStatus();
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"values", FLAGS_values},
                                         {"seconds", FLAGS_seconds},
                                         {"period_seconds", FLAGS_period_seconds},
                                         {"gbit_per_second", FLAGS_gbit_per_second},
                                         {"groups", FLAGS_groups}}));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(FLAGS_values);
  for (float& value : values) value = normal(random);
  const std::vector<std::pair<const char*, Codec>> codecs = {
      {"fp32", {CodecKind::kFp32}},         {"bf16", {CodecKind::kBf16}},
      {"int8", {CodecKind::kInt8}},         {"e3m0", {CodecKind::kE3m0}},
      {"stat2", {CodecKind::kStat2}},       {"topk 64", {CodecKind::kTopK, 64}},
      {"topk 128", {CodecKind::kTopK, 128}}};
  for (const auto& [name, codec] : codecs) {
    CADRE_RETURN_IF_ERROR(Measure(name, codec, values));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_codec [flags]", cadre::Run);
}
