// Tables of the coordinator's reply. A table without rows is omitted with its title, so that a
// small cluster has a small status. Values that are not known yet are empty cells, which Table
// shows as "<none>".
//
// The prediction of a step assumes that nothing else runs on the devices of the group. It is
// therefore not shown for groups that share devices with other groups.
#include "cli/query_tables.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/counted_noun.h"
#include "base/peer_text.h"
#include "cli/group_text.h"
#include "cli/table.h"
#include "cli/versions_table.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using google::protobuf::RepeatedPtrField;

// How long the evaluation took; empty if it was not measured.
std::string EvaluationText(const v1::EvaluationResult& result) {
  if (result.seconds() <= 0) return "";
  return absl::FormatDuration(absl::Trunc(absl::Seconds(result.seconds()), absl::Milliseconds(1)));
}

// "12/340", or "12" when the whole is not known yet.
std::string OfText(uint32_t done, uint32_t of) {
  return of == 0 ? absl::StrCat(done) : absl::StrCat(done, "/", of);
}

// Live and requested groups, and the number after a pending change.
std::string GroupsText(const v1::RunStatus& run) {
  return absl::StrCat(OfText(run.groups_alive(), run.groups()),
                      run.scaling_to() > 0 ? absl::StrCat(" -> ", run.scaling_to()) : "");
}

std::string EpochText(const v1::RunStatus& run) {
  if (run.total_epochs() == 0) return absl::StrFormat("%.2f", run.epoch());
  return absl::StrFormat("%.2f/%.2f", run.epoch(), run.total_epochs());
}

std::string RateText(double samples_per_second) {
  if (samples_per_second <= 0) return "";
  return FormatCount(static_cast<uint64_t>(std::llround(samples_per_second)));
}

std::string SecondsText(double seconds) {
  return seconds > 0 ? absl::StrFormat("%.3g ms", 1e3 * seconds) : "0";
}

// Empty if none was reported.
template <typename Message>
std::string LossText(const Message& message) {
  return message.has_loss() ? FormatFraction(message.loss()) : "";
}

// "gradient_norm 1.25, ..."; sorted, because maps of protobuf have no order.
std::string MeansText(const v1::TrainingMetrics& metrics) {
  const std::map<std::string, double> sorted(metrics.mean().begin(), metrics.mean().end());
  return absl::StrJoin(sorted, ", ", [](std::string* out, const auto& metric) {
    absl::StrAppendFormat(out, "%s %.4g", metric.first, metric.second);
  });
}

std::string PerplexityText(bool known, double perplexity) {
  return known ? absl::StrFormat("%.4g", perplexity) : "";
}

std::string HeartbeatText(const v1::MemberStatus& member) {
  return absl::StrCat(FormatAge(absl::Seconds(member.heartbeat_age_seconds())), " ago",
                      member.connected() ? "" : ", away");
}

// Why a worker or host receives no new work, or its failures on record; empty if there are none.
std::string StandingText(const v1::Standing& standing, bool cordoned) {
  if (standing.failures() == 0) return cordoned ? "cordoned" : standing.reason();
  const std::string wait = FormatAge(absl::Seconds(standing.wait_seconds()));
  return absl::StrCat(cordoned                      ? "cordoned; "
                      : standing.quarantined()      ? absl::StrCat("in quarantine for ", wait, "; ")
                      : standing.wait_seconds() > 0 ? absl::StrCat("excluded for ", wait, "; ")
                                                    : "",
                      Counted(standing.failures(), "failure"), ": ", EnumText(standing.cause()),
                      standing.reason().empty() ? "" : ", ", standing.reason());
}

std::string MemberNames(const v1::GroupStatus& group) {
  return absl::StrJoin(group.members(), ",", [](std::string* out, const v1::GroupMember& member) {
    absl::StrAppend(out, member.name().empty() ? member.member_id() : member.name());
  });
}

uint64_t TotalBytes(const v1::MemoryUse& use) {
  return use.weights() + use.gradients() + use.optimizer() + use.activations() + use.buffers() +
         use.exchange();
}

void AppendPart(absl::string_view title, absl::string_view table, std::string& out) {
  if (!table.empty()) absl::StrAppend(&out, "\n", title, "\n", table);
}

// One row per run whose discrepancy was measured.
std::string DiscrepancyTable(const RepeatedPtrField<v1::RunStatus>& runs) {
  Table table({"RUN", "DISCREPANCY OF GROUPS"});
  for (const v1::RunStatus& run : runs) {
    if (run.has_discrepancy()) table.AddRow({run.run(), DiscrepancyText(run)});
  }
  return table.Text();
}

// One row per run that trains on tokens or reports metrics of its own.
std::string MetricsTable(const RepeatedPtrField<v1::RunStatus>& runs) {
  Table table({"RUN", "TOKENS", "TOKENS/S", "PERPLEXITY", "OF TEST", "RATE", "METRICS"});
  for (const v1::RunStatus& run : runs) {
    if (!run.has_metrics() && run.tokens_per_second() <= 0) continue;
    const uint64_t tokens = run.metrics().tokens();
    table.AddRow(
        {run.run(), tokens > 0 ? FormatCount(tokens) : "", RateText(run.tokens_per_second()),
         PerplexityText(run.has_perplexity(), run.perplexity()),
         PerplexityText(run.has_test_perplexity(), run.test_perplexity()),
         run.rate() > 0 ? absl::StrFormat("%.4g", run.rate()) : "", MeansText(run.metrics())});
  }
  return table.Text();
}

// One row per slot. A slot that waits for workers has no generation, and states its reason.
std::string GroupsTable(const RepeatedPtrField<v1::GroupStatus>& groups) {
  Table table({"RUN", "GROUP", "GENERATION", "STATE", "MESH", "STEP", "VERSION", "LOSS",
               "SAMPLES/S", "MEMBERS", "REASON"});
  for (const v1::GroupStatus& group : groups) {
    table.AddRow({group.run(), absl::StrCat(group.group()),
                  group.generation() == 0 ? "" : absl::StrCat(group.generation()),
                  EnumText(group.state()), MeshText(group), absl::StrCat(group.step()),
                  absl::StrCat(group.version()), LossText(group),
                  RateText(group.samples_per_second()), MemberNames(group), group.reason()});
  }
  return table.Text();
}

// Which algorithms the buckets of each group use, next to the link on which the choice is based.
std::string CollectivesTable(const RepeatedPtrField<v1::GroupStatus>& groups) {
  Table table({"RUN", "GROUP", "POLICY", "OVERLAP", "LINK", "ALGORITHMS", "STEP"});
  for (const v1::GroupStatus& group : groups) {
    // A slot without a group has no plan; programs do not follow theirs.
    if (group.plan().mesh().empty() || group.plan().own_loop()) continue;
    table.AddRow({group.run(), absl::StrCat(group.group()), EnumText(group.collectives()),
                  EnumText(group.overlap()), LinkText(group), BucketsText(group), StepText(group)});
  }
  return table.Text();
}

// Two rows per group, predicted and measured, so that the parts of a step can be compared by
// column.
std::string PredictionsTable(const v1::StatusReply& status) {
  Table table({"RUN", "GROUP", "TIMES", "STEP", "COMPUTE", "MOVES", "COLLECTIVES", "UPDATE",
               "WAITING", "ERROR", "CAUSE"});
  const auto add = [&](const v1::GroupStatus& group, const char* what, const v1::StepTimes& times,
                       const std::string& error, const std::string& cause) {
    table.AddRow({group.run(), absl::StrCat(group.group()), what, SecondsText(times.step()),
                  SecondsText(times.compute()), SecondsText(times.moves()),
                  SecondsText(times.collectives()), SecondsText(times.update()),
                  SecondsText(times.exposed()), error, cause});
  };
  std::string note;
  for (const v1::GroupStatus& group : status.groups()) {
    const bool applies = !SharesDevices(group, status);
    // If nothing was known of the hardware before, the prediction was computed from the layer times
    // of the measurement below it.
    const char* const what =
        group.prediction_from_own_measurement() ? "predicted from measured layers" : "predicted";
    if (group.has_predicted() && applies) add(group, what, group.predicted(), "", "");
    if (group.has_measured()) {
      add(group, "measured", group.measured(), applies ? ErrorText(group) : "",
          applies ? group.prediction_error_cause() : "");
    }
    if (group.has_predicted() && !applies) {
      note = "Groups that share a machine's cores with others have no prediction here.\n";
    }
  }
  return table.Text() + note;
}

// Only parameters of which ranks hold parts, since whole parameters are equal on all ranks.
std::string ShardedTable(const RepeatedPtrField<v1::GroupStatus>& groups) {
  Table table({"RUN", "GROUP", "RANK", "MEMBER", "PARAMETER", "HELD", "OF", "SHARE"});
  for (const v1::GroupStatus& group : groups) {
    for (const v1::GroupMember& member : group.members()) {
      for (const v1::HeldParameter& held : member.held()) {
        if (held.elements() >= held.of()) continue;
        table.AddRow({group.run(), absl::StrCat(group.group()), absl::StrCat(member.rank()),
                      member.name(), held.parameter(), FormatCount(held.elements()),
                      FormatCount(held.of()),
                      absl::StrFormat("%.1f%%", 100.0 * static_cast<double>(held.elements()) /
                                                    static_cast<double>(held.of()))});
      }
    }
  }
  return table.Text();
}

// The memory that each rank has allocated, by use, and the total that the plan predicted. Of a
// program only the memory of its parameters and of their exchange is known.
std::string MemoryTable(const RepeatedPtrField<v1::GroupStatus>& groups) {
  Table table({"RUN", "GROUP", "RANK", "MEMBER", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS",
               "BUFFERS", "EXCHANGE", "TOTAL", "PLANNED"});
  for (const v1::GroupStatus& group : groups) {
    for (const v1::GroupMember& member : group.members()) {
      if (!member.has_memory()) continue;
      const v1::MemoryUse& use = member.memory();
      const auto known = [native = !group.plan().own_loop()](uint64_t bytes) {
        return native ? FormatBytes(bytes) : "";
      };
      table.AddRow({group.run(), absl::StrCat(group.group()), absl::StrCat(member.rank()),
                    member.name(), FormatBytes(use.weights()), known(use.gradients()),
                    known(use.optimizer()), known(use.activations()), known(use.buffers()),
                    FormatBytes(use.exchange()), FormatBytes(TotalBytes(use)),
                    known(TotalBytes(member.planned_memory()))});
    }
  }
  return table.Text();
}

// What ranks compute more slowly than their devices could.
std::string FallbacksTable(const RepeatedPtrField<v1::GroupStatus>& groups) {
  Table table({"RUN", "GROUP", "RANK", "MEMBER", "WHAT", "COUNT", "REASON"});
  for (const v1::GroupStatus& group : groups) {
    for (const v1::GroupMember& member : group.members()) {
      for (const v1::Fallback& fallback : member.fallbacks()) {
        table.AddRow({group.run(), absl::StrCat(group.group()), absl::StrCat(member.rank()),
                      member.name(), EnumText(fallback.kind()), absl::StrCat(fallback.count()),
                      fallback.reason()});
      }
    }
  }
  return table.Text();
}

// Workers without a rank are idle and available to the next run.
std::string WorkersTable(const RepeatedPtrField<v1::MemberStatus>& workers, bool wide) {
  std::vector<std::string> columns = {"WORKER", "RUN",  "GROUP",     "RANK",
                                      "DEVICE", "HOST", "HEARTBEAT", "STANDING"};
  if (wide) columns.insert(columns.end() - 2, {"ID", "ADDRESS"});
  Table table(std::move(columns));
  for (const v1::MemberStatus& worker : workers) {
    const bool placed = !worker.place().run().empty();
    std::vector<std::string> row = {worker.name(),
                                    worker.place().run(),
                                    placed ? absl::StrCat(worker.place().group()) : "",
                                    placed ? absl::StrCat(worker.place().rank()) : "",
                                    worker.device(),
                                    worker.host(),
                                    HeartbeatText(worker),
                                    StandingText(worker.standing(), worker.cordoned())};
    if (wide) row.insert(row.end() - 2, {worker.member_id(), worker.address()});
    table.AddRow(std::move(row));
  }
  return table.Text();
}

std::string HostsTable(const RepeatedPtrField<v1::HostStatus>& hosts) {
  Table table({"HOST", "STANDING"});
  for (const v1::HostStatus& host : hosts) {
    table.AddRow({host.host(), StandingText(host.standing(), /*cordoned=*/false)});
  }
  return table.Text();
}

// How the drain of the aggregator proceeds.
std::string DrainText(const v1::AggregatorStatus& aggregator) {
  if (aggregator.moves().empty()) return "drained: it may be stopped";
  return absl::StrCat(
      "draining: ", absl::StrJoin(aggregator.moves(), "; ", [](std::string* out, const auto& move) {
        absl::StrAppend(out, move.run(), "/", move.shard(),
                        move.to().empty() ? "" : absl::StrCat(" to ", move.to()), ", ",
                        move.reason());
      }));
}

// Shards are written as RUN/SHARD@VERSION.
std::string AggregatorsTable(const RepeatedPtrField<v1::AggregatorStatus>& aggregators, bool wide) {
  std::vector<std::string> columns = {"AGGREGATOR", "SHARDS", "HOST", "HEARTBEAT", "STANDING"};
  if (wide) columns.insert(columns.end() - 2, {"ID", "ADDRESS", "FREE", "RESERVED"});
  Table table(std::move(columns));
  for (const v1::AggregatorStatus& aggregator : aggregators) {
    const v1::MemberStatus& member = aggregator.member();
    const std::string shards =
        absl::StrJoin(aggregator.shards(), ",", [](std::string* out, const v1::ShardState& shard) {
          absl::StrAppend(out, shard.run(), "/", shard.shard(), "@", shard.version());
        });
    std::vector<std::string> row = {member.name(), shards, member.host(), HeartbeatText(member),
                                    aggregator.draining() ? DrainText(aggregator)
                                    : member.cordoned()   ? "cordoned"
                                                          : ""};
    if (wide) {
      row.insert(row.end() - 2,
                 {member.member_id(), member.address(), FormatBytes(aggregator.free_bytes()),
                  FormatBytes(aggregator.reserved_bytes())});
    }
    table.AddRow(std::move(row));
  }
  return table.Text();
}

// Sorted, because maps of protobuf have no order.
std::string CountersTable(const google::protobuf::Map<std::string, uint64_t>& counters) {
  Table table({"COUNTER", "VALUE"});
  const std::map<std::string, uint64_t> sorted(counters.begin(), counters.end());
  for (const auto& [name, value] : sorted) table.AddRow({name, FormatCount(value)});
  return table.Text();
}

// When runs are served, and whether they are kept after their end.
std::string ServiceTable(const RepeatedPtrField<v1::RunStatus>& runs) {
  Table table({"RUN", "PRIORITY", "STORED", "DELETED AT"});
  for (const v1::RunStatus& run : runs) {
    table.AddRow({run.run(), absl::StrCat(run.priority()),
                  run.stored_bytes() > 0 ? FormatBytes(run.stored_bytes()) : "",
                  run.removal_ms() > 0 ? absl::FormatTime("%Y-%m-%d %H:%M:%S",
                                                          absl::FromUnixMillis(run.removal_ms()),
                                                          absl::UTCTimeZone())
                                       : ""});
  }
  return table.Text();
}

// Whether runs that have ended are kept.
std::string RetentionTable(const v1::Retention& retention) {
  Table table({"ENDED RUNS WITH A VERSION", "STORED", "BUDGET", "KEPT FOR", "RECORDS OF OTHERS"});
  table.AddRow(
      {absl::StrCat(retention.runs()), FormatBytes(retention.stored_bytes()),
       retention.keep_bytes() > 0 ? FormatBytes(retention.keep_bytes()) : "unlimited",
       retention.keep_seconds() > 0 ? FormatDuration(retention.keep_seconds()) : "until deleted",
       absl::StrCat("the newest ", retention.keep_without_version())});
  return table.Text();
}

std::string WarningsTable(const RepeatedPtrField<v1::RunStatus>& runs) {
  Table table({"RUN", "WARNING"});
  for (const v1::RunStatus& run : runs) {
    for (const std::string& warning : run.warnings()) table.AddRow({run.run(), warning});
  }
  return table.Text();
}

// The newest checkpoint of a live run, or the last one of a run that is done, is missing.
std::string CheckpointProblem(const v1::RunStatus& run) {
  const v1::CheckpointStatus& checkpoint = run.checkpoint();
  if (checkpoint.last_missing()) return absl::StrCat("run ", run.run(), ": ", run.reason());
  const bool ended = run.state() == v1::RUN_STATE_DONE || run.state() == v1::RUN_STATE_FAILED ||
                     run.state() == v1::RUN_STATE_STOPPED;
  if (ended || checkpoint.failures() == 0 || checkpoint.failed_step() <= checkpoint.saved_step()) {
    return "";
  }
  return absl::StrCat("run ", run.run(), ": no checkpoint of step ", checkpoint.failed_step(), ": ",
                      checkpoint.error());
}

}  // namespace

double HiddenExchangeShare(const v1::RunStatus& run) {
  if (run.transfer_seconds() <= 0) return NAN;
  return std::max(0.0, 1 - run.exposed_exchange_seconds() / run.transfer_seconds());
}

// The accuracy and the time of the newest evaluation are shown only after the first one, the ETA
// only while the run trains.
std::string RunsTable(const RepeatedPtrField<v1::RunStatus>& runs, bool wide) {
  std::vector<std::string> columns = {"RUN",  "NAME", "STATE",     "STEP",   "EPOCH",
                                      "LOSS", "TEST", "SAMPLES/S", "ROUNDS", "GROUPS",
                                      "AGE",  "ETA",  "REASON"};
  if (wide) {
    columns.insert(columns.end() - 1,
                   {"EVALUATION", "UP", "DOWN", "TRAFFIC FACTOR", "EXCHANGE WAITS", "HIDDEN",
                    "TOKENS/S", "PERPLEXITY", "METRICS", "PRIORITY"});
  }
  Table table(std::move(columns));
  for (const v1::RunStatus& run : runs) {
    const bool tested = run.test().samples() > 0;
    std::vector<std::string> row = {
        run.run(),
        run.name(),
        EnumText(run.state()),
        OfText(run.step(), run.total_steps()),
        EpochText(run),
        LossText(run),
        tested ? FormatFraction(run.test().accuracy()) : "",
        RateText(run.samples_per_second()),
        absl::StrCat(run.rounds_committed()),
        GroupsText(run),
        run.seconds() > 0 ? FormatAge(absl::Seconds(run.seconds())) : "",
        run.state() == v1::RUN_STATE_RUNNING && run.eta_seconds() > 0
            ? FormatAge(absl::Seconds(run.eta_seconds()))
            : "",
        run.reason()};
    if (wide) {
      const double hidden = HiddenExchangeShare(run);
      row.insert(
          row.end() - 1,
          {EvaluationText(run.test()), FormatBytes(run.bytes_up()), FormatBytes(run.bytes_down()),
           run.traffic_factor() > 0 ? absl::StrFormat("%.3g", run.traffic_factor()) : "",
           FormatDuration(run.exposed_exchange_seconds()),
           std::isnan(hidden) ? "" : FormatFraction(hidden), RateText(run.tokens_per_second()),
           PerplexityText(run.has_perplexity(), run.perplexity()), MeansText(run.metrics()),
           absl::StrCat(run.priority())});
    }
    table.AddRow(std::move(row));
  }
  return table.Text();
}

std::string AdoptedTable(const v1::AdoptReply& reply) {
  Table table({"RUN", "VERSION", "STEP", "PROBLEM"});
  for (const v1::AdoptedRun& run : reply.runs()) {
    const bool adopted = run.problem().empty();
    table.AddRow({run.run(), adopted ? absl::StrCat(run.version()) : "",
                  adopted ? absl::StrCat(run.step()) : "", run.problem()});
  }
  return table.Text();
}

std::string OverviewText(const v1::StatusReply& status, const std::string& coordinator) {
  Table head({"COORDINATOR", "VERSION", "UP", "STARTS", "RUNS", "WORKERS", "AGGREGATORS", "TLS"});
  head.AddRow({coordinator, status.coordinator().version(),
               FormatDuration(status.coordinator().uptime_seconds()),
               absl::StrCat(status.coordinator().starts()), absl::StrCat(status.runs_size()),
               absl::StrCat(status.workers_size()), absl::StrCat(status.aggregators_size()),
               status.coordinator().insecure() ? "none (--insecure)" : "mutual"});
  std::string out = head.Text();
  AppendPart("Runs", RunsTable(status.runs()), out);
  AppendPart("Metrics", MetricsTable(status.runs()), out);
  AppendPart("Discrepancy", DiscrepancyTable(status.runs()), out);
  AppendPart("Kept versions", VersionsTable(status.runs()), out);
  AppendPart("Warnings", WarningsTable(status.runs()), out);
  AppendPart("Groups", GroupsTable(status.groups()), out);
  AppendPart("Workers", WorkersTable(status.workers(), /*wide=*/true), out);
  AppendPart("Hosts with failures", HostsTable(status.hosts()), out);
  AppendPart("Aggregators", AggregatorsTable(status.aggregators(), /*wide=*/true), out);
  AppendPart("Retention", RetentionTable(status.coordinator().retention()), out);
  AppendPart("Counters", CountersTable(status.counters()), out);
  return out;
}

std::string RunDetailsText(const v1::StatusReply& status) {
  std::string out = RunsTable(status.runs());
  AppendPart("Queue and retention", ServiceTable(status.runs()), out);
  AppendPart("Metrics", MetricsTable(status.runs()), out);
  AppendPart("Discrepancy", DiscrepancyTable(status.runs()), out);
  AppendPart("Kept versions", VersionsTable(status.runs()), out);
  AppendPart("Warnings", WarningsTable(status.runs()), out);
  AppendPart("Groups", GroupsTable(status.groups()), out);
  AppendPart("Collectives", CollectivesTable(status.groups()), out);
  AppendPart("Times of a step", PredictionsTable(status), out);
  AppendPart("Sharded parameters", ShardedTable(status.groups()), out);
  AppendPart("Memory", MemoryTable(status.groups()), out);
  AppendPart("Slower than the device could", FallbacksTable(status.groups()), out);
  return out;
}

Json MembersJson(const v1::StatusReply& status) {
  const Json json = ToJson(status);
  return {{"workers", json["workers"]}, {"aggregators", json["aggregators"]}};
}

std::string MembersText(const v1::StatusReply& status, bool wide) {
  const std::string out = WorkersTable(status.workers(), wide);
  const std::string aggregators = AggregatorsTable(status.aggregators(), wide);
  return absl::StrCat(out, out.empty() || aggregators.empty() ? "" : "\n", aggregators);
}

std::string DiscrepancyText(const v1::RunStatus& run) {
  if (!run.has_discrepancy()) return "";
  const v1::Discrepancy& discrepancy = run.discrepancy();
  return absl::StrFormat("%.3g: %s", discrepancy.smoothed(), discrepancy.recommendation());
}

// Columns of tokens and metrics exist only if a version has some.
std::string HistoryTable(const v1::HistoryReply& history) {
  std::vector<std::string> columns = {"VERSION", "TIME (UTC)", "STEP",     "EPOCH",      "LOSS",
                                      "GROUPS",  "ROUND",      "ACCURACY", "EVALUATION", "RATE"};
  const bool metrics = absl::c_any_of(history.entries(), [](const v1::HistoryEntry& entry) {
    return entry.commit().has_metrics();
  });
  if (metrics) columns.insert(columns.end(), {"TOKENS", "PERPLEXITY", "METRICS"});
  Table table(columns);
  for (const v1::HistoryEntry& entry : history.entries()) {
    const std::string time = absl::FormatTime(
        "%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(entry.time_ms()), absl::UTCTimeZone());
    if (entry.has_evaluation()) {
      const v1::EvaluationResult& result = entry.evaluation();
      std::vector<std::string> row = {absl::StrCat(result.version()),
                                      time,
                                      absl::StrCat(result.step()),
                                      "",
                                      "",
                                      "",
                                      "",
                                      absl::StrFormat("%.4f", result.accuracy()),
                                      EvaluationText(result)};
      row.resize(columns.size());
      table.AddRow(std::move(row));
      continue;
    }
    const v1::CommitPoint& commit = entry.commit();
    const bool timed = commit.opened_ms() > 0;
    std::vector<std::string> row = {
        absl::StrCat(commit.version()),
        time,
        absl::StrCat(commit.step()),
        absl::StrFormat("%.2f", commit.epoch()),
        LossText(commit),
        commit.participants().empty()
            ? ""
            : absl::StrCat(commit.participants_size(), " of ", commit.groups()),
        timed ? absl::FormatDuration(absl::Milliseconds(entry.time_ms() - commit.opened_ms())) : "",
        "",
        "",
        commit.rate() > 0 ? absl::StrFormat("%.4g", commit.rate()) : ""};
    if (metrics) {
      const uint64_t tokens = commit.metrics().tokens();
      row.insert(row.end(),
                 {tokens > 0 ? FormatCount(tokens) : "",
                  PerplexityText(tokens > 0 && commit.has_loss(), std::exp(commit.loss())),
                  MeansText(commit.metrics())});
    }
    table.AddRow(std::move(row));
  }
  return table.Text();
}

std::string EventLine(const v1::ClusterEvent& event) {
  return absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(event.time_ms()),
                                       absl::UTCTimeZone()),
                      "  ", event.run().empty() ? "-" : Escaped(event.run()), "  ",
                      Escaped(event.text()), "\n");
}

std::vector<std::string> ProblemsOf(const v1::StatusReply& status) {
  std::vector<std::string> problems;
  for (const v1::RunStatus& run : status.runs()) {
    const bool stands = run.state() == v1::RUN_STATE_PARKED || run.state() == v1::RUN_STATE_FAILED;
    if (stands) {
      problems.push_back(
          absl::StrCat("run ", run.run(), " is ", EnumText(run.state()), ": ", run.reason()));
    } else if (run.state() == v1::RUN_STATE_RUNNING && run.groups_alive() < run.groups()) {
      problems.push_back(absl::StrCat("run ", run.run(), ": ", run.groups_alive(), " of ",
                                      run.groups(), " groups train; ", run.reason()));
    } else if ((run.state() == v1::RUN_STATE_RUNNING || run.state() == v1::RUN_STATE_FINISHING) &&
               !run.reason().empty()) {
      problems.push_back(absl::StrCat("run ", run.run(), ": ", run.reason()));
    }
    for (const v1::ShardCopyStatus& copy : run.copies()) {
      if (run.state() != v1::RUN_STATE_RUNNING || copy.version() >= run.version()) continue;
      problems.push_back(
          absl::StrCat("run ", run.run(), ": the copy of shard ", copy.shard(), " on aggregator ",
                       copy.aggregator(), copy.has_version() ? " is behind" : " is missing",
                       copy.has_version() ? absl::StrCat(" since version ", copy.version()) : ""));
    }
    if (const std::string problem = CheckpointProblem(run); !problem.empty()) {
      problems.push_back(problem);
    }
  }
  if (!status.coordinator().exhausted().empty()) {
    problems.push_back(absl::StrCat("coordinator: ", status.coordinator().exhausted()));
  }
  for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
    for (const v1::DelayedOrder& delayed : aggregator.delayed_orders()) {
      problems.push_back(
          absl::StrCat("aggregator ", aggregator.member().name(), ": ", delayed.order(), " of ",
                       delayed.run(), " is not carried out: ",
                       delayed.reason().empty() ? "its disk does not answer" : delayed.reason()));
    }
    if (aggregator.member().connected()) continue;
    problems.push_back(absl::StrCat("aggregator ", aggregator.member().name(), " is away"));
  }
  for (const v1::MemberStatus& worker : status.workers()) {
    if (!worker.standing().quarantined()) continue;
    problems.push_back(
        absl::StrCat("worker ", worker.name(), " is quarantined: ", worker.standing().reason()));
  }
  return problems;
}

}  // namespace cadre
