#include "cli/json.h"

#include <google/protobuf/descriptor.h>

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace cadre {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

template <typename Float>
std::string Shortest(Float value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

// "RunState" -> "RUN_STATE_".
std::string EnumPrefix(absl::string_view camel) {
  std::string prefix;
  for (const char c : camel) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix.push_back('_');
    prefix.push_back(absl::ascii_toupper(c));
  }
  return prefix + "_";
}

// Text of a field: a value without an index, or element `index` of a repeated field.
std::string ValueText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(repeated ? reflection.GetRepeatedInt32(message, &field, index)
                                   : reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(repeated ? reflection.GetRepeatedInt64(message, &field, index)
                                   : reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(repeated ? reflection.GetRepeatedUInt32(message, &field, index)
                                   : reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      // Counts are numbers. Hashes and digests use all 64 bits, more than a JSON reader's double
      // holds, and are compared, not added: hex, as everywhere else.
      if (field.type() == FieldDescriptor::TYPE_FIXED64 && !repeated) {
        return absl::StrFormat("\"%016x\"", reflection.GetUInt64(message, &field));
      }
      return absl::StrCat(repeated ? reflection.GetRepeatedUInt64(message, &field, index)
                                   : reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return JsonNumber(repeated ? reflection.GetRepeatedDouble(message, &field, index)
                                 : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return JsonNumber(repeated ? reflection.GetRepeatedFloat(message, &field, index)
                                 : reflection.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (repeated ? reflection.GetRepeatedBool(message, &field, index)
                       : reflection.GetBool(message, &field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = repeated ? reflection.GetRepeatedEnumValue(message, &field, index)
                                  : reflection.GetEnumValue(message, &field);
      const EnumValueDescriptor* value = field.enum_type()->FindValueByNumber(number);
      // A value from a newer build has no name here.
      return value == nullptr ? absl::StrCat(number) : JsonString(EnumName(*value));
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = repeated ? reflection.GetRepeatedString(message, &field, index)
                                        : reflection.GetString(message, &field);
      return JsonString(field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text)
                                                                    : text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(repeated ? reflection.GetRepeatedMessage(message, &field, index)
                             : reflection.GetMessage(message, &field));
  }
  return "null";
}

// A map's key as the name of a JSON field.
std::string KeyText(const Message& entry, const FieldDescriptor& key) {
  const std::string text = ValueText(entry, key, 0);
  return absl::StartsWith(text, "\"") ? text : JsonString(text);
}

std::string MapText(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::map<std::string, std::string> sorted;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    sorted[KeyText(entry, key)] = ValueText(entry, value, 0);
  }
  return absl::StrCat("{", absl::StrJoin(sorted, ",", absl::PairFormatter(":")), "}");
}

std::string FieldText(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_map()) return MapText(message, field);
  if (field.is_repeated()) {
    std::vector<std::string> elements;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      elements.push_back(ValueText(message, field, i));
    }
    return absl::StrCat("[", absl::StrJoin(elements, ","), "]");
  }
  const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (is_message && !reflection.HasField(message, &field)) return "null";
  return ValueText(message, field, 0);
}

}  // namespace

std::string EnumName(const EnumValueDescriptor& value) {
  absl::string_view name = value.name();
  const std::string prefix = EnumPrefix(value.type()->name());
  absl::ConsumePrefix(&name, prefix);
  return absl::AsciiStrToLower(name);
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
        } else {
          out.push_back(c);
        }
    }
  }
  return out + "\"";
}

std::string JsonNumber(double value) { return Shortest(value); }
std::string JsonNumber(float value) { return Shortest(value); }

JsonObject& JsonObject::AddRaw(absl::string_view name, absl::string_view json) {
  absl::StrAppend(&fields_, fields_.empty() ? "" : ",", JsonString(name), ":", json);
  return *this;
}

JsonObject& JsonObject::Add(absl::string_view name, absl::string_view value) {
  return AddRaw(name, JsonString(value));
}
JsonObject& JsonObject::Add(absl::string_view name, const char* value) {
  return AddRaw(name, JsonString(value));
}
JsonObject& JsonObject::Add(absl::string_view name, double value) {
  return AddRaw(name, JsonNumber(value));
}
JsonObject& JsonObject::Add(absl::string_view name, uint64_t value) {
  return AddRaw(name, absl::StrCat(value));
}
JsonObject& JsonObject::Add(absl::string_view name, uint32_t value) {
  return AddRaw(name, absl::StrCat(value));
}

JsonObject& JsonObject::AddFields(const Message& message) {
  const auto& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const bool unset_choice = field.real_containing_oneof() != nullptr &&
                              !message.GetReflection()->HasField(message, &field);
    if (!unset_choice) AddRaw(field.name(), FieldText(message, field));
  }
  return *this;
}

std::string JsonObject::Text() const { return absl::StrCat("{", fields_, "}"); }

std::string ToJson(const Message& message) { return JsonObject().AddFields(message).Text(); }

std::string Indent(absl::string_view json) {
  std::string out;
  int depth = 0;
  bool quoted = false;
  const auto new_line = [&] { absl::StrAppend(&out, "\n", std::string(2 * depth, ' ')); };
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted) {
      out.push_back(c);
      if (c == '\\') out.push_back(json[++i]);
      if (c == '"') quoted = false;
      continue;
    }
    switch (c) {
      case '{':
      case '[':
        out.push_back(c);
        // An empty object or list stays on its line.
        if (i + 1 < json.size() && (json[i + 1] == '}' || json[i + 1] == ']')) {
          out.push_back(json[++i]);
        } else {
          ++depth;
          new_line();
        }
        break;
      case '}':
      case ']':
        --depth;
        new_line();
        out.push_back(c);
        break;
      case ',':
        out.push_back(c);
        new_line();
        break;
      case ':':
        out += ": ";
        break;
      default:
        out.push_back(c);
        quoted = c == '"';
    }
  }
  return out;
}

}  // namespace cadre
