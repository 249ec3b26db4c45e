// Normalization over the batch (Ioffe and Szegedy, ICML 2015), over features (Ba et al., 2016), and
// over neighboring channels.
#include <algorithm>
#include <set>
#include <utility>

#include "base/status.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// Mesh axes that split any index over which the statistics of a batch are computed.
std::vector<std::string> StatisticsAxes(const LayerSetting& setting) {
  std::set<std::string> axes;
  for (const char* index : {"samples", "height", "width"}) {
    const auto& of_index = setting.layouts.axes(index);
    axes.insert(of_index.begin(), of_index.end());
  }
  std::vector<std::string> ordered;
  for (const Mesh::Axis& axis : setting.comms.mesh().axes()) {
    if (axis.size > 1 && axes.count(axis.name) > 0) ordered.push_back(axis.name);
  }
  return ordered;
}

// Statistics cover the group's batch unless the spec requests them per rank. Evaluation uses
// running statistics. These are parameters whose "gradient" is the statistic of the batch; each
// rank and micro-batch contributes its share of it to the sum. So they are reduced, owned and
// averaged between groups as weights are, and only the optimizer treats them differently.
class BatchNorm final : public Layer {
 public:
  explicit BatchNorm(LayerSetting setting)
      : kernels_(setting.kernels),
        parameters_(std::move(setting.parameters)),
        epsilon_(setting.layer.settings.batch_norm().epsilon()) {
    const Shape here = setting.region.output.shape();
    dims_.channels = here[here.rank() - 1];
    dims_.rows = dims_.channels == 0 ? 0 : here.elements() / dims_.channels;
    const Shape& sample = setting.layer.output;
    all_rows_ = setting.samples * sample.elements() / sample[sample.rank() - 1];
    const std::vector<std::string> axes = StatisticsAxes(setting);
    const bool per_rank = setting.layer.settings.batch_norm().per_rank();
    if (!per_rank && !axes.empty()) peers_ = &setting.comms.Over(axes);
    statistics_rows_ = per_rank ? dims_.rows : all_rows_;
    sums_ = DeviceArray<double>(kernels_.device(), 2 * channels(), "statistics");
  }

  absl::Status Forward(const PassContext& pass, const LayerTensors& t) override {
    const std::span<float> mean = t.saved_floats().first(channels());
    const std::span<float> inverse = t.saved_floats().subspan(channels(), channels());
    // A batch that is computed again has kept its statistics.
    if (pass.training && !t.again) {
      CADRE_RETURN_IF_ERROR(TakeStatistics(pass, t.x[0], mean, inverse));
    } else if (!pass.training) {
      kernels_.memory().Copy(parameters_[kMean].value, mean);
      kernels_.norm().BatchNormInverse(epsilon_, parameters_[kVariance].value, inverse);
    }
    kernels_.norm().BatchNormForward(dims_, t.x[0], mean, inverse, parameters_[kScale].value,
                                     parameters_[kShift].value, t.addend, PositiveBits(t), t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const std::span<const float> mean = t.saved_floats().first(channels());
    const std::span<const float> inverse = t.saved_floats().subspan(channels(), channels());
    const std::span<const int32_t> positive = PositiveBits(t);
    const std::span<double> sums = sums_.span();
    kernels_.norm().BatchNormBackwardSums(dims_, t.x[0], t.dy, t.other_dy, positive, mean, inverse,
                                          t.total_dy, sums, parameters_[kScale].gradient,
                                          parameters_[kShift].gradient);
    // A collective, so ranks without elements take part, too.
    if (!t.wants_dx[0]) return absl::OkStatus();
    if (peers_ != nullptr) CADRE_RETURN_IF_ERROR(peers_->AllReduceSum(sums));
    const bool stored = !t.total_dy.empty();
    kernels_.norm().BatchNormBackward(dims_, t.x[0], stored ? t.total_dy : t.dy,
                                      stored ? std::span<const int32_t>() : positive, mean, inverse,
                                      parameters_[kScale].value, statistics_rows_, sums, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  enum { kScale, kShift, kMean, kVariance };

  int64_t channels() const { return dims_.channels; }

  // The bits of a fused ReLU, which follow the statistics in what is saved.
  std::span<int32_t> PositiveBits(const LayerTensors& t) const {
    return t.relu ? t.saved_integers().subspan(2 * channels()) : std::span<int32_t>();
  }

  absl::Status TakeStatistics(const PassContext& pass, ConstValues x, std::span<float> mean,
                              std::span<float> inverse) {
    kernels_.norm().BatchNormSums(dims_, x, sums_.span());
    if (peers_ != nullptr) CADRE_RETURN_IF_ERROR(peers_->AllReduceSum(sums_.span()));
    const double share = pass.share * dims_.rows / std::max<int64_t>(1, all_rows_);
    kernels_.norm().BatchNormStatistics(statistics_rows_, epsilon_, share, sums_.span(), mean,
                                        inverse, parameters_[kMean].gradient,
                                        parameters_[kVariance].gradient);
    return absl::OkStatus();
  }

  Backend& kernels_;
  const std::vector<LocalTensor> parameters_;
  const float epsilon_;
  RowsDims dims_;
  // Rows of the whole batch, and rows over which statistics are computed.
  int64_t all_rows_ = 0;
  int64_t statistics_rows_ = 0;
  // Null: statistics are per rank.
  Communicator* peers_ = nullptr;
  // By channel: sums of forward and backward.
  DeviceArray<double> sums_;
};

// Statistics are per row, so a split of rows needs no exchange; features are never split.
class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(LayerSetting setting)
      : kernels_(setting.kernels),
        parameters_(std::move(setting.parameters)),
        epsilon_(setting.layer.settings.layer_norm().epsilon()) {
    const Shape here = setting.region.output.shape();
    dims_.channels = here[here.rank() - 1];
    dims_.rows = here.elements() / std::max<int64_t>(1, dims_.channels);
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.norm().LayerNormForward(dims_, epsilon_, t.x[0], parameters_[0].value,
                                     parameters_[1].value, t.y, t.saved_floats().first(rows()),
                                     t.saved_floats().subspan(rows()));
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    // The kernel always computes the gradient of the input.
    const Values dx = t.wants_dx[0] ? t.dx[0] : t.scratch;
    kernels_.norm().LayerNormBackward(dims_, t.x[0], t.dy, t.saved_floats().first(rows()),
                                      t.saved_floats().subspan(rows()), parameters_[0].value, dx,
                                      parameters_[0].gradient, parameters_[1].gradient);
    return absl::OkStatus();
  }

 private:
  int64_t rows() const { return dims_.rows; }

  Backend& kernels_;
  const std::vector<LocalTensor> parameters_;
  const float epsilon_;
  RowsDims dims_;
};

// Normalizes by neighboring channels (Krizhevsky et al., NeurIPS 2012), which are never split.
class LocalResponseNorm final : public Layer {
 public:
  explicit LocalResponseNorm(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape here = setting.region.output.shape();
    const v1::LocalResponseNorm& settings = setting.layer.settings.local_response_norm();
    dims_ = {.channels = here[here.rank() - 1],
             .size = settings.size(),
             .alpha = settings.alpha(),
             .beta = settings.beta(),
             .k = settings.k()};
    dims_.rows = here.elements() / std::max<int64_t>(1, dims_.channels);
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.norm().LrnForward(dims_, t.x[0], t.y, t.saved_floats());
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty())
      kernels_.norm().LrnBackward(dims_, t.x[0], t.saved_floats(), t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  LrnDims dims_;
};

}  // namespace

std::unique_ptr<Layer> MakeNormLayer(LayerSetting setting) {
  switch (setting.layer.kind) {
    case LayerKind::kBatchNorm:
      return std::make_unique<BatchNorm>(std::move(setting));
    case LayerKind::kLayerNorm:
      return std::make_unique<LayerNorm>(std::move(setting));
    default:
      return std::make_unique<LocalResponseNorm>(std::move(setting));
  }
}

}  // namespace cadre
