// The summary compares the measured traffic between groups with that of synchronous training, which
// is computed by a formula; text and JSON state which is which.
//
// The final status of a run does not contain groups any more, so the last state of each group with
// members is stored while the run is followed.
#include "cli/summary.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"
#include "cli/group_text.h"
#include "cli/query_tables.h"
#include "cli/table.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

constexpr char kMeasured[] = "measured: bytes of whole messages that ranks staged and pulled";
constexpr char kFormula[] = "formula: 2 * (groups - 1) * parameters * 4 bytes, each step";

Json OrNull(bool known, const google::protobuf::Message& message) {
  return known ? ToJson(message) : Json(nullptr);
}

Json MeshJson(const v1::GroupStatus& group) {
  Json mesh = Json::object();
  const std::map<std::string, uint32_t> axes(group.mesh().begin(), group.mesh().end());
  for (const auto& [axis, ranks] : axes) mesh[axis] = ranks;
  return mesh;
}

Json HeldJson(const v1::GroupStatus& group) {
  Json all = Json::array();
  for (const v1::GroupMember& member : group.members()) {
    for (const v1::HeldParameter& parameter : member.held()) {
      Json held = {{"rank", member.rank()}};
      held.update(ToJson(parameter));
      all.push_back(std::move(held));
    }
  }
  return all;
}

// One entry per slot, with its last generation.
Json GroupsJson(const Summary& summary) {
  Json groups = Json::array();
  for (const auto& [slot, group] : summary.groups) {
    groups.push_back({{"group", slot},
                      {"generation", group.generation()},
                      {"mesh", MeshJson(group)},
                      {"predicted", OrNull(group.has_predicted(), group.predicted())},
                      {"measured", OrNull(group.has_measured(), group.measured())},
                      {"prediction_error", group.prediction_error()},
                      {"prediction_blame", group.prediction_error_cause()},
                      {"prediction_from_own_measurement", group.prediction_from_own_measurement()},
                      {"screened", group.screened()},
                      {"held", HeldJson(group)}});
  }
  return groups;
}

// "NAME (RUN), STATE: REASON", without the parts that are empty.
std::string RunText(const v1::RunStatus& run) {
  std::string text = absl::StrCat(run.run(), ", ", EnumText(run.state()));
  if (!run.name().empty())
    text = absl::StrCat(run.name(), " (", run.run(), "), ", EnumText(run.state()));
  return run.reason().empty() ? text : absl::StrCat(text, ": ", run.reason());
}

// "" before the first evaluation, which FieldsText shows as "<none>".
std::string AccuracyText(const v1::RunStatus& run) {
  if (run.test().samples() == 0) return "";
  return absl::StrFormat("%.4f on %s test samples, mean loss %.4f", run.test().accuracy(),
                         FormatCount(run.test().samples()), run.test().loss());
}

std::string TimeText(const v1::RunStatus& run) {
  std::string text = FormatDuration(run.seconds());
  if (run.evaluation_seconds() > 0) {
    absl::StrAppend(&text, ", of which evaluations ", FormatDuration(run.evaluation_seconds()));
  }
  absl::StrAppend(&text, ", ", FormatCount(run.samples_per_second()), " samples/s");
  if (run.tokens_per_second() <= 0) return text;
  return absl::StrCat(text, ", ", FormatCount(run.tokens_per_second()), " tokens/s");
}

// "12.3, of the test samples 14.1"; one that is not known is left out.
std::string PerplexityText(const v1::RunStatus& run) {
  std::vector<std::string> parts;
  if (run.has_perplexity()) parts.push_back(absl::StrFormat("%.4g", run.perplexity()));
  if (run.has_test_perplexity()) {
    parts.push_back(absl::StrFormat("of the test samples %.4g", run.test_perplexity()));
  }
  return absl::StrJoin(parts, ", ");
}

// The largest fraction of the parameters that one worker holds; nothing if it is not known.
std::optional<double> LargestShare(const Summary& summary) {
  std::optional<double> largest;
  for (const auto& [slot, group] : summary.groups) {
    for (const v1::GroupMember& member : group.members()) {
      double held = 0;
      double of = 0;
      for (const v1::HeldParameter& parameter : member.held()) {
        held += parameter.elements();
        of += parameter.of();
      }
      if (of > 0) largest = std::max(largest.value_or(0), held / of);
    }
  }
  return largest;
}

// States how much of the model one worker holds, since splitting it is the purpose of model
// parallelism.
std::string ModelText(const Summary& summary) {
  std::string text = absl::StrCat(FormatCount(summary.run.parameters()), " parameters");
  const std::optional<double> share = LargestShare(summary);
  if (share) {
    absl::StrAppendFormat(&text, ", of which each worker holds %s%.1f%%",
                          summary.ranks > 1 ? "at most " : "", 100 * *share);
  }
  return text;
}

// A text such as "data=1,model=2" for all groups or, if they differ, for each group. `text_of`
// formats one group.
std::string PerGroup(const Summary& summary, std::string (*text_of)(const v1::GroupStatus&)) {
  std::vector<std::string> texts;
  for (const auto& [slot, group] : summary.groups) {
    if (const std::string text = text_of(group); !text.empty()) texts.push_back(text);
  }
  if (std::adjacent_find(texts.begin(), texts.end(), std::not_equal_to<>()) == texts.end()) {
    return texts.empty() ? "" : texts.front();
  }
  return absl::StrCat(absl::StrJoin(texts, "; "), " (by group)");
}

// A prediction does not account for other groups' processes on the same cores.
std::string StepTimes(const Summary& summary) {
  const std::string text = PerGroup(summary, StepText);
  if (text.empty()) return "";
  if (summary.groups.size() > 1) {
    return summary.one_machine
               ? absl::StrCat(text, "; not predicted, because the groups share this machine")
               : text;
  }
  const v1::GroupStatus& group = summary.groups.begin()->second;
  const std::string error = ErrorText(group);
  return error.empty() ? text
                       : absl::StrFormat("%s; predicted: %.3g ms (%s)", text,
                                         1e3 * group.predicted().step(), error);
}

// A run with one group averages nothing and has no discrepancy.
std::string AveragingText(const v1::RunStatus& run) {
  std::vector<std::string> parts = {Counted(run.rounds_committed(), "round")};
  if (run.has_discrepancy()) {
    parts.push_back(absl::StrCat("discrepancy of the groups: ", DiscrepancyText(run)));
  }
  if (run.has_outer() && std::isfinite(run.outer().correlation())) {
    parts.push_back(absl::StrFormat("correlation of the newest change with the momentum: %.2f",
                                    run.outer().correlation()));
  }
  if (run.has_residual_ratio() && std::isfinite(run.residual_ratio())) {
    parts.push_back(absl::StrFormat("the codes have left out %.2g times the newest change",
                                    run.residual_ratio()));
  }
  return absl::StrJoin(parts, "; ");
}

std::string CheckpointText(const v1::CheckpointStatus& checkpoint) {
  std::string text = checkpoint.has_saved_step()
                         ? absl::StrCat("the newest is of step ", checkpoint.saved_step())
                         : "none";
  if (checkpoint.last_missing()) absl::StrAppend(&text, "; the last one is missing");
  if (checkpoint.failures() == 0) return text;
  return absl::StrCat(text, "; ", Counted(checkpoint.failures(), "failure"),
                      ", the newest at step ", checkpoint.failed_step(), ": ", checkpoint.error());
}

// The traffic between groups; "headers" are the part of the messages that is not model data.
std::string TrafficText(const v1::RunStatus& run) {
  const auto payload = static_cast<double>(run.payload_bytes_across_groups());
  const auto whole = static_cast<double>(run.bytes_across_groups());
  std::string text = absl::StrCat(FormatBytes(run.bytes_across_groups()), " (measured");
  if (payload > 0) {
    absl::StrAppendFormat(&text, "; %.3f%% of it headers", 100 * (whole - payload) / payload);
  }
  if (const double hidden = HiddenExchangeShare(run); hidden > 0) {
    absl::StrAppendFormat(&text, "; %.1f%% of the time hidden", 100 * hidden);
  }
  return text + ")";
}

// The comparison assumes the cheapest synchronous training: sharded, one exchange per step.
std::string SynchronousText(const v1::RunStatus& run) {
  std::string text = FormatBytes(run.bytes_across_groups_synchronous());
  if (run.bytes_across_groups() > 0 && run.bytes_across_groups_synchronous() > 0) {
    absl::StrAppendFormat(&text, ", %.1f times as much",
                          static_cast<double>(run.bytes_across_groups_synchronous()) /
                              static_cast<double>(run.bytes_across_groups()));
  }
  return absl::StrCat(text, " (", kFormula, ")");
}

}  // namespace

bool KeepGroups(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups,
                Summary& summary) {
  bool complete = true;
  for (const v1::GroupStatus& group : groups) {
    const bool holds =
        std::any_of(group.members().begin(), group.members().end(),
                    [](const v1::GroupMember& member) { return member.held_size() > 0; });
    const auto kept = summary.groups.find(group.group());
    if (holds) {
      summary.groups[group.group()] = group;
    } else if (kept != summary.groups.end() && kept->second.generation() == group.generation()) {
      const auto members = kept->second.members();
      kept->second = group;
      *kept->second.mutable_members() = members;
    } else if (group.state() == v1::GROUP_STATE_TRAINING) {
      complete = false;
    }
  }
  return complete;
}

Json ToJson(const Summary& summary) {
  const v1::RunStatus& run = summary.run;
  const bool tested = run.test().samples() > 0;
  return {{"run", run.run()},
          {"name", run.name()},
          {"state", EnumText(run.state())},
          {"reason", run.reason()},
          {"test_accuracy", tested ? run.test().accuracy() : NAN},
          {"test_loss", tested ? run.test().loss() : NAN},
          {"test_samples", run.test().samples()},
          {"epochs", run.epoch()},
          {"steps", run.step()},
          {"loss", run.has_loss() ? run.loss() : NAN},
          {"seconds", run.seconds()},
          {"evaluation_seconds", run.evaluation_seconds()},
          {"samples", run.samples()},
          {"samples_per_second", run.samples_per_second()},
          {"tokens", run.metrics().tokens()},
          {"tokens_per_second", run.tokens_per_second()},
          {"perplexity", run.has_perplexity() ? run.perplexity() : NAN},
          {"test_perplexity", run.has_test_perplexity() ? run.test_perplexity() : NAN},
          {"metrics", ToJson(run.metrics())["mean"]},
          {"rounds_committed", run.rounds_committed()},
          {"discrepancy", OrNull(run.has_discrepancy(), run.discrepancy())},
          {"bytes_across_groups", run.bytes_across_groups()},
          {"bytes_across_groups_is", kMeasured},
          {"payload_bytes_across_groups", run.payload_bytes_across_groups()},
          {"bytes_up", run.bytes_up()},
          {"bytes_down", run.bytes_down()},
          {"traffic_factor", run.traffic_factor()},
          {"exposed_exchange_seconds", run.exposed_exchange_seconds()},
          {"transfer_seconds", run.transfer_seconds()},
          {"hidden_exchange_share", HiddenExchangeShare(run)},
          {"bytes_across_groups_synchronous", run.bytes_across_groups_synchronous()},
          {"bytes_across_groups_synchronous_is", kFormula},
          {"final_digest", run.digest()},
          {"checkpoint", OrNull(run.has_checkpoint(), run.checkpoint())},
          {"warnings", std::vector<std::string>(run.warnings().begin(), run.warnings().end())},
          {"parameters", run.parameters()},
          {"groups", run.groups()},
          {"ranks", summary.ranks},
          {"aggregators", summary.aggregators},
          {"group_meshes", GroupsJson(summary)}};
}

std::string ToText(const Summary& summary) {
  const v1::RunStatus& run = summary.run;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"run", RunText(run)},
      {"test accuracy", AccuracyText(run)},
      {"training time", TimeText(run)},
      {"epochs", absl::StrFormat("%.2f: %s steps of each group, %s samples", run.epoch(),
                                 FormatCount(run.step()), FormatCount(run.samples()))},
      {"model", ModelText(summary)},
      {"cluster",
       absl::StrCat(Counted(run.groups(), "group"), " of ", Counted(summary.ranks, "worker"), ", ",
                    Counted(summary.aggregators, "aggregator"))},
      {"mesh of a group", PerGroup(summary, MeshText)},
      {"time of a step", StepTimes(summary)},
      {"model averaging", AveragingText(run)},
      {"sent between groups", TrafficText(run)},
      {"if synchronous", SynchronousText(run)},
      {"digest of weights", run.digest()}};
  if (const std::string perplexity = PerplexityText(run); !perplexity.empty()) {
    fields.insert(fields.begin() + 2, {"perplexity", perplexity});
  }
  if (run.has_checkpoint()) {
    fields.insert(fields.end() - 1, {"checkpoints", CheckpointText(run.checkpoint())});
  }
  if (run.warnings_size() > 0) {
    fields.insert(fields.end() - 1, {"warnings", absl::StrJoin(run.warnings(), "; ")});
  }
  return FieldsText(fields);
}

}  // namespace cadre
