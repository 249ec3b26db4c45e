// Normalisation: over the batch, over features, over neighbouring channels.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/status.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// Axes of all indices that a batch's statistics run over, in the mesh's order.
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

// Statistics are those of the group's batch unless the spec says per rank. In evaluation they are
// the running ones, which are parameters whose "gradient" is this batch's statistic: the rank's
// share of it, such that the shares of all ranks and micro-batches add up.
class BatchNorm final : public Layer {
 public:
  explicit BatchNorm(LayerSetting setting)
      : kernels_(setting.kernels),
        parameters_(std::move(setting.parameters)),
        epsilon_(setting.layer.settings.batch_norm().epsilon()) {
    const Shape here = setting.place.output.shape();
    dims_.channels = here[here.rank() - 1];
    dims_.rows = dims_.channels == 0 ? 0 : here.elements() / dims_.channels;
    const Shape& sample = setting.layer.output;
    all_rows_ = setting.samples * sample.elements() / sample[sample.rank() - 1];
    const std::vector<std::string> axes = StatisticsAxes(setting);
    const bool per_rank = setting.layer.settings.batch_norm().per_rank();
    if (!per_rank && !axes.empty()) peers_ = &setting.comms.Over(axes);
    statistics_rows_ = per_rank ? dims_.rows : all_rows_;
  }

  absl::Status Forward(const PassContext& pass, const LayerTensors& t) override {
    const std::span<float> mean = t.saved.first(channels());
    const std::span<float> inverse = t.saved.subspan(channels());
    if (pass.training) {
      CADRE_RETURN_IF_ERROR(TakeStatistics(pass, t.x[0], mean, inverse));
    } else {
      for (size_t c = 0; c < channels(); ++c) {
        mean[c] = parameters_[kMean].value[c];
        inverse[c] = Inverse(parameters_[kVariance].value[c]);
      }
    }
    kernels_.BatchNormForward(dims_, t.x[0], mean, inverse, parameters_[kScale].value,
                              parameters_[kShift].value, t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const std::span<const float> mean = t.saved.first(channels());
    const std::span<const float> inverse = t.saved.subspan(channels());
    sums_.resize(2 * channels());
    kernels_.BatchNormBackwardSums(dims_, t.x[0], t.dy, mean, inverse, sums_);
    for (size_t c = 0; c < channels(); ++c) {
      parameters_[kShift].gradient[c] = static_cast<float>(sums_[c]);
      parameters_[kScale].gradient[c] = static_cast<float>(sums_[channels() + c]);
    }
    // A rank without elements takes part in the sum all the same.
    if (!t.wants_dx[0]) return absl::OkStatus();
    if (peers_ != nullptr) CADRE_RETURN_IF_ERROR(peers_->AllReduceSum(std::span<double>(sums_)));
    means_.resize(2 * channels());
    for (size_t i = 0; i < means_.size(); ++i) means_[i] = static_cast<float>(PerRow(sums_[i]));
    const std::span<const float> means(means_);
    kernels_.BatchNormBackward(dims_, t.x[0], t.dy, mean, inverse, parameters_[kScale].value,
                               means.first(channels()), means.subspan(channels()), t.dx[0]);
    return absl::OkStatus();
  }

 private:
  enum { kScale, kShift, kMean, kVariance };

  size_t channels() const { return static_cast<size_t>(dims_.channels); }
  double PerRow(double sum) const {
    return sum / static_cast<double>(std::max<int64_t>(1, statistics_rows_));
  }
  float Inverse(double variance) const {
    return static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(epsilon_)));
  }

  absl::Status TakeStatistics(const PassContext& pass, std::span<const float> x,
                              std::span<float> mean, std::span<float> inverse) {
    sums_.resize(2 * channels());
    kernels_.BatchNormSums(dims_, x, sums_);
    if (peers_ != nullptr) CADRE_RETURN_IF_ERROR(peers_->AllReduceSum(std::span<double>(sums_)));
    const double rows = static_cast<double>(statistics_rows_);
    // The running variance is that of the population that the batch is drawn from.
    const double unbiased = statistics_rows_ > 1 ? rows / (rows - 1) : 1.0;
    const double share = pass.share * static_cast<double>(dims_.rows) /
                         static_cast<double>(std::max<int64_t>(1, all_rows_));
    for (size_t c = 0; c < channels(); ++c) {
      const double average = PerRow(sums_[c]);
      const double variance = std::max(0.0, PerRow(sums_[channels() + c]) - average * average);
      mean[c] = static_cast<float>(average);
      inverse[c] = Inverse(variance);
      parameters_[kMean].gradient[c] = static_cast<float>(share * average);
      parameters_[kVariance].gradient[c] = static_cast<float>(share * unbiased * variance);
    }
    return absl::OkStatus();
  }

  Kernels& kernels_;
  const std::vector<LocalTensor> parameters_;
  const float epsilon_;
  RowsDims dims_;
  // Of the whole batch, and those that statistics are taken over.
  int64_t all_rows_ = 0;
  int64_t statistics_rows_ = 0;
  // Null: the statistics are this rank's own.
  Communicator* peers_ = nullptr;
  std::vector<double> sums_;
  std::vector<float> means_;
};

class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(LayerSetting setting)
      : kernels_(setting.kernels),
        parameters_(std::move(setting.parameters)),
        epsilon_(setting.layer.settings.layer_norm().epsilon()) {
    const Shape here = setting.place.output.shape();
    dims_.channels = here[here.rank() - 1];
    dims_.rows = here.elements() / std::max<int64_t>(1, dims_.channels);
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.LayerNormForward(dims_, epsilon_, t.x[0], parameters_[0].value, parameters_[1].value,
                              t.y, t.saved.first(rows()), t.saved.subspan(rows()));
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    std::span<float> dx = t.dx[0];
    if (dx.empty()) {  // the kernel makes it in any case
      unwanted_.resize(t.dy.size());
      dx = unwanted_;
    }
    kernels_.LayerNormBackward(dims_, t.x[0], t.dy, t.saved.first(rows()), t.saved.subspan(rows()),
                               parameters_[0].value, dx, parameters_[0].gradient,
                               parameters_[1].gradient);
    return absl::OkStatus();
  }

 private:
  size_t rows() const { return static_cast<size_t>(dims_.rows); }

  Kernels& kernels_;
  const std::vector<LocalTensor> parameters_;
  const float epsilon_;
  RowsDims dims_;
  std::vector<float> unwanted_;
};

class LocalResponseNorm final : public Layer {
 public:
  explicit LocalResponseNorm(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape here = setting.place.output.shape();
    const v1::LocalResponseNorm& settings = setting.layer.settings.local_response_norm();
    dims_ = {.channels = here[here.rank() - 1],
             .size = settings.size(),
             .alpha = settings.alpha(),
             .beta = settings.beta(),
             .k = settings.k()};
    dims_.rows = here.elements() / std::max<int64_t>(1, dims_.channels);
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.LrnForward(dims_, t.x[0], t.y, t.saved);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty()) kernels_.LrnBackward(dims_, t.x[0], t.saved, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Kernels& kernels_;
  LrnDims dims_;
};

}  // namespace

std::unique_ptr<Layer> MakeBatchNorm(LayerSetting setting) {
  return std::make_unique<BatchNorm>(std::move(setting));
}

std::unique_ptr<Layer> MakeLayerNorm(LayerSetting setting) {
  return std::make_unique<LayerNorm>(std::move(setting));
}

std::unique_ptr<Layer> MakeLocalResponseNorm(LayerSetting setting) {
  return std::make_unique<LocalResponseNorm>(std::move(setting));
}

}  // namespace cadre
