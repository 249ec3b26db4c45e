// Converts the layers of a spec to the graph: names, inputs, shapes, parameters and operations.
//
// Three rules that the spec leaves implicit are applied here: a layer without inputs takes the
// previous layer's output; a flatten layer is inserted between an image and a fully connected
// layer; the last weights get the variance of a layer that no ReLU follows. model/ops has the rules
// of each operation.
#include "model/graph.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"
#include "model/problem.h"

namespace cadre {
namespace {

// The names of the operations in the order of the proto, without `use`, which blocks replace.
std::string KindNames() {
  const auto* ops = v1::Layer::descriptor()->FindOneofByName("op");
  std::vector<std::string> names;
  for (int i = 0; i < ops->field_count(); ++i) {
    if (ops->field(i)->number() != v1::Layer::kUse) names.push_back(ops->field(i)->name());
  }
  return absl::StrJoin(names, ", ");
}

// Sets the number of scores that a fully connected layer computes of each row.
void SetScores(int64_t scores, GraphLayer* layer) {
  std::vector<int64_t> shape = layer->output.dims();
  shape.back() = scores;
  layer->output = Shape(std::move(shape));
  layer->flops = 2 * layer->output.elements() * layer->input().dims().back();
}

// Visits the layers in the order of the spec, resolves their inputs and infers their shapes. An
// input must be an earlier layer, so the order is topological and one pass suffices. The walk ends
// at the first invalid layer, because the shapes of later layers are then unknown. Unused outputs
// do not affect shapes, so all of them are reported together.
class Walk {
 public:
  Walk(const v1::Model& model, std::vector<LayerProblem>* problems)
      : model_(model), problems_(*problems) {}

  std::vector<GraphLayer> Run() {
    if (!CheckWhole()) return {};
    for (int i = 0; i < model_.layer_size(); ++i) {
      if (!AddLayer(i)) return std::move(layers_);
    }
    CheckAllTaken();
    SetLastDeviation();
    return std::move(layers_);
  }

  const Shape& input() const { return input_; }

 private:
  int size() const { return std::ssize(layers_); }

  template <typename... Parts>
  bool Problem(int i, absl::string_view field, const Parts&... message) {
    problems_.push_back({i, std::string(field), absl::StrCat(message...)});
    return false;
  }

  bool CheckWhole() {
    if (model_.has_opaque()) {
      return Problem(-1, "opaque", "has no layers that could be computed or planned");
    }
    if (model_.has_input() == model_.has_tokens()) {
      return Problem(-1, model_.has_input() ? "tokens" : "input",
                     model_.has_input() ? "cannot be combined with input"
                                        : "is missing; give input (images) or tokens");
    }
    if (model_.block_size() > 0) {
      return Problem(-1, "block[0]", "must be expanded, as the reader of run files does");
    }
    if (model_.layer().empty()) return Problem(-1, "layer", "the model has no layers");
    if (model_.layer_size() > kMaxLayers) {
      return Problem(-1, "layer", "the model has ", model_.layer_size(), " layers; at most ",
                     kMaxLayers, " are possible");
    }
    return model_.has_input() ? SetImage() : SetTokens();
  }

  bool CheckExtent(const char* field, int64_t extent) {
    if (extent >= 1 && extent <= kMaxExtent) return true;
    return Problem(-1, field, "is ", extent, "; it must be between 1 and ", kMaxExtent);
  }

  bool SetImage() {
    const v1::Image& image = model_.input();
    const bool channels = CheckExtent("input.channels", image.channels());
    const bool height = CheckExtent("input.height", image.height());
    const bool width = CheckExtent("input.width", image.width());
    if (!channels || !height || !width) return false;
    input_ = Shape{image.height(), image.width(), image.channels()};
    if (ElementsUpTo(input_, kMaxElements) <= kMaxElements) return true;
    return Problem(-1, "input", TooManyElements(input_, kMaxElements));
  }

  bool SetTokens() {
    if (!CheckExtent("tokens.length", model_.tokens().length())) return false;
    input_ = Shape{model_.tokens().length()};
    return true;
  }

  bool AddLayer(int i) {
    const v1::Layer& spec = model_.layer(i);
    if (!CheckName(i, spec.name()) || !CheckOperation(i, spec)) return false;
    GraphLayer layer;
    layer.name = spec.name();
    layer.kind = spec.op_case();
    layer.spec_layer = i;
    layer.settings = spec;
    if (!FindInputs(i, spec, &layer) || !CheckTokens(layer) || !FindTie(&layer) ||
        !AddPadding(&layer) || !SampleClasses(&layer)) {
      return false;
    }
    if (layer.kind == LayerKind::kFullyConnected && ShapeOf(layer.inputs[0]).rank() == 3 &&
        !AddFlatten(&layer)) {
      return false;
    }
    return Infer(std::move(layer)) && CheckPlace(layers_.back());
  }

  // Names are part of parameter names in checkpoints and of pins in specs, so they must be unique
  // and consist of characters that need no escape.
  bool CheckName(int i, const std::string& name) {
    if (name.empty()) return Problem(i, "name", "the layer has no name");
    if (name.size() > kMaxLayerNameCharacters) {
      return Problem(i, "name", "has ", name.size(), " characters; at most ",
                     kMaxLayerNameCharacters, " are possible");
    }
    if (name == kInputName) {
      return Problem(i, "name", "'input' is reserved for the model's input; choose another name");
    }
    for (const char c : name) {
      if (!absl::ascii_isalnum(c) && absl::string_view("_./-").find(c) == absl::string_view::npos) {
        return Problem(i, "name", Quoted(name), " has a character other than [a-zA-Z0-9_./-]");
      }
    }
    if (names_.count(name) > 0) {
      return Problem(i, "name", "'", name, "' is the name of an earlier layer");
    }
    return true;
  }

  bool CheckOperation(int i, const v1::Layer& spec) {
    if (spec.has_use()) {
      return Problem(i, "use", "block ", Quoted(spec.use().block()),
                     " must be expanded, as the reader of run files does");
    }
    if (spec.set_size() > 0) {
      return Problem(i, "set[0]", "is only valid in layers of blocks; set the field directly");
    }
    if (spec.op_case() != v1::Layer::OP_NOT_SET) return true;
    return Problem(i, "", "the layer has no operation; give one of ", KindNames());
  }

  bool FindInputs(int i, const v1::Layer& spec, GraphLayer* layer) {
    if (spec.input().empty()) {
      layer->inputs = {size() - 1};
      return true;
    }
    if (spec.input_size() > kMaxInputs) {
      return Problem(i, "input", "the layer takes ", spec.input_size(), " inputs; at most ",
                     kMaxInputs, " are possible");
    }
    for (int n = 0; n < spec.input_size(); ++n) {
      const std::string& name = spec.input(n);
      const auto found = names_.find(name);
      if (name != kInputName && found == names_.end()) return UnknownInput(i, n);
      layer->inputs.push_back(name == kInputName ? Graph::kInput : found->second);
    }
    if (layer->inputs.size() == 1 || Describe(layer->kind).takes_several) return true;
    return Problem(i, "input[1]", LayerKindName(layer->kind), " takes one input, not ",
                   layer->inputs.size(),
                   "; add, concat, multiply and dot_product_attention take several");
  }

  // Completes out_features from the embedding that a fully connected layer is tied to.
  bool FindTie(GraphLayer* layer) {
    if (layer->kind != LayerKind::kFullyConnected) return true;
    v1::FullyConnected& fc = *layer->settings.mutable_fully_connected();
    if (fc.tied_to().empty()) return true;
    constexpr char kField[] = "fully_connected.tied_to";
    const auto found = names_.find(fc.tied_to());
    if (found == names_.end() || layers_[found->second].kind != LayerKind::kEmbedding) {
      return Problem(layer->spec_layer, kField, Quoted(fc.tied_to()),
                     " is not an earlier embedding");
    }
    GraphLayer& embedding = layers_[found->second];
    const Shape& weight = embedding.parameters[0].shape;
    const Shape& input = ShapeOf(layer->inputs[0]);
    if (input.rank() != 2 || input[1] != weight[1]) {
      return Problem(layer->spec_layer, kField, "the table of '", embedding.name, "' is ",
                     weight.ToString(), ", which does not fit the input ", input.ToString());
    }
    if (fc.out_features() != 0 && fc.out_features() != weight[0]) {
      return Problem(layer->spec_layer, "fully_connected.out_features", "is ", fc.out_features(),
                     "; '", embedding.name, "' has a vocabulary of ", weight[0]);
    }
    fc.set_out_features(weight[0]);
    layer->tied_to = found->second;
    layer->shares_weight = embedding.shares_weight = true;
    return true;
  }

  // Adds the model's tokens as the second input of an attention with a padding token.
  bool AddPadding(GraphLayer* layer) {
    if (!HasPadding(*layer)) return true;
    constexpr char kField[] = "attention.padding_token";
    if (!model_.has_tokens()) {
      return Problem(layer->spec_layer, kField, "requires a model with `tokens`, not images");
    }
    const uint32_t token = layer->settings.attention().padding_token();
    for (const GraphLayer& embedding : layers_) {
      if (embedding.kind != LayerKind::kEmbedding) continue;
      const uint32_t vocabulary = embedding.settings.embedding().vocabulary();
      if (token < vocabulary) continue;
      return Problem(layer->spec_layer, kField, "is ", token, "; the vocabulary of '",
                     embedding.name, "' is 0 to ", vocabulary - 1);
    }
    const Shape& input = ShapeOf(layer->inputs[0]);
    if (input.rank() == 2 && input[0] != input_[0]) {
      return Problem(layer->spec_layer, kField, "requires the ", input_[0],
                     " tokens of the model; its input has ", input[0]);
    }
    layer->inputs.push_back(Graph::kInput);
    return true;
  }

  // Limits the output of the layer that scores the classes to those that the loss samples.
  bool SampleClasses(GraphLayer* loss) {
    if (!loss->settings.softmax_cross_entropy().has_sampling()) return true;
    constexpr char kField[] = "softmax_cross_entropy.sampling";
    const int scorer = loss->inputs[0];
    if (scorer == Graph::kInput || layers_[scorer].kind != LayerKind::kFullyConnected) {
      return Problem(loss->spec_layer, kField,
                     "requires a loss that takes the output of a fully_connected");
    }
    for (const GraphLayer& other : layers_) {
      if (std::find(other.inputs.begin(), other.inputs.end(), scorer) == other.inputs.end()) {
        continue;
      }
      return Problem(loss->spec_layer, kField, "requires that no other layer takes the output of '",
                     layers_[scorer].name, "', but '", other.name, "' does");
    }
    v1::ClassSampling& sampling =
        *loss->settings.mutable_softmax_cross_entropy()->mutable_sampling();
    const uint32_t classes = layers_[scorer].settings.fully_connected().out_features();
    if (classes < 2) return true;  // The inference of the loss reports it.
    if (sampling.classes() < 1 || sampling.classes() > classes) {
      return Problem(loss->spec_layer, absl::StrCat(kField, ".classes"), "is ", sampling.classes(),
                     "; it must be between 1 and the ", classes, " classes of '",
                     layers_[scorer].name, "'");
    }
    if (!v1::ClassSampling::Distribution_IsValid(sampling.distribution())) {
      return Problem(loss->spec_layer, absl::StrCat(kField, ".distribution"), "is ",
                     static_cast<int>(sampling.distribution()), "; give LOG_UNIFORM or UNIFORM");
    }
    if (loss->settings.softmax_cross_entropy().label_smoothing() != 0) {
      return Problem(loss->spec_layer, kField, "cannot be combined with label_smoothing");
    }
    if (sampling.distribution() == v1::ClassSampling::DISTRIBUTION_UNSPECIFIED) {
      sampling.set_distribution(v1::ClassSampling::LOG_UNIFORM);
    }
    layers_[scorer].sampled_classes = sampling.classes();
    SetScores(1 + int64_t{sampling.classes()}, &layers_[scorer]);
    return true;
  }

  // Distinguishes a later layer (a cycle or a wrong order) from a layer that does not exist
  // (usually a typing error).
  bool UnknownInput(int i, int n) {
    const std::string& name = model_.layer(i).input(n);
    const std::string field = absl::StrCat("input[", n, "]");
    for (int other = i; other < model_.layer_size(); ++other) {
      if (model_.layer(other).name() != name) continue;
      return Problem(i, field, "'", name, "' is ",
                     other == i ? "the layer itself" : "a later layer",
                     "; inputs must be earlier layers");
    }
    return Problem(i, field, "no layer is called ", Quoted(name),
                   "; give the name of an earlier layer, or 'input'");
  }

  bool CheckTokens(const GraphLayer& layer) {
    if (!model_.has_tokens() || layer.kind == LayerKind::kEmbedding) return true;
    for (const int input : layer.inputs) {
      if (input == Graph::kInput) {
        return Problem(layer.spec_layer, LayerKindName(layer.kind),
                       "cannot take tokens; put an embedding before it");
      }
    }
    return true;
  }

  // The loss is the last layer, and only the last.
  bool CheckPlace(const GraphLayer& layer) {
    const bool last = layer.spec_layer + 1 == model_.layer_size();
    const bool loss = layer.kind == LayerKind::kSoftmaxCrossEntropy;
    if (last == loss) return true;
    if (loss) return Problem(layer.spec_layer, "", "softmax_cross_entropy must be the last layer");
    return Problem(layer.spec_layer, "", "the last layer must be softmax_cross_entropy, not ",
                   LayerKindName(layer.kind));
  }

  // Inserts a flatten layer before a fully connected layer on an image. Its name is derived from
  // the name of that layer, so that it is the same in the plans of all runs.
  bool AddFlatten(GraphLayer* layer) {
    GraphLayer flatten;
    flatten.name = absl::StrCat(layer->name, "/flatten");
    flatten.kind = LayerKind::kFlatten;
    flatten.spec_layer = layer->spec_layer;
    flatten.inputs = layer->inputs;
    flatten.settings.set_name(flatten.name);
    flatten.settings.mutable_flatten();
    if (names_.count(flatten.name) > 0) {
      return Problem(layer->spec_layer, "name", "'", flatten.name,
                     "' is the name of an earlier layer, but required for the flattening before '",
                     layer->name, "'");
    }
    if (!Infer(std::move(flatten))) return false;
    layer->inputs = {size() - 1};
    return true;
  }

  const Shape& ShapeOf(int layer) const {
    return layer == Graph::kInput ? input_ : layers_[layer].output;
  }

  bool Infer(GraphLayer layer) {
    for (const int input : layer.inputs) layer.input_shapes.push_back(ShapeOf(input));
    LayerInference inference(&layer, &problems_);
    if (!Describe(layer.kind).infer(inference)) return false;
    names_[layer.name] = size();
    layers_.push_back(std::move(layer));
    return true;
  }

  // An output that no layer uses has no gradient, so its parameters would never change.
  void CheckAllTaken() {
    std::vector<bool> taken(layers_.size(), false);
    taken.back() = true;
    for (const GraphLayer& layer : layers_) {
      for (const int input : layer.inputs) {
        if (input != Graph::kInput) taken[input] = true;
      }
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (taken[i]) continue;
      Problem(layers_[i].spec_layer, "",
              "no layer uses its output; make it an input of a later layer, or remove it");
    }
  }

  // No ReLU follows the last weights, so their variance is 1 / fan_in.
  void SetLastDeviation() {
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      if (!layer->has_parameters()) continue;
      if (layer->tied_to != GraphLayer::kNotTied ||
          (layer->kind != LayerKind::kFullyConnected && layer->kind != LayerKind::kConvolution)) {
        return;
      }
      LayerParameter& weight = layer->parameters[0];
      const int64_t fan_in = weight.shape.elements() / weight.shape[0];
      weight.initial_stddev = std::sqrt(1.0 / fan_in);
      return;
    }
  }

  const v1::Model& model_;
  std::vector<LayerProblem>& problems_;
  Shape input_;
  std::map<std::string, int> names_;
  std::vector<GraphLayer> layers_;
};

// Identifies a layer with a too long name by its position, since the name may be megabytes of text.
absl::Status AsStatus(const v1::Model& model, const LayerProblem& problem) {
  std::string where = "model";
  if (problem.layer >= 0) {
    const std::string& name = model.layer(problem.layer).name();
    where = name.size() > kMaxLayerNameCharacters ? absl::StrCat("layer ", problem.layer)
                                                  : absl::StrCat("layer ", Quoted(name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, problem.field.empty() ? "" : ": ", problem.field, ": ", problem.message));
}

}  // namespace

std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems) {
  return Walk(model, problems).Run();
}

absl::StatusOr<Graph> Graph::FromModel(const v1::Model& model) {
  std::vector<LayerProblem> problems;
  Walk walk(model, &problems);
  Graph graph;
  graph.layers_ = walk.Run();
  if (!problems.empty()) return AsStatus(model, problems.front());
  graph.input_ = walk.input();
  graph.takes_tokens_ = model.has_tokens();
  graph.consumers_.resize(graph.layers_.size() + 1);
  for (int i = 0; i < graph.size(); ++i) {
    for (const int input : graph[i].inputs) {
      graph.consumers_[input + 1].push_back(i);
    }
  }
  return graph;
}

int64_t Graph::classes() const {
  const int sampled = sampled_layer();
  return sampled == kNoLayer ? layers_.back().input().dims().back()
                             : layers_[sampled].settings.fully_connected().out_features();
}

int Graph::sampled_layer() const {
  const bool samples = layers_.back().settings.softmax_cross_entropy().has_sampling();
  return samples ? layers_.back().inputs[0] : kNoLayer;
}

Graph Graph::ForEvaluation() const {
  Graph graph = *this;
  if (sampled_layer() == kNoLayer) return graph;
  GraphLayer& loss = graph.layers_.back();
  GraphLayer& scorer = graph.layers_[sampled_layer()];
  loss.settings.mutable_softmax_cross_entropy()->clear_sampling();
  scorer.sampled_classes = 0;
  SetScores(classes(), &scorer);
  loss.input_shapes[0] = scorer.output;
  loss.flops = kLossFlops * scorer.output.elements();
  return graph;
}

int64_t Graph::labels_per_sample() const {
  const Shape& scores = layers_.back().input();
  return scores.elements() / scores.dims().back();
}

std::vector<bool> LayersWithGradient(const Graph& graph) {
  std::vector<bool> needs_gradient;
  for (const GraphLayer& layer : graph.layers()) {
    needs_gradient.push_back(
        layer.has_parameters() ||
        std::any_of(layer.inputs.begin(), layer.inputs.end(), [&](int producer) {
          return producer != Graph::kInput && needs_gradient[producer];
        }));
  }
  return needs_gradient;
}

}  // namespace cadre
