// What of a contribution is added to later ones (run.proto, Coding.error_feedback and Staleness): a
// share of what its code has left out or, if no version includes it, of its whole change.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// With all defaults filled in. Nothing: late changes are lost, unless they are coded.
std::optional<v1::Staleness> StalenessOf(const v1::Averaging& averaging);

struct KeptShare {
  float factor = 0;
  // How many rounds late the change is, if it is dropped for this reason; 0: it is not.
  uint32_t dropped = 0;
};

// The share for a group that has contributed to `round` and continues from `version`, which
// includes the contribution or not. Of a contribution that was left out because of what it contains
// (`screened`), nothing is kept, since what is carried may be the cause. Requires: KeepsChanges.
KeptShare KeptShareOf(const v1::Averaging& averaging, uint32_t round, uint32_t version,
                      bool included, bool screened = false);

}  // namespace cadre
