// Speed and size of the codecs (kernels/codec) on one core, on normally distributed values, beside
// a copy of the same memory, which bounds them. One JSON line for each codec.
//
//   bench_codec
//
// `encode_gb_per_second` and `decode_gb_per_second` count the bytes of the fp32 values. They are
// medians; `best_` is the fastest round, which hardly depends on what else the machine computes.
#include <gflags/gflags.h>

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

namespace cadre {
namespace {

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"values", FLAGS_values}, {"seconds", FLAGS_seconds}}));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(FLAGS_values);
  for (float& value : values) value = normal(random);
  const double gigabytes = 1e-9 * static_cast<double>(values.size() * sizeof(float));
  const std::vector<std::pair<const char*, Codec>> codecs = {
      {"fp32", {CodecKind::kFp32}},         {"bf16", {CodecKind::kBf16}},
      {"int8", {CodecKind::kInt8}},         {"e3m0", {CodecKind::kE3m0}},
      {"stat2", {CodecKind::kStat2}},       {"topk 64", {CodecKind::kTopK, 64}},
      {"topk 128", {CodecKind::kTopK, 128}}};
  for (const auto& [name, codec] : codecs) {
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
                           MeasureInterleaved({timed([&, codec = codec] {
                                                 coded.clear();
                                                 Encode(codec, values, &coded).IgnoreError();
                                               }),
                                               timed([&, codec = codec] {
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
    line["bits_per_value"] =
        Rounded(8.0 * static_cast<double>(code.size()) / static_cast<double>(values.size()), 4);
    const char* const names[] = {"encode", "decode", "copy"};
    for (size_t i = 0; i < timings.size(); ++i) {
      const std::string field = absl::StrCat(names[i], "_gb_per_second");
      line[field] = Rounded(gigabytes / timings[i].seconds, 2);
      line["best_" + field] = Rounded(gigabytes / timings[i].min_seconds, 2);
    }
    PrintLine(line);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_codec [flags]", cadre::Run);
}
