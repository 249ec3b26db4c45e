// Widths are counted in code points, not in bytes, because names of runs and members may contain
// any UTF-8 text. Combining and wide characters are not treated specially.
#include "cli/table.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/peer_text.h"

namespace cadre {
namespace {

constexpr size_t kGap = 3;
constexpr char kNone[] = "<none>";

void AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                std::string& out) {
  for (size_t i = 0; i < cells.size(); ++i) {
    out += cells[i];
    if (i + 1 < cells.size()) out.append(widths[i] - Width(cells[i]) + kGap, ' ');
  }
  out += '\n';
}

}  // namespace

// Cells may contain text of other processes. They are escaped, and empty ones replaced, now, so
// that the width of their column is right.
void Table::AddRow(std::vector<std::string> cells) {
  CHECK_EQ(cells.size(), header_.size());
  for (std::string& cell : cells) {
    cell = cell.empty() ? kNone : Escaped(cell);
  }
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  if (rows_.empty()) return "";
  std::vector<size_t> widths(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = Width(header_[i]);
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  AppendLine(header_, widths, out);
  for (const auto& row : rows_) AppendLine(row, widths, out);
  return out;
}

std::string FieldsText(const std::vector<std::pair<std::string, std::string>>& fields) {
  constexpr size_t kColumns = 100;
  size_t indent = 0;
  for (const auto& [label, text] : fields) indent = std::max(indent, Width(label) + kGap);
  std::string out;
  for (const auto& [label, text] : fields) {
    absl::StrAppend(&out, label, std::string(indent - Width(label), ' '),
                    Wrap(text.empty() ? kNone : Escaped(text), kColumns - indent, indent), "\n");
  }
  return out;
}

// Greedy: a line is broken only when the next word does not fit.
std::string Wrap(absl::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && column + 1 + Width(word) > width) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = 0;
    }
    absl::StrAppend(&out, column > 0 ? " " : "", word);
    column += Width(word) + (column > 0 ? 1 : 0);
  }
  return out;
}

size_t Width(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a continuation byte
  });
}

std::string FormatCount(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB", "TiB"}) {
    value /= 1024;
    // 1023.96 would print as 1024.0.
    if (value < 1023.95) return absl::StrFormat("%.1f %s", value, unit);
  }
  return absl::StrFormat("%.1f PiB", value / 1024);
}

// Two units at most: with more, a column would be wide and the last digits would not matter.
std::string FormatAge(absl::Duration age) {
  if (age == absl::InfiniteDuration()) return kNone;
  const int64_t seconds = absl::ToInt64Seconds(std::max(age, absl::ZeroDuration()));
  if (seconds < 1) return "<1s";
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

std::string FormatDuration(double seconds) { return FormatAge(absl::Seconds(seconds)); }

// Accuracies and losses; four digits distinguish one sample in ten thousand.
std::string FormatFraction(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.4f", value) : kNone;
}

}  // namespace cadre
