// bf16 copies of fp32 parameters, which are factors of products under Precision::kBf16.
//
// A copy is made when a product first needs it and is used until the parameters change: once per
// step and not in forward and again in backward. Copies exist only for announced parameters, whose
// changes are known; others are converted by the caller each time.
//
// Owns the copies. Thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "tensor/elements.h"
#include "tensor/values.h"

namespace cadre {

class Bf16Weights {
 public:
  // Announces parameters: they have new values.
  void Announce(std::span<const float> weights);
  // Announced parameters may have new values; has no effect for others.
  void Changed(std::span<const float> weights);
  // Forgets all parameters.
  void Clear() { announced_.clear(); }

  // The copy of `weights`, which `convert(weights, copy)` fills if they have changed since it was
  // last filled. Empty if they are not part of announced parameters. Valid until the next call.
  template <typename Convert>
  ConstValues Find(std::span<const float> weights, const Convert& convert) {
    Copy* const copy = CopyOf(weights);
    if (copy == nullptr) return {};
    const Values values(copy->values.data(), copy->values.size(), DType::kBFloat16);
    if (!copy->current) convert(weights, values);
    copy->current = true;
    return values;
  }

 private:
  struct Copy {
    std::vector<Bf16> values;
    bool current = false;
  };
  // Parameters that were announced together, such as a bucket, with copies of the parts that were
  // requested, by the address of their first element.
  struct Announced {
    size_t size = 0;
    std::map<const float*, Copy> copies;
  };

  // Null if `weights` are not part of announced parameters.
  Copy* CopyOf(std::span<const float> weights);

  // By the address of the first parameter.
  std::map<const float*, Announced> announced_;
};

}  // namespace cadre
