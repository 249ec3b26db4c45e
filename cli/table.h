// Tables and numbers as text.
//
// Thread-compatible; the functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// A table whose columns are as wide as their widest cell, with three blanks between them and no
// blanks at the end of a line:
//
//   NAME   STATE
//   demo   running
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  // Requires: as many cells as the header has. Empty cells show as "<none>".
  void AddRow(std::vector<std::string> cells);
  // Header and rows, each line ended; "" without rows.
  std::string Text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "label   text" lines. The texts are aligned, and wrapped at 100 columns.
std::string FieldsText(const std::vector<std::pair<std::string, std::string>>& fields);

// Breaks `text` at blanks into lines of at most `width` columns; all but the first begin with
// `indent` blanks. A word that is longer is alone on its line.
std::string Wrap(absl::string_view text, size_t width, size_t indent);

// Columns that `text` takes on a terminal (UTF-8 code points).
size_t Width(absl::string_view text);

// "3,214,282".
std::string FormatCount(uint64_t count);
// "12.3 MiB".
std::string FormatBytes(uint64_t bytes);
// "45s", "3m12s", "2h05m", "3d04h"; "<1s" below a second.
std::string FormatAge(absl::Duration age);
// The same for a number of seconds.
std::string FormatDuration(double seconds);
// "0.9134"; "<none>" if it is not a number.
std::string FormatFraction(double value);

}  // namespace cadre
