// Plans by cudnn-frontend: a graph of one operation (a convolution) or of a fused pattern
// (attention as in FlashAttention, Dao et al. 2022) is described, cuDNN's heuristics list engines
// for it (mode A, then the fallback list), and the first that passes three filters is built:
//
// - workspace: within target.workspace_limit;
// - determinism: engines marked NONDETERMINISTIC (they add with atomics) are excluded, because the
//   ranks of a group, and repeated runs, must compute the same bits. Attention's graph requests the
//   deterministic algorithm instead, because an engine's note covers all graphs that it takes;
// - precision: fp32 must not be rounded on the way. DOWN_CONVERT_INPUTS converts to fp16, and
//   TENSOR_CORE means TF32 for fp32 operands, which only Precision::kTf32 allows. Winograd's and
//   Fourier transforms round their inputs, too.
//
// No engine is ever timed: an autotuner's choice may differ between runs and between ranks.
//
// Layout. Images are channels last, which cuDNN takes as strides. Weights are [out, taps, channels]
// in that layout, while ours are [out, channels, taps]; LibraryMath converts them. q, k and v are
// strided views of one array. Fused attention stores one statistic (log-sum-exp) per row instead of
// the probabilities, from which backward recomputes them.
//
// Limits: fused attention exists for bf16, heads of at most 128 features and compute capability 8.0
// or newer (library_math.cc). Errors quote cuDNN's text, shortened: it lists a reason for each
// engine, and if a user can act on one of them (a missing library), only that one is quoted.
#include "kernels/cuda/cudnn_plan.h"

#include <cmath>
#include <exception>
#include <functional>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cudnn_calls.h"

namespace cadre {
namespace {

namespace fe = cudnn_frontend;
using Extents = std::vector<int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Maximum length of quoted text of the library.
constexpr size_t kMaxText = 400;

// The library gives a reason for every engine. If the user can fix one (a library is missing), only
// that one is quoted.
std::string Quote(const std::string& text) {
  std::string quoted = text.substr(0, kMaxText);
  const size_t missing = text.find("PREREQUISITE_MISSING");
  if (missing == std::string::npos) return quoted;
  const size_t end = text.find('\n', missing);
  return absl::StrCat(text.substr(0, text.find('\n')), ": ", text.substr(missing, end - missing));
}

absl::Status ErrorOf(fe::error_t error, absl::string_view what) {
  if (error.is_good()) return absl::OkStatus();
  const std::string text = absl::StrCat("cuDNN: ", what, ": ", Quote(error.get_message()));
  switch (error.get_code()) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

// The frontend throws if it lacks memory or its own checks fail.
absl::Status Guarded(absl::string_view what, const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& thrown) {
    return absl::InternalError(absl::StrCat("cuDNN: ", what, ": ", thrown.what()));
  }
}

class FrontendPlan : public CudnnPlan {
 public:
  FrontendPlan(const CudnnTarget& target, std::string what, std::unique_ptr<fe::graph::Graph> graph)
      : target_(target), what_(std::move(what)), graph_(std::move(graph)) {}
  ~FrontendPlan() override {
    const CudnnCalls calls(*target_.cudnn, *target_.cuda, target_.ordinal);
    graph_.reset();
  }

  // Chooses one of the library's plans and builds it.
  absl::Status Build(const std::vector<fe::NumericalNote_t>& unwanted) {
    fe::graph::Graph& graph = *graph_;
    if (target_.handle == nullptr) {
      const auto properties = std::make_shared<fe::DeviceProperties>();
      const std::string& text = target_.description;
      CADRE_RETURN_IF_ERROR(
          Error(properties->deserialize(std::vector<uint8_t>(text.begin(), text.end()))));
      graph.set_device_properties(properties);
    }
    CADRE_RETURN_IF_ERROR(Error(graph.validate()));
    CADRE_RETURN_IF_ERROR(Error(graph.build_operation_graph(target_.handle)));
    CADRE_RETURN_IF_ERROR(
        Error(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK})));
    graph.deselect_workspace_greater_than(target_.workspace_limit);
    graph.deselect_numeric_notes(unwanted);
    CADRE_RETURN_IF_ERROR(Error(graph.check_support()));
    CADRE_RETURN_IF_ERROR(Error(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    CADRE_RETURN_IF_ERROR(Error(graph.get_workspace_size(workspace_)));
    return Error(graph.get_plan_name(name_));
  }

  size_t workspace() const override { return workspace_; }
  std::string name() const override { return name_; }

  absl::Status Execute(std::span<const std::pair<CudnnTensor, void*>> tensors,
                       std::byte* workspace) override {
    const CudnnCalls calls(*target_.cudnn, *target_.cuda, target_.ordinal);
    std::unordered_map<int64_t, void*> pointers;
    for (const auto& [tensor, memory] : tensors) pointers.emplace(tensor, memory);
    return Guarded(what_,
                   [&] { return Error(graph_->execute(target_.handle, pointers, workspace)); });
  }

 private:
  absl::Status Error(const fe::error_t& error) const { return ErrorOf(error, what_); }

  const CudnnTarget target_;
  const std::string what_;
  std::unique_ptr<fe::graph::Graph> graph_;
  int64_t workspace_ = 0;
  std::string name_;
};

// Properties of engines that may not compute a convolution.
std::vector<fe::NumericalNote_t> Unwanted(const ConvolutionKey& key) {
  using Note = fe::NumericalNote_t;
  std::vector<Note> notes = {Note::NONDETERMINISTIC};
  if (key.type != DType::kFloat32) return notes;
  // The first converts fp32 to fp16; the others transform the operands.
  notes.insert(notes.end(),
               {Note::DOWN_CONVERT_INPUTS, Note::FFT, Note::WINOGRAD, Note::WINOGRAD_TILE_4x4,
                Note::WINOGRAD_TILE_6x6, Note::WINOGRAD_TILE_13x13});
  // These engines round fp32 to TF32.
  if (!key.tf32) notes.push_back(Note::TENSOR_CORE);
  return notes;
}

fe::DataType_t TypeOf(DType type) {
  return type == DType::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT;
}

std::unique_ptr<fe::graph::Graph> MakeGraph(DType type) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(TypeOf(type))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

// Builds a plan for the graph that `describe` fills.
absl::StatusOr<std::unique_ptr<CudnnPlan>> BuildPlan(
    const CudnnTarget& target, const std::string& what, DType type,
    const std::vector<fe::NumericalNote_t>& unwanted,
    const std::function<void(fe::graph::Graph& graph)>& describe) {
  const CudnnCalls calls(*target.cudnn, *target.cuda, target.ordinal);
  std::unique_ptr<FrontendPlan> plan;
  CADRE_RETURN_IF_ERROR(Guarded(what, [&] {
    auto graph = MakeGraph(type);
    describe(*graph);
    plan = std::make_unique<FrontendPlan>(target, what, std::move(graph));
    return plan->Build(unwanted);
  }));
  return plan;
}

// The layout of a tensor: the library's extents (batch, channels, height, width; or batch, heads,
// tokens, features) and strides in elements.
struct TensorLayout {
  Extents extents, strides;
};

fe::graph::Tensor_attributes Attributes(CudnnTensor tensor, const TensorLayout& layout, DType type,
                                        int64_t alignment) {
  return fe::graph::Tensor_attributes()
      .set_uid(tensor)
      .set_dim(layout.extents)
      .set_stride(layout.strides)
      .set_data_type(TypeOf(type))
      .set_alignment(alignment);
}

void MakeOutput(const Tensor& output, CudnnTensor tensor, const TensorLayout& layout, DType type,
                int64_t alignment) {
  output->set_output(true)
      .set_uid(tensor)
      .set_dim(layout.extents)
      .set_stride(layout.strides)
      .set_data_type(TypeOf(type))
      .set_alignment(alignment);
}

// --- convolution ---------------------------------------------------------------------------------

std::string Describe(const ConvolutionKey& key) {
  const ConvolutionDims& d = key.dims;
  const WindowDims& w = d.window;
  const char* pass = key.pass == ConvolutionPass::kForward        ? "forward"
                     : key.pass == ConvolutionPass::kBackwardData ? "backward to data"
                                                                  : "backward to weights";
  return absl::StrCat("convolution ", pass, " of ", d.batch, " x ", w.in_height, " x ", w.in_width,
                      " x ", d.in_channels, " to ", w.out_height, " x ", w.out_width, " x ",
                      d.out_channels, ", kernel ", w.kernel_height, " x ", w.kernel_width,
                      ", stride ", w.stride_height, " x ", w.stride_width, ", dilation ",
                      w.dilation, ", padding ", w.pad_top, " and ", w.pad_left, ", groups ",
                      d.groups, ", ", DTypeName(key.type), key.tf32 ? " (TF32)" : "");
}

struct ConvolutionLayouts {
  TensorLayout image, weights, outputs;
};

ConvolutionLayouts LayoutsOf(const ConvolutionDims& d, const ConvolutionShape& shape) {
  const int64_t channels = d.in_channels / d.groups;
  const ConvolutionSide& h = shape.height;
  const ConvolutionSide& w = shape.width;
  return {.image = {{d.batch, d.in_channels, h.in, w.in},
                    {shape.in_image, 1, shape.in_row, d.in_channels}},
          .weights = {{d.out_channels, channels, h.kernel, w.kernel},
                      {h.kernel * w.kernel * channels, 1, w.kernel * channels, channels}},
          .outputs = {{d.batch, d.out_channels, h.out, w.out},
                      {h.out * w.out * d.out_channels, 1, w.out * d.out_channels, d.out_channels}}};
}

// Sets the geometry of the windows in the attributes of any of the three passes.
template <typename Pass>
Pass Windows(const ConvolutionDims& d, const ConvolutionShape& shape) {
  return Pass()
      .set_pre_padding({shape.height.pad_near, shape.width.pad_near})
      .set_post_padding({shape.height.pad_far, shape.width.pad_far})
      .set_stride({d.window.stride_height, d.window.stride_width})
      .set_dilation({d.window.dilation, d.window.dilation});
}

void AddConvolution(const ConvolutionKey& key, fe::graph::Graph& graph) {
  const ConvolutionDims& d = key.dims;
  const ConvolutionShape shape = ShapeOf(d);
  const ConvolutionLayouts layouts = LayoutsOf(d, shape);
  const auto input = [&](CudnnTensor tensor, const TensorLayout& layout) {
    return graph.tensor(Attributes(tensor, layout, key.type, key.alignment));
  };
  const auto output = [&](const Tensor& made, CudnnTensor tensor, const TensorLayout& layout) {
    MakeOutput(made, tensor, layout, key.type, key.alignment);
  };
  switch (key.pass) {
    case ConvolutionPass::kForward:
      return output(graph.conv_fprop(input(kImage, layouts.image), input(kWeights, layouts.weights),
                                     Windows<fe::graph::Conv_fprop_attributes>(d, shape)),
                    kOutputs, layouts.outputs);
    case ConvolutionPass::kBackwardData:
      return output(
          graph.conv_dgrad(input(kOutputs, layouts.outputs), input(kWeights, layouts.weights),
                           Windows<fe::graph::Conv_dgrad_attributes>(d, shape)),
          kImage, layouts.image);
    case ConvolutionPass::kBackwardWeights:
      return output(graph.conv_wgrad(input(kOutputs, layouts.outputs), input(kImage, layouts.image),
                                     Windows<fe::graph::Conv_wgrad_attributes>(d, shape)),
                    kWeights, layouts.weights);
  }
}

// --- attention -----------------------------------------------------------------------------------

std::string Describe(const AttentionDims& d, bool backward) {
  return absl::StrCat("attention ", backward ? "backward" : "forward", ", batch ", d.batch, ", ",
                      d.tokens, " tokens, ", d.heads, " heads of ", d.head_features,
                      d.causal ? ", causal" : "");
}

// The layout of queries, keys or values within qkv [batch, tokens, heads, 3, features].
TensorLayout PartOf(const AttentionDims& d) {
  const int64_t row = d.heads * 3 * d.head_features;
  return {{d.batch, d.heads, d.tokens, d.head_features},
          {d.tokens * row, 3 * d.head_features, row, 1}};
}

TensorLayout ContextOf(const AttentionDims& d) {
  const int64_t row = d.heads * d.head_features;
  return {{d.batch, d.heads, d.tokens, d.head_features}, {d.tokens * row, d.head_features, row, 1}};
}

TensorLayout StatisticsOf(const AttentionDims& d) {
  return {{d.batch, d.heads, d.tokens, 1}, {d.heads * d.tokens, d.tokens, 1, 1}};
}

float ScoreScale(const AttentionDims& d) { return 1 / std::sqrt(d.head_features); }

constexpr DType kHalf = DType::kBFloat16;
constexpr int64_t kAligned = 16;

void AddAttentionForward(const AttentionDims& d, fe::graph::Graph& graph) {
  const auto part = [&](CudnnTensor tensor) {
    return graph.tensor(Attributes(tensor, PartOf(d), kHalf, kAligned));
  };
  // The "composite" implementation is fused on every GPU since Ampere. The "unified" one, which the
  // frontend may prefer, exists only for later GPUs.
  const auto [context, statistics] =
      graph.sdpa(part(kQuery), part(kKey), part(kValue),
                 fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_attn_scale(ScoreScale(d))
                     .set_causal_mask(d.causal)
                     .set_generate_stats(true)
                     .set_implementation(fe::AttentionImplementation_t::COMPOSITE));
  MakeOutput(context, kContext, ContextOf(d), kHalf, kAligned);
  MakeOutput(statistics, kStatistics, StatisticsOf(d), DType::kFloat32, kAligned);
}

void AddAttentionBackward(const AttentionDims& d, fe::graph::Graph& graph) {
  const auto input = [&](CudnnTensor tensor, const TensorLayout& layout, DType type) {
    return graph.tensor(Attributes(tensor, layout, type, kAligned));
  };
  const auto [query, key, value] =
      graph.sdpa_backward(input(kQuery, PartOf(d), kHalf), input(kKey, PartOf(d), kHalf),
                          input(kValue, PartOf(d), kHalf), input(kContext, ContextOf(d), kHalf),
                          input(kContextGradient, ContextOf(d), kHalf),
                          input(kStatistics, StatisticsOf(d), DType::kFloat32),
                          fe::graph::SDPA_backward_attributes()
                              .set_name("attention")
                              .set_attn_scale(ScoreScale(d))
                              .set_causal_mask(d.causal)
                              .set_deterministic_algorithm(true));
  MakeOutput(query, kQueryGradient, PartOf(d), kHalf, kAligned);
  MakeOutput(key, kKeyGradient, PartOf(d), kHalf, kAligned);
  MakeOutput(value, kValueGradient, PartOf(d), kHalf, kAligned);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeConvolutionPlan(const CudnnTarget& target,
                                                               const ConvolutionKey& key) {
  return BuildPlan(target, Describe(key), key.type, Unwanted(key),
                   [&key](fe::graph::Graph& graph) { AddConvolution(key, graph); });
}

absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeAttentionPlan(const CudnnTarget& target,
                                                             const AttentionDims& dims,
                                                             bool backward) {
  return BuildPlan(
      target, Describe(dims, backward), kHalf, /*unwanted=*/{}, [&](fe::graph::Graph& graph) {
        backward ? AddAttentionBackward(dims, graph) : AddAttentionForward(dims, graph);
      });
}

}  // namespace cadre
