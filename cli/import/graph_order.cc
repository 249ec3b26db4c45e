#include "cli/import/graph_order.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/problem.h"

namespace cadre {
namespace {

constexpr size_t kMaxNamesShown = 4;

class Ordering {
 public:
  explicit Ordering(const onnx::Graph& graph) : graph_(graph), needed_(graph.node_size(), false) {}

  GraphOrder Run(const std::string& output) {
    FindSources();
    FindNeeded(output);
    Sort();
    return std::move(order_);
  }

 private:
  static constexpr int kFixed = -1;  // an initializer or an input of the graph

  // What computes each value.
  void FindSources() {
    for (const onnx::ValueInfo& input : graph_.input()) sources_[input.name()] = kFixed;
    std::set<std::string> tensors;
    for (const onnx::Tensor& tensor : graph_.initializer()) {
      sources_[tensor.name()] = kFixed;
      if (!tensors.insert(tensor.name()).second) {
        order_.problems.push_back(
            absl::StrCat("the graph has two initializers ", Quoted(tensor.name())));
      }
    }
    for (int n = 0; n < graph_.node_size(); ++n) {
      for (const std::string& name : graph_.node(n).output()) {
        if (name.empty()) continue;
        const auto [source, first] = sources_.try_emplace(name, n);
        if (first) continue;
        order_.problems.push_back(
            absl::StrCat("value ", Quoted(name), " is computed by ", DisplayName(graph_.node(n)),
                         source->second == kFixed
                             ? ", and is an input or an initializer of the graph"
                             : absl::StrCat(" and by ", DisplayName(graph_.node(source->second)))));
      }
    }
  }

  void FindNeeded(const std::string& output) {
    std::vector<std::string> open = {output};
    order_.values.insert(output);
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      const auto source = sources_.find(name);
      // The caller states the problem of an output that nothing computes.
      if (source == sources_.end() || source->second == kFixed || needed_[source->second]) continue;
      needed_[source->second] = true;
      const onnx::Node& node = graph_.node(source->second);
      for (const std::string& input : node.input()) {
        if (input.empty() || !order_.values.insert(input).second) continue;
        open.push_back(input);
        if (sources_.count(input) > 0) continue;
        order_.problems.push_back(absl::StrCat(
            DisplayName(node), ": its input ", Quoted(input),
            " is neither an input or an initializer of the graph nor the result of a node"));
      }
    }
  }

  // The first node in the file of which all operands are known, again and again.
  void Sort() {
    std::vector<int> missing(graph_.node_size(), 0);
    std::vector<std::vector<int>> users(graph_.node_size());
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (int n = 0; n < graph_.node_size(); ++n) {
      if (!needed_[n]) continue;
      for (const int operand : OperandsOf(n)) {
        users[operand].push_back(n);
        ++missing[n];
      }
      if (missing[n] == 0) ready.push(n);
    }
    while (!ready.empty()) {
      const int n = ready.top();
      ready.pop();
      order_.nodes.push_back(n);
      for (const int user : users[n]) {
        if (--missing[user] == 0) ready.push(user);
      }
    }
    ReportCycle(missing);
  }

  std::set<int> OperandsOf(int n) const {
    std::set<int> operands;
    for (const std::string& input : graph_.node(n).input()) {
      const auto source = sources_.find(input);
      if (!input.empty() && source != sources_.end() && source->second != kFixed) {
        operands.insert(source->second);
      }
    }
    return operands;
  }

  // `missing`: the number of operands of each node that are not in the order.
  void ReportCycle(const std::vector<int>& missing) {
    const auto left = std::find_if(missing.begin(), missing.end(), [](int m) { return m > 0; });
    if (left == missing.end()) return;
    // From operand to operand until a node repeats.
    std::vector<int> path = {static_cast<int>(left - missing.begin())};
    while (std::find(path.begin(), path.end() - 1, path.back()) == path.end() - 1) {
      const std::set<int> operands = OperandsOf(path.back());
      path.push_back(*std::find_if(operands.begin(), operands.end(),
                                   [&](int operand) { return missing[operand] > 0; }));
    }
    std::vector<std::string> names;
    for (auto n = std::find(path.begin(), path.end() - 1, path.back()); n != path.end() - 1; ++n) {
      names.push_back(DisplayName(graph_.node(*n)));
    }
    order_.problems.push_back(
        names.size() == 1
            ? names[0] + " uses its own result"
            : absl::StrCat(
                  "the graph has a cycle of ", names.size(),
                  " nodes, each of which uses the result of the next: ",
                  absl::StrJoin(names.begin(),
                                names.begin() + std::min(names.size(), kMaxNamesShown), ", ")));
  }

  const onnx::Graph& graph_;
  std::map<std::string, int> sources_;
  std::vector<bool> needed_;
  GraphOrder order_;
};

}  // namespace

GraphOrder OrderFor(const onnx::Graph& graph, const std::string& output) {
  return Ordering(graph).Run(output);
}

std::string DisplayName(const onnx::Node& node) {
  return absl::StrCat(
      "operator ", node.domain().empty() ? "" : node.domain() + ".", node.op_type(), " of node ",
      Quoted(node.name().empty() && !node.output().empty() ? node.output(0) : node.name()));
}

std::string FirstNames(const std::vector<std::string>& names) {
  std::string text;
  const size_t shown = names.size() > kMaxNamesShown + 1 ? kMaxNamesShown : names.size();
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == names.size();
    absl::StrAppend(&text, i == 0 ? "" : last ? " and " : ", ", Quoted(names[i]));
  }
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace cadre
