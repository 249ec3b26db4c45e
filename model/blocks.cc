// Expansion of blocks.
//
// Idea. A use of a block is replaced by the layers of the block. Their names begin with the name of
// the use, and their inputs are resolved in the scope of the block: earlier layers of the block, or
// "input", the input of the use. Uses in blocks expand recursively.
//
// A run file is untrusted, and a few lines may describe an exponential number of layers (blocks
// that use blocks twice), so every dimension has a limit that is checked before the expansion: the
// depth, the number of layers, the bytes of all layers, and the length of every text that is
// repeated. An error in a block is reported once, by its path in the file, however often the block
// is used.
#include "model/blocks.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model/formula.h"
#include "model/graph.h"
#include "model/problem.h"

namespace cadre {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::RepeatedPtrField;

// Limit of nested uses, because the recursion uses the stack.
constexpr size_t kMaxNesting = 32;
// Limit of names in blocks and of uses; names of plain layers may be as long as expanded names.
constexpr size_t kMaxBlockName = 200;
// Limit of "field = formula".
constexpr size_t kMaxSetCharacters = 1000;
constexpr int kMaxBlocks = 1000;
// Limit of the size of all expanded layers: a short use can expand to many layers.
constexpr size_t kMaxModelBytes = 64 << 20;
constexpr size_t kMaxProblems = 100;

bool IsParameterName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_islower(c) || c == '_';
  });
}

bool IsInteger(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32 && !field.is_repeated();
}

// The fields that `set` can assign, for the message about another name.
std::string IntegersOf(const Message& op) {
  std::vector<std::string> names;
  for (int i = 0; i < op.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *op.GetDescriptor()->field(i);
    if (IsInteger(field)) names.push_back(field.name());
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// The operation of a layer; null if it has none.
Message* MutableOp(v1::Layer* layer) {
  const auto* reflection = layer->GetReflection();
  const FieldDescriptor* field =
      reflection->GetOneofFieldDescriptor(*layer, v1::Layer::descriptor()->FindOneofByName("op"));
  return field == nullptr ? nullptr : reflection->MutableMessage(layer, field);
}

// A list of layers during expansion: the model's, or a block's in one use.
struct Scope {
  const RepeatedPtrField<v1::Layer>& layers;
  // Path of the list: "model" or "model.block[2]".
  std::string path;
  // Prefix of the names of its layers; empty: the model's own.
  std::string prefix;
  // The layer that "input" refers to.
  std::string input;
  // The previous layer.
  std::string before;
  std::map<std::string, int64_t> values;
  // By name in the list, the expanded layer that the name refers to.
  std::map<std::string, std::string> outputs;

  bool is_model() const { return prefix.empty(); }
};

class Expansion {
 public:
  Expansion(const v1::Model& model, std::vector<Problem>* problems)
      : model_(model), problems_(*problems) {}

  ExpandedModel Run() {
    result_.model = model_;
    result_.model.clear_layer();
    result_.model.clear_block();
    if (!CheckBlocks()) return std::move(result_);
    Scope scope{model_.layer(), "model", "", kInputName, kInputName, {}, {}};
    // Continues after errors, to report those of all layers.
    for (int i = 0; i < scope.layers.size(); ++i) ExpandLayer(i, &scope);
    return std::move(result_);
  }

 private:
  // Adds a problem unless another use of the block has added it already. Returns false.
  template <typename... Parts>
  bool Add(std::string field, const Parts&... message) {
    if (problems_.size() >= kMaxProblems) return false;
    Problem problem{std::move(field), absl::StrCat(message...)};
    const bool known = std::find(problems_.begin(), problems_.end(), problem) != problems_.end();
    if (!known) problems_.push_back(std::move(problem));
    return false;
  }

  // Adds a problem about a long text without the text itself, which would fill the log.
  bool AddTooLong(std::string field, size_t characters, size_t max) {
    return Add(std::move(field), "has ", characters, " characters; at most ", max, " are possible");
  }

  // Names, sizes and parameters of all blocks; a block that no layer uses is checked, too.
  bool CheckBlocks() {
    const size_t before = problems_.size();
    if (model_.block_size() > kMaxBlocks) {
      return Add("model.block", "the model has ", model_.block_size(), " blocks; at most ",
                 kMaxBlocks, " are possible");
    }
    for (int b = 0; b < model_.block_size(); ++b) {
      const v1::Block& block = model_.block(b);
      const std::string path = absl::StrCat("model.block[", b, "]");
      if (block.name().empty()) {
        Add(path + ".name", "the block has no name");
      } else if (block.name().size() > kMaxBlockName) {
        AddTooLong(path + ".name", block.name().size(), kMaxBlockName);
        continue;
      } else if (!blocks_.emplace(block.name(), b).second) {
        Add(path + ".name", Quoted(block.name()), " is the name of an earlier block");
      }
      if (block.layer().empty()) Add(path, "block ", Quoted(block.name()), " has no layers");
      CheckParameters(path, block);
    }
    return problems_.size() == before;
  }

  // Formulas refer to parameters, so their names must be words of the formulas.
  void CheckParameters(const std::string& path, const v1::Block& block) {
    std::set<std::string> names;
    for (int p = 0; p < block.parameter_size(); ++p) {
      const std::string field = absl::StrCat(path, ".parameter[", p, "]");
      const std::string& name = block.parameter(p);
      if (name.size() > kMaxBlockName) {
        AddTooLong(field, name.size(), kMaxBlockName);
      } else if (!IsParameterName(name)) {
        Add(field, Quoted(name), " is not a parameter name; use only [a-z_]");
      } else if (!names.insert(name).second) {
        Add(field, Quoted(name), " is already a parameter of the block");
      }
    }
  }

  bool ExpandLayer(int i, Scope* scope) {
    const std::string path = absl::StrCat(scope->path, ".layer[", i, "]");
    if (!CheckLengths(path, *scope, scope->layers[i])) return false;
    v1::Layer layer = scope->layers[i];
    const std::string name = layer.name();
    // Errors in plain layers are reported by shape inference.
    const bool as_it_is = scope->is_model() && !layer.has_use();
    if (name.empty() && !as_it_is) return Add(path + ".name", "the layer has no name");
    layer.set_name(scope->prefix + name);
    if (!ResolveInputs(path, *scope, &layer)) return false;
    if (!as_it_is && !ApplySets(path, *scope, &layer)) return false;
    if (layer.has_use()) {
      if (!ExpandUse(path, layer, &scope->before)) return false;
    } else {
      scope->before = layer.name();
      if (!Emit(path, std::move(layer))) return false;
    }
    scope->outputs[name] = scope->before;
    return true;
  }

  // Limits texts, which expansion may repeat thousands of times.
  bool CheckLengths(const std::string& path, const Scope& scope, const v1::Layer& layer) {
    const bool is_plain = scope.is_model() && !layer.has_use();
    if (const size_t max = is_plain ? kMaxLayerNameCharacters : kMaxBlockName;
        layer.name().size() > max) {
      return AddTooLong(path + ".name", layer.name().size(), max);
    }
    if (const size_t characters = scope.prefix.size() + layer.name().size();
        characters > kMaxLayerNameCharacters) {
      return Add(path + ".name", "with the names of the layers that use its block, it has ",
                 characters, " characters; at most ", kMaxLayerNameCharacters, " are possible");
    }
    if (layer.input_size() > kMaxInputs) {
      return Add(path + ".input", "the layer takes ", layer.input_size(), " inputs; at most ",
                 kMaxInputs, " are possible");
    }
    for (int n = 0; n < layer.input_size(); ++n) {
      if (layer.input(n).size() <= kMaxLayerNameCharacters) continue;
      return AddTooLong(absl::StrCat(path, ".input[", n, "]"), layer.input(n).size(),
                        kMaxLayerNameCharacters);
    }
    for (int s = 0; s < layer.set_size(); ++s) {
      if (layer.set(s).size() <= kMaxSetCharacters) continue;
      return AddTooLong(absl::StrCat(path, ".set[", s, "]"), layer.set(s).size(),
                        kMaxSetCharacters);
    }
    if (layer.use().block().size() > kMaxBlockName) {
      return AddTooLong(path + ".use.block", layer.use().block().size(), kMaxBlockName);
    }
    return true;
  }

  bool Emit(const std::string& path, v1::Layer layer) {
    if (result_.model.layer_size() >= kMaxLayers) {
      return Add(path, "the model has more than ", kMaxLayers, " layers with this one");
    }
    bytes_ += layer.ByteSizeLong();
    if (bytes_ > kMaxModelBytes) {
      return Add(path, "the layers up to this one take more than ", kMaxModelBytes,
                 " bytes; give them shorter names, or fewer inputs");
    }
    made_.insert(layer.name());
    *result_.model.add_layer() = std::move(layer);
    result_.origins.push_back(path);
    return true;
  }

  // Replaces names of the list by names of the model.
  bool ResolveInputs(const std::string& path, const Scope& scope, v1::Layer* layer) {
    if (layer->input().empty()) {
      if (!scope.is_model()) layer->add_input(scope.before);
      return true;
    }
    for (int n = 0; n < layer->input_size(); ++n) {
      const std::string name = layer->input(n);
      if (name == kInputName) {
        layer->set_input(n, scope.input);
      } else if (const auto found = scope.outputs.find(name); found != scope.outputs.end()) {
        layer->set_input(n, found->second);
      } else if (!scope.is_model()) {
        if (made_.count(scope.prefix + name) == 0) {
          return Add(absl::StrCat(path, ".input[", n, "]"), "layer ", Quoted(layer->name()),
                     ": the block has no layer ", Quoted(name),
                     " before this one; give one that it has, or 'input' for what the block takes");
        }
        layer->set_input(n, scope.prefix + name);
      }
    }
    return true;
  }

  bool ApplySets(const std::string& path, const Scope& scope, v1::Layer* layer) {
    for (int s = 0; s < layer->set_size(); ++s) {
      const std::string field = absl::StrCat(path, ".set[", s, "]");
      if (scope.is_model()) {
        return Add(field, "is only valid in layers of blocks; set the field directly");
      }
      const std::string text = layer->set(s);
      if (!ApplySet(field, text, scope, layer)) return false;
    }
    layer->clear_set();
    return true;
  }

  bool ApplySet(const std::string& path, absl::string_view text, const Scope& scope,
                v1::Layer* layer) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (text.find('=') == absl::string_view::npos) {
      return Add(path, Quoted(text), " must be 'field = formula'");
    }
    const std::string name(absl::StripAsciiWhitespace(sides.first));
    const absl::StatusOr<int64_t> value =
        Evaluate(absl::StripAsciiWhitespace(sides.second), scope.values);
    const std::string prefix = absl::StrCat("layer ", Quoted(layer->name()), ": ");
    if (!value.ok()) return Add(path, prefix, std::string(value.status().message()));
    if (layer->has_use()) {
      if (layer->mutable_use()->mutable_with()->insert({name, *value}).second) return true;
      return Add(path, prefix, Quoted(name), " is given twice");
    }
    Message* op = MutableOp(layer);
    if (op == nullptr) return Add(path, prefix, "the layer has no operation");
    const FieldDescriptor* field = op->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || !IsInteger(*field)) {
      return Add(path, prefix, op->GetDescriptor()->name(), " has no integer field ", Quoted(name),
                 "; it has ", IntegersOf(*op));
    }
    if (*value < 0 || *value > std::numeric_limits<uint32_t>::max()) {
      return Add(path, prefix, name, " becomes ", *value, "; it must be between 0 and ",
                 std::numeric_limits<uint32_t>::max());
    }
    if (op->GetReflection()->GetUInt32(*op, field) != 0) {
      return Add(path, prefix, Quoted(name), " is given twice");
    }
    op->GetReflection()->SetUInt32(op, field, *value);
    return true;
  }

  // `before`: the previous layer; afterwards, the last layer of this use.
  bool ExpandUse(const std::string& path, const v1::Layer& layer, std::string* before) {
    const v1::Use& use = layer.use();
    const std::string prefix = absl::StrCat("layer ", Quoted(layer.name()), ": ");
    const auto found = blocks_.find(use.block());
    if (found == blocks_.end()) {
      return Add(path + ".use.block", prefix, "unknown block ", Quoted(use.block()),
                 NamesOfBlocks());
    }
    if (layer.input_size() > 1) {
      return Add(path + ".input[1]", prefix, "a block takes one input, not ", layer.input_size());
    }
    const v1::Block& block = model_.block(found->second);
    if (!CheckNesting(path, prefix, block.name()) || !CheckValues(path, prefix, use, block))
      return false;
    if (layer.input_size() == 1) *before = layer.input(0);
    uses_.push_back(block.name());
    bool expanded = true;
    for (uint32_t n = 1; expanded && n <= std::max(1U, use.times()); ++n) {
      Scope scope{block.layer(),
                  absl::StrCat("model.block[", found->second, "]"),
                  use.times() > 1 ? absl::StrCat(layer.name(), n, "/") : layer.name() + "/",
                  *before,
                  *before,
                  {use.with().begin(), use.with().end()},
                  {}};
      for (int i = 0; expanded && i < scope.layers.size(); ++i) expanded = ExpandLayer(i, &scope);
      *before = scope.before;
    }
    uses_.pop_back();
    return expanded;
  }

  bool CheckNesting(const std::string& path, const std::string& prefix, const std::string& block) {
    if (std::find(uses_.begin(), uses_.end(), block) != uses_.end()) {
      return Add(path + ".use.block", prefix, "block ", Quoted(block),
                 " uses itself: ", absl::CHexEscape(absl::StrJoin(uses_, " -> ")), " -> ",
                 absl::CHexEscape(block));
    }
    if (uses_.size() < kMaxNesting) return true;
    return Add(path + ".use.block", prefix, "more than ", kMaxNesting, " nested blocks");
  }

  // Every parameter has a value, and every value a parameter.
  bool CheckValues(const std::string& path, const std::string& prefix, const v1::Use& use,
                   const v1::Block& block) {
    for (const std::string& name : block.parameter()) {
      if (use.with().count(name) > 0) continue;
      return Add(path + ".use", prefix, "block ", Quoted(block.name()), " requires a value for ",
                 Quoted(name), "; add with { key: '", name, "' value: ... }");
    }
    // In the order of the names, for a deterministic message.
    for (const auto& [name, value] :
         std::map<std::string, int64_t>(use.with().begin(), use.with().end())) {
      if (std::find(block.parameter().begin(), block.parameter().end(), name) !=
          block.parameter().end()) {
        continue;
      }
      return Add(path + ".use", prefix, "block ", Quoted(block.name()), " has no parameter ",
                 Quoted(name), block.parameter().empty() ? "" : "; it has ",
                 absl::StrJoin(block.parameter(), ", "));
    }
    return true;
  }

  std::string NamesOfBlocks() const {
    if (blocks_.empty()) return "; the model has no blocks";
    return absl::StrCat("; the model has ",
                        absl::StrJoin(blocks_, ", ", [](std::string* out, const auto& block) {
                          absl::StrAppend(out, absl::CHexEscape(block.first));
                        }));
  }

  const v1::Model& model_;
  std::vector<Problem>& problems_;
  ExpandedModel result_;
  // Position by name.
  std::map<std::string, int> blocks_;
  // Blocks that are being expanded, outermost first.
  std::vector<std::string> uses_;
  // Names of the layers so far.
  std::set<std::string> made_;
  // Size of the layers so far.
  size_t bytes_ = 0;
};

}  // namespace

ExpandedModel ExpandBlocks(const v1::Model& model, std::vector<Problem>* problems) {
  return Expansion(model, problems).Run();
}

}  // namespace cadre
