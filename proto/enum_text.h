// Enum values as users read and write them in tables, JSON and flags.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// The value's name in lower case, without the name of its enum: RUN_STATE_AT_BOUNDARY is
// "at_boundary", Plan.HALVING_DOUBLING "halving-doubling", LinkProfile.SHARED_MEMORY_AND_TCP
// "shared memory and tcp". Zero values are "unspecified".
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);
// The same for a number; a number without a name (from a newer build) is written in digits.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int number);
template <typename Enum>
std::string EnumText(Enum value) {
  return EnumText(*google::protobuf::GetEnumDescriptor<Enum>(), value);
}

// The inverse, for values other than zero; nullopt if `text` is the name of none of them.
std::optional<int> EnumNumber(const google::protobuf::EnumDescriptor& type, absl::string_view text);
template <typename Enum>
std::optional<Enum> EnumFromText(absl::string_view text) {
  const auto number = EnumNumber(*google::protobuf::GetEnumDescriptor<Enum>(), text);
  return number ? std::optional(static_cast<Enum>(*number)) : std::nullopt;
}

}  // namespace cadre
