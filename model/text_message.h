// Reads protobuf messages in text format and reports errors with file, line and column.
//
//   v1::ClusterProfile profile;
//   CADRE_ASSIGN_OR_RETURN(const TextLocations locations,
//                          ParseTextMessage("rack.profile", text, "a cluster profile", profile));
//   CADRE_RETURN_IF_ERROR(locations.Refuse(FindProfileProblems(profile)));
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rooted_files.h"
#include "base/status.h"
#include "model/problem.h"

namespace cadre {

// Limit of nested messages, because the recursion uses the stack.
inline constexpr int kMaxTextNesting = 100;

// Whether fields that the message type does not have are errors.
enum class UnknownFields { kReject, kIgnore };

// The locations of the fields of a text. Movable; thread-compatible.
class TextLocations {
 public:
  const std::string& path() const { return path_; }

  // "FILE:LINE:COLUMN: field: message". Fields that are not in the file are located at the
  // innermost enclosing message, or at the beginning of the file.
  std::string Locate(const Problem& problem) const;

  // OK if there are no problems. Errors: InvalidArgument with one located problem per line.
  absl::Status Refuse(const std::vector<Problem>& problems) const;

 private:
  friend absl::StatusOr<TextLocations> ParseTextMessage(const std::string& path,
                                                        const std::string& text,
                                                        absl::string_view what,
                                                        google::protobuf::Message& message,
                                                        UnknownFields unknown);

  std::string path_;
  const google::protobuf::Descriptor* type_ = nullptr;
  std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> tree_;
};

// Parses a text into `message`, which must be empty, without validation. `what` is the expected
// kind of message ("a run spec"). Errors: InvalidArgument with one "FILE:LINE:COLUMN: error" per
// line, with `path` as the file. An error about an unknown field suggests the nearest known one.
absl::StatusOr<TextLocations> ParseTextMessage(const std::string& path, const std::string& text,
                                               absl::string_view what,
                                               google::protobuf::Message& message,
                                               UnknownFields unknown = UnknownFields::kReject);

// The same for a file. Further errors: NotFound, PermissionDenied, ... with the path;
// InvalidArgument if the file has more than `max_bytes`.
absl::StatusOr<TextLocations> ReadTextMessage(
    const std::string& path, int64_t max_bytes, absl::string_view what,
    google::protobuf::Message& message, UnknownFields unknown = UnknownFields::kReject,
    const RootedFiles& files = RootedFiles::Unrestricted());

// Reads a message and validates it with `find_problems`. Errors: as ReadTextMessage;
// InvalidArgument with one located problem per line.
template <typename Message>
absl::StatusOr<Message> ReadValidMessage(const std::string& path, int64_t max_bytes,
                                         absl::string_view what,
                                         std::vector<Problem> (*find_problems)(const Message&)) {
  Message message;
  CADRE_ASSIGN_OR_RETURN(const TextLocations locations,
                         ReadTextMessage(path, max_bytes, what, message));
  CADRE_RETURN_IF_ERROR(locations.Refuse(find_problems(message)));
  return message;
}

}  // namespace cadre
