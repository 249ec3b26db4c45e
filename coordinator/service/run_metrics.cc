#include "coordinator/service/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Series of runs that train on tokens, and the metrics that programs report.
void CollectTokens(const v1::RunStatus& run, const Metrics::Labels& labels, Metrics& metrics) {
  if (const uint64_t tokens = run.metrics().tokens(); tokens > 0) {
    metrics.Counter("cadre_run_tokens_total", "Tokens up to the newest version.",
                    static_cast<double>(tokens), labels);
  }
  if (run.tokens_per_second() > 0) {
    metrics.Gauge("cadre_run_tokens_per_second", "Tokens per second since training started.",
                  run.tokens_per_second(), labels);
  }
  if (run.has_perplexity()) {
    metrics.Gauge("cadre_run_perplexity", "Perplexity by the training loss of the newest round.",
                  run.perplexity(), labels);
  }
  if (run.has_test_perplexity()) {
    metrics.Gauge("cadre_run_test_perplexity", "Perplexity by the loss of the newest evaluation.",
                  run.test_perplexity(), labels);
  }
  for (const auto& [name, mean] : run.metrics().mean()) {
    metrics.Gauge("cadre_run_metric", "Means of the newest round, as programs report them.", mean,
                  {{"run", run.run()}, {"metric", name}});
  }
}

void CollectTraffic(const v1::RunStatus& run, const Metrics::Labels& labels, Metrics& metrics) {
  const std::string bytes = "Bytes between groups and aggregators, with message overhead.";
  for (const auto& [direction, count] :
       {std::pair("up", run.bytes_up()), std::pair("down", run.bytes_down())}) {
    metrics.Counter("cadre_run_exchanged_bytes_total", bytes, static_cast<double>(count),
                    {{"run", run.run()}, {"direction", direction}});
  }
  metrics.Gauge("cadre_run_traffic_factor_ratio",
                "Bytes of synchronous training over the bytes that groups exchanged.",
                run.traffic_factor(), labels);
  metrics.Counter("cadre_run_exchange_wait_seconds_total",
                  "Time for which a group waited for rounds, averaged over the groups.",
                  run.exposed_exchange_seconds(), labels);
  metrics.Counter("cadre_run_transfer_seconds_total",
                  "Time for which a group sent and received values, averaged over the groups.",
                  run.transfer_seconds(), labels);
}

// How far the groups are.
void CollectProgress(const v1::WatchUpdate& update, const Metrics::Labels& labels,
                     Metrics& metrics) {
  const v1::RunStatus& run = update.run();
  uint32_t behind = 0;
  uint32_t furthest = run.step();
  for (const v1::GroupStatus& group : update.groups()) {
    furthest = std::max(furthest, group.step());
    const bool trains = group.state() == v1::GROUP_STATE_TRAINING ||
                        group.state() == v1::GROUP_STATE_AT_BOUNDARY ||
                        group.state() == v1::GROUP_STATE_SOLO;
    if (trains) behind = std::max(behind, run.version() - std::min(run.version(), group.version()));
  }
  metrics.Gauge("cadre_run_staleness_versions",
                "How many versions the group that is furthest behind lacks.", behind, labels);
  metrics.Gauge("cadre_run_furthest_step", "The highest step that a group has reached.", furthest,
                labels);
}

void CollectRun(const Machine& machine, const v1::RunStatus& run, absl::Time now,
                Metrics& metrics) {
  const Metrics::Labels labels = {{"run", run.run()}};
  metrics.Gauge("cadre_run_version", "Newest committed version.", run.version(), labels);
  metrics.Gauge("cadre_run_step", "Step of the newest version.", run.step(), labels);
  metrics.Gauge("cadre_run_steps", "Steps of the whole run; 0 if unknown.", run.total_steps(),
                labels);
  metrics.Counter("cadre_run_samples_total", "Samples up to the newest version.",
                  static_cast<double>(run.samples()), labels);
  metrics.Gauge("cadre_run_samples_per_second", "Samples per second since training started.",
                run.samples_per_second(), labels);
  if (run.has_loss()) {
    metrics.Gauge("cadre_run_loss", "Mean training loss of the newest round.", run.loss(), labels);
  }
  CollectTokens(run, labels, metrics);
  if (run.has_test()) {
    metrics.Gauge("cadre_run_test_accuracy_ratio", "Accuracy of the newest evaluation.",
                  run.test().accuracy(), labels);
  }
  metrics.Gauge("cadre_run_groups", "Requested groups.", run.groups(), labels);
  metrics.Gauge("cadre_run_groups_alive", "Groups that train.", run.groups_alive(), labels);
  metrics.Counter("cadre_run_rounds_total", "Committed rounds.", run.rounds_committed(), labels);
  const Machine::RunGauges gauges = machine.Gauges(run.run());
  if (const int64_t opened = gauges.round_opened_ms; opened > 0) {
    metrics.Gauge("cadre_run_round_age_seconds",
                  "Time for which the open round has accepted contributions.",
                  std::max(0.0, absl::ToDoubleSeconds(now - absl::FromUnixMillis(opened))), labels);
  }
  metrics.Gauge("cadre_run_obligations_late",
                "What members or the planner owe the run and have not done in time.",
                static_cast<double>(gauges.late), labels);
  CollectTraffic(run, labels, metrics);
  metrics.Counter("cadre_run_evaluation_seconds_total",
                  "Time for which training waited for evaluations.", run.evaluation_seconds(),
                  labels);
  if (run.has_discrepancy()) {
    metrics.Gauge("cadre_run_discrepancy_ratio",
                  "Variance between groups over the displacement of a round, smoothed.",
                  run.discrepancy().smoothed(), labels);
  }
  if (run.has_checkpoint()) {
    metrics.Gauge("cadre_run_checkpoint_step", "Step of the newest checkpoint; 0 if there is none.",
                  run.checkpoint().saved_step(), labels);
    metrics.Counter("cadre_run_checkpoints_failed_total", "Checkpoints that could not be written.",
                    run.checkpoint().failures(), labels);
  }
  metrics.Gauge("cadre_run_warnings", "What has gone wrong although the run goes on.",
                run.warnings_size(), labels);
  CollectProgress(machine.Update(run.run(), now), labels, metrics);
}

// Series exist from the start, so that the first event counts as an increase.
void CollectCounters(const Machine& machine, Metrics& metrics) {
  std::map<std::string, uint64_t> counters;
  for (const char* name : {"aggregator_waits_ended",
                           "groups_failed",
                           "groups_formed",
                           "groups_grown",
                           "groups_left_out",
                           "groups_nudged",
                           "groups_replanned",
                           "groups_stalled",
                           "implausible_generations",
                           "leases_lost",
                           "limits_reached",
                           "rounds_committed",
                           "runs_adopted",
                           "runs_behind",
                           "runs_brought_forward",
                           "runs_deleted",
                           "runs_done",
                           "runs_gave_up_workers",
                           "rollbacks_ordered",
                           "runs_failed",
                           "runs_parked",
                           "runs_stopped",
                           "runs_submitted",
                           "shards_copied",
                           "shards_lost",
                           "shards_moved",
                           "shards_restored",
                           "warnings"}) {
    counters[name] = 0;
  }
  for (int value = v1::Refusal_MIN + 1; value <= v1::Refusal_MAX; ++value) {
    if (!v1::Refusal_IsValid(value)) continue;
    counters[absl::StrCat("refused_", EnumText(static_cast<v1::Refusal>(value)))] = 0;
  }
  for (auto& [name, count] : counters) {
    const auto found = machine.counters().find(name);
    if (found != machine.counters().end()) count = found->second;
  }
  metrics.AddCounters(counters);
}

}  // namespace

void CollectMachine(const Machine& machine, absl::Time now, Metrics& metrics) {
  const MemberCounts counts = machine.CountMembers();
  const std::string workers = "Registered workers by what they do.";
  metrics.Gauge("cadre_workers", workers, counts.idle, {{"state", "idle"}});
  metrics.Gauge("cadre_workers", workers, counts.busy, {{"state", "busy"}});
  metrics.Gauge("cadre_workers", workers, counts.excluded, {{"state", "excluded"}});
  metrics.Gauge("cadre_workers", workers, counts.workers_away, {{"state", "away"}});
  const std::string aggregators =
      "Aggregators that are registered, or hold shards of a run that lives.";
  metrics.Gauge("cadre_aggregators", aggregators, counts.aggregators, {{"state", "connected"}});
  metrics.Gauge("cadre_aggregators", aggregators, counts.aggregators_away, {{"state", "away"}});
  const v1::ListReply list = machine.List(now);
  std::map<v1::RunState, int> states;
  for (const v1::RunStatus& run : list.runs()) ++states[run.state()];
  for (int state = v1::RUN_STATE_QUEUED; state <= v1::RUN_STATE_PARKED; ++state) {
    const auto value = static_cast<v1::RunState>(state);
    metrics.Gauge("cadre_runs", "Runs by state.", states[value], {{"state", EnumText(value)}});
  }
  for (const v1::RunStatus& run : list.runs()) {
    if (IsLive(run.state())) CollectRun(machine, run, now, metrics);
  }
  CollectCounters(machine, metrics);
  metrics.Counter("cadre_events_total", "Events of the cluster (cadre events).",
                  static_cast<double>(machine.Events({}).newest()));
}

}  // namespace cadre
