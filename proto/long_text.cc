#include "proto/long_text.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace cadre {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The path is composed from the inside to the outside, and only once a text was found. Keys and
// values of maps are fields of the messages that represent their entries.
std::optional<LongText> FindLongText(const Message& message, size_t max_bytes) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_message && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      std::optional<LongText> found;
      if (is_message) {
        found = FindLongText(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field),
                             max_bytes);
      } else {
        std::string scratch;
        const std::string& text =
            field->is_repeated()
                ? reflection.GetRepeatedStringReference(message, field, i, &scratch)
                : reflection.GetStringReference(message, field, &scratch);
        if (text.size() > max_bytes) found = LongText{.bytes = text.size()};
      }
      if (!found.has_value()) continue;
      found->field =
          absl::StrCat(field->name(), field->is_repeated() ? absl::StrCat("[", i, "]") : "",
                       found->field.empty() ? "" : ".", found->field);
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace cadre
