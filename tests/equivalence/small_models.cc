#include "tests/equivalence/small_models.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "model/run_file.h"

namespace cadre {
namespace {

struct Small {
  // Side of the input image, or tokens.
  uint32_t input = 0;
  // Channels and features are divided by these.
  uint32_t channels = 1;
  uint32_t features = 1;
  // Replaces ReLU by GELU. Among a million activations, some are so close to zero that rounding
  // determines their side of ReLU's kink, and with few samples that is a visible part of a
  // gradient. The two deepest models need this.
  bool smooth = false;
  // Token 0 is padding, and every second attention is not causal. The file has the name before
  // "-padded".
  bool padded = false;
};

constexpr absl::string_view kPadded = "-padded";

// The smallest inputs for which no layer is empty.
const std::map<std::string, Small>& Sizes() {
  static const auto* const sizes = new std::map<std::string, Small>{
      {"mlp", {5, 1, 400}},
      {"lenet", {9, 8, 60}},
      {"alexnet", {67, 48, 400}},
      {"vgg11", {32, 40, 400}},
      {"vgg16", {32, 40, 400}},
      {"resnet18", {33, 24, 1}},
      {"resnet50", {33, 48, 1, true}},
      {"inception-v3", {75, 32, 1, true}},
      {"biglstm", {5, 1, 40}},
      {"gnmt", {7, 1, 40}},
      {"gpt", {6, 1, 16}},
      {"gpt-padded", {.input = 6, .features = 16, .padded = true}},
  };
  return *sizes;
}

constexpr uint32_t kClasses = 7;
constexpr uint32_t kSampledClasses = 3;
constexpr uint32_t kHeads = 3;

uint32_t Reduced(uint32_t size, uint32_t factor, uint32_t min) {
  return std::max(min, size / factor);
}

// A range of tokens of a sequence whose length shrinks from `length` to `small`.
void ShrinkRange(v1::TakeToken& range, uint32_t length, uint32_t small) {
  const uint32_t end = (range.token() + range.count()) * small / length;
  range.set_token(range.token() * small / length);
  if (range.count() > 0) range.set_count(end - range.token());
}

// For sequence models: few features, divisible by the heads, and the same number in all layers.
void ShrinkSequenceLayer(v1::Layer& layer, bool last, uint32_t factor, uint32_t features) {
  if (layer.has_embedding()) {
    layer.mutable_embedding()->set_features(kHeads * std::max(1U, features / factor / kHeads));
    layer.mutable_embedding()->set_vocabulary(kClasses);
  }
  if (layer.has_attention()) layer.mutable_attention()->set_heads(kHeads);
  const uint32_t small = kHeads * std::max(1U, features / factor / kHeads);
  const auto shrunk = [&](uint32_t size) { return size == features ? small : small + 5; };
  if (layer.has_lstm()) {
    v1::Lstm& lstm = *layer.mutable_lstm();
    lstm.set_hidden(shrunk(lstm.hidden()));
    if (lstm.projection() > 0) lstm.set_projection(shrunk(lstm.projection()));
  }
  if (layer.softmax_cross_entropy().has_sampling()) {
    v1::ClassSampling& sampling = *layer.mutable_softmax_cross_entropy()->mutable_sampling();
    sampling.set_classes(kSampledClasses);
    sampling.set_distribution(v1::ClassSampling::LOG_UNIFORM);
  }
  if (!layer.has_fully_connected()) return;
  layer.mutable_fully_connected()->set_out_features(
      last ? kClasses : shrunk(layer.fully_connected().out_features()));
}

void Pad(v1::Model& model) {
  bool causal = false;
  for (v1::Layer& layer : *model.mutable_layer()) {
    if (!layer.has_attention()) continue;
    layer.mutable_attention()->set_padding_token(0);
    layer.mutable_attention()->set_causal(causal = !causal);
  }
}

void ShrinkLayer(v1::Layer& layer, bool last, const Small& small) {
  if (layer.has_convolution()) {
    layer.mutable_convolution()->set_out_channels(
        Reduced(layer.convolution().out_channels(), small.channels, 2));
  }
  if (small.smooth && layer.has_relu()) layer.mutable_gelu();
  // The variance of few elements can be almost zero; then rounding would dominate.
  if (layer.has_batch_norm()) layer.mutable_batch_norm()->set_epsilon(0.3F);
  if (layer.has_fully_connected()) {
    layer.mutable_fully_connected()->set_out_features(
        last ? kClasses : Reduced(layer.fully_connected().out_features(), small.features, 5));
  }
}

int LastFullyConnected(const v1::Model& model) {
  int last = -1;
  for (int i = 0; i < model.layer_size(); ++i) {
    if (model.layer(i).has_fully_connected()) last = i;
  }
  return last;
}

}  // namespace

const std::vector<std::string>& SmallModelNames() {
  static const auto* const names = [] {
    auto* made = new std::vector<std::string>;
    for (const auto& [name, small] : Sizes()) made->push_back(name);
    return made;
  }();
  return *names;
}

absl::StatusOr<v1::RunSpec> SmallModel(const std::string& zoo, const std::string& name) {
  const auto found = Sizes().find(name);
  if (found == Sizes().end()) {
    return absl::NotFoundError(absl::StrCat("there is no model '", name, "' in the zoo"));
  }
  const Small& small = found->second;
  const absl::string_view file_name = absl::StripSuffix(name, kPadded);
  CADRE_ASSIGN_OR_RETURN(RunSpecFile file,
                         ReadRunSpec(absl::StrCat(zoo, "/", file_name, ".textproto")));
  v1::RunSpec spec = std::move(file.spec);
  v1::Model& model = *spec.mutable_model();
  const int last = LastFullyConnected(model);
  if (model.has_tokens()) {
    const uint32_t length = model.tokens().length();
    model.mutable_tokens()->set_length(small.input);
    const uint32_t features = model.layer(0).embedding().features();
    for (int i = 0; i < model.layer_size(); ++i) {
      v1::Layer& layer = *model.mutable_layer(i);
      ShrinkSequenceLayer(layer, i == last, small.features, features);
      if (layer.has_take_token()) {
        ShrinkRange(*layer.mutable_take_token(), length, small.input);
      }
    }
    if (small.padded) Pad(model);
  } else {
    model.mutable_input()->set_height(small.input);
    model.mutable_input()->set_width(small.input);
    for (int i = 0; i < model.layer_size(); ++i) {
      ShrinkLayer(*model.mutable_layer(i), i == last, small);
    }
  }
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.001F);
  spec.set_batch_per_group(5);
  spec.set_seed(17);
  return spec;
}

}  // namespace cadre
