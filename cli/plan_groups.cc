#include "cli/plan_groups.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/plan_epochs.h"
#include "cli/table.h"
#include "spec/cluster_profile.h"
#include "spec/epochs_table.h"

namespace cadre {
namespace {

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4f", 1e3 * seconds); }

std::string ChoiceJson(const GroupChoice& choice) {
  const auto number = [](std::optional<double> value) {
    return value ? JsonNumber(*value) : std::string("null");
  };
  const double pass = choice.seconds_per_epoch;
  return JsonObject()
      .Add("groups", static_cast<uint32_t>(choice.groups))
      .Add("ranks", static_cast<uint32_t>(choice.ranks))
      .Add("every_steps", static_cast<uint32_t>(choice.every_steps))
      .Add("mesh", choice.mesh.ToString())
      .Add("step_seconds", choice.step_seconds)
      .Add("averaging_seconds", choice.averaging_seconds)
      .Add("averaging_seconds_per_step", choice.averaging_share())
      .Add("bytes_per_average", static_cast<uint64_t>(choice.bytes_per_average))
      .Add("seconds_per_sample", choice.seconds_per_sample)
      .AddRaw("seconds_per_epoch", pass > 0 ? JsonNumber(pass) : "null")
      .AddRaw("epochs", number(choice.epochs))
      .AddRaw("seconds_to_target", number(choice.seconds_to_target))
      .Text();
}

std::string RefusedJson(const RefusedGroups& refused) {
  return JsonObject()
      .Add("groups", static_cast<uint32_t>(refused.groups))
      .Add("ranks", static_cast<uint32_t>(refused.ranks))
      .Add("why", refused.why)
      .Text();
}

template <typename T, typename F>
std::string Array(const std::vector<T>& values, F json) {
  return absl::StrCat(
      "[",
      absl::StrJoin(values, ",",
                    [&](std::string* out, const T& value) { absl::StrAppend(out, json(value)); }),
      "]");
}

}  // namespace

bool AsksForGroups(const PlanOptions& options) {
  return options.groups.has_value() || (options.profile && options.epochs);
}

absl::StatusOr<GroupsAnswer> PlanGroups(const PlanQuestion& question) {
  const PlanOptions& options = question.options;
  GroupsQuestion groups{.spec = &question.spec,
                        .graph = &question.graph,
                        .index = &question.index,
                        .uniform = question.problem.machine,
                        .workers = question.problem.ranks,
                        .most_groups = static_cast<int>(options.groups.value_or(0))};
  v1::ClusterProfile profile;
  if (options.profile) {
    CADRE_ASSIGN_OR_RETURN(profile, ReadClusterProfile(*options.profile));
    groups.profile = &profile;
  }
  v1::EpochsTable table;
  if (options.epochs) {
    CADRE_ASSIGN_OR_RETURN(table, ReadEpochsTable(*options.epochs));
    groups.epochs = &table;
    CADRE_ASSIGN_OR_RETURN(groups.samples, SamplesOfPass(question));
  } else if (const auto samples = SamplesOfPass(question); samples.ok()) {
    groups.samples = *samples;
  }
  return ChooseGroups(groups);
}

std::string GroupsText(const GroupsAnswer& answer) {
  Table table({"GROUPS", "OF", "MESH", "STEP ms", "AVERAGE ms", "EVERY", "SAMPLES/s", "PASS",
               "EPOCHS", "TO TARGET"});
  for (const GroupChoice& choice : answer.choices) {
    const double pass = choice.seconds_per_epoch;
    table.AddRow({absl::StrCat(choice.groups), absl::StrCat(choice.ranks), choice.mesh.ToString(),
                  Milliseconds(choice.step_seconds), Milliseconds(choice.averaging_seconds),
                  choice.every_steps > 0 ? absl::StrCat(choice.every_steps) : "",
                  absl::StrFormat("%.1f", 1 / choice.seconds_per_sample),
                  pass > 0 ? FormatDuration(pass) : "",
                  choice.epochs ? absl::StrFormat("%.4g", *choice.epochs) : "",
                  choice.seconds_to_target ? FormatDuration(*choice.seconds_to_target) : ""});
  }
  std::string text = absl::StrCat(table.Text(), answer.why, "\n");
  for (const RefusedGroups& refused : answer.refused) {
    absl::StrAppend(&text, "not ", refused.groups, " of ", refused.ranks, ": ", refused.why, "\n");
  }
  return text;
}

std::string GroupsJson(const GroupsAnswer& answer) {
  return JsonObject()
      .AddRaw("best", ChoiceJson(answer.best()))
      .AddRaw("choices", Array(answer.choices, ChoiceJson))
      .AddRaw("refused", Array(answer.refused, RefusedJson))
      .AddRaw("more", answer.more ? ChoiceJson(*answer.more) : "null")
      .AddRaw("more_takes", answer.more ? JsonNumber(answer.more_takes) : "null")
      .AddRaw("crossover_groups",
              answer.crossover ? absl::StrCat(answer.best().groups) : std::string("null"))
      .AddRaw("leaders", JsonString("every rank leads for its own slice"))
      .Add("why", answer.why)
      .Text();
}

}  // namespace cadre
