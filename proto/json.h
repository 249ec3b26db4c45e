// Messages as JSON, as the command line and the dashboard write it. docs/json.md documents the
// keys.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

#include <string>

namespace cadre {

// Keys keep the order in which they are added.
using Json = nlohmann::ordered_json;

// Every field of the message, including defaults, under its name in the proto file (or under its
// json_name, if the proto file gives one); of a oneof only the field that is set. Enum values are
// written as their names in lower case without the name of the enum, 64-bit hashes (fixed64) as 16
// hex digits, bytes as base64. A message that is not set is null. Maps are sorted by key.
Json ToJson(const google::protobuf::Message& message);

// The double with the fewest digits that a float needs: 0.1f is 0.1, not 0.10000000149011612.
double Widen(float value);

// The text of `json`: on one line, or indented. Numbers have the fewest digits that read back as
// the same value; numbers that are not finite are null.
std::string OneLine(const Json& json);
std::string Indented(const Json& json);

}  // namespace cadre
