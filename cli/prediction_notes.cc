// A group measures the time of its step repeatedly, and every update carries the latest
// measurement. A note is made when the generation of the group or the measured time has changed.
#include "cli/prediction_notes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/query_tables.h"

namespace cadre {

std::vector<std::string> PredictionNotes::New(const v1::WatchUpdate& update) {
  std::vector<std::string> lines;
  for (const v1::GroupStatus& group : update.groups()) {
    if (!group.has_measured()) continue;
    const std::pair measured(group.generation(), group.measured().step());
    auto& noted = noted_[{group.run(), group.group()}];
    if (noted == measured) continue;
    noted = measured;
    std::string line = absl::StrFormat("%s  group %d  a step takes %.3g ms", group.run(),
                                       group.group(), 1e3 * group.measured().step());
    if (group.has_predicted()) {
      absl::StrAppendFormat(&line, ", %.3g ms predicted (%s)", 1e3 * group.predicted().step(),
                            ErrorText(group));
    }
    if (!group.prediction_error_cause().empty()) {
      absl::StrAppend(&line, "; ", group.prediction_error_cause());
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace cadre
