// The rules of ONNX operators: what an operator makes of its inputs. The table in translate.cc has
// the rule of each operator by its name; each rule is in the file that its part below names.
//
// Functions over the state of a translation. Used by one thread.
// Errors: Unimplemented with what is not supported; the caller adds the operator and its node.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/import/translator.h"
#include "cli/import/value.h"
#include "proto/cadre/onnx/model.pb.h"

namespace cadre::rules {

using Inputs = std::vector<Value>;
using Rule = absl::StatusOr<Value> (*)(Translator&, const onnx::Node&, const Inputs&);

// --- translate_structure.cc: operators that only rearrange elements ---
absl::StatusOr<Value> Identity(Translator&, const onnx::Node&, const Inputs&);
// The extents as numbers.
absl::StatusOr<Value> ShapeOf(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> SequenceAt(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Cast(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Transpose(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Expand(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> SelectIndex(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Reshape(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Squeeze(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Unsqueeze(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Slice(Translator&, const onnx::Node&, const Inputs&);
// A sequence of the parts.
absl::StatusOr<Value> Split(Translator&, const onnx::Node&, const Inputs&);
// Whether the rule above for the operator holds for these inputs: known numbers and masks are
// folded instead by some operators, and scores of an attention are not rearranged.
bool OnlyRearranges(const onnx::Node& node, const Inputs& in);

// --- translate_images.cc ---
absl::StatusOr<Value> Convolution(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Pool(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> GlobalPool(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Mean(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> BatchNorm(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> ResponseNorm(Translator&, const onnx::Node&, const Inputs&);

// --- translate_rows.cc ---
absl::StatusOr<Value> LayerNorm(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Gemm(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> MatMul(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Gather(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Concat(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Dropout(Translator&, const onnx::Node&, const Inputs&);
// x + bias, where the bias is a parameter.
absl::StatusOr<Value> AddParameter(Translator& t, const Value& x, const Value& bias);
absl::StatusOr<Value> AddOrMultiply(Translator& t, const onnx::Node& node, Value a, Value b);
// `weight`: [out, in].
absl::StatusOr<Value> FullyConnected(Translator& t, const Value& x, const Value& weight);

// --- translate_elementwise.cc ---
absl::StatusOr<Value> Clip(Translator&, const onnx::Node&, const Inputs&);
// An operator of one or two elements.
absl::StatusOr<Value> Elementwise(Translator&, const onnx::Node&, const Inputs&);
// A sum, or the largest or smallest, of more than two: that of the first two and the others.
absl::StatusOr<Value> Pairwise(Translator&, const onnx::Node&, const Inputs&);

// --- translate_attention.cc ---
absl::StatusOr<Value> Softmax(Translator&, const onnx::Node&, const Inputs&);
// An operator between the products, the softmax and the context, with scores among its inputs.
absl::StatusOr<Value> OfAttention(Translator&, const onnx::Node&, const Inputs&);
absl::StatusOr<Value> Scores(Translator& t, const Value& queries, const Value& keys);
absl::StatusOr<Value> Context(Translator& t, const Attention& attention, const Value& values);
absl::StatusOr<Value> OutputProjection(Translator& t, const Value& x, const Value& weight);

// --- translate_masks.cc ---
// A comparison of tokens with a number.
absl::StatusOr<Value> CompareTokens(Translator&, const onnx::Node&, const Inputs&);
// An operator on masks and known numbers.
absl::StatusOr<Value> FoldMasks(Translator&, const onnx::Node&, const Inputs&);
// Applies `added`, numbers or a mask that are added to the scores of an attention.
absl::Status HideKeys(Translator& t, const Value& added, Attention& attention);

}  // namespace cadre::rules
