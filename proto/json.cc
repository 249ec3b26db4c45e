// Messages are converted by reflection, so that new fields of a message appear in the JSON without
// further code. protobuf's own JSON is not used, because it omits default values, writes 64-bit
// integers as strings and changes names to camelCase, all of which is inconvenient for jq and
// scripts.
#include "proto/json.h"

#include <google/protobuf/descriptor.h>

#include <array>
#include <charconv>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Enums are printed as in run files.
Json EnumValue(const FieldDescriptor& field, int number) {
  const EnumValueDescriptor* value = field.enum_type()->FindValueByNumber(number);
  // A value from a newer build has no name in this one.
  return value == nullptr ? Json(number) : Json(EnumText(*value));
}

Json Bytes(const FieldDescriptor& field, const std::string& text) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
}

// A field that holds one value, or element `index` of a repeated field.
Json Value(const Message& message, const FieldDescriptor& field, int index) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  // Calls the getter for a repeated field or for a single value.
#define CADRE_GET(Type)                                                       \
  (field.is_repeated() ? reflection.GetRepeated##Type(message, &field, index) \
                       : reflection.Get##Type(message, &field))
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return CADRE_GET(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return CADRE_GET(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return CADRE_GET(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      // Hashes use all 64 bits, more than the doubles of many JSON readers hold.
      if (field.type() == FieldDescriptor::TYPE_FIXED64 && !field.is_repeated()) {
        return absl::StrFormat("%016x", CADRE_GET(UInt64));
      }
      return CADRE_GET(UInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CADRE_GET(Double);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Widen(CADRE_GET(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return CADRE_GET(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(field, CADRE_GET(EnumValue));
    case FieldDescriptor::CPPTYPE_STRING:
      return Bytes(field, CADRE_GET(String));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(CADRE_GET(Message));
  }
#undef CADRE_GET
  return nullptr;
}

// Keys are sorted, because maps of protobuf have no order and output should not change between
// calls.
Json Map(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::map<std::string, Json> sorted;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const Json key = Value(entry, *field.message_type()->map_key(), 0);
    sorted[key.is_string() ? key.get<std::string>() : key.dump()] =
        Value(entry, *field.message_type()->map_value(), 0);
  }
  Json map = Json::object();
  for (const auto& [key, value] : sorted) map[key] = value;
  return map;
}

Json Field(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.is_map()) return Map(message, field);
  if (field.is_repeated()) {
    Json elements = Json::array();
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      elements.push_back(Value(message, field, i));
    }
    return elements;
  }
  // Messages and `optional` fields; the value of the others is their default.
  if (field.has_presence() && !reflection.HasField(message, &field)) return nullptr;
  return Value(message, field, 0);
}

// Bytes that are not UTF-8 are replaced, because JSON cannot contain them.
std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json ToJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const bool unset_choice = field.real_containing_oneof() != nullptr &&
                              !message.GetReflection()->HasField(message, &field);
    if (unset_choice) continue;
    json[field.has_json_name() ? field.json_name() : field.name()] = Field(message, field);
  }
  return json;
}

// Prints the float with the fewest digits that identify it and reads the text as a double.
double Widen(float value) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  double wide = value;
  std::from_chars(text.data(), end.ptr, wide);
  return wide;
}

std::string OneLine(const Json& json) { return Dump(json, -1); }
std::string Indented(const Json& json) { return Dump(json, 2); }

}  // namespace cadre
