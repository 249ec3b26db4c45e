// Finds texts in messages that are longer than a limit.
//
// Thread-safe (pure function).
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <optional>
#include <string>

namespace cadre {

struct LongText {
  // Path of the field from the message, such as "model.layer[3].name".
  std::string field;
  size_t bytes = 0;
};

// The first field of type string or bytes, at any depth, that has more than `max_bytes`; nullopt if
// there is none. Takes no memory in proportion to the message.
std::optional<LongText> FindLongText(const google::protobuf::Message& message, size_t max_bytes);

}  // namespace cadre
