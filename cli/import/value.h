// The values of an imported graph, as far as they are known when it is translated.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/import/view.h"

namespace cadre {

// The values of a function of one number at fixed points. Elementwise operations on an activation
// are not translated one by one: their composition is compared with the activations of the engine,
// so that it does not matter how an exporter writes them.
using Samples = std::array<double, 24>;
inline constexpr Samples kPoints = {-9.3, -6.1, -4.2, -3.4, -2.7, -2.2, -1.6, -1.1,
                                    -0.7, -0.4, -0.1, 0.0,  0.15, 0.5,  0.8,  1.3,
                                    1.8,  2.3,  2.9,  3.2,  4.4,  5.7,  6.6,  8.2};

struct Attention;
struct Mask;

struct Value {
  enum class Kind {
    // An output of an operator that is not supported, or that depends on one.
    kUnknown,
    kNumbers,     // known numbers
    kParameter,   // elements of an initializer of fp32
    kActivation,  // elements of an output of a layer, or of the input
    kAttention,   // scores or probabilities of an attention
    kMask,        // numbers of which some depend on whether a token is padding
    kSequence,    // a list of values
  };

  Kind kind = Kind::kUnknown;
  // Which elements; not of kUnknown, kAttention and kSequence.
  View view;
  // kNumbers.
  std::shared_ptr<const std::vector<double>> numbers;
  // kNumbers and kMask.
  bool integer = false;
  // kParameter: number of the initializer. kActivation: number of the draft (draft.h).
  int root = -1;
  // kActivation: a function of the elements; none: the identity.
  std::optional<Samples> function;
  std::shared_ptr<const Attention> attention;
  std::shared_ptr<const Mask> mask;
  std::vector<Value> sequence;

  bool is_numbers() const { return kind == Kind::kNumbers; }
  bool is_parameter() const { return kind == Kind::kParameter; }
  bool is_activation() const { return kind == Kind::kActivation; }
  bool is_mask() const { return kind == Kind::kMask; }
};

// The elements of a mask, to which the value's view refers. An element depends on one condition:
// that a token has a certain id, or that an input of the graph is 1 for a token.
struct Mask {
  // The id, or kInput.
  int64_t id = 0;
  static constexpr int64_t kInput = -1;
  // The element if the condition holds for its token, and otherwise.
  std::vector<double> on, off;
  // sample * tokens + token; kNoToken: the element is fixed.
  std::vector<double> token;
  static constexpr double kNoToken = -1;
};

// The product of queries and keys, on its way to the context.
struct Attention {
  Value queries, keys;
  // Factor of the products.
  double scale = 1;
  bool causal = false;
  // The id of the keys to which no query attends.
  std::optional<uint32_t> padding_token;
  bool softmax = false;
  // Whether each probability of this attention is not a number; null for an attention itself.
  const Attention* nan_of = nullptr;
};

// Known numbers, row-major.
Value NumbersOf(const std::vector<int64_t>& dims, std::vector<double> numbers, bool integer);
// The numbers of a value in row-major order. Requires: kNumbers.
std::vector<double> NumbersIn(const Value& value);

}  // namespace cadre
