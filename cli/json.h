// Messages as JSON, for scripts.
//
// Every field is printed, defaults too, under its name in the proto file; of a oneof only the field
// that is set. Integers of any width are JSON numbers. Enums are their names in lower case, without
// the enum's own name in front. A message that is not set is null, as is a number that is not
// finite. Maps are objects, sorted by key. Bytes are base64.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// One JSON object on one line.
std::string ToJson(const google::protobuf::Message& message);

// "text" with quotes, escaped.
std::string JsonString(absl::string_view text);
// Shortest digits that read back as the same value; null if not finite.
std::string JsonNumber(double value);
std::string JsonNumber(float value);

// Builds one object, field by field, in the order of the calls.
//
//   JsonObject().Add("run", "r1").Add("seconds", 1.5).Text()  ==  {"run":"r1","seconds":1.5}
class JsonObject {
 public:
  JsonObject& Add(absl::string_view name, absl::string_view value);
  JsonObject& Add(absl::string_view name, const char* value);
  JsonObject& Add(absl::string_view name, double value);
  JsonObject& Add(absl::string_view name, uint64_t value);
  JsonObject& Add(absl::string_view name, uint32_t value);
  // `json` is a value already.
  JsonObject& AddRaw(absl::string_view name, absl::string_view json);
  // Every field of `message`, as fields of this object.
  JsonObject& AddFields(const google::protobuf::Message& message);
  std::string Text() const;

 private:
  std::string fields_;
};

// The name of an enum value as ToJson prints it, such as "running" or "stale_generation".
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

// A message as indented JSON text (what `-o json` prints to people and scripts alike).
std::string Indent(absl::string_view json);

}  // namespace cadre
