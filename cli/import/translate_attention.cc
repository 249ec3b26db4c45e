// Attention: the product of queries and keys, its scale and mask, the softmax, the product with
// values, and the projections around them, which become one layer.
//
// The product of queries and keys names two views of outputs of projections; the views
// state from which row, and which feature of a row, the element of a head comes. Reading the
// projections' weights through the same strides gives the engine's weights [heads, 3, head
// features, features], whatever order of heads, queries, keys and values the framework has.
//
// The pattern, as exporters write it, and what each operator becomes:
//
//   q, k, v = x * W + b     fully connected drafts, rearranged as views (Reshape, Transpose, Split)
//   scores = q * k^T        Scores: a value of kind kAttention, with both views
//   scores * scale + mask   OfAttention: the scale is a factor, the mask hides keys
//                           (translate_masks.cc)
//   softmax(scores)         Softmax: from here on only the product with the values may follow
//   probabilities * v       Context: a draft of the layer attention, with the parameters of q, k, v
//   context * W' + b'       OutputProjection and AddParameter: complete the draft
//
// Invariants: the three projections have the same input, and equal numbers of heads and of features
// of a head; a row of a projection is one token, and heads do not share features. The scale is one
// over the root of the features of a head. The drafts of the projections stay, but nothing depends
// on them unless another operator uses them.
//
// Limits: cross-attention, projections without bias, grouped keys, dropout of probabilities and
// masks other than causal and padding are refused, each with the values that do not fit.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/problem.h"

namespace cadre::rules {
namespace {

Value ValueOf(const Attention& attention) {
  return {.kind = Value::Kind::kAttention,
          .attention = std::make_shared<const Attention>(attention)};
}

}  // namespace

absl::StatusOr<Value> OfAttention(Translator& t, const onnx::Node& node, const Inputs& in) {
  const std::string& op = node.op_type();
  size_t at = 0;
  while (in[at].kind != Value::Kind::kAttention) ++at;
  Attention attention = *in[at].attention;
  if (attention.softmax) {
    // Exporters replace the probabilities of queries without keys, which are not numbers.
    if (op == "IsNaN" && in.size() == 1) {
      attention.nan_of = in[at].attention.get();
      return ValueOf(attention);
    }
    if (op == "Where" && in.size() == 3 && in[2].kind == Value::Kind::kAttention &&
        attention.nan_of == in[2].attention.get() && t.AsScalar(in[1]) == 0) {
      return in[2];
    }
    return Unsupported("it changes probabilities of an attention");
  }
  if ((op == "Mul" || (op == "Div" && at == 0)) && in.size() == 2) {
    const auto scalar = t.AsScalar(in[1 - at]);
    if (!scalar || *scalar == 0) {
      return Unsupported(absl::StrCat("it scales the scores of an attention by ",
                                      t.Describe(in[1 - at]), ", not by a number other than 0"));
    }
    attention.scale *= op == "Mul" ? *scalar : 1 / *scalar;
    return ValueOf(attention);
  }
  Value added;
  if (op == "Add" && in.size() == 2) {
    added = in[1 - at];
  } else if (op == "Where" && in.size() == 3 && at > 0) {
    const auto instead = t.AsScalar(in[3 - at]);
    if (!instead || *instead > kHides) {
      return Unsupported(absl::StrCat("it replaces scores by other numbers than at most ", kHides,
                                      ": by ", t.Describe(in[3 - at])));
    }
    std::vector<Value> chosen = in;
    chosen[at] = NumbersOf({}, {0}, false);
    CADRE_ASSIGN_OR_RETURN(added, t.TranslateNode(node, std::move(chosen)));
  } else {
    return Unsupported("it is not supported between the products and the softmax of an attention");
  }
  CADRE_RETURN_IF_ERROR(HideKeys(t, added, attention));
  return ValueOf(attention);
}

absl::StatusOr<Value> Softmax(Translator& /*t*/, const onnx::Node& node, const Inputs& in) {
  if (in[0].kind != Value::Kind::kAttention) {
    return Unsupported(
        "it is only supported in attention; the loss contains the softmax of scores");
  }
  const int64_t axis = Attributes(node).Integer("axis", -1);
  const int rank = in[0].attention->queries.view.rank();
  if (axis != -1 && axis != rank - 1) {
    return Unsupported(absl::StrCat(AttributeText(node, "axis"), "; the keys of the ", rank,
                                    " dimensions are the last"));
  }
  Attention attention = *in[0].attention;
  attention.softmax = true;
  return ValueOf(attention);
}

namespace {

// The factor of a function that only scales.
std::optional<double> ScaleOf(const Value& value) {
  if (!value.function) return 1;
  const Samples& function = *value.function;
  const double scale = function[0] / kPoints[0];
  for (size_t i = 0; i < kPoints.size(); ++i) {
    if (std::abs(function[i] - scale * kPoints[i]) > 1e-6 * (1 + std::abs(function[i]))) {
      return std::nullopt;
    }
  }
  return scale;
}

}  // namespace

absl::StatusOr<Value> Scores(Translator& t, const Value& queries, const Value& keys) {
  const auto of_queries = ScaleOf(queries), of_keys = ScaleOf(keys);
  if (!of_queries || !of_keys || queries.view.rank() < 3 ||
      queries.view.rank() != keys.view.rank()) {
    return Unsupported(
        absl::StrCat("it multiplies ", t.Describe(queries), " by ", t.Describe(keys),
                     "; only products with a matrix of weights, and those of attention, work"));
  }
  Attention attention{.queries = queries, .keys = keys, .scale = *of_queries * *of_keys};
  attention.queries.function.reset();
  attention.keys.function.reset();
  return ValueOf(attention);
}

namespace {

// Where the elements of queries, keys or values come from, as features of a projection's rows.
struct HeadLayout {
  int64_t offset = 0, heads = 1, head_stride = 0, size = 0, stride = 1;
};

// The layout of a view [..., rows, head features], where `rows` and `features` are the numbers of
// the dimensions. Nothing if tokens and samples are not whole rows of the draft.
std::optional<HeadLayout> LayoutOf(const Draft& draft, int64_t batch, const View& view, int tokens,
                                   int features) {
  const int64_t row = draft.features;
  HeadLayout layout{.offset = view.offset(), .size = view.size(features)};
  const auto& of_tokens = view.factors(tokens);
  const auto& of_features = view.factors(features);
  if (draft.form != Draft::Form::kRows || view.size(tokens) != draft.tokens ||
      (draft.tokens > 1 && of_tokens != std::vector<Factor>{{draft.tokens, row}}) ||
      (layout.size > 1 && of_features.size() != 1) || layout.offset >= row) {
    return std::nullopt;
  }
  if (layout.size > 1) layout.stride = of_features[0].stride;
  int64_t samples = 1;
  for (int d = 0; d < view.rank(); ++d) {
    if (d == tokens || d == features) continue;
    for (const Factor& factor : view.factors(d)) {
      if (factor.stride == draft.tokens * row) {
        samples *= factor.size;
      } else if (layout.heads == 1) {
        layout.heads = factor.size;
        layout.head_stride = factor.stride;
      } else {
        return std::nullopt;
      }
    }
  }
  // Heads must not share features.
  const bool apart = layout.heads == 1 || layout.head_stride >= layout.size * layout.stride ||
                     (layout.head_stride > 0 && layout.stride >= layout.heads * layout.head_stride);
  if (samples != batch || layout.stride <= 0 || layout.head_stride < 0 || !apart ||
      layout.offset + (layout.heads - 1) * layout.head_stride + (layout.size - 1) * layout.stride >=
          row) {
    return std::nullopt;
  }
  return layout;
}

// Adds the rows of one projection to the parameters [heads, 3, size, features] and [heads, 3, size]
// of an attention; `part`: 0 queries, 1 keys, 2 values. False if the parameters are not matrices
// with even strides.
bool AddProjection(const Draft& projection, const HeadLayout& layout, int part, int64_t features,
                   DraftParameter* weight, DraftParameter* bias) {
  const Piece &matrix = projection.parameters[0].pieces[0],
              &vector = projection.parameters[1].pieces[0];
  const auto& outs = matrix.original.factors(0);
  const auto& ins = matrix.original.factors(1);
  const auto& biases = vector.original.factors(0);
  if (outs.size() != 1 || ins.size() != 1 || biases.size() != 1) return false;
  const int64_t heads = layout.heads, size = layout.size;
  const int64_t head = layout.head_stride, step = layout.stride;
  weight->pieces.push_back({matrix.initializer,
                            View({{heads, head * outs[0].stride},
                                  {size, step * outs[0].stride},
                                  {features, ins[0].stride}},
                                 matrix.original.offset() + layout.offset * outs[0].stride),
                            View({{heads, 3 * size * features}, {size, features}, {features, 1}},
                                 part * size * features)});
  bias->pieces.push_back({vector.initializer,
                          View({{heads, head * biases[0].stride}, {size, step * biases[0].stride}},
                               vector.original.offset() + layout.offset * biases[0].stride),
                          View({{heads, 3 * size}, {size, 1}}, part * size)});
  return true;
}

// The dimensions of the queries, with the strides of the context [samples, tokens, heads, size].
// `sample_stride`: the elements of one sample of the queries.
std::optional<View> ContextView(const View& queries, int64_t sample_stride, const Draft& context) {
  const int rank = queries.rank();
  const int64_t features = context.features, size = features / context.heads;
  std::vector<Factor> flat;
  for (int d = 0; d < rank - 2; ++d) {
    for (const Factor& factor : queries.factors(d)) {
      const bool sample = factor.stride == sample_stride;
      flat.push_back({factor.size, sample ? context.tokens * features : size});
    }
  }
  flat.push_back({context.tokens, features});
  flat.push_back({size, 1});
  return View(flat, 0).Reshaped(queries.sizes());
}

absl::Status Misfit(const Translator& t, const Attention& attention, const Value& values) {
  return Unsupported(absl::StrCat(
      "it attends with queries of ", t.Describe(attention.queries), ", keys of ",
      t.Describe(attention.keys), " and values of ", t.Describe(values),
      "; only self-attention is supported, of projections with biases of one sequence to queries, "
      "keys and values of all heads"));
}

struct Projections {
  int64_t heads = 0, size = 0;
  DraftParameter weight{.name = "qkv_weight"}, bias{.name = "qkv_bias"};
};

// The projections to queries, keys and values, as parameters of an attention.
absl::StatusOr<Projections> ProjectionsOf(const Translator& t, const Attention& attention,
                                          const Value& values) {
  const absl::Status misfit = Misfit(t, attention, values);
  const Value* const parts[3] = {&attention.queries, &attention.keys, &values};
  const int rank = values.view.rank();
  Projections result;
  for (int p = 0; p < 3; ++p) {
    const Draft& projection = t.drafts()[parts[p]->root];
    // Keys are transposed: [..., head features, tokens].
    const auto layout = LayoutOf(projection, t.batch(), parts[p]->view, rank - (p == 1 ? 1 : 2),
                                 rank - (p == 1 ? 2 : 1));
    if (!layout || !projection.layer.has_fully_connected() || projection.parameters.size() != 2) {
      return misfit;
    }
    if (p == 0) result.heads = layout->heads, result.size = layout->size;
    if (layout->heads != result.heads || layout->size != result.size ||
        projection.inputs != t.drafts()[attention.queries.root].inputs) {
      return misfit;
    }
    const int64_t features = t.drafts()[projection.inputs[0]].features;
    if (result.heads * result.size != features) {
      return Unsupported(absl::StrCat(result.heads, " heads of ", result.size, " do not have the ",
                                      features, " features of the input"));
    }
    if (!AddProjection(projection, *layout, p, features, &result.weight, &result.bias)) {
      return misfit;
    }
  }
  const double expected = 1 / std::sqrt(static_cast<double>(result.size));
  if (std::abs(attention.scale / expected - 1) > 1e-4) {
    return Unsupported(absl::StrCat("scores are scaled by ", attention.scale, "; ", expected,
                                    ", one over the root of the head features, is supported"));
  }
  result.weight.shape = Shape{result.heads, 3, result.size, result.heads * result.size};
  result.bias.shape = Shape{result.heads, 3, result.size};
  return result;
}

}  // namespace

// The three projections become one parameter; the context is completed by the output projection.
absl::StatusOr<Value> Context(Translator& t, const Attention& attention, const Value& values) {
  if (!attention.softmax || values.function) {
    return Unsupported("it multiplies scores of an attention before their softmax");
  }
  const View& queries = attention.queries.view;
  if (values.view.rank() != queries.rank()) {
    return Unsupported(absl::StrCat("its queries are ", t.Describe(attention.queries),
                                    ", and its values are ", t.Describe(values),
                                    ": their numbers of dimensions differ"));
  }
  CADRE_ASSIGN_OR_RETURN(Projections projections, ProjectionsOf(t, attention, values));
  const Draft& projection = t.drafts()[attention.queries.root];
  Draft context;
  v1::Attention& layer = *context.layer.mutable_attention();
  layer.set_heads(projections.heads);
  if (attention.causal) layer.set_causal(true);
  if (attention.padding_token) layer.set_padding_token(*attention.padding_token);
  context.inputs = {projection.inputs[0]};
  context.form = Draft::Form::kRows;
  context.tokens = projection.tokens;
  context.features = projections.heads * projections.size;
  context.heads = projections.heads;
  context.context = attention;
  context.parameters = {std::move(projections.weight), std::move(projections.bias)};
  const auto view = ContextView(queries, projection.tokens * projection.features, context);
  if (!view) return Misfit(t, attention, values);
  return Value{
      .kind = Value::Kind::kActivation, .view = *view, .root = t.AddDraft(std::move(context))};
}

absl::StatusOr<Value> OutputProjection(Translator& t, const Value& x, const Value& weight) {
  Draft draft = t.drafts()[x.root];
  const int64_t out = weight.view.size(0), size = draft.features / draft.heads;
  if (out != draft.features) {
    return Unsupported(absl::StrCat("the output projection of an attention has ", out,
                                    " features instead of ", draft.features));
  }
  draft.context.reset();
  draft.parameters.push_back(
      ParameterOf("out_weight", Shape{out, draft.heads, size}, weight.root, weight.view));
  Value result = x;
  result.root = t.AddDraft(std::move(draft));
  return result;
}

}  // namespace cadre::rules
