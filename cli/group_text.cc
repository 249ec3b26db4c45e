#include "cli/group_text.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"
#include "plan/plan_collectives.h"
#include "proto/enum_text.h"

namespace cadre {

bool SharesDevices(const v1::GroupStatus& group, const v1::StatusReply& status) {
  // Host and device of each worker of the group.
  std::set<std::pair<std::string, std::string>> own;
  const auto in_group = [&](const v1::MemberStatus& worker) {
    return worker.place().run() == group.run() && worker.place().group() == group.group();
  };
  for (const v1::MemberStatus& worker : status.workers()) {
    if (in_group(worker)) own.emplace(worker.host(), worker.device());
  }
  return std::any_of(status.workers().begin(), status.workers().end(),
                     [&](const v1::MemberStatus& worker) {
                       return !worker.place().run().empty() && !in_group(worker) &&
                              own.contains({worker.host(), worker.device()});
                     });
}

std::string MeshText(const v1::GroupStatus& group) {
  const std::map<std::string, uint32_t> axes(group.mesh().begin(), group.mesh().end());
  const auto& layers = group.plan().layers();
  const bool places = std::any_of(layers.begin(), layers.end(),
                                  [](const v1::LayerPlan& layer) { return layer.at_size() > 0; });
  return absl::StrCat(absl::StrJoin(axes, ",", absl::PairFormatter("=")),
                      places ? ", layers placed" : "");
}

std::string LinkText(const v1::GroupStatus& group) {
  const v1::LinkProfile& link = group.plan().link();
  const std::string kind = LinkKindText(link.kind());
  if (link.beta() <= 0) return kind;
  return absl::StrFormat("%.1f us, %.3g GB/s%s%s", 1e6 * link.alpha(), 1e-9 / link.beta(),
                         kind.empty() ? "" : ", ", kind);
}

// Algorithms in the order of their first bucket, with the number of their buckets.
std::string BucketsText(const v1::GroupStatus& group) {
  const v1::Plan& plan = group.plan();
  if (plan.buckets().empty()) return "";
  // In the order of the buckets.
  std::vector<std::pair<std::string, int>> counts;
  for (const v1::BucketPlan& bucket : plan.buckets()) {
    const std::string algorithm = EnumText(bucket.algorithm());
    auto at = std::find_if(counts.begin(), counts.end(),
                           [&](const auto& count) { return count.first == algorithm; });
    if (at == counts.end()) at = counts.insert(counts.end(), {algorithm, 0});
    ++at->second;
  }
  return absl::StrCat(Counted(plan.buckets_size(), "bucket"), ": ",
                      absl::StrJoin(counts, ", ", absl::PairFormatter(" ")));
}

std::string StepText(const v1::GroupStatus& group) {
  if (group.step_seconds() <= 0) return "";
  std::string text = absl::StrFormat("%.3g ms", 1e3 * group.step_seconds());
  // GPU workers do not report the waiting time.
  if (group.exposed_seconds() > 0) {
    absl::StrAppendFormat(&text, ", %.0f%% waiting",
                          100 * group.exposed_seconds() / group.step_seconds());
  }
  return text;
}

std::string ErrorText(const v1::GroupStatus& group) {
  if (!group.has_predicted() || !group.has_measured()) return "";
  return absl::StrFormat("%+.0f%%", 100 * group.prediction_error());
}

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
