// Operators on rows of features: products, sums, embeddings, norms, joins.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/problem.h"

namespace cadre::rules {

absl::StatusOr<Value> LayerNorm(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  int64_t axis = attributes.Integer("axis", -1);
  axis += axis < 0 ? in[0].view.rank() : 0;
  if (axis != in[0].view.rank() - 1) {
    return Unsupported(absl::StrCat(AttributeText(node, "axis"), ", and its input is ",
                                    t.Describe(in[0]), "; only norms of the last dimension work"));
  }
  if (in.size() != 3) return Unsupported("its scale or its bias is absent");
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Rows(in[0]));
  const int64_t features = t.drafts()[x.root].features;
  if (t.drafts()[x.root].context) {
    return Unsupported(
        absl::StrCat("its input is ", t.Describe(x), ", an attention without output projection"));
  }
  Draft draft;
  draft.layer.mutable_layer_norm()->set_epsilon(attributes.Number("epsilon", 1e-5));
  CADRE_ASSIGN_OR_RETURN(DraftParameter scale, t.WholeParameter("scale", Shape{features}, in[1]));
  CADRE_ASSIGN_OR_RETURN(DraftParameter shift, t.WholeParameter("shift", Shape{features}, in[2]));
  draft.parameters = {std::move(scale), std::move(shift)};
  return t.OnRows(x, std::move(draft), features);
}

absl::StatusOr<Value> Gemm(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  if (in.size() < 2 || attributes.Number("alpha", 1) != 1 || attributes.Integer("transA", 0) != 0 ||
      (in.size() > 2 && attributes.Number("beta", 1) != 1)) {
    return Unsupported(absl::StrCat(AttributeText(node, "alpha"), ", ", AttributeText(node, "beta"),
                                    " and ", AttributeText(node, "transA"),
                                    "; only alpha = beta = 1 and transA = 0 are supported"));
  }
  Value weight = in[1];
  if (weight.view.rank() != 2) {
    return Unsupported(absl::StrCat("its weight is ", t.Describe(weight), ", not a matrix"));
  }
  if (attributes.Integer("transB", 0) == 0) weight.view = weight.view.Transposed({1, 0});
  CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(t, in[0], weight));
  if (in.size() > 2) {
    CADRE_ASSIGN_OR_RETURN(y, AddParameter(t, y, in[2]));
  }
  return y;
}

absl::StatusOr<Value> MatMul(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  if (in.size() != 2) {
    return Unsupported(absl::StrCat("it has ", in.size(), " inputs instead of two"));
  }
  if (in[0].kind == Value::Kind::kAttention && in[1].is_activation()) {
    return Context(t, *in[0].attention, in[1]);
  }
  if (in[0].is_activation() && in[1].is_activation()) return Scores(t, in[0], in[1]);
  if (!in[0].is_activation() || in[1].view.rank() != 2) {
    return Unsupported(
        absl::StrCat("it multiplies ", t.Describe(in[0]), " by ", t.Describe(in[1]),
                     "; only products with a matrix of weights, and those of attention, work"));
  }
  Value weight = in[1];
  weight.view = weight.view.Transposed({1, 0});
  CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(t, in[0], weight));
  return y;
}

absl::StatusOr<Value> FullyConnected(Translator& t, const Value& x, const Value& weight) {
  if (!weight.is_parameter()) {
    return Unsupported(
        absl::StrCat("its weight is ", t.Describe(weight), ", not a tensor of the file"));
  }
  CADRE_ASSIGN_OR_RETURN(const Value rows, t.Rows(x));
  const Draft before = t.drafts()[rows.root];
  const int64_t out = weight.view.size(0);
  if (weight.view.size(1) != before.features || out < 1) {
    return Unsupported(absl::StrCat("its weight is ", t.Describe(weight), ", [out, in], for ",
                                    weight.view.size(1), " features; its input is ", t.Describe(x),
                                    " and has ", before.features));
  }
  if (before.context) return OutputProjection(t, rows, weight);
  Draft draft;
  v1::FullyConnected& fc = *draft.layer.mutable_fully_connected();
  fc.set_out_features(out);
  fc.set_no_bias(true);
  for (size_t i = 0; i < t.drafts().size() && draft.tied_to < 0; ++i) {
    if (!t.drafts()[i].layer.has_embedding()) continue;
    const Piece& table = t.drafts()[i].parameters[0].pieces[0];
    if (table.initializer == weight.root && table.original == weight.view) {
      draft.tied_to = static_cast<int>(i);
    }
  }
  // The drafts of an embedding with and without positions have one table; the last one is used.
  for (size_t i = 0; i < t.drafts().size(); ++i) {
    if (draft.tied_to >= 0 && t.drafts()[i].layer.has_embedding()) {
      draft.tied_to = static_cast<int>(i);
    }
  }
  if (draft.tied_to < 0) {
    draft.parameters.push_back(
        ParameterOf("weight", Shape{out, before.features}, weight.root, weight.view));
  }
  return t.OnRows(rows, std::move(draft), out);
}

namespace {

// A bias [tokens, features], possibly the same for all samples or for all tokens. `rows`: of `x`.
absl::StatusOr<Value> AddPerToken(Translator& t, const Value& x, const Value& rows,
                                  const Value& bias) {
  const Draft before = t.drafts()[rows.root];
  const int64_t features = before.features;
  const absl::Status misfit = Unsupported(absl::StrCat(
      "it adds ", t.Describe(bias), " to ", t.Describe(x),
      "; a bias of rows must be [features] or [tokens, features]: here ", features, " features"));
  if (before.form != Draft::Form::kRows || !(rows.view == t.Whole(rows.root).view)) return misfit;
  auto wide = bias.view.Expanded({t.batch(), before.tokens, features});
  if (!wide || wide->sizes() != std::vector<int64_t>{t.batch(), before.tokens, features}) {
    return misfit;
  }
  const View once = wide->Selected(0, 0);
  const auto repeats = [](const std::vector<Factor>& factors) {
    return factors.empty() || (factors.size() == 1 && factors[0].stride == 0);
  };
  if (!repeats(wide->factors(0))) return misfit;
  const bool all_tokens = repeats(once.factors(0));
  Draft draft;
  if (all_tokens && before.tokens > 1) {
    draft.layer.mutable_bias();
    draft.parameters.push_back(
        ParameterOf("bias", Shape{features}, bias.root, once.Selected(0, 0)));
    return t.OnRows(rows, std::move(draft), features);
  }
  if (before.layer.has_embedding() && !before.layer.embedding().positions()) {
    draft = before;
    draft.layer.mutable_embedding()->set_positions(true);
    draft.parameters.push_back(
        ParameterOf("positions", Shape{before.tokens, features}, bias.root, once));
    Value result = rows;
    result.root = t.AddDraft(std::move(draft));
    return result;
  }
  draft.layer.mutable_bias()->set_per_token(true);
  draft.parameters.push_back(ParameterOf("bias", Shape{before.tokens, features}, bias.root, once));
  return t.OnRows(rows, std::move(draft), features);
}

// Converters of TensorFlow and Paddle add the bias of a convolution as [1, channels, 1, 1]. Nothing
// if `x` is not an image, or `bias` has other extents that rows may take.
absl::StatusOr<std::optional<Value>> AddToChannels(Translator& t, const Value& x,
                                                   const Value& bias) {
  if (x.view.rank() != 4) return std::nullopt;
  CADRE_ASSIGN_OR_RETURN(const Value plain, t.Plain(x));
  const Draft before = t.drafts()[plain.root];
  const std::vector<int64_t> of_bias = bias.view.sizes();
  const int64_t channels = plain.view.size(1);
  const bool per_channel = of_bias == std::vector<int64_t>{channels, 1, 1} ||
                           of_bias == std::vector<int64_t>{1, channels, 1, 1} ||
                           (channels == 1 && bias.view.elements() == 1);
  const auto flat = bias.view.Reshaped({channels});
  if (before.form != Draft::Form::kImage) {
    // After global pooling: [samples, features, 1, 1].
    const auto rows = plain.view.Reshaped({t.batch(), before.features});
    if (!per_channel || channels != before.features || !rows || !flat) {
      return std::nullopt;
    }
    Value features = plain, added = bias;
    features.view = *rows;
    added.view = *flat;
    CADRE_ASSIGN_OR_RETURN(Value result, AddParameter(t, features, added));
    result.view = *result.view.Reshaped(plain.view.sizes());
    return result;
  }
  if (!(plain.view == t.Whole(plain.root).view)) return std::nullopt;
  if (!per_channel || !flat || !before.layer.has_convolution() ||
      !before.layer.convolution().no_bias()) {
    return Unsupported(absl::StrCat(
        "it adds ", t.Describe(bias), " to ", t.Describe(x),
        "; only the bias [1, channels, 1, 1] of a convolution that has none can be added to an "
        "image"));
  }
  Draft draft = before;
  draft.without_bias = plain.root;
  draft.layer.mutable_convolution()->clear_no_bias();
  draft.parameters.push_back(ParameterOf("bias", Shape{channels}, bias.root, *flat));
  Value result = plain;
  result.root = t.AddDraft(std::move(draft));
  return result;
}

}  // namespace

// The layers with a bias are made when it is added; the drafts without it are then not used.
absl::StatusOr<Value> AddParameter(Translator& t, const Value& x, const Value& bias) {
  if (!bias.is_parameter()) {
    return Unsupported(
        absl::StrCat("its bias is ", t.Describe(bias), ", not a tensor of the file"));
  }
  CADRE_ASSIGN_OR_RETURN(const std::optional<Value> image, AddToChannels(t, x, bias));
  if (image) return *image;
  CADRE_ASSIGN_OR_RETURN(const Value rows, t.Rows(x));
  const Draft before = t.drafts()[rows.root];
  const int64_t features = before.features;
  Value result = rows;
  const int bias_rank = bias.view.rank();
  if (bias_rank == 0) return Unsupported(absl::StrCat("it adds ", t.Describe(bias), ", a number"));
  if (bias.view.elements() == features && bias.view.size(bias_rank - 1) == features) {
    Draft draft = before;
    draft.without_bias = rows.root;
    if (draft.layer.has_fully_connected() && draft.layer.fully_connected().no_bias()) {
      draft.layer.mutable_fully_connected()->clear_no_bias();
      draft.parameters.push_back(ParameterOf("bias", Shape{features}, bias.root, bias.view));
    } else if (draft.layer.has_attention() && draft.parameters.size() == 3) {
      draft.parameters.push_back(ParameterOf("out_bias", Shape{features}, bias.root, bias.view));
    } else {
      draft = Draft();
      draft.layer.mutable_bias();
      draft.parameters.push_back(ParameterOf("bias", Shape{features}, bias.root, bias.view));
      return t.OnRows(rows, std::move(draft), features);
    }
    result.root = t.AddDraft(std::move(draft));
    return result;
  }
  return AddPerToken(t, x, rows, bias);
}

absl::StatusOr<Value> AddOrMultiply(Translator& t, const onnx::Node& node, Value a, Value b) {
  CADRE_ASSIGN_OR_RETURN(a, t.Plain(a));
  CADRE_ASSIGN_OR_RETURN(b, t.Plain(b));
  const bool add = node.op_type() != "Mul";
  const std::string operands = absl::StrCat(t.Describe(a), " and ", t.Describe(b));
  // An image and one factor per channel, in either order.
  for (int order = 0; order < 2 && !add; ++order, std::swap(a, b)) {
    const Draft image = t.drafts()[a.root], factor = t.drafts()[b.root];
    if (image.form != Draft::Form::kImage || !(a.view == t.Whole(a.root).view) ||
        b.view.sizes() != std::vector<int64_t>{t.batch(), image.channels, 1, 1} ||
        image.height * image.width == 1) {
      continue;
    }
    const auto flat = b.view.Reshaped({t.batch(), image.channels});
    if (!flat) continue;
    b.view = *flat;
    CADRE_ASSIGN_OR_RETURN(b, t.Rows(b));
    Draft draft = ImageDraft(a.root, image.channels, image.height, image.width);
    draft.inputs.push_back(b.root);
    draft.layer.mutable_multiply();
    return t.Whole(t.AddDraft(std::move(draft)));
  }
  if (!(a.view == b.view) || t.drafts()[a.root].form != t.drafts()[b.root].form) {
    // The same rows in forms that differ.
    CADRE_ASSIGN_OR_RETURN(a, t.Rows(a));
    CADRE_ASSIGN_OR_RETURN(b, t.Rows(b));
  }
  const Draft &first = t.drafts()[a.root], &second = t.drafts()[b.root];
  if (!(a.view == b.view) || first.form != second.form || first.elements() != second.elements() ||
      first.form == Draft::Form::kTokens || first.context || second.context) {
    return Unsupported(absl::StrCat("its inputs are ", operands,
                                    ": they must have equal extents, or be an image and one "
                                    "factor per channel"));
  }
  Draft draft = first;
  draft.parameters.clear();
  draft.layer = v1::Layer();
  draft.tied_to = -1;
  draft.inputs = {a.root, b.root};
  if (add) {
    draft.layer.mutable_add();
  } else {
    draft.layer.mutable_multiply();
  }
  Value result = a;
  result.root = t.AddDraft(std::move(draft));
  return result;
}

namespace {

// Rows of a table of parameters by fixed numbers: consecutive rows, or one row, for all samples.
absl::StatusOr<Value> SelectRows(Translator& t, const Value& table, const Value& selected) {
  const int64_t rows = table.view.size(0), features = table.view.size(1);
  const auto indices = t.AsIntegers(selected);
  if (!indices || indices->empty()) {
    return Unsupported(absl::StrCat("it selects ", selected.view.elements(),
                                    " rows; 1 to 1024 can be selected by fixed numbers"));
  }
  for (const int64_t index : *indices) {
    if (index < 0 || index >= rows) {
      return Unsupported(absl::StrCat("it selects row ", index, " of ", t.Describe(table)));
    }
  }
  // Consecutive rows, or one row, for all samples.
  const std::vector<int64_t> dims = selected.view.sizes();
  const int64_t count = dims.empty() ? 1 : dims.back();
  const int64_t step = count > 1 ? (*indices)[1] - (*indices)[0] : 0;
  const int64_t first = (*indices)[0];
  for (size_t i = 0; i < indices->size(); ++i) {
    if ((*indices)[i] != first + step * static_cast<int64_t>(i % count)) {
      return Unsupported("only consecutive rows, or one row, can be selected by fixed numbers");
    }
  }
  if (step < 0 || step > 1 || first < 0 || first + step * (count - 1) >= rows) {
    return Unsupported(
        absl::StrCat("it selects rows that are not consecutive in ", t.Describe(table)));
  }
  Value result = table;
  const View from = *table.view.Sliced(0, first, first + step * (count - 1) + 1);
  std::vector<int64_t> sizes(dims);
  sizes.push_back(features);
  const auto base = step == 0 ? from.Expanded({count, features}) : std::optional<View>(from);
  std::vector<int64_t> aligned(dims.size() > 1 ? dims.size() - 1 : 0, 1);
  aligned.push_back(count);
  aligned.push_back(features);
  if (dims.empty()) aligned = {features};
  const auto shaped = base ? base->Reshaped(aligned) : std::nullopt;
  const auto view = shaped ? shaped->Expanded(sizes) : std::nullopt;
  if (!view) return Unsupported("the selected rows do not fit");
  result.view = *view;
  return result;
}

}  // namespace

// A table and tokens: an embedding. A table and fixed numbers: rows of the table.
absl::StatusOr<Value> Gather(Translator& t, const onnx::Node& node, const Inputs& in) {
  if (in.size() != 2 || !in[0].is_parameter() || in[0].view.rank() != 2 ||
      Attributes(node).Integer("axis", 0) != 0) {
    return Unsupported(absl::StrCat("it selects from ", t.Describe(in[0]), ", and ",
                                    AttributeText(node, "axis"),
                                    "; only rows of a table of parameters can be selected"));
  }
  const int64_t rows = in[0].view.size(0), features = in[0].view.size(1);
  if (in[1].is_numbers()) return SelectRows(t, in[0], in[1]);
  if (!in[1].is_activation() || in[1].function ||
      t.drafts()[in[1].root].form != Draft::Form::kTokens ||
      !(in[1].view == t.Whole(in[1].root).view)) {
    return Unsupported(absl::StrCat("it selects rows of ", t.Describe(in[0]), " by ",
                                    t.Describe(in[1]), ", not by the tokens of the input"));
  }
  Draft draft;
  draft.inputs = {in[1].root};
  draft.form = Draft::Form::kRows;
  draft.tokens = t.drafts()[in[1].root].tokens;
  draft.features = features;
  if (features < 1 || rows < 1) {
    return Unsupported(absl::StrCat("its table is ", t.Describe(in[0]), ", which is empty"));
  }
  v1::Embedding& embedding = *draft.layer.mutable_embedding();
  embedding.set_vocabulary(rows);
  embedding.set_features(features);
  draft.parameters.push_back(ParameterOf("weight", Shape{rows, features}, in[0].root, in[0].view));
  return t.Whole(t.AddDraft(std::move(draft)));
}

absl::StatusOr<Value> Concat(Translator& t, const onnx::Node& node, const Inputs& in) {
  if (in.size() == 1) return in[0];
  int64_t axis = Attributes(node).Integer("axis", 0);
  const int rank = in[0].view.rank();
  axis += axis < 0 ? rank : 0;
  // A learned token before a sequence.
  if (in.size() == 2 && in[0].is_parameter() && in[1].is_activation() && rank == 3 && axis == 1) {
    CADRE_ASSIGN_OR_RETURN(const Value x, t.Rows(in[1]));
    const Draft before = t.drafts()[x.root];
    const auto token = in[0].view.Expanded({t.batch(), 1, before.features});
    if (before.form != Draft::Form::kRows || !(x.view == t.Whole(x.root).view) || !token ||
        token->sizes() != std::vector<int64_t>{t.batch(), 1, before.features} ||
        (t.batch() > 1 && token->factors(0) != std::vector<Factor>{{t.batch(), 0}})) {
      return Unsupported(absl::StrCat("it puts ", t.Describe(in[0]), " before ", t.Describe(in[1]),
                                      "; only one learned token, the same for all samples, can be "
                                      "put before a sequence"));
    }
    Draft draft;
    draft.layer.mutable_class_token();
    draft.inputs = {x.root};
    draft.form = Draft::Form::kRows;
    draft.tokens = before.tokens + 1;
    draft.features = before.features;
    draft.parameters.push_back(ParameterOf("weight", Shape{before.features}, in[0].root,
                                           token->Selected(0, 0).Selected(0, 0)));
    return t.Whole(t.AddDraft(std::move(draft)));
  }
  Draft draft;
  draft.layer.mutable_concat();
  for (const Value& input : in) {
    if (!input.is_activation()) {
      return Unsupported(absl::StrCat("it joins activations and ", t.Describe(input)));
    }
    const auto image = t.Image(input);
    const auto part = image.ok() ? image : t.Rows(input);
    if (!part.ok()) return part.status();
    const Draft& before = t.drafts()[part->root];
    if (draft.inputs.empty()) draft.form = before.form;
    const bool same =
        draft.inputs.empty() || (before.form == draft.form && before.height == draft.height &&
                                 before.width == draft.width && before.tokens == draft.tokens);
    const int along = draft.form == Draft::Form::kImage ? 1 : part->view.rank() - 1;
    if (!same || axis != along || before.context || !(part->view == t.Whole(part->root).view)) {
      return Unsupported(
          absl::StrCat(AttributeText(node, "axis"), ", and it joins ", t.Describe(input),
                       " to others; only channels of images and features of rows can be joined"));
    }
    draft.inputs.push_back(part->root);
    draft.channels += before.channels;
    draft.height = before.height, draft.width = before.width;
    draft.tokens = before.tokens;
    draft.features += before.features;
  }
  return t.Whole(t.AddDraft(std::move(draft)));
}

// In a graph that was exported for training it drops elements; in others it does nothing.
absl::StatusOr<Value> Dropout(Translator& t, const onnx::Node& node, const Inputs& in) {
  const auto rate = in.size() > 1 ? t.AsScalar(in[1]) : std::optional<double>(0.5);
  const auto training = in.size() > 2 ? t.AsScalar(in[2]) : std::optional<double>(0);
  if (!rate || !training) {
    return Unsupported(absl::StrCat("its ", rate ? "training_mode" : "ratio",
                                    " is not a fixed number: it is ",
                                    t.Describe(in[rate ? 2 : 1])));
  }
  if (*training == 0 || *rate == 0) {
    t.AddInactiveDropout(node.name().empty() ? node.output(0) : node.name());
    return in[0];
  }
  if (!in[0].is_activation()) {
    return Unsupported("dropout of attention probabilities is not supported; set its rate to 0");
  }
  if (!(*rate > 0 && *rate < 1)) {
    return Unsupported(absl::StrCat("its ratio is ", *rate, "; it must be from 0 to below 1"));
  }
  CADRE_ASSIGN_OR_RETURN(Value x, t.Plain(in[0]));
  Draft draft = t.drafts()[x.root];
  if (draft.context || draft.form == Draft::Form::kTokens) {
    return Unsupported(absl::StrCat("its input is ", t.Describe(in[0]),
                                    draft.context ? ", the context of an attention" : ""));
  }
  draft.parameters.clear();
  draft.layer = v1::Layer();
  draft.tied_to = -1;
  draft.layer.mutable_dropout()->set_rate(*rate);
  draft.inputs = {x.root};
  x.root = t.AddDraft(std::move(draft));
  return x;
}

}  // namespace cadre::rules
