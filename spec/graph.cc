#include "spec/graph.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Extents beyond this are typing errors, and would overflow sizes further on.
constexpr int64_t kMostExtent = 1 << 20;
// Elements of one sample between layers, and weights of one layer: beyond any device's memory, and
// such that their product times two is a number that int64_t holds.
constexpr int64_t kMostElements = 1 << 26;
constexpr int64_t kMostWeights = int64_t{1} << 33;

// Works the shapes out, layer by layer.
class Inference {
 public:
  Inference(const v1::Model& model, std::vector<LayerProblem>* problems)
      : model_(model), problems_(*problems) {}

  std::vector<GraphLayer> Run() {
    const v1::Image& image = model_.input();
    for (const auto& [field, extent] : {std::pair{"input.channels", image.channels()},
                                        {"input.height", image.height()},
                                        {"input.width", image.width()}}) {
      if (extent == 0 || extent > kMostExtent) {
        problems_.push_back(
            {-1, field, absl::StrCat("is ", extent, "; it must be between 1 and ", kMostExtent)});
      }
    }
    if (model_.layer().empty()) {
      problems_.push_back({-1, "layer", "the model has no layers"});
    }
    if (!problems_.empty()) return {};
    shape_ = Shape{image.channels(), image.height(), image.width()};
    if (shape_.elements() > kMostElements) {
      problems_.push_back({-1, "input", TooMany(shape_, kMostElements)});
      return {};
    }
    for (int i = 0; i < model_.layer_size() && Add(i); ++i) {
    }
    return std::move(layers_);
  }

 private:
  static std::string TooMany(const Shape& shape, int64_t most) {
    return absl::StrCat("makes ", shape.ToString(), ", more than the ", most,
                        " elements that are possible");
  }

  bool Problem(int i, absl::string_view field, absl::string_view message) {
    problems_.push_back({i, std::string(field), std::string(message)});
    return false;
  }

  bool Add(int i) {
    const v1::Layer& spec = model_.layer(i);
    GraphLayer layer;
    layer.name = spec.name();
    layer.input = shape_;
    if (!CheckName(i, spec.name()) || !Infer(i, spec, layer)) return false;
    const bool last = i + 1 == model_.layer_size();
    const bool loss = layer.kind == LayerKind::kSoftmaxCrossEntropy;
    if (loss && !last) return Problem(i, "", "softmax_cross_entropy must be the last layer");
    if (last && !loss) {
      return Problem(i, "",
                     absl::StrCat("the last layer must be softmax_cross_entropy, not ",
                                  LayerKindName(layer.kind)));
    }
    shape_ = layer.output;
    layers_.push_back(std::move(layer));
    return true;
  }

  bool CheckName(int i, const std::string& name) {
    if (name.empty()) return Problem(i, "name", "the layer has no name");
    for (const char c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
          absl::string_view("_./-").find(c) == absl::string_view::npos) {
        return Problem(i, "name",
                       absl::StrCat("'", name, "' has a character other than [a-zA-Z0-9_./-]"));
      }
    }
    if (!names_.insert(name).second) {
      return Problem(i, "name", absl::StrCat("'", name, "' is the name of an earlier layer"));
    }
    return true;
  }

  bool Infer(int i, const v1::Layer& spec, GraphLayer& layer) {
    switch (spec.op_case()) {
      case v1::Layer::kConvolution:
        return InferConvolution(i, spec.convolution(), layer);
      case v1::Layer::kMaxPool:
        layer.kind = LayerKind::kMaxPool;
        return InferPooling(i, "max_pool", spec.max_pool(), layer);
      case v1::Layer::kAveragePool:
        layer.kind = LayerKind::kAveragePool;
        return InferPooling(i, "average_pool", spec.average_pool(), layer);
      case v1::Layer::kFullyConnected:
        return InferFullyConnected(i, spec.fully_connected(), layer);
      case v1::Layer::kRelu:
        layer.kind = LayerKind::kRelu;
        layer.output = layer.input;
        layer.flops = layer.input.elements();
        return true;
      case v1::Layer::kSoftmaxCrossEntropy:
        layer.kind = LayerKind::kSoftmaxCrossEntropy;
        layer.output = Shape{1};
        layer.flops = 5 * layer.input.elements();
        if (layer.in_features() < 2) {
          return Problem(
              i, "softmax_cross_entropy",
              absl::StrCat("takes ", layer.in_features(), " features; classes must be at least 2"));
        }
        return true;
      case v1::Layer::OP_NOT_SET:
        return Problem(i, "",
                       "the layer says no operation; give one of convolution, max_pool, "
                       "average_pool, fully_connected, relu, softmax_cross_entropy");
    }
    return false;
  }

  bool NeedsImage(int i, absl::string_view op, const GraphLayer& layer) {
    if (layer.input.rank() == 3) return true;
    return Problem(i, op,
                   absl::StrCat("needs an image [channels, height, width]; the layer "
                                "before gives ",
                                layer.input.ToString()));
  }

  // Fills in the output's height and width.
  bool InferWindow(int i, absl::string_view op, int64_t channels, GraphLayer& layer) {
    if (layer.kernel < 1 || layer.kernel > kMostExtent) {
      return Problem(i, absl::StrCat(op, ".kernel"),
                     absl::StrCat("is ", layer.kernel, "; it must be between 1 and ", kMostExtent));
    }
    if (layer.stride > kMostExtent || layer.padding > kMostExtent) {
      return Problem(i, absl::StrCat(op, layer.stride > kMostExtent ? ".stride" : ".padding"),
                     absl::StrCat("must be at most ", kMostExtent));
    }
    const int64_t height = layer.input[1] + 2 * layer.padding;
    const int64_t width = layer.input[2] + 2 * layer.padding;
    if (layer.kernel > height || layer.kernel > width) {
      return Problem(i, absl::StrCat(op, ".kernel"),
                     absl::StrCat("is ", layer.kernel, ", larger than the padded input of ", height,
                                  " x ", width, "; at most ", std::min(height, width), " fits"));
    }
    layer.output = Shape{channels, (height - layer.kernel) / layer.stride + 1,
                         (width - layer.kernel) / layer.stride + 1};
    // Divided, since the products of three could overflow.
    if (layer.kernel * layer.kernel > kMostWeights / channels) {
      return Problem(i, absl::StrCat(op, ".kernel"),
                     absl::StrCat("is ", layer.kernel, ", too large for ", channels, " channels"));
    }
    if (layer.output[1] * layer.output[2] > kMostElements / channels) {
      return Problem(i, op, TooMany(layer.output, kMostElements));
    }
    return true;
  }

  bool InferConvolution(int i, const v1::Convolution& spec, GraphLayer& layer) {
    layer.kind = LayerKind::kConvolution;
    if (!NeedsImage(i, "convolution", layer)) return false;
    if (spec.out_channels() == 0 || spec.out_channels() > kMostExtent) {
      return Problem(
          i, "convolution.out_channels",
          absl::StrCat("is ", spec.out_channels(), "; it must be between 1 and ", kMostExtent));
    }
    layer.kernel = spec.kernel();
    layer.stride = spec.stride() == 0 ? 1 : spec.stride();
    layer.padding = spec.padding();
    if (!InferWindow(i, "convolution", spec.out_channels(), layer)) return false;
    const Shape weight = layer.weight_shape();
    if (weight.elements() > kMostWeights) {
      return Problem(i, "convolution", TooMany(weight, kMostWeights));
    }
    layer.flops = 2 * layer.output.elements() * layer.input[0] * layer.kernel * layer.kernel;
    return true;
  }

  bool InferPooling(int i, absl::string_view op, const v1::Pooling& spec, GraphLayer& layer) {
    if (!NeedsImage(i, op, layer)) return false;
    layer.kernel = spec.kernel();
    layer.stride = spec.stride() == 0 ? spec.kernel() : spec.stride();
    layer.padding = spec.padding();
    if (layer.padding > layer.kernel / 2) {
      return Problem(i, absl::StrCat(op, ".padding"),
                     absl::StrCat("is ", layer.padding, "; at most half the kernel, ",
                                  layer.kernel / 2, ", is meaningful"));
    }
    if (!InferWindow(i, op, layer.input[0], layer)) return false;
    layer.flops = layer.output.elements() * layer.kernel * layer.kernel;
    return true;
  }

  bool InferFullyConnected(int i, const v1::FullyConnected& spec, GraphLayer& layer) {
    layer.kind = LayerKind::kFullyConnected;
    if (spec.out_features() == 0 || spec.out_features() > kMostExtent) {
      return Problem(
          i, "fully_connected.out_features",
          absl::StrCat("is ", spec.out_features(), "; it must be between 1 and ", kMostExtent));
    }
    layer.output = Shape{spec.out_features()};
    if (layer.in_features() > kMostWeights / layer.out_features()) {
      return Problem(i, "fully_connected.out_features",
                     TooMany(layer.weight_shape(), kMostWeights));
    }
    layer.flops = 2 * layer.in_features() * layer.out_features();
    return true;
  }

  const v1::Model& model_;
  std::vector<LayerProblem>& problems_;
  Shape shape_;
  std::set<std::string> names_;
  std::vector<GraphLayer> layers_;
};

}  // namespace

const char* LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kConvolution:
      return "convolution";
    case LayerKind::kMaxPool:
      return "max_pool";
    case LayerKind::kAveragePool:
      return "average_pool";
    case LayerKind::kFullyConnected:
      return "fully_connected";
    case LayerKind::kRelu:
      return "relu";
    case LayerKind::kSoftmaxCrossEntropy:
      return "softmax_cross_entropy";
  }
  return "unknown";
}

Shape GraphLayer::weight_shape() const {
  if (kind == LayerKind::kConvolution) return Shape{output[0], input[0], kernel, kernel};
  return Shape{out_features(), in_features()};
}

std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems) {
  return Inference(model, problems).Run();
}

absl::StatusOr<Graph> Graph::FromModel(const v1::Model& model) {
  std::vector<LayerProblem> problems;
  Graph graph;
  graph.layers_ = InferLayers(model, &problems);
  if (problems.empty()) return graph;
  const LayerProblem& first = problems.front();
  const std::string where =
      first.layer < 0 ? "model" : absl::StrCat("layer '", model.layer(first.layer).name(), "'");
  return absl::InvalidArgumentError(
      absl::StrCat(where, first.field.empty() ? "" : ": ", first.field, ": ", first.message));
}

}  // namespace cadre
