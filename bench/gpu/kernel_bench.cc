// The ceiling of a kernel that moves data is the rate of a copy within the device, which reads and
// writes each byte; the ceiling of a product is the rate of one large matrix product in the same
// precision. Counted bytes are those that must be moved at least once, so a kernel that moves
// nothing twice and never waits reaches 100 per cent, and more if it finds its tensors in a cache.
#include "bench/gpu/kernel_bench.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/harness.h"
#include "glog/logging.h"

namespace cadre {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr size_t kNumbers = size_t{1} << 24;

}  // namespace

KernelBench::KernelBench(CudaDevice& device, Backend& kernels, EventTimer& timer,
                         const KernelBenchOptions& options)
    : device_(device),
      kernels_(kernels),
      timer_(timer),
      options_(options),
      numbers_(device, std::min(kNumbers * sizeof(uint16_t), options.memory), "benchmark"),
      memory_(device, options.memory, "benchmark") {
  if (device.failed()) return;
  std::vector<uint16_t> halves(numbers_.size() / sizeof(uint16_t));
  uint64_t state = 1;
  for (uint16_t& half : halves) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // The sign and the fraction are random; exponents are those of [1/8, 1).
    half = static_cast<uint16_t>((state >> 48 & 0x807F) | ((124 + (state >> 40) % 3) << 7));
  }
  device.CopyIn(halves.data(), numbers_.data(), halves.size() * sizeof(uint16_t));
  used_ = memory_.size();
  Clear();
}

void KernelBench::Clear() {
  for (size_t at = 0; at < used_; at += numbers_.size()) {
    device_.Copy(numbers_.data(), memory_.data() + at, std::min(numbers_.size(), used_ - at));
  }
  used_ = 0;
}

Values KernelBench::Take(int64_t elements, DType type) {
  const size_t bytes = static_cast<size_t>(elements) * SizeOf(type);
  CHECK_LE(used_ + bytes, memory_.size());
  const Values values(memory_.data() + used_, elements, type);
  used_ += (bytes + 255) / 256 * 256;
  return values;
}

absl::StatusOr<nlohmann::ordered_json> KernelBench::MeasureCeilings() {
  CADRE_RETURN_IF_ERROR(device_.status());
  Clear();
  const std::span<float> from = Floats(options_.elements), to = Floats(options_.elements);
  CADRE_ASSIGN_OR_RETURN(
      const double copying,
      timer_.Seconds([&] { device_.Copy(from.data(), to.data(), from.size_bytes()); },
                     options_.rounds));
  copy_ = 2 * static_cast<double>(from.size_bytes()) / copying;
  CADRE_ASSIGN_OR_RETURN(bf16_, ProductRate(Precision::kBf16));
  CADRE_ASSIGN_OR_RETURN(tf32_, ProductRate(Precision::kTf32));
  return nlohmann::ordered_json{{"elements", options_.elements},
                                {"copy_gbs", Rounded(copy_ / kGiga, 1)},
                                {"product_bf16_tflops", Rounded(bf16_ / kTera, 1)},
                                {"product_tf32_tflops", Rounded(tf32_ / kTera, 1)}};
}

absl::StatusOr<double> KernelBench::ProductRate(Precision precision) {
  Clear();
  CADRE_RETURN_IF_ERROR(kernels_.SetPrecision(precision));
  const int64_t side = options_.side;
  const FullyConnectedDims dims{.batch = 2 * side, .in = side, .out = side};
  const Values x = Tensor(dims.batch * dims.in), y = Tensor(dims.batch * dims.out);
  const std::span<float> w = Floats(dims.in * dims.out);
  kernels_.WeightsChanged(w);
  CADRE_ASSIGN_OR_RETURN(
      const double seconds,
      timer_.Seconds([&] { kernels_.dense().FullyConnectedForward(dims, x, w, {}, y); },
                     options_.rounds));
  return 2.0 * static_cast<double>(dims.batch * dims.in * dims.out) / seconds;
}

absl::Status KernelBench::SetPrecision(Precision precision) {
  const bool bf16 = precision == Precision::kBf16;
  suffix_ = bf16 ? " bf16" : " tf32";
  products_ = bf16 ? bf16_ : tf32_;
  return kernels_.SetPrecision(precision);
}

void KernelBench::TimeBytes(absl::string_view kernel, double bytes,
                            const std::function<void()>& work) {
  Time(kernel, bytes, copy_, kGiga, "gbs", work);
}

void KernelBench::TimeFlop(absl::string_view kernel, double flop,
                           const std::function<void()>& work) {
  Time(kernel, flop, products_, kTera, "tflops", work);
}

void KernelBench::Time(absl::string_view kernel, double amount, double ceiling, double unit,
                       const char* field, const std::function<void()>& work) {
  const std::string name = absl::StrCat(kernel, suffix_);
  const auto selects = [&](const std::string& word) { return absl::StrContains(name, word); };
  if (!options_.only.empty() && std::ranges::none_of(options_.only, selects)) return;
  if (!status_.ok()) return;
  const absl::StatusOr<double> seconds = timer_.Seconds(work, options_.rounds);
  status_ = seconds.status();
  if (!seconds.ok()) return;
  const double rate = amount / *seconds;
  PrintLine({{"bench", "gpu_kernel"},
             {"device", device_.name()},
             {"kernel", name},
             {"us", Rounded(*seconds * 1e6, 2)},
             {field, Rounded(rate / unit, 1)},
             {absl::StrCat("ceiling_", field), Rounded(ceiling / unit, 1)},
             {"percent", Rounded(100 * rate / ceiling, 1)}});
}

}  // namespace cadre
