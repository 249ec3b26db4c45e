#include "cli/import/import.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/import/left_out.h"
#include "cli/import/translator.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/problem.h"

namespace cadre {
namespace {

// Limit on all exported tensors together, 256 GiB.
constexpr int64_t kMaxPositions = int64_t{1} << 36;

// Runs along which the elements of two views advance together.
struct CommonRun {
  int64_t size, a_stride, b_stride;
};

// Requires: both views have equally many elements. Errors: InvalidArgument if the factors do not
// divide each other.
absl::StatusOr<std::vector<CommonRun>> CommonRuns(const View& a, const View& b) {
  std::vector<Factor> left = a.FactorsOf(0, a.rank()), right = b.FactorsOf(0, b.rank());
  std::vector<CommonRun> runs;
  while (!left.empty() && !right.empty()) {
    Factor &x = left.back(), &y = right.back();
    const int64_t size = std::min(x.size, y.size);
    if (x.size % size != 0 || y.size % size != 0) break;
    runs.push_back({size, x.stride, y.stride});
    for (std::vector<Factor>* side : {&left, &right}) {
      Factor& factor = side->back();
      factor.size /= size;
      factor.stride *= size;
      if (factor.size == 1) side->pop_back();
    }
  }
  if (!left.empty() || !right.empty()) {
    return absl::InvalidArgumentError("is divided and transposed in a way that is not supported");
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

// Makes a valid name of a layer from any text.
std::string LayerName(absl::string_view text) {
  std::string name;
  for (const char c : text.substr(0, 200)) {
    name.push_back(absl::ascii_isalnum(c) || absl::StrContains("_./-", c) ? c : '_');
  }
  return name.empty() || name == "input" ? "layer" : name;
}

// Writes the drafts on which the result depends as a model.
class Emitter {
 public:
  explicit Emitter(const Translator& translator)
      : translator_(translator), drafts_(translator.drafts()), names_(drafts_.size()) {}

  absl::StatusOr<ImportedModel> Run(int result) {
    SetInput();
    for (const int draft : Used(result)) CADRE_RETURN_IF_ERROR(AddLayer(draft));
    v1::Layer& loss = *imported_.model.add_layer();
    loss.set_name(Unique("loss"));
    loss.add_input(names_[result]);
    loss.mutable_softmax_cross_entropy();
    const auto graph = Graph::FromModel(imported_.model);
    if (!graph.ok()) return Annotate(graph.status(), "the translated model is not valid");
    const ParameterIndex index = ParameterIndex::FromGraph(*graph);
    std::map<std::string, Shape> shapes;
    for (const NamedTensor& tensor : imported_.weights) shapes[tensor.name] = tensor.shape;
    for (const Parameter& parameter : index.parameters()) {
      const auto found = shapes.find(parameter.name);
      if (found != shapes.end() && found->second == parameter.shape) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(origins_[parameter.name.substr(0, parameter.name.rfind('/'))],
                       ": the file has no tensor for ", Quoted(parameter.name),
                       "; an attention needs a bias in each projection"));
    }
    return std::move(imported_);
  }

 private:
  void SetInput() {
    const Draft& input = drafts_[0];
    names_[0] = "input";
    used_names_.insert("input");
    if (input.form == Draft::Form::kTokens) {
      imported_.model.mutable_tokens()->set_length(input.tokens);
      return;
    }
    v1::Image& image = *imported_.model.mutable_input();
    image.set_channels(input.channels);
    image.set_height(input.height);
    image.set_width(input.width);
  }

  // The drafts that lead to the result, in order, without the input.
  std::vector<int> Used(int result) const {
    std::vector<bool> used(drafts_.size(), false);
    used[result] = true;
    for (int d = result; d > 0; --d) {
      if (!used[d]) continue;
      for (const int input : drafts_[d].inputs) used[input] = true;
      if (drafts_[d].tied_to >= 0) used[drafts_[d].tied_to] = true;
    }
    std::vector<int> order;
    for (int d = 1; d <= result; ++d) {
      if (used[d]) order.push_back(d);
    }
    return order;
  }

  std::string Unique(const std::string& wanted) {
    std::string name = wanted;
    for (int n = 2; !used_names_.insert(name).second; ++n) name = absl::StrCat(wanted, "_", n);
    return name;
  }

  // Names a layer after the module that has its parameters, or after its operation and a number.
  std::string NameOf(const Draft& draft) {
    if (!draft.parameters.empty()) {
      const int initializer = draft.parameters[0].pieces[0].initializer;
      const absl::string_view full = translator_.initializer(initializer).name;
      const size_t dot = full.rfind('.');
      return Unique(LayerName(dot == absl::string_view::npos ? full : full.substr(0, dot)));
    }
    const auto* op = v1::Layer::descriptor()->FindFieldByNumber(draft.layer.op_case());
    const std::string kind = op == nullptr ? "layer" : op->name();
    return Unique(absl::StrCat(kind, ++numbers_[kind]));
  }

  absl::Status AddLayer(int number) {
    const Draft& draft = drafts_[number];
    v1::Layer layer = draft.layer;
    if (draft.context) {
      return absl::InvalidArgumentError(
          absl::StrCat(draft.origin, ": the context of an attention has no output projection"));
    }
    if (draft.without_bias >= 0 && !names_[draft.without_bias].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          draft.origin, " adds a bias to the result of ", drafts_[draft.without_bias].origin,
          ", which other operators use without the bias; a layer has one result, so all of them "
          "must use the same"));
    }
    names_[number] = NameOf(draft);
    layer.set_name(names_[number]);
    origins_[names_[number]] = draft.origin;
    for (const int input : draft.inputs) layer.add_input(names_[input]);
    if (draft.tied_to >= 0) layer.mutable_fully_connected()->set_tied_to(names_[draft.tied_to]);
    *imported_.model.add_layer() = std::move(layer);
    for (const DraftParameter& parameter : draft.parameters) {
      CADRE_RETURN_IF_ERROR(AddParameter(names_[number], parameter));
    }
    return absl::OkStatus();
  }

  absl::Status AddParameter(const std::string& layer, const DraftParameter& parameter) {
    NamedTensor tensor{.name = absl::StrCat(layer, "/", parameter.name), .shape = parameter.shape};
    int64_t elements = 0;
    for (const Piece& piece : parameter.pieces) {
      bool repeats = false;
      for (const Factor& factor : piece.original.FactorsOf(0, piece.original.rank())) {
        repeats = repeats || factor.stride == 0;
      }
      if (repeats) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Quoted(translator_.initializer(piece.initializer).name),
            " is used more than once within the ", parameter.name, " of ", origins_[layer]));
      }
      elements += piece.original.elements();
    }
    if (elements != parameter.shape.elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origins_[layer], ": its tensors have ", elements, " elements for ",
                       Quoted(tensor.name), ", which has ", parameter.shape.elements()));
    }
    tensor.values.resize(parameter.shape.elements());
    for (const Piece& piece : parameter.pieces) {
      const OnnxTensor& from = translator_.initializer(piece.initializer);
      const auto [owner, first] = owners_.try_emplace(piece.initializer, tensor.name);
      if (!first && owner->second != tensor.name) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", Quoted(from.name), " is used by ", owner->second, " (",
                         origins_[owner->second.substr(0, owner->second.rfind('/'))], ") and by ",
                         tensor.name, " (", origins_[layer],
                         "). Exporters merge equal tensors of untrained models: export with "
                         "optimize=False. Only "
                         "an embedding and the last fully connected layer can share a weight"));
      }
      auto runs = CommonRuns(piece.original, piece.parameter);
      if (!runs.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(
            origins_[layer], ": its tensor ", Quoted(from.name), " ", runs.status().message()));
      }
      v1::OriginalTensor& original = *imported_.model.add_original();
      original.set_name(from.name);
      original.mutable_shape()->Add(from.dims.begin(), from.dims.end());
      original.set_parameter(tensor.name);
      original.set_offset(piece.original.offset());
      original.set_parameter_offset(piece.parameter.offset());
      for (const CommonRun& run : *runs) {
        original.add_size(run.size);
        original.add_stride(run.a_stride);
        original.add_parameter_stride(run.b_stride);
      }
      const std::vector<int64_t> source = piece.original.Positions();
      const std::vector<int64_t> target = piece.parameter.Positions();
      for (size_t i = 0; i < source.size(); ++i) {
        tensor.values[target[i]] = from.floats[source[i]];
      }
    }
    imported_.weights.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  const Translator& translator_;
  const std::vector<Draft>& drafts_;
  std::vector<std::string> names_;
  std::set<std::string> used_names_;
  std::map<std::string, int> numbers_;
  // By layer: the operator and node of the file.
  std::map<std::string, std::string> origins_;
  // By initializer: the parameter that it initializes.
  std::map<int, std::string> owners_;
  ImportedModel imported_;
};

// The name of the output with the scores. Errors: InvalidArgument with the names of the outputs.
absl::StatusOr<std::string> ScoresOf(const onnx::Graph& graph, const ImportOptions& options) {
  std::vector<std::string> names;
  for (const onnx::ValueInfo& output : graph.output()) names.push_back(output.name());
  if (names.empty()) return absl::InvalidArgumentError("the graph has no output");
  const std::string all = absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, Quoted(name));
  });
  if (!options.scores.empty()) {
    if (std::find(names.begin(), names.end(), options.scores) != names.end()) return options.scores;
    return absl::InvalidArgumentError(absl::StrCat("--scores is ", Quoted(options.scores),
                                                   ", but the outputs of the graph are ", all));
  }
  if (names.size() == 1) return names[0];
  return absl::InvalidArgumentError(absl::StrCat(
      "the graph has ", names.size(), " outputs, ", all,
      ", and a model has one; name that with the scores by --scores=NAME, without its softmax"));
}

// Whether the tensor has elements in all runs, and strides that do not overflow a position.
bool HasPossibleSteps(const v1::OriginalTensor& original) {
  const auto is_stride = [](int64_t stride) {
    return stride >= -kMaxExportedElements && stride <= kMaxExportedElements;
  };
  return std::all_of(original.size().begin(), original.size().end(),
                     [](int64_t size) { return size >= 1; }) &&
         std::all_of(original.stride().begin(), original.stride().end(), is_stride) &&
         std::all_of(original.parameter_stride().begin(), original.parameter_stride().end(),
                     is_stride);
}

// Copies the elements of the runs from run `d` on, which begin at position `from` of the parameter
// and `to` of the tensor, and marks them in `done`. Returns false at a position outside either. The
// check at the beginning of each run keeps the sums of positions from overflowing.
bool CopyRuns(const v1::OriginalTensor& original, int d, int64_t from, int64_t to,
              const std::vector<float>& parameter, std::vector<float>& tensor,
              std::vector<bool>& done) {
  if (from < 0 || from >= std::ssize(parameter) || to < 0 || to >= std::ssize(tensor)) return false;
  if (d == original.size_size()) {
    tensor[to] = parameter[from];
    done[to] = true;
    return true;
  }
  for (int64_t i = 0; i < original.size(d); ++i) {
    if (!CopyRuns(original, d + 1, from, to, parameter, tensor, done)) return false;
    from += original.parameter_stride(d);
    to += original.stride(d);
  }
  return true;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportOnnx(const onnx::Model& file, const std::string& folder,
                                         const ImportOptions& options) {
  std::vector<OnnxTensor> initializers;
  for (const onnx::Tensor& tensor : file.graph().initializer()) {
    CADRE_ASSIGN_OR_RETURN(OnnxTensor decoded, DecodeTensor(tensor, folder, options.linked_folder));
    initializers.push_back(std::move(decoded));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string scores, ScoresOf(file.graph(), options));
  // A graph that declares the number of samples as variable may still contain constants for one
  // sample, as exporters write them that were given a batch of 1.
  std::string problems;
  for (const int64_t batch : {2, 1}) {
    Translator translator(file.graph(), initializers, options.padding_token, scores, batch);
    const int result = translator.Run();
    if (translator.problems().empty()) {
      CADRE_ASSIGN_OR_RETURN(ImportedModel imported, Emitter(translator).Run(result));
      imported.left_out = LeftOut(file.graph(), scores, translator, imported.model);
      return imported;
    }
    if (!problems.empty()) break;
    problems = absl::StrJoin(translator.problems(), "\n");
    if (!translator.batch_is_variable()) break;
    if (absl::StrContains(problems, absl::StrCat("[", batch, ","))) {
      absl::StrAppend(&problems, "\n(the number of samples is variable in the file, and ", batch,
                      " in the extents above)");
    }
  }
  return absl::InvalidArgumentError(problems);
}

absl::StatusOr<ExportedTensors> ExportTensors(
    const v1::Model& model,
    const std::function<absl::StatusOr<std::vector<float>>(const std::string& parameter)>& read) {
  if (model.original().empty()) {
    return absl::FailedPreconditionError(
        "the run's model has no original names: it was not made by 'cadre import'");
  }
  std::map<std::string, NamedTensor> tensors;
  std::map<std::string, std::vector<bool>> filled;
  std::map<std::string, std::vector<float>> parameters;
  // Limits of the positions of all tensors, and of all runs.
  int64_t tensors_left = kMaxPositions;
  int64_t runs_left = kMaxPositions;
  for (const v1::OriginalTensor& original : model.original()) {
    const auto bad = [&](const char* what) {
      return absl::InvalidArgumentError(
          absl::StrCat("original tensor ", Quoted(original.name()), ": ", what));
    };
    const std::vector<int64_t> dims(original.shape().begin(), original.shape().end());
    if (!View::IsPossible(dims) || ProductOf(dims) > kMaxExportedElements ||
        original.size_size() != original.stride_size() ||
        original.size_size() != original.parameter_stride_size()) {
      return bad("has impossible extents");
    }
    auto values = parameters.find(original.parameter());
    if (values == parameters.end()) {
      CADRE_ASSIGN_OR_RETURN(std::vector<float> found, read(original.parameter()));
      values = parameters.emplace(original.parameter(), std::move(found)).first;
    }
    if (!HasPossibleSteps(original)) return bad("has impossible extents");
    const std::vector<int64_t> sizes(original.size().begin(), original.size().end());
    if (!View::IsPossible(sizes) || ProductOf(sizes) > ProductOf(dims) ||
        (runs_left -= ProductOf(sizes)) < 0) {
      return bad("has too many positions");
    }
    NamedTensor& tensor = tensors[original.name()];
    tensors_left -= ProductOf(dims) - std::ssize(tensor.values);
    if (tensors_left < 0) return bad("has too many positions");
    tensor = {original.name(), Shape(dims), std::move(tensor.values)};
    tensor.values.resize(ProductOf(dims));
    std::vector<bool>& done = filled[original.name()];
    done.resize(tensor.values.size());
    if (!CopyRuns(original, 0, original.parameter_offset(), original.offset(), values->second,
                  tensor.values, done)) {
      return bad("has positions outside the tensor or the parameter");
    }
  }
  ExportedTensors exported;
  for (auto& [name, tensor] : tensors) {
    const std::vector<bool>& done = filled[name];
    if (std::find(done.begin(), done.end(), false) != done.end()) {
      exported.incomplete.push_back(name);
    } else {
      exported.tensors.push_back(std::move(tensor));
    }
  }
  return exported;
}

}  // namespace cadre
