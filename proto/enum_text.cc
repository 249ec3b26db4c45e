#include "proto/enum_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;

// "RunState" -> "RUN_STATE_".
std::string PrefixOf(const EnumDescriptor& type) {
  std::string prefix;
  for (const char c : type.name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix.push_back('_');
    prefix.push_back(absl::ascii_toupper(c));
  }
  return prefix + "_";
}

// The character between the words of a value. Names of algorithms and of parallelisms have dashes,
// because they are also flag values.
char SeparatorOf(const EnumDescriptor& type) {
  if (&type == v1::LinkProfile::Kind_descriptor()) return ' ';
  const bool is_flag =
      &type == v1::Plan::Algorithm_descriptor() || &type == v1::LayerPin::Parallelism_descriptor();
  return is_flag ? '-' : '_';
}

}  // namespace

std::string EnumText(const EnumValueDescriptor& value) {
  absl::string_view name = value.name();
  const std::string prefix = PrefixOf(*value.type());
  absl::ConsumePrefix(&name, prefix);
  std::string text = absl::AsciiStrToLower(name);
  std::replace(text.begin(), text.end(), '_', SeparatorOf(*value.type()));
  return text;
}

std::string EnumText(const EnumDescriptor& type, int number) {
  const EnumValueDescriptor* value = type.FindValueByNumber(number);
  return value == nullptr ? absl::StrCat(number) : EnumText(*value);
}

std::optional<int> EnumNumber(const EnumDescriptor& type, absl::string_view text) {
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor& value = *type.value(i);
    if (value.number() != 0 && text == EnumText(value)) return value.number();
  }
  return std::nullopt;
}

}  // namespace cadre
