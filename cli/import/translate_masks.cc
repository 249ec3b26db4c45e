// Masks: which keys the queries of an attention attend to.
//
// A mask of padding begins as a comparison of the input's tokens with a number, or as a second
// input. Frameworks then compute with it in many ways: they invert it, combine it with a causal
// mask, gather it by indices, multiply it by a large number or choose between two numbers. Instead
// of recognizing these ways, each operator is folded twice: for masks whose condition holds
// everywhere, and for those whose condition holds nowhere. A third array states the token on which
// each element depends. At the scores of an attention, the elements must be 0 or at most -10,000,
// and those that depend on a token must hide that token's key.
//
// Invariants of a mask: each element depends on one token at most, and all elements on the same
// condition; an element that is equal in both arrays depends on none. Operators on two masks of
// different conditions are refused, and so are elements that would depend on two tokens.
//
// What the elements [..., queries, keys] that are added to scores may be: those that depend on no
// token are all 0, or hide exactly the keys after the query (causal); those that do
// depend on one hide its key and no other. Each sample must have the mask of its own tokens: the
// samples of the scores come from the view of the queries (SamplesOfScores).
//
// Cost: three times the elements of the mask for each operator, which the budget `foldable_` limits
// for the whole file.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/problem.h"

namespace cadre::rules {

namespace {

using Array = std::vector<double> Mask::*;

absl::Status MaskTooLarge() {
  return Unsupported("its mask has too many elements; export the network with one sample");
}

absl::Status MaskMisused() {
  return Unsupported(
      "its input is a mask of padding, which only the scores of an attention can use; give other "
      "inputs of the graph, such as segments, fixed values before the export");
}

// One array of a mask as known numbers.
Value NumbersOfMask(const Value& value, Array array) {
  return {.kind = Value::Kind::kNumbers,
          .view = value.view,
          .numbers = {value.mask, &(value.mask.get()->*array)},
          .integer = value.integer};
}

// Numbers of which none depends on a token.
Value NoTokens(const View& view) {
  Value none = NumbersOf({}, {Mask::kNoToken}, true);
  none.view = *none.view.Expanded(view.sizes());
  return none;
}

// The tokens of the result of an elementwise operator. Nothing if an element depends on two.
absl::StatusOr<Value> CommonTokens(const std::vector<Value>& tokens) {
  if (tokens.size() == 1) return tokens[0];
  onnx::Node larger;
  larger.set_op_type("Max");
  CADRE_ASSIGN_OR_RETURN(const Value common, Fold(larger, tokens));
  for (Value each : tokens) {
    each.view = *each.view.Expanded(common.view.sizes());
    const std::vector<double> numbers = NumbersIn(each);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != Mask::kNoToken && numbers[i] != (*common.numbers)[i]) {
        return Unsupported("its masks are of different tokens");
      }
    }
  }
  return common;
}

}  // namespace

// Comparisons that are true, or false, of one whole number alone.
absl::StatusOr<Value> CompareTokens(Translator& t, const onnx::Node& node, const Inputs& in) {
  static const auto& comparisons =
      *new std::set<std::string>{"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"};
  if (comparisons.count(node.op_type()) == 0 || in.size() != 2) return NotSupported();
  const int at = in[0].is_activation() ? 0 : 1;
  const auto scalar = t.AsScalar(in[1 - at]);
  const absl::Status misfit = Unsupported(
      absl::StrCat("it compares tokens with ", t.Describe(in[1 - at]),
                   ", which is not a whole number, or so that more than one token is padding"));
  if (!scalar || !(*scalar >= 0 && *scalar < 0x1p24) || *scalar != std::floor(*scalar)) {
    return misfit;
  }
  const NumberFunction function = FunctionOf(node, /*integer=*/true);
  const auto compare = [&](double token) {
    return at == 0 ? function(token, *scalar) : function(*scalar, token);
  };
  // The truth changes at the number only, so these tokens stand for all.
  const double others = compare(*scalar + 2);
  std::set<double> different;
  for (const double token : {0.0, 1.0, *scalar - 1, *scalar, *scalar + 1}) {
    if (token >= 0 && compare(token) != others) different.insert(token);
  }
  if (different.size() != 1) return misfit;
  const Value is_token = t.IsToken(in[at], static_cast<int64_t>(*different.begin()));
  if (others == 0) return is_token;
  onnx::Node inverse;
  inverse.set_op_type("Not");
  return FoldMasks(t, inverse, {is_token});
}

absl::StatusOr<Value> FoldMasks(Translator& t, const onnx::Node& node, const Inputs& in) {
  static const auto& selections =
      *new std::set<std::string>{"Gather", "GatherND", "GatherElements", "Concat"};
  const std::string& op = node.op_type();
  const bool selects = selections.count(op) > 0;
  if (!selects && op != "Cast" && op != "Where" && !FunctionOf(node, true)) {
    return MaskMisused();
  }
  std::optional<int64_t> id;
  std::vector<Value> on, off, token;
  for (size_t i = 0; i < in.size(); ++i) {
    const Value& value = in[i];
    if (!value.is_mask()) {
      const auto numbers = t.AsNumbers(value);
      if (!numbers) return MaskMisused();
      on.push_back(*numbers);
      off.push_back(*numbers);
      const bool indices = selects && op != "Concat" && i > 0;
      token.push_back(indices ? *numbers : NoTokens(value.view));
      continue;
    }
    if (selects && op != "Concat" && i > 0) return MaskMisused();
    if (id && *id != value.mask->id) return Unsupported("its masks are of different tokens");
    id = value.mask->id;
    const int64_t elements = value.view.elements();
    if (elements > kMaxFoldedElements || !t.MayFold(3 * elements)) return MaskTooLarge();
    on.push_back(NumbersOfMask(value, &Mask::on));
    off.push_back(NumbersOfMask(value, &Mask::off));
    token.push_back(NumbersOfMask(value, &Mask::token));
  }
  CADRE_ASSIGN_OR_RETURN(const Value result, Fold(node, on));
  CADRE_ASSIGN_OR_RETURN(const Value otherwise, Fold(node, off));
  CADRE_ASSIGN_OR_RETURN(const Value tokens, selects ? Fold(node, token) : CommonTokens(token));
  auto mask = std::make_shared<Mask>(Mask{
      .id = *id, .on = *result.numbers, .off = *otherwise.numbers, .token = NumbersIn(tokens)});
  for (size_t i = 0; i < mask->token.size(); ++i) {
    if (mask->on[i] == mask->off[i]) mask->token[i] = Mask::kNoToken;
  }
  return Value{.kind = Value::Kind::kMask,
               .view = result.view,
               .integer = result.integer,
               .mask = std::move(mask)};
}

namespace {

// The sample of each part [queries, keys] of the scores of an attention.
absl::StatusOr<std::vector<int64_t>> SamplesOfScores(Translator& t, const Attention& attention) {
  const View& queries = attention.queries.view;
  const int64_t of_sample = t.drafts()[attention.queries.root].elements();
  if (queries.elements() == 0 || of_sample == 0 || !t.MayFold(queries.elements())) {
    return Unsupported("its scores are empty, or too many");
  }
  std::vector<int64_t> samples;
  for (const int64_t position :
       queries.Selected(queries.rank() - 1, 0).Selected(queries.rank() - 2, 0).Positions()) {
    samples.push_back(position / of_sample);
  }
  return samples;
}

// Numbers or a mask as three arrays of numbers, like those of Mask.
struct MaskArrays {
  Value on, off, token;
};

absl::StatusOr<MaskArrays> ArraysOf(Translator& t, const Value& added) {
  if (added.is_mask()) {
    if (!t.MayFold(added.view.elements())) return MaskTooLarge();
    return MaskArrays{NumbersOfMask(added, &Mask::on), NumbersOfMask(added, &Mask::off),
                      NumbersOfMask(added, &Mask::token)};
  }
  if (const auto numbers = t.AsNumbers(added)) {
    return MaskArrays{*numbers, *numbers, NoTokens(numbers->view)};
  }
  return Unsupported(absl::StrCat("it adds ", t.Describe(added),
                                  " to the scores of an attention, which is not a mask"));
}

// The extents of a mask with as many dimensions as the scores. Nothing if it does not fit them.
std::optional<std::vector<int64_t>> ExtentsOnScores(const View& mask,
                                                    const std::vector<int64_t>& scores) {
  std::vector<int64_t> extents = mask.sizes();
  if (extents.size() > scores.size()) return std::nullopt;
  extents.insert(extents.begin(), scores.size() - extents.size(), 1);
  for (size_t d = 0; d < scores.size(); ++d) {
    if (extents[d] != 1 && extents[d] != scores[d]) return std::nullopt;
  }
  return extents;
}

// What a mask hides.
struct Hidden {
  // Whether its elements without a token hide the keys after each query.
  bool causal = false;
  // Whether an element hides its key without a token.
  bool every_key = true;
  // Whether keys are hidden where the condition holds, if any depend on it.
  std::optional<bool> on;
  // By part [queries, keys] of the mask: the sample of its tokens.
  std::vector<int64_t> samples;
};

// `tokens`: of one sample.
absl::StatusOr<Hidden> HiddenBy(const MaskArrays& mask, int64_t queries, int64_t keys,
                                int64_t tokens) {
  constexpr int64_t kAny = -1;
  const std::vector<double> if_on = NumbersIn(mask.on), if_off = NumbersIn(mask.off);
  const std::vector<double> of = NumbersIn(mask.token);
  Hidden result;
  result.samples.assign(if_on.size() / std::max<int64_t>(1, queries * keys), kAny);
  bool none = true, causal = queries == keys;
  for (int64_t i = 0; i < std::ssize(if_on); ++i) {
    const int64_t key = i % keys, query = i / keys % queries;
    const bool hidden = if_on[i] <= kHides, otherwise = if_off[i] <= kHides;
    if ((!hidden && if_on[i] != 0) || (!otherwise && if_off[i] != 0)) {
      return Unsupported(absl::StrCat("its mask has numbers other than 0 and at most ", kHides));
    }
    if (hidden == otherwise) {
      none = none && !hidden;
      causal = causal && hidden == (key > query);
      result.every_key = result.every_key && hidden;
      continue;
    }
    causal = causal && key <= query;
    const int64_t at = static_cast<int64_t>(of[i]);
    int64_t& sample = result.samples[i / (keys * queries)];
    if (result.on.value_or(hidden) != hidden || keys != tokens || at % tokens != key ||
        (sample != kAny && sample != at / tokens)) {
      return Unsupported("its mask hides keys by other tokens than their own");
    }
    result.on = hidden;
    sample = at / tokens;
  }
  if (!none && !causal) {
    return Unsupported(
        "its mask is neither empty nor causal; a mask of padding must compare the tokens with a "
        "number, or be the second input of the graph");
  }
  result.causal = !none;
  return result;
}

}  // namespace

absl::Status HideKeys(Translator& t, const Value& added, Attention& attention) {
  CADRE_ASSIGN_OR_RETURN(const MaskArrays arrays, ArraysOf(t, added));
  // [..., queries, keys], of the scores and of the mask.
  const int rank = attention.queries.view.rank();
  std::vector<int64_t> sizes = attention.queries.view.sizes();
  sizes[rank - 1] = attention.keys.view.size(rank - 1);
  const auto extents = ExtentsOnScores(arrays.on.view, sizes);
  if (!extents) {
    return Unsupported(absl::StrCat("its mask ", ExtentsOf(added), " does not fit the scores [",
                                    absl::StrJoin(sizes, ", "), "]"));
  }
  CADRE_ASSIGN_OR_RETURN(const Hidden hidden, HiddenBy(arrays, (*extents)[rank - 2],
                                                       (*extents)[rank - 1], t.drafts()[0].tokens));
  attention.causal = attention.causal || hidden.causal;
  if (!hidden.on) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::vector<int64_t> samples, SamplesOfScores(t, attention));
  const std::vector<int64_t> parts =
      View(std::vector<int64_t>(extents->begin(), extents->end() - 2))
          .Expanded({sizes.begin(), sizes.end() - 2})
          ->Positions();
  bool every_key = hidden.every_key;
  for (size_t i = 0; i < parts.size(); ++i) {
    every_key = every_key && hidden.samples[parts[i]] == samples[i];
  }
  if (!every_key) return Unsupported("its mask does not hide the padding of every sample");
  return t.SetPadding(added.mask->id, *hidden.on, attention);
}

}  // namespace cadre::rules
