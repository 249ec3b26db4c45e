// How a run screens the contributions of its groups (run.proto, Screen).
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// With all defaults filled in; nothing if every contribution is used. Requires: WrongScreenOf has
// no objection.
std::optional<v1::Screen> ScreenOf(const v1::Averaging& averaging);

// Number of groups whose values the mean of `groups` groups leaves out of each parameter, of the
// largest and of the smallest.
uint32_t TrimOf(const v1::Averaging& averaging, uint32_t groups);

// A field of the settings that is wrong, such as "clip.ratio", and why.
struct WrongScreen {
  std::string field;
  std::string reason;
};
std::optional<WrongScreen> WrongScreenOf(const v1::Screen& screen);

}  // namespace cadre
