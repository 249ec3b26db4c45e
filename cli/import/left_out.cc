#include "cli/import/left_out.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "cli/import/graph_order.h"
#include "cli/import/view.h"
#include "model/problem.h"

namespace cadre {
namespace {

int64_t ElementsOf(const onnx::Tensor& tensor) {
  return ProductOf({tensor.dims().begin(), tensor.dims().end()});
}

bool IsFloat(const onnx::Tensor& tensor) {
  return tensor.data_type() == 1 || tensor.data_type() == 11;
}

class Report {
 public:
  Report(const onnx::Graph& graph, const std::string& scores, const Translator& translator,
         const v1::Model& model)
      : graph_(graph), scores_(Quoted(scores)), scores_name_(scores), translator_(translator) {
    for (const v1::OriginalTensor& original : model.original()) {
      trained_[original.name()] += ProductOf({original.size().begin(), original.size().end()});
    }
  }

  std::vector<std::string> Run() {
    AddOutputsAndInputs();
    AddOperators();
    AddTensors();
    const auto& dropouts = translator_.inactive_dropouts();
    const std::set<std::string> unique(dropouts.begin(), dropouts.end());
    Add("Dropout operator", {unique.begin(), unique.end()},
        "the graph was exported with them inactive, so the model has none");
    return std::move(lines_);
  }

 private:
  // Nothing if there are no names.
  void Add(absl::string_view noun, const std::vector<std::string>& names, absl::string_view why) {
    if (names.empty()) return;
    lines_.push_back(
        absl::StrCat(Counted(std::ssize(names), noun), " (", FirstNames(names), "): ", why));
  }

  bool IsUsed(const std::string& name) const { return translator_.order().values.count(name) > 0; }

  void AddOutputsAndInputs() {
    std::vector<std::string> outputs, inputs;
    for (const onnx::ValueInfo& output : graph_.output()) {
      if (output.name() != scores_name_) outputs.push_back(output.name());
    }
    std::set<std::string> tensors;
    for (const onnx::Tensor& tensor : graph_.initializer()) tensors.insert(tensor.name());
    for (const onnx::ValueInfo& input : graph_.input()) {
      if (tensors.count(input.name()) == 0 && !IsUsed(input.name())) inputs.push_back(input.name());
    }
    Add("other output", outputs, absl::StrCat("the model computes ", scores_, " only"));
    Add("input", inputs, absl::StrCat(scores_, " does not depend on them"));
  }

  void AddOperators() {
    const auto& used = translator_.order().nodes;
    std::set<int> translated(used.begin(), used.end());
    std::vector<std::string> names;
    for (int n = 0; n < graph_.node_size(); ++n) {
      const onnx::Node& node = graph_.node(n);
      if (translated.count(n) > 0) continue;
      names.push_back(node.name().empty() && !node.output().empty() ? node.output(0) : node.name());
    }
    Add("operator", names, absl::StrCat(scores_, " does not depend on them"));
  }

  void AddTensors() {
    std::vector<std::string> unused, fixed;
    int64_t unused_elements = 0;
    for (const onnx::Tensor& tensor : graph_.initializer()) {
      const auto trained = trained_.find(tensor.name());
      if (!IsUsed(tensor.name())) {
        unused.push_back(tensor.name());
        unused_elements += ElementsOf(tensor);
      } else if (trained == trained_.end()) {
        if (IsFloat(tensor)) fixed.push_back(tensor.name());
      } else if (trained->second < ElementsOf(tensor)) {
        lines_.push_back(absl::StrCat("tensor ", Quoted(tensor.name()), ": the model has ",
                                      trained->second, " of its ",
                                      Counted(ElementsOf(tensor), "element")));
      }
    }
    Add("tensor", unused,
        absl::StrCat(scores_, " does not depend on their ", Counted(unused_elements, "element")));
    Add("tensor", fixed, "the graph uses them as fixed numbers, which are not trained");
  }

  const onnx::Graph& graph_;
  const std::string scores_;
  const std::string scores_name_;
  const Translator& translator_;
  // By tensor: the elements that are parameters of the model.
  std::map<std::string, int64_t> trained_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> LeftOut(const onnx::Graph& graph, const std::string& scores,
                                 const Translator& translator, const v1::Model& model) {
  return Report(graph, scores, translator, model).Run();
}

}  // namespace cadre
