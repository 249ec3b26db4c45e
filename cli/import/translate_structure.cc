// Operators that only rearrange elements: they change the view of a value (view.h), or list views.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/import/rules.h"

namespace cadre::rules {

bool OnlyRearranges(const onnx::Node& node, const Inputs& in) {
  const std::string& op = node.op_type();
  const Value& x = in[0];
  if (op == "Identity") return true;
  if (op == "SequenceAt") return x.kind == Value::Kind::kSequence && in.size() > 1;
  if (x.kind == Value::Kind::kAttention || x.kind == Value::Kind::kSequence) return false;
  if (op == "Cast") return !x.is_numbers() && !x.is_mask();
  if (op == "CastLike") return !x.is_numbers() || (in.size() > 1 && !in[1].is_numbers());
  if (op == "Gather") {
    return !x.is_numbers() && in.size() > 1 && in[1].is_numbers() && in[1].view.rank() == 0;
  }
  return true;
}

absl::StatusOr<Value> Identity(Translator& /*t*/, const onnx::Node& /*node*/, const Inputs& in) {
  return in[0];
}

absl::StatusOr<Value> ShapeOf(Translator& /*t*/, const onnx::Node& node, const Inputs& in) {
  return Fold(node, {Value{.kind = Value::Kind::kNumbers, .view = in[0].view}});
}

absl::StatusOr<Value> SequenceAt(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  const auto index = t.AsIntegers(in[1]);
  const std::vector<Value>& values = in[0].sequence;
  if (!index || index->size() != 1 || (*index)[0] < 0 || (*index)[0] >= std::ssize(values)) {
    return Unsupported(absl::StrCat("its index is not a fixed position of the ", values.size(),
                                    " values of the sequence"));
  }
  return values[(*index)[0]];
}

// Casts to floating point change nothing. A cast of tokens to truth is a mask: all but token 0.
absl::StatusOr<Value> Cast(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Value& x = in[0];
  if (x.is_numbers()) {
    Value numbers = x;
    numbers.integer = false;  // like activations and parameters, which are floating point
    return numbers;
  }
  const bool like = node.op_type() == "CastLike";
  const bool tokens = x.is_activation() && t.drafts()[x.root].form == Draft::Form::kTokens;
  const int64_t to = Attributes(node).Integer("to", 1);
  if (tokens && !like && to == 9) {
    onnx::Node is_other;
    is_other.set_op_type("Not");
    return FoldMasks(t, is_other, {t.IsToken(x, 0)});
  }
  const bool floating = like ? in.size() < 2 || !(in[1].is_numbers() && in[1].integer)
                             : to == 1 || to == 10 || to == 11 || to == 16;
  if (floating || tokens || x.is_mask()) return x;
  return Unsupported(absl::StrCat("it rounds ", t.Describe(x), " to whole numbers",
                                  like ? "" : ": " + AttributeText(node, "to")));
}

absl::StatusOr<Value> Transpose(Translator& /*t*/, const onnx::Node& node, const Inputs& in) {
  Value result = in[0];
  const int rank = in[0].view.rank();
  std::vector<int64_t> order(rank);
  for (int d = 0; d < rank; ++d) order[d] = rank - 1 - d;
  order = Attributes(node).Integers("perm", order);
  const std::set<int64_t> dims(order.begin(), order.end());
  if (std::ssize(order) != rank || std::ssize(dims) != rank ||
      (!dims.empty() && (*dims.begin() != 0 || *dims.rbegin() != rank - 1))) {
    return Unsupported(absl::StrCat(AttributeText(node, "perm"), ", not a permutation of the ",
                                    rank, " dimensions of the input"));
  }
  result.view = in[0].view.Transposed(order);
  return result;
}

absl::StatusOr<Value> Expand(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  Value result = in[0];
  const auto sizes = in.size() > 1 ? t.AsIntegers(in[1]) : std::nullopt;
  const auto view = sizes ? result.view.Expanded(*sizes) : std::nullopt;
  const bool folded = result.is_numbers() || result.is_mask();
  if (!view || (folded && view->elements() > kMaxFoldedElements) ||
      (result.is_activation() && view->elements() != result.view.elements())) {
    return Unsupported(absl::StrCat(
        "it expands ", t.Describe(result), " to ",
        sizes ? absl::StrCat("[", absl::StrJoin(*sizes, ", "), "]") : "extents that are not fixed",
        ", which is not supported"));
  }
  result.view = *view;
  return result;
}

// Gather with one fixed index.
absl::StatusOr<Value> SelectIndex(Translator& t, const onnx::Node& node, const Inputs& in) {
  Value result = in[0];
  const auto index = t.AsIntegers(in[1]);
  int64_t axis = Attributes(node).Integer("axis", 0);
  axis += axis < 0 ? result.view.rank() : 0;
  if (!index || axis < 0 || axis >= result.view.rank()) {
    return Unsupported(absl::StrCat(AttributeText(node, "axis"), ", and its input has ",
                                    result.view.rank(), " dimensions"));
  }
  const int64_t at = (*index)[0] + ((*index)[0] < 0 ? result.view.size(axis) : 0);
  if (at < 0 || at >= result.view.size(axis)) {
    return Unsupported(absl::StrCat("its index ", (*index)[0], " is outside of dimension ", axis,
                                    " of ", t.Describe(in[0])));
  }
  result.view = result.view.Selected(axis, at);
  return result;
}

absl::StatusOr<Value> Reshape(Translator& t, const onnx::Node& node, const Inputs& in) {
  Value result = in[0];
  const std::vector<int64_t> before = in[0].view.sizes();
  const int64_t elements = in[0].view.elements();
  std::vector<int64_t> sizes;
  if (node.op_type() == "Flatten") {
    int64_t axis = Attributes(node).Integer("axis", 1);
    axis += axis < 0 ? std::ssize(before) : 0;
    if (axis < 0 || axis > std::ssize(before)) {
      return Unsupported(absl::StrCat(AttributeText(node, "axis"), ", and its input has ",
                                      before.size(), " dimensions"));
    }
    sizes = {ProductOf({before.begin(), before.begin() + axis}),
             ProductOf({before.begin() + axis, before.end()})};
  } else {
    const auto wanted = in.size() > 1 ? t.AsIntegers(in[1]) : std::nullopt;
    if (!wanted || wanted->size() > View::kMaxDims) {
      return Unsupported(absl::StrCat("its shape is ",
                                      in.size() > 1 ? t.Describe(in[1]) : std::string("absent"),
                                      ", not a list of fixed extents"));
    }
    sizes = *wanted;
    // Otherwise an extent of 0 is that of the input.
    if (Attributes(node).Integer("allowzero", 0) != 0 &&
        std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
      return Unsupported(absl::StrCat(AttributeText(node, "allowzero"), ", and its shape [",
                                      absl::StrJoin(sizes, ", "), "] has no elements"));
    }
    int64_t known = 1;
    int open = -1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0 && d < before.size()) sizes[d] = before[d];
      if (sizes[d] == -1 && open < 0) {
        open = static_cast<int>(d);
      } else if (sizes[d] <= 0 || sizes[d] > elements) {
        return Unsupported(absl::StrCat("its shape [", absl::StrJoin(*wanted, ", "),
                                        "] does not fit its input ", ExtentsOf(in[0])));
      } else if (known <= elements) {
        known *= sizes[d];
      }
    }
    if (open >= 0) sizes[open] = elements / known;
  }
  const auto view = in[0].view.Reshaped(sizes);
  if (!view) {
    return Unsupported(absl::StrCat("[", absl::StrJoin(before, ", "), "] cannot become [",
                                    absl::StrJoin(sizes, ", "), "]"));
  }
  result.view = *view;
  return result;
}

absl::StatusOr<Value> Squeeze(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  Value result = in[0];
  const auto axes = in.size() > 1 ? t.AsIntegers(in[1]) : std::nullopt;
  if (in.size() > 1 && !axes) {
    return Unsupported(absl::StrCat("its axes are ", t.Describe(in[1]), ", not fixed numbers"));
  }
  std::set<int64_t> removed;
  for (int64_t d = 0; !axes && d < in[0].view.rank(); ++d) {
    if (in[0].view.size(d) == 1) removed.insert(d);
  }
  for (size_t i = 0; axes && i < axes->size(); ++i) {
    removed.insert((*axes)[i] + ((*axes)[i] < 0 ? in[0].view.rank() : 0));
  }
  for (auto d = removed.rbegin(); d != removed.rend(); ++d) {
    if (*d < 0 || *d >= in[0].view.rank() || in[0].view.size(*d) != 1) {
      return Unsupported(absl::StrCat("it removes dimension ", *d, " of ", t.Describe(in[0]),
                                      ", which does not have the extent 1"));
    }
    result.view = result.view.Selected(*d, 0);
  }
  return result;
}

absl::StatusOr<Value> Unsqueeze(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  const auto axes = in.size() > 1 ? t.AsIntegers(in[1]) : std::nullopt;
  if (!axes || in[0].view.rank() + axes->size() > View::kMaxDims) {
    return Unsupported(absl::StrCat("its axes are ",
                                    in.size() > 1 ? t.Describe(in[1]) : std::string("absent"),
                                    ", not fixed numbers"));
  }
  const int64_t rank = in[0].view.rank() + std::ssize(*axes);
  std::set<int64_t> added;
  for (const int64_t axis : *axes) added.insert(axis + (axis < 0 ? rank : 0));
  std::vector<int64_t> sizes = in[0].view.sizes();
  for (const int64_t d : added) {
    if (d < 0 || d > std::ssize(sizes)) {
      return Unsupported(absl::StrCat("its axes [", absl::StrJoin(*axes, ", "),
                                      "] do not fit its input ", ExtentsOf(in[0])));
    }
    sizes.insert(sizes.begin() + d, 1);
  }
  Value result = in[0];
  const auto view = in[0].view.Reshaped(sizes);
  if (!view) return Unsupported(absl::StrCat("its axes do not fit its input ", ExtentsOf(in[0])));
  result.view = *view;
  return result;
}

absl::StatusOr<Value> Slice(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  if (in.size() < 3) return Unsupported("its inputs starts and ends are absent");
  const auto begins = t.AsIntegers(in[1]), ends = t.AsIntegers(in[2]);
  auto axes = in.size() > 3 ? t.AsIntegers(in[3]) : std::nullopt;
  const auto steps = in.size() > 4 ? t.AsIntegers(in[4]) : std::nullopt;
  if (!begins || !ends || begins->size() != ends->size() || (in.size() > 3 && !axes)) {
    return Unsupported(absl::StrCat("its starts are ", t.Describe(in[1]), ", and its ends are ",
                                    t.Describe(in[2]), ": they must be fixed numbers"));
  }
  if (!axes) {
    axes.emplace();
    for (size_t i = 0; i < begins->size(); ++i) axes->push_back(i);
  }
  Value result = in[0];
  for (size_t i = 0; i < begins->size(); ++i) {
    const int64_t axis =
        i < axes->size() ? (*axes)[i] + ((*axes)[i] < 0 ? in[0].view.rank() : 0) : -1;
    if (axis < 0 || axis >= in[0].view.rank() ||
        (steps && (i >= steps->size() || (*steps)[i] != 1))) {
      return Unsupported(axis < 0 || axis >= in[0].view.rank()
                             ? absl::StrCat("its axes do not fit its input ", ExtentsOf(in[0]))
                             : absl::StrCat("its steps are [", absl::StrJoin(*steps, ", "),
                                            "]; only steps of 1 are supported"));
    }
    const int64_t extent = result.view.size(axis);
    const auto at = [&](int64_t limit) {
      return std::clamp<int64_t>(limit < 0 ? limit + extent : limit, 0, extent);
    };
    const int64_t begin = at((*begins)[i]);
    const auto view = result.view.Sliced(axis, begin, std::max(begin, at((*ends)[i])));
    if (!view) {
      return Unsupported(absl::StrCat("it takes elements ", (*begins)[i], " to ", (*ends)[i],
                                      " of dimension ", axis, " of ", t.Describe(in[0]),
                                      ", which are not evenly spaced"));
    }
    result.view = *view;
  }
  return result;
}

absl::StatusOr<Value> Split(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  const bool sequence = node.op_type() == "SplitToSequence";
  int64_t axis = attributes.Integer("axis", 0);
  axis += axis < 0 ? in[0].view.rank() : 0;
  if (axis < 0 || axis >= in[0].view.rank()) {
    return Unsupported(absl::StrCat(AttributeText(node, "axis"), ", and its input has ",
                                    in[0].view.rank(), " dimensions"));
  }
  const int64_t extent = in[0].view.size(axis);
  std::vector<int64_t> lengths;
  if (in.size() > 1) {
    const auto given = t.AsIntegers(in[1]);
    if (!given || given->empty()) {
      return Unsupported(
          absl::StrCat("the lengths of its parts are ", t.Describe(in[1]), ", not fixed numbers"));
    }
    lengths = *given;
    if (in[1].view.rank() == 0) {
      const int64_t length = lengths[0];
      if (length <= 0 || extent / length > 4096) {
        return Unsupported(
            absl::StrCat("its parts have the length ", length, ", and its input ", extent));
      }
      lengths.assign(extent / length, length);
      if (extent % length != 0) lengths.push_back(extent % length);
    }
  } else {
    const int64_t parts = sequence ? extent : attributes.Integer("num_outputs", node.output_size());
    if (parts <= 0 || parts > 4096 || extent % parts != 0) {
      return Unsupported(
          absl::StrCat("it divides ", extent, " into ", parts, " parts, whose lengths differ"));
    }
    lengths.assign(parts, extent / parts);
  }
  const absl::Status misfit =
      Unsupported(absl::StrCat("the lengths of its parts, [", absl::StrJoin(lengths, ", "),
                               "], do not fit dimension ", axis, " of ", t.Describe(in[0])));
  std::vector<Value> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    if (length < 0 || length > extent) return misfit;
    const auto view = in[0].view.Sliced(axis, begin, begin + length);
    if (!view) return misfit;
    parts.push_back(in[0]);
    parts.back().view = *view;
    begin += length;
  }
  if (begin != extent) return misfit;
  if (sequence && attributes.Integer("keepdims", 1) == 0) {
    return Unsupported(AttributeText(node, "keepdims") + "; only 1 is supported");
  }
  return Value{.kind = Value::Kind::kSequence, .sequence = std::move(parts)};
}

}  // namespace cadre::rules
