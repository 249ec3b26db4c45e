// Rewrites the errors of protobuf's text parser for users.
//
// For an unknown field the parser reports the position of the next token and the full name of the
// message type, without a suggestion. This file restores the position of the name, shortens the
// type and suggests the field with the smallest edit distance. To do so, it parses the parser's
// messages (AsUnknownField, ExplainEnum). If a later version of protobuf phrases them differently,
// users see its messages unchanged.
//
// Problems that are found after parsing are located by the path of their field in the tree of
// locations that the parser writes; a field that is not in the file is located at the innermost
// enclosing message.
#include "model/text_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/edit_distance.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/status.h"

namespace cadre {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// The tokenizer's tab stops.
constexpr int kTab = 8;
// Limits the log output for a file of another format.
constexpr size_t kMaxErrors = 50;

// Zero-based, as protobuf counts.
struct Place {
  int line = 0;
  int column = 0;
};

std::string At(const std::string& path, Place place, absl::string_view message) {
  return absl::StrCat(path, ":", place.line + 1, ":", place.column + 1, ": ", message);
}

// "; did you mean 'kernel'?", or all fields if none is similar.
std::string Suggestion(absl::string_view name, const Descriptor& message) {
  const std::string lower_name = absl::AsciiStrToLower(name);
  std::vector<std::string> known;
  std::string nearest;
  size_t min_distance = std::numeric_limits<size_t>::max();
  for (int i = 0; i < message.field_count(); ++i) {
    const std::string& field = message.field(i)->name();
    known.push_back(field);
    if (const size_t distance = EditDistance(lower_name, field); distance < min_distance) {
      min_distance = distance;
      nearest = field;
    }
  }
  if (known.empty()) return "; it has no fields";
  if (min_distance <= std::max<size_t>(1, nearest.size() / 3)) {
    return absl::StrCat("; did you mean '", nearest, "'?");
  }
  return absl::StrCat("; it has ", absl::StrJoin(known, ", "));
}

// "Convolution" of "cadre.v1.Convolution".
absl::string_view ShortName(absl::string_view full_name) {
  const size_t dot = full_name.rfind('.');
  return dot == absl::string_view::npos ? full_name : full_name.substr(dot + 1);
}

// The parts of protobuf's message about an unknown field.
struct UnknownField {
  absl::string_view type;
  absl::string_view name;
};

std::optional<UnknownField> AsUnknownField(absl::string_view message) {
  UnknownField unknown;
  if (!absl::ConsumePrefix(&message, "Message type \"")) return std::nullopt;
  const size_t quote = message.find('"');
  if (quote == absl::string_view::npos) return std::nullopt;
  unknown.type = message.substr(0, quote);
  message.remove_prefix(quote);
  if (!absl::ConsumePrefix(&message, "\" has no field named \"") ||
      !absl::ConsumeSuffix(&message, "\".")) {
    return std::nullopt;
  }
  unknown.name = message;
  return unknown;
}

// Names the value that a quoted text should be: 'Expected integer or identifier, got: "model-in"'
// becomes 'expected MODEL_IN, a name without quotes'. Other messages are unchanged.
std::string ExplainEnum(absl::string_view message) {
  absl::string_view text = message;
  if (!absl::ConsumePrefix(&text, "Expected integer or identifier, got: \"") ||
      !absl::ConsumeSuffix(&text, "\"")) {
    return std::string(message);
  }
  std::string name = absl::AsciiStrToUpper(text);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !absl::ascii_isalnum(c); }, '_');
  return absl::StrCat("expected ", name, ", a name without quotes");
}

// Collects the errors of the parser. The parser reports unknown fields as warnings and continues
// after them, so one pass finds all of them.
class Errors final : public google::protobuf::io::ErrorCollector {
 public:
  Errors(const std::string& path, absl::string_view text, UnknownFields unknown)
      : path_(path), lines_(absl::StrSplit(text, '\n')), unknown_(unknown) {}

  void AddError(int line, int column, const std::string& message) override {
    if (messages_.size() >= kMaxErrors) return;
    const Place place{std::max(0, line), std::max(0, column)};
    const std::optional<UnknownField> unknown = AsUnknownField(message);
    messages_.push_back(unknown ? DescribeUnknown(place, *unknown)
                                : At(path_, place, ExplainEnum(message)));
  }

  void AddWarning(int line, int column, const std::string& message) override {
    if (unknown_ == UnknownFields::kReject) AddError(line, column, message);
  }

  const std::vector<std::string>& messages() const { return messages_; }

 private:
  std::string DescribeUnknown(Place place, const UnknownField& unknown) const {
    const Descriptor* type =
        DescriptorPool::generated_pool()->FindMessageTypeByName(std::string(unknown.type));
    const std::string message =
        absl::StrCat(ShortName(unknown.type), " has no field '", unknown.name, "'",
                     type == nullptr ? "" : Suggestion(unknown.name, *type));
    return At(path_, BeginOf(unknown.name, place), message);
  }

  // The parser reports the position of the token after an unknown name; the name precedes it,
  // possibly on an earlier line.
  Place BeginOf(absl::string_view name, Place after) const {
    for (int line = after.line; line >= 0; --line) {
      if (line >= std::ssize(lines_)) continue;
      const absl::string_view text = lines_[line];
      const size_t until = line == after.line ? ByteOf(text, after.column) : text.size();
      const size_t found = text.substr(0, until).rfind(name);
      if (found != absl::string_view::npos) return {line, ColumnOf(text, found)};
    }
    return after;
  }

  static int Advance(int column, char c) {
    return c == '\t' ? column + kTab - column % kTab : column + 1;
  }

  static int ColumnOf(absl::string_view line, size_t byte) {
    int column = 0;
    for (const char c : line.substr(0, byte)) column = Advance(column, c);
    return column;
  }

  static size_t ByteOf(absl::string_view line, int column) {
    size_t byte = 0;
    for (int at = 0; byte < line.size() && at < column; ++byte) at = Advance(at, line[byte]);
    return byte;
  }

  const std::string& path_;
  const std::vector<absl::string_view> lines_;
  const UnknownFields unknown_;
  std::vector<std::string> messages_;
};

// "layer[3]" is {"layer", 3}; "kernel" is {"kernel", -1}.
std::pair<std::string, int> Step(absl::string_view part) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(part, absl::MaxSplits('[', 1));
  int index = -1;
  if (!absl::SimpleAtoi(absl::StripSuffix(halves.second, "]"), &index)) index = -1;
  return {std::string(halves.first), index};
}

Place PlaceOf(const TextFormat::ParseInfoTree* locations, const Descriptor* message,
              absl::string_view path) {
  Place nearest;
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (locations == nullptr || message == nullptr) return nearest;
    const auto [name, index] = Step(part);
    const FieldDescriptor* field = message->FindFieldByName(name);
    if (field == nullptr || field->is_repeated() != (index >= 0)) return nearest;
    const TextFormat::ParseLocation found = locations->GetLocation(field, index);
    if (found.line < 0) return nearest;
    nearest = {found.line, found.column};
    message = field->message_type();
    if (message != nullptr) locations = locations->GetTreeForNested(field, index);
  }
  return nearest;
}

// The first kMaxErrors lines.
std::string Join(const std::vector<std::string>& lines) {
  const auto end = lines.begin() + (std::min(lines.size(), kMaxErrors));
  return absl::StrJoin(lines.begin(), end, "\n");
}

}  // namespace

std::string TextLocations::Locate(const Problem& problem) const {
  return At(path_, PlaceOf(tree_.get(), type_, problem.field), problem.ToString());
}

absl::Status TextLocations::Refuse(const std::vector<Problem>& problems) const {
  if (problems.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  for (const Problem& problem : problems) lines.push_back(Locate(problem));
  return absl::InvalidArgumentError(Join(lines));
}

absl::StatusOr<TextLocations> ParseTextMessage(const std::string& path, const std::string& text,
                                               absl::string_view what,
                                               google::protobuf::Message& message,
                                               UnknownFields unknown) {
  TextLocations locations;
  locations.path_ = path;
  locations.type_ = message.GetDescriptor();
  locations.tree_ = std::make_unique<TextFormat::ParseInfoTree>();
  // Editors may write the byte order mark of UTF-8.
  const std::string unmarked(absl::StripPrefix(text, "\xef\xbb\xbf"));
  Errors errors(path, unmarked, unknown);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(locations.tree_.get());
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxTextNesting);
  const bool parsed = parser.ParseFromString(unmarked, &message);
  const std::string note = FormatNote(unmarked, kTextFormat);
  if (!note.empty() && (!parsed || !errors.messages().empty())) {
    return absl::InvalidArgumentError(At(path, {}, absl::StrCat("is not ", what, note)));
  }
  if (!errors.messages().empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(errors.messages(), "\n"));
  }
  if (!parsed) {
    return absl::InvalidArgumentError(At(path, {}, absl::StrCat("is not ", what)));
  }
  return locations;
}

absl::StatusOr<TextLocations> ReadTextMessage(const std::string& path, int64_t max_bytes,
                                              absl::string_view what,
                                              google::protobuf::Message& message,
                                              UnknownFields unknown, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, max_bytes, files));
  return ParseTextMessage(path, text, what, message, unknown);
}

}  // namespace cadre
