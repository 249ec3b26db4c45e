// Reads docs/json.md as data, to compare it with the JSON that commands print.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/render.h"
#include "google/protobuf/descriptor.h"

namespace cadre::testing {

class JsonDocument {
 public:
  explicit JsonDocument(const std::string& path) {
    std::ifstream in(path);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    std::string section;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      if (absl::ConsumePrefix(&line, "## cadre ") || absl::ConsumePrefix(&line, "### ")) {
        section = std::string(line);
      } else if (absl::StartsWith(line, "| `")) {
        const std::vector<std::string> cells = absl::StrSplit(line, '`');
        sections_[section].push_back(Parse(cells.at(1), cells.at(3)));
      }
    }
  }

  // Returns the differences of `json` from the section: keys that the section does not have,
  // required keys that are missing, and values of other types. Records the keys that were found.
  std::vector<std::string> Compare(const Json& json, const std::string& section) {
    std::vector<std::string> problems;
    Object(json, section, section, problems);
    return problems;
  }

  // Keys of these sections that no compared JSON had, such as "Layer.kind".
  std::vector<std::string> Unseen(const std::vector<std::string>& sections) const {
    std::vector<std::string> unseen;
    for (const std::string& section : sections) {
      for (const Key& key : sections_.at(section)) {
        const std::string name = absl::StrCat(section, ".", key.name);
        if (key.name != "..." && !seen_.contains(name)) unseen.push_back(name);
      }
    }
    return unseen;
  }

 private:
  struct Key {
    std::string name;
    std::string type;
    bool required = true;
    // The section that has the key, which may be part of another section.
    std::string section;
  };

  static Key Parse(absl::string_view name, absl::string_view type) {
    const bool optional = absl::ConsumePrefix(&name, "[") && absl::ConsumeSuffix(&name, "]");
    return {.name = std::string(name), .type = std::string(type), .required = !optional};
  }

  // The keys of a section, including those of the sections that it contains by "...".
  std::vector<Key> KeysOf(const std::string& section, bool required) const {
    std::vector<Key> keys;
    for (Key key : sections_.at(section)) {
      if (key.name == "..." && sections_.contains(key.type)) {
        for (const Key& part : KeysOf(key.type, required && key.required)) keys.push_back(part);
        continue;
      }
      key.section = section;
      key.required = key.required && required;
      keys.push_back(key);
    }
    return keys;
  }

  void Object(const Json& json, const std::string& section, const std::string& path,
              std::vector<std::string>& problems) {
    if (!json.is_object()) return problems.push_back(path + " is not an object");
    const std::vector<Key> keys = KeysOf(section, true);
    for (const Key& key : keys) {
      const bool missing = key.required && key.name != "..." && !json.contains(key.name);
      if (missing) problems.push_back(absl::StrCat(path, ".", key.name, " is missing"));
    }
    for (const auto& [name, value] : json.items()) {
      std::vector<std::string> why = {absl::StrCat(path, ".", name, " is not documented")};
      for (const Key& key : keys) {
        if (key.name == "..." && InMessage(name, key.type)) why.clear();
        if (key.name != name) continue;
        std::vector<std::string> other;
        Value(value, key.type, absl::StrCat(path, ".", name), other);
        seen_.insert(absl::StrCat(key.section, ".", name));
        why = other;
        if (why.empty()) break;
      }
      problems.insert(problems.end(), why.begin(), why.end());
    }
  }

  void Value(const Json& json, absl::string_view type, const std::string& path,
             std::vector<std::string>& problems) {
    if (absl::ConsumeSuffix(&type, "?") && json.is_null()) return;
    if (absl::ConsumePrefix(&type, "[")) {
      if (!json.is_array()) problems.push_back(path + " is not an array");
      for (const Json& item : json) Value(item, absl::StripSuffix(type, "]"), path, problems);
    } else if (absl::ConsumePrefix(&type, "{")) {
      if (!json.is_object()) problems.push_back(path + " is not an object");
      for (const Json& item : json) Value(item, absl::StripSuffix(type, "}"), path, problems);
    } else if (type == "number" || type == "text" || type == "flag") {
      const bool right = type == "number" ? json.is_number()
                         : type == "text" ? json.is_string()
                                          : json.is_boolean();
      if (!right) problems.push_back(absl::StrCat(path, " is not a ", type, ": ", json.dump()));
    } else {
      Object(json, std::string(type), path, problems);
    }
  }

  // Whether the message of that name has the field.
  static bool InMessage(const std::string& field, absl::string_view type) {
    const auto* message = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
        absl::StrCat("cadre.v1.", type));
    return message != nullptr && message->FindFieldByName(field) != nullptr;
  }

  std::map<std::string, std::vector<Key>> sections_;
  std::set<std::string> seen_;
};

}  // namespace cadre::testing
