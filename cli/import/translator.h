// Part of cli/import/import.h: translates the nodes of an ONNX graph, one after another, to
// drafts of layers. translate.cc explains it. Used by one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/import/attributes.h"
#include "cli/import/folding.h"
#include "cli/import/graph_order.h"
#include "cli/import/onnx_file.h"
#include "cli/import/value.h"
#include "proto/cadre/onnx/model.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// Scores that are replaced by such a number, or to which it is added, have no weight in a softmax.
inline constexpr double kHides = -1e4;

// Which elements of a parameter are which elements of an initializer. Both views have as many
// elements, in corresponding order.
struct Piece {
  int initializer = 0;
  View original;
  View parameter;
};

struct DraftParameter {
  // "weight", "bias", ...
  std::string name;
  Shape shape;
  std::vector<Piece> pieces;
};

// A layer that the model will have if its output is used.
struct Draft {
  enum class Form {
    kTokens,    // [tokens], only the input
    kImage,     // [height, width, channels], in ONNX [channels, height, width]
    kRows,      // [tokens, features]
    kFeatures,  // [features]
  };
  v1::Layer layer;  // without name and inputs
  std::vector<int> inputs;
  // The operator and node that made it, for messages.
  std::string origin;
  Form form = Form::kFeatures;
  int64_t channels = 0, height = 0, width = 0;
  int64_t tokens = 1, features = 0;
  std::vector<DraftParameter> parameters;
  // Number of the embedding with the same weight; -1: none.
  int tied_to = -1;
  // The draft of which this one is a copy with a bias; -1: none.
  int without_bias = -1;
  // Context of an attention, which the output projection completes.
  std::optional<Attention> context;
  int64_t heads = 0;

  // Elements of one sample.
  int64_t elements() const {
    if (form == Form::kImage) return channels * height * width;
    return form == Form::kTokens ? tokens : tokens * features;
  }
};

// An operator, or a use of one, that has no translation.
inline absl::Status Unsupported(const std::string& what) { return absl::UnimplementedError(what); }

// An operator without a rule, of which there is no more to say.
inline absl::Status NotSupported() { return Unsupported(""); }

// The extents of a value: "[2, 3, 8, 8]".
std::string ExtentsOf(const Value& value);
// A draft of an image, without its operation.
Draft ImageDraft(int input, int64_t channels, int64_t height, int64_t width);
// A parameter whose elements are those of one view of an initializer.
DraftParameter ParameterOf(const char* name, Shape shape, int initializer, View original);

class Translator {
 public:
  // Draft 0 is the input. `scores`: the output to translate. `batch`: the samples of a graph that
  // leaves their number open. The graph is borrowed.
  Translator(const onnx::Graph& graph, const std::vector<OnnxTensor>& initializers,
             std::optional<uint32_t> padding_token, const std::string& scores, int64_t batch)
      : graph_(graph),
        initializers_(initializers),
        padding_token_(padding_token),
        scores_(scores),
        order_(OrderFor(graph, scores)),
        batch_(batch) {}

  // Translates the nodes on which the scores depend. Afterwards, `problems` has one line for each
  // operator that is not supported. Returns the number of the draft with the scores; -1 with
  // problems.
  int Run();

  const std::vector<Draft>& drafts() const { return drafts_; }
  const std::vector<std::string>& problems() const { return problems_; }
  const OnnxTensor& initializer(int i) const { return initializers_[i]; }
  const GraphOrder& order() const { return order_; }
  // Whether the graph leaves the number of samples open.
  bool batch_is_variable() const { return batch_is_variable_; }
  // Dropout operators that do nothing in the graph.
  const std::vector<std::string>& inactive_dropouts() const { return inactive_dropouts_; }

  // --- For the rules (rules.h): translate.cc ---
  // Samples of the batch with which the graph was exported.
  int64_t batch() const { return batch_; }
  void AddInactiveDropout(std::string name) { inactive_dropouts_.push_back(std::move(name)); }
  // The result of a node with these inputs; that of Split is a sequence. Errors: NotSupported for
  // operators without a rule.
  absl::StatusOr<Value> TranslateNode(const onnx::Node& node, std::vector<Value> inputs);
  // A node that lives as long as the translation, to stand for one with more inputs.
  onnx::Node& NewNode() { return made_nodes_.emplace_back(); }
  // Takes the elements from those that may still be folded; false if there are fewer.
  bool MayFold(int64_t elements);
  // The numbers of a value: also of a small parameter.
  std::optional<Value> AsNumbers(const Value& value);
  std::optional<std::vector<int64_t>> AsIntegers(const Value& value) const;
  // The number that all elements have.
  std::optional<double> AsScalar(const Value& value);

  // --- translate_elementwise.cc ---
  // The activation with a function that the node has composed of its inputs.
  Value Composed(const Value& base, const Samples& function, const onnx::Node& node,
                 const std::vector<Value>& in);

  // --- Masks: translate.cc ---
  // Whether each token of a value of the input's tokens has the id, as a mask.
  Value IsToken(const Value& tokens, int64_t id) const;
  // Hides the keys of the token of a mask with the id from all queries of the attention.
  // `hides_on`: keys are hidden where the mask's condition holds.
  absl::Status SetPadding(int64_t id, bool hides_on, Attention& attention);

  // --- Access to activations: translate_access.cc ---
  // The same value without a function: the activation becomes a layer.
  absl::StatusOr<Value> Plain(const Value& value);
  // A plain value that is a whole image.
  absl::StatusOr<Value> Image(const Value& value);
  // A plain value of rows: the last dimension is a whole row of its draft, the other dimensions are
  // all rows in some order.
  absl::StatusOr<Value> Rows(const Value& value);
  // The layer of `kind` on all rows of `x`, with rows of `features` elements.
  Value OnRows(const Value& x, Draft draft, int64_t features);
  // What a value is, for messages: "tensor 'w' with the extents [1, 6, 1, 1]".
  std::string Describe(const Value& value) const;
  // The draft as a value: whole.
  Value Whole(int draft) const;
  int AddDraft(Draft draft);
  // A piece that is a whole parameter. Errors: InvalidArgument if the value is not a parameter with
  // as many elements; `what` names it.
  absl::StatusOr<DraftParameter> WholeParameter(const char* name, const Shape& shape,
                                                const Value& value) const;

 private:
  // --- translate.cc ---
  void SetInitializers();
  void SetInputs();
  absl::Status SetInput(const onnx::ValueInfo& info);
  absl::Status SetSecondInput(const onnx::ValueInfo& info);
  // The draft of the output with the scores. Errors: what it is instead.
  absl::StatusOr<int> ScoresDraft();
  void Translate(const onnx::Node& node);
  absl::StatusOr<Value> Constant(const onnx::Node& node);
  // --- translate_elementwise.cc ---
  // The result of the last operator of a function that is not an activation, translated alone: its
  // operands become layers first, and it is an activation, or adds or multiplies.
  absl::StatusOr<Value> LastOperator(const onnx::Node& node, const std::vector<Value>& operands);
  // --- translate_access.cc ---
  // A value of an image with its channels last as that of a layer to_tokens; nothing for other
  // orders.
  std::optional<Value> TokensOfImage(Value plain);
  // " by operator Transpose of node 'x' (its attribute perm is [0, 3, 1, 2])": the node that
  // computed `value`, an input of the node that is translated; empty if there is none.
  std::string RearrangedBy(const Value& value) const;

  const onnx::Graph& graph_;
  std::vector<OnnxTensor> initializers_;
  const std::optional<uint32_t> padding_token_;
  const std::string scores_;
  const GraphOrder order_;
  int64_t batch_;
  bool batch_is_variable_ = false;
  std::map<std::string, Value> values_;
  // Results of translated nodes that have no translation, such as the mask of a dropout: by name,
  // what they are.
  std::map<std::string, std::string> untranslated_;
  // Nodes that stand for one with more inputs.
  std::deque<onnx::Node> made_nodes_;
  std::vector<std::string> inactive_dropouts_;
  // The node that is translated.
  const onnx::Node* node_ = nullptr;
  std::vector<Draft> drafts_;
  // By draft and function: the draft of the activation.
  std::map<std::pair<int, std::string>, int> activations_;
  // The node that computed a value with a function, to translate its operands if the composition is
  // not an activation: by draft and function.
  std::map<std::pair<int, std::string>, std::pair<const onnx::Node*, std::vector<Value>>> made_by_;
  int depth_ = 0;
  bool has_mask_input_ = false;
  // Whether the mask that is an input is 1 where a token is padding; not known before an attention
  // uses it.
  std::optional<bool> one_is_padding_;
  // Elements that may still be folded, so that no file takes long.
  int64_t foldable_ = int64_t{3} << 25;
  std::vector<std::string> problems_;
};

}  // namespace cadre
