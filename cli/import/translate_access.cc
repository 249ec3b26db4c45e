// How rules read activations: as whole images or as rows of features.
//
// An image becomes rows in the order of its channels (flatten), or as one token per position
// (to_tokens). Rows may be in another order of samples and tokens, as long as every row is whole:
// layers on rows do not depend on their order. Rows of one token of each sample are take_token.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/import/translator.h"
#include "model/problem.h"

namespace cadre {

Draft ImageDraft(int input, int64_t channels, int64_t height, int64_t width) {
  Draft draft;
  draft.inputs = {input};
  draft.form = Draft::Form::kImage;
  draft.channels = channels, draft.height = height, draft.width = width;
  return draft;
}

DraftParameter ParameterOf(const char* name, Shape shape, int initializer, View original) {
  View whole(shape.dims());
  return {.name = name, .shape = std::move(shape), .pieces = {{initializer, original, whole}}};
}

std::string Translator::Describe(const Value& value) const {
  const std::string extents = absl::StrCat(" with the extents ", ExtentsOf(value));
  switch (value.kind) {
    case Value::Kind::kUnknown:
      return "absent";
    case Value::Kind::kNumbers:
      return absl::StrCat("fixed numbers", extents);
    case Value::Kind::kParameter:
      return absl::StrCat("tensor ", Quoted(initializers_[value.root].name), extents);
    case Value::Kind::kActivation:
      return absl::StrCat(value.function ? "a function of " : "",
                          value.root == 0 ? "the input of the graph" : drafts_[value.root].origin,
                          extents);
    case Value::Kind::kAttention:
      return ExtentsOf(value);
    case Value::Kind::kMask:
      return absl::StrCat("a mask", extents);
    case Value::Kind::kSequence:
      return "a sequence";
  }
  return "unknown";
}

int Translator::AddDraft(Draft draft) {
  if (node_ != nullptr) draft.origin = DisplayName(*node_);
  drafts_.push_back(std::move(draft));
  return static_cast<int>(drafts_.size()) - 1;
}

Value Translator::Whole(int draft) const {
  const Draft& of = drafts_[draft];
  Value value{.kind = Value::Kind::kActivation, .root = draft};
  switch (of.form) {
    case Draft::Form::kTokens:
      value.view = View({batch_, of.tokens});
      break;
    case Draft::Form::kImage:
      value.view = View({batch_, of.channels, of.height, of.width});
      break;
    case Draft::Form::kRows:
      value.view = View({batch_, of.tokens, of.features});
      break;
    case Draft::Form::kFeatures:
      value.view = View({batch_, of.features});
      break;
  }
  return value;
}

std::string Translator::RearrangedBy(const Value& value) const {
  for (const std::string& input : node_->input()) {
    const auto found = values_.find(input);
    if (found == values_.end() || found->second.root != value.root ||
        !(found->second.view == value.view)) {
      continue;
    }
    for (const onnx::Node& node : graph_.node()) {
      if (std::find(node.output().begin(), node.output().end(), input) == node.output().end()) {
        continue;
      }
      const bool permutes = node.op_type() == "Transpose";
      return absl::StrCat(" by ", DisplayName(node),
                          permutes ? absl::StrCat(" (", AttributeText(node, "perm"), ")") : "");
    }
  }
  return "";
}

absl::StatusOr<Value> Translator::Image(const Value& value) {
  CADRE_ASSIGN_OR_RETURN(Value plain, Plain(value));
  const Draft& draft = drafts_[plain.root];
  if (draft.form == Draft::Form::kImage && plain.view == Whole(plain.root).view) return plain;
  if (draft.form == Draft::Form::kImage) {
    return Unsupported(absl::StrCat(
        "its input is ", Describe(value), ", of which the elements are rearranged",
        RearrangedBy(value), "; it must be an image [samples, channels, height, width] as ",
        plain.root == 0 ? "the input of the graph: export the network for inputs in this order"
                        : "an operator has computed it"));
  }
  return Unsupported(absl::StrCat("its input is ", Describe(value),
                                  "; it must be an image [samples, channels, height, width]"));
}

std::optional<Value> Translator::TokensOfImage(Value plain) {
  const Draft draft = drafts_[plain.root];
  const int last = plain.view.rank() - 1;
  const int64_t elements = draft.elements(), positions = draft.height * draft.width;
  if (plain.view.offset() != 0 || plain.view.size(last) != draft.channels) return std::nullopt;
  // Samples move by whole images, positions by one, channels by the positions of an image.
  std::vector<Factor> channel = plain.view.factors(last);
  if (draft.channels > 1 && (channel.size() != 1 || channel[0].stride != positions)) {
    return std::nullopt;
  }
  std::vector<Factor> flat;
  std::vector<int64_t> sizes;
  for (int d = 0; d < last; ++d) {
    sizes.push_back(plain.view.size(d));
    for (Factor factor : plain.view.factors(d)) {
      if (factor.stride % elements != 0) {
        if (factor.stride >= positions) return std::nullopt;
        factor.stride *= draft.channels;
      }
      flat.push_back(factor);
    }
  }
  flat.push_back({draft.channels, 1});
  sizes.push_back(draft.channels);
  const auto view = View(flat, 0).Reshaped(sizes);
  if (!view) return std::nullopt;
  Draft tokens;
  tokens.layer.mutable_to_tokens();
  tokens.inputs = {plain.root};
  tokens.form = Draft::Form::kRows;
  tokens.tokens = positions;
  tokens.features = draft.channels;
  const std::pair<int, std::string> key(plain.root, "tokens");
  if (activations_.count(key) == 0) activations_[key] = AddDraft(tokens);
  plain.root = activations_[key];
  plain.view = *view;
  return plain;
}

absl::StatusOr<Value> Translator::Rows(const Value& value) {
  CADRE_ASSIGN_OR_RETURN(Value plain, Plain(value));
  const absl::Status misfit =
      Unsupported(absl::StrCat("its input is ", Describe(value),
                               "; it must be rows of features: [samples, features] or [samples, "
                               "tokens, features]"));
  if (plain.view.rank() < 2 || plain.view.elements() == 0) return misfit;
  const int last = plain.view.rank() - 1;
  const Draft draft = drafts_[plain.root];
  if (draft.form == Draft::Form::kTokens) return misfit;
  if (draft.form == Draft::Form::kImage) {
    if (plain.view.IsWhole() && plain.view.size(last) == draft.elements()) {
      Draft flatten;
      flatten.layer.mutable_flatten();
      flatten.inputs = {plain.root};
      flatten.features = draft.elements();
      const std::pair<int, std::string> key(plain.root, "flatten");
      if (activations_.count(key) == 0) activations_[key] = AddDraft(flatten);
      plain.root = activations_[key];
      return plain;
    }
    const std::optional<Value> tokens = TokensOfImage(plain);
    return tokens ? Rows(*tokens) : misfit;
  }
  const int64_t features = draft.features;
  if (plain.view.size(last) != features) return misfit;
  if (features > 1 && plain.view.factors(last) != std::vector<Factor>{{features, 1}}) return misfit;
  std::vector<Factor> leading;
  for (int d = 0; d < last; ++d) {
    for (const Factor& factor : plain.view.factors(d)) leading.push_back(factor);
  }
  std::sort(leading.begin(), leading.end(),
            [](const Factor& a, const Factor& b) { return a.stride > b.stride; });
  const View rows(leading, 0);
  const std::vector<Factor> all = rows.FactorsOf(0, rows.rank());
  const int64_t count = batch_ * draft.tokens;
  const bool whole = count == 1 ? all.empty() : all == std::vector<Factor>{{count, features}};
  if (whole && plain.view.offset() == 0) return plain;
  // One token of each sample.
  const bool samples =
      batch_ == 1 ? all.empty() : all == std::vector<Factor>{{batch_, draft.tokens * features}};
  if (!samples || draft.context || plain.view.offset() % features != 0 ||
      plain.view.offset() >= draft.tokens * features) {
    return misfit;
  }
  Draft token;
  token.layer.mutable_take_token()->set_token(plain.view.offset() / features);
  token.inputs = {plain.root};
  token.features = features;
  plain.root = AddDraft(std::move(token));
  const std::vector<int64_t> sizes = plain.view.sizes();
  plain.view = *Whole(plain.root).view.Reshaped(sizes);
  return plain;
}

Value Translator::OnRows(const Value& x, Draft draft, int64_t features) {
  const Draft& before = drafts_[x.root];
  draft.inputs = {x.root};
  draft.form = before.form;
  draft.tokens = before.tokens;
  draft.features = features;
  Value result = x;
  result.view = x.view.WithLast({1, 0}).Scaled(features, before.features).WithLast({features, 1});
  result.root = AddDraft(std::move(draft));
  return result;
}

absl::StatusOr<DraftParameter> Translator::WholeParameter(const char* name, const Shape& shape,
                                                          const Value& value) const {
  if (!value.is_parameter()) {
    return Unsupported(
        absl::StrCat("its ", name, " is ", Describe(value), ", not a tensor of the file"));
  }
  if (value.view.elements() != shape.elements()) {
    return Unsupported(absl::StrCat("its ", name, " is ", Describe(value), "; it must have ",
                                    shape.elements(), " elements, ", shape.ToString()));
  }
  return ParameterOf(name, shape, value.root, value.view);
}

}  // namespace cadre
