#include "cli/summary.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/json.h"
#include "cli/query_tables.h"
#include "cli/table.h"

namespace cadre {
namespace {

constexpr char kMeasured[] = "measured: bytes of whole messages that ranks staged and pulled";
constexpr char kFormula[] = "formula: 2 * (groups - 1) * parameters * 4 bytes, each step";

std::string StateName(v1::RunState state) {
  const auto* value = v1::RunState_descriptor()->FindValueByNumber(state);
  return value == nullptr ? absl::StrCat(static_cast<int>(state)) : EnumName(*value);
}

std::string MeshJson(const v1::GroupStatus& group) {
  JsonObject mesh;
  const std::map<std::string, uint32_t> axes(group.mesh().begin(), group.mesh().end());
  for (const auto& [axis, ranks] : axes) mesh.Add(axis, ranks);
  return mesh.Text();
}

// What every rank holds, as one list.
std::string HeldJson(const v1::GroupStatus& group) {
  std::vector<std::string> held;
  for (const v1::GroupMember& member : group.members()) {
    for (const v1::HeldParameter& parameter : member.held()) {
      held.push_back(JsonObject().Add("rank", member.rank()).AddFields(parameter).Text());
    }
  }
  return absl::StrCat("[", absl::StrJoin(held, ","), "]");
}

std::string OrNull(bool known, const v1::StepTimes& times) {
  return known ? ToJson(times) : "null";
}

std::string GroupsJson(const Summary& summary) {
  std::vector<std::string> groups;
  for (const auto& [slot, group] : summary.groups) {
    groups.push_back(JsonObject()
                         .Add("group", slot)
                         .Add("generation", group.generation())
                         .AddRaw("mesh", MeshJson(group))
                         .AddRaw("predicted", OrNull(group.has_predicted(), group.predicted()))
                         .AddRaw("measured", OrNull(group.has_measured(), group.measured()))
                         .Add("prediction_error", group.prediction_error())
                         .Add("prediction_blame", group.prediction_blame())
                         .AddRaw("prediction_from_own_measurement",
                                 group.prediction_from_own_measurement() ? "true" : "false")
                         .AddRaw("held", HeldJson(group))
                         .Text());
  }
  return absl::StrCat("[", absl::StrJoin(groups, ","), "]");
}

// "0.03%" more than the values themselves.
std::string OverheadText(const v1::RunStatus& run) {
  const auto payload = static_cast<double>(run.payload_bytes_across_groups());
  const auto whole = static_cast<double>(run.bytes_across_groups());
  return absl::StrFormat("%.3f%%", 100 * (whole - payload) / payload);
}

std::string AcrossText(const v1::RunStatus& run) {
  std::string text = absl::StrCat(FormatBytes(run.bytes_across_groups()), "  (measured");
  if (run.payload_bytes_across_groups() > 0) {
    absl::StrAppend(&text, "; values and ", OverheadText(run), " of headers");
  }
  return text + ")";
}

std::string SynchronousText(const v1::RunStatus& run) {
  std::string text =
      absl::StrCat(FormatBytes(run.bytes_across_groups_synchronous()), "  (", kFormula);
  if (run.bytes_across_groups() > 0 && run.bytes_across_groups_synchronous() > 0) {
    absl::StrAppendFormat(&text, "; %.1f times as much",
                          static_cast<double>(run.bytes_across_groups_synchronous()) /
                              static_cast<double>(run.bytes_across_groups()));
  }
  return text + ")";
}

std::string AccuracyText(const v1::RunStatus& run) {
  if (run.test().samples() == 0) return "";
  return absl::StrFormat("%.4f  (%s samples, mean loss %.4f, version %d)", run.test().accuracy(),
                         FormatCount(run.test().samples()), run.test().loss(),
                         run.test().version());
}

std::string RunText(const v1::RunStatus& run) {
  std::string text = absl::StrCat(run.run(), "  ", StateName(run.state()));
  if (!run.name().empty()) text = absl::StrCat(run.name(), "  ", text);
  if (!run.reason().empty()) absl::StrAppend(&text, ": ", run.reason());
  return text;
}

}  // namespace

void KeepGroups(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups,
                Summary& summary) {
  for (const v1::GroupStatus& group : groups) {
    bool holds = false;
    for (const v1::GroupMember& member : group.members()) holds |= member.held_size() > 0;
    if (holds) summary.groups[group.group()] = group;
  }
}

std::string SummaryJson(const Summary& summary) {
  const v1::RunStatus& run = summary.run;
  const bool tested = run.test().samples() > 0;
  return JsonObject()
      .Add("run", run.run())
      .Add("name", run.name())
      .Add("state", StateName(run.state()))
      .Add("reason", run.reason())
      .Add("test_accuracy", tested ? run.test().accuracy() : NAN)
      .Add("test_loss", tested ? run.test().loss() : NAN)
      .Add("test_samples", run.test().samples())
      .Add("epochs", run.epoch())
      .Add("steps", run.step())
      .Add("loss", run.loss())
      .Add("seconds", run.seconds())
      .Add("samples", run.samples())
      .Add("samples_per_second", run.samples_per_second())
      .Add("rounds_committed", run.rounds_committed())
      .AddRaw("discrepancy", run.has_discrepancy() ? ToJson(run.discrepancy()) : "null")
      .Add("bytes_across_groups", run.bytes_across_groups())
      .Add("bytes_across_groups_is", kMeasured)
      .Add("payload_bytes_across_groups", run.payload_bytes_across_groups())
      .Add("bytes_across_groups_synchronous", run.bytes_across_groups_synchronous())
      .Add("bytes_across_groups_synchronous_is", kFormula)
      .Add("final_digest", run.digest())
      .Add("parameters", run.parameters())
      .Add("groups", run.groups())
      .Add("ranks", summary.ranks)
      .Add("aggregators", summary.aggregators)
      .AddRaw("group_meshes", GroupsJson(summary))
      .Text();
}

std::string SummaryText(const Summary& summary) {
  const v1::RunStatus& run = summary.run;
  Table table({"SUMMARY", RunText(run)});
  table.AddRow({"test accuracy", AccuracyText(run)});
  table.AddRow({"time", FormatAge(absl::Seconds(run.seconds()))});
  table.AddRow({"epochs", absl::StrFormat("%.2f  (%d steps of each group, %s samples)", run.epoch(),
                                          run.step(), FormatCount(run.samples()))});
  table.AddRow({"samples/s", FormatCount(static_cast<uint64_t>(run.samples_per_second()))});
  table.AddRow({"parameters", FormatCount(run.parameters())});
  table.AddRow({"cluster", absl::StrCat(run.groups(), " groups of ", summary.ranks, " workers, ",
                                        summary.aggregators, " aggregators")});
  table.AddRow({"rounds committed", absl::StrCat(run.rounds_committed())});
  if (run.has_discrepancy()) table.AddRow({"groups differ", DiscrepancyText(run)});
  table.AddRow({"bytes between groups", AcrossText(run)});
  table.AddRow({"synchronous would be", SynchronousText(run)});
  table.AddRow({"digest", run.digest()});
  std::string out = table.Text();

  google::protobuf::RepeatedPtrField<v1::GroupStatus> groups;
  for (const auto& [slot, group] : summary.groups) *groups.Add() = group;
  Table meshes({"GROUP", "GENERATION", "MESH"});
  for (const v1::GroupStatus& group : groups) {
    meshes.AddRow({absl::StrCat(group.group()), absl::StrCat(group.generation()), MeshText(group)});
  }
  if (!meshes.empty()) absl::StrAppend(&out, "\n", meshes.Text());
  if (const std::string predictions = PredictionsTable(groups); !predictions.empty()) {
    absl::StrAppend(&out, "\n", predictions);
  }
  if (const std::string sharded = ShardedTable(groups); !sharded.empty()) {
    absl::StrAppend(&out, "\n", sharded);
  }
  return out;
}

}  // namespace cadre
