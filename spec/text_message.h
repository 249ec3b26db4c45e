// Messages that people write, in protobuf's text format: read, with problems pointed out by file,
// line and column.
//
//   v1::ClusterProfile profile;
//   CADRE_ASSIGN_OR_RETURN(const TextPlaces places,
//                          ParseTextMessage("rack.profile", text, "a cluster profile", profile));
//   CADRE_RETURN_IF_ERROR(places.Refuse(FindProfileProblems(profile)));
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
#include "spec/problem.h"

namespace cadre {

// Messages within messages in any text of ours: many times what one has, and little enough for any
// stack.
inline constexpr int kMostTextNesting = 100;

// Where each field of a text stands. Movable; thread-compatible.
class TextPlaces {
 public:
  const std::string& path() const { return path_; }

  // "FILE:LINE:COLUMN: field: message". For a field that the file does not have, the place of the
  // nearest message around it that it has; the beginning of the file if there is none.
  std::string Locate(const Problem& problem) const;

  // OK without problems. Errors: InvalidArgument with one located problem per line.
  absl::Status Refuse(const std::vector<Problem>& problems) const;

 private:
  friend absl::StatusOr<TextPlaces> ParseTextMessage(const std::string& path,
                                                     const std::string& text,
                                                     absl::string_view what,
                                                     google::protobuf::Message& message);

  std::string path_;
  const google::protobuf::Descriptor* type_ = nullptr;
  std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> tree_;
};

// Fills `message`, which is empty; does not check what it says. `path` is what errors call the
// text, `what` what it should be ("a run spec").
// Errors: InvalidArgument with one "FILE:LINE:COLUMN: message" per line. An unknown field is
// answered with the nearest known one.
absl::StatusOr<TextPlaces> ParseTextMessage(const std::string& path, const std::string& text,
                                            absl::string_view what,
                                            google::protobuf::Message& message);

// The same for a file. Errors: also NotFound, PermissionDenied, ... with the path; InvalidArgument
// for one of more than `most_bytes`.
absl::StatusOr<TextPlaces> ReadTextMessage(const std::string& path, int64_t most_bytes,
                                           absl::string_view what,
                                           google::protobuf::Message& message);

}  // namespace cadre
