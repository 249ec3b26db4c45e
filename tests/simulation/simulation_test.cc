#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/cadre/v1/control.pb.h"
#include "tests/simulation/shrink.h"
#include "tests/simulation/simulator.h"

namespace cadre::simulation {
namespace {

constexpr uint64_t kSeeds = 2000;
constexpr int kMaxShrinkRuns = 200;

// The violation, with the faults that are sufficient for it.
std::string Replay(uint64_t seed, const Outcome& outcome) {
  const std::vector<size_t> needed = Shrink({.seed = seed}, outcome, kMaxShrinkRuns);
  std::string faults;
  for (const size_t number : needed) {
    absl::StrAppend(&faults, "fault ", number, ": ", outcome.fault_texts[number], "\n");
  }
  return absl::StrCat(faults, "cadre-sim --seed ", seed, " --only-faults ",
                      absl::StrJoin(needed, ","), " --verbose\n", "cadre-sim --seed ", seed,
                      " --verbose; event ", outcome.events, ", after ",
                      absl::FormatDuration(outcome.at), ": ", outcome.violation, "\n",
                      absl::StrJoin(LastLines({.seed = seed}), "\n"));
}

struct MinCount {
  const char* name;
  uint64_t count;
};

// What the seeds must cause together.
constexpr MinCount kMinCounts[] = {
    {"absences_outlasted", 50},
    {"aggregator_crashes_in_orders", 50},
    {"aggregators_cordoned", 20},
    {"aggregators_drained", 1000},
    {"aggregator_kills", 200},
    {"aggregator_waits_ended", 5},
    {"applies_repeated", 50},
    {"bad_hosts", 500},
    {"calls_broken", 1000},
    {"calls_busy", 10'000},
    {"calls_cancelled", 500},
    {"calls_silent", 10},
    {"changes_checked", 500'000},
    {"commits", 2000},
    {"coordinator_clock_jumps", 200},
    {"contributions_late", 50},
    {"coordinator_epochs_raised", 5},
    {"coordinator_events", 50'000},
    {"coordinator_kills", 300},
    {"coordinator_stalls", 30},
    {"coordinator_stalls_noticed", 1000},
    {"crashes_after_commit", 20},
    {"crashes_before_commit", 20},
    {"aggregator_calls_forged", 1000},
    {"clock_jumps", 500},
    {"congestions", 500},
    {"creations_given_up", 20},
    {"cuts", 200},
    {"delayed_orders_reported", 1000},
    {"evaluation_parts_reassigned", 5},
    {"files_damaged", 200},
    {"folders_lost", 300},
    {"disks_filled", 200},
    {"disks_hung", 200},
    {"disks_rolled_back", 250},
    {"disks_swapped", 100},
    {"divergences", 100},
    {"failures_data", 200},
    {"failures_memory", 100},
    {"frames_pulled", 1000},
    {"frames_staged", 1000},
    {"generations", 500},
    {"groups_broken", 5},
    {"groups_grown", 5},
    {"groups_left_out", 50},
    {"groups_replanned", 20},
    {"groups_stalled", 50},
    {"hangs", 500},
    {"isolations", 500},
    {"joiners_awaited", 500},
    {"leases_lost", 100},
    {"loaded_versions", 5},
    {"members_refused", 50},
    {"messages_forged", 10'000},
    {"one_way_cuts", 500},
    {"steps_during_exchanges", 500},
    {"versions_merged", 500},
    {"queues_full", 50},
    {"orders_hung", 200},
    {"orders_slow", 1000},
    {"pulls_of_old_versions", 1},
    {"refused_stale_generation", 20},
    {"rollbacks", 50},
    {"rounds_closed_differently", 1},
    {"rounds_closed_short", 500},
    {"runs_deleted", 20},
    {"runs_done", 300},
    {"runs_scaled", 50},
    {"runs_stopped", 5},
    {"second_coordinators", 100},
    {"shard_contributions_staged", 10'000},
    {"shard_disk_full", 30},
    {"shard_refused_closed_round", 50},
    {"shard_refused_out_of_order", 20},
    {"shard_refused_stale_generation", 3},
    {"shard_versions_checked", 2000},
    {"shards_copied", 5000},
    {"shards_copied_back", 20},
    {"shards_moved", 100},
    {"shards_moved_from_copies", 1},
    {"shards_restored", 100},
    {"seeds_refused", 3},
    {"traces_aborted", 30},
    {"traces_refused_as_second", 20},
    {"traces_cancelled", 50},
    {"traces_complete", 80},
    {"solo_steps", 50},
    {"slow_links", 500},
    {"slow_preparations", 200},
    {"stops", 500},
    {"stagings_resumed", 500},
    {"stores_restored", 50},
    {"streams_broken", 500},
    {"values_corrupted", 10},
    {"values_staged_again", 100},
    {"versions_adopted", 5000},
    {"worker_kills", 200},
    {"workers_cordoned", 50},
    {"workers_drained", 50},
    {"workers_left", 50},
};

// The invariants hold after every event, every run ends, and the seeds produce enough of each kind
// of fault.
TEST(Simulation, InvariantsHold) {
  std::map<std::string, uint64_t> counters;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = Simulator({.seed = seed}).Run();
    ASSERT_EQ(outcome.violation, "") << Replay(seed, outcome);
    for (const auto& [name, value] : outcome.counters) counters[name] += value;
  }
  for (const auto& [name, count] : kMinCounts) {
    EXPECT_GE(counters[name], count) << "the seeds rarely cause " << name;
  }
  // A new method of the coordinator must be called, too, or be named here. A backup is what
  // FaultKind::kRestoreStore returns to.
  const google::protobuf::FileDescriptor& file = *v1::SubmitRequest::descriptor()->file();
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      const std::string& method = file.service(i)->method(j)->name();
      if (method == "Backup") continue;
      EXPECT_GE(counters[absl::StrCat("method_", method)], 100) << "the seeds rarely call it";
    }
  }
}

// Adds the names of the fields that are set, and those of all fields.
void AddFields(const google::protobuf::Message& message, const std::string& prefix,
               std::set<std::string>* set) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    const std::string name = absl::StrCat(prefix, field->name());
    set->insert(name);
    if (field->is_repeated() || field->message_type() == nullptr) continue;
    AddFields(reflection.GetMessage(message, field), name + ".", set);
  }
}

void AddAllFields(const google::protobuf::Descriptor& type, const std::string& prefix,
                  std::set<std::string>* all) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string name = absl::StrCat(prefix, field.name());
    all->insert(name);
    if (!field.is_repeated() && field.message_type() != nullptr) {
      AddAllFields(*field.message_type(), name + ".", all);
    }
  }
}

// A new field of the averaging or of the cluster must be drawn, too, or be named here; and so must
// the priority of runs.
TEST(Simulation, SeedsDrawEveryField) {
  std::set<std::string> missing = {"priority"};
  AddAllFields(*v1::Averaging::descriptor(), "averaging.", &missing);
  AddAllFields(*v1::Cluster::descriptor(), "cluster.", &missing);
  // How a group computes, which is not simulated.
  for (const char* name :
       {"space_ranks", "collectives", "overlap", "mesh", "layer", "pipeline", "recompute"}) {
    missing.erase(absl::StrCat("cluster.", name));
  }
  // Programs with a loop of their own.
  missing.erase("cluster.max_pause_ms");
  // Without effect: the aggregators always keep what a code leaves out of versions.
  missing.erase("averaging.down.error_feedback");
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const v1::RunSpec& spec : Simulator({.seed = seed}).Draw()) {
      std::set<std::string> drawn;
      if (spec.priority() != 0) drawn.insert("priority");
      AddFields(spec.averaging(), "averaging.", &drawn);
      AddFields(spec.cluster(), "cluster.", &drawn);
      for (const std::string& name : drawn) missing.erase(name);
    }
  }
  EXPECT_THAT(missing, ::testing::IsEmpty());
}

TEST(Simulation, EqualSeedsGiveEqualLogs) {
  const auto log = [](uint64_t seed) {
    std::vector<std::string> lines;
    Simulator({.seed = seed, .on_line = [&](const std::string& line) { lines.push_back(line); }})
        .Run();
    return lines;
  };
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<std::string> lines = log(seed);
    EXPECT_FALSE(lines.empty());
    EXPECT_EQ(lines, log(seed)) << "seed " << seed;
  }
  EXPECT_NE(log(1), log(2));
}

TEST(Simulation, FaultsLastAsRequested) {
  const Outcome outcome = Simulator({.seed = 3, .faults_for = absl::Minutes(20)}).Run();
  EXPECT_EQ(outcome.violation, "") << Replay(3, outcome);
  EXPECT_GE(outcome.at, absl::Minutes(20));
}

// ---- The checker detects planted bugs.

struct Planted {
  const char* name;
  Plant plant;
  // Part of the violation that at least one seed must report.
  const char* violation;
};

// Each planted bug is found within this number of seeds.
constexpr uint64_t kPlantedSeeds = 2000;

class PlantedBug : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsDetected) {
  std::vector<std::string> violations;
  bool reported = false;
  for (uint64_t seed = 1; seed <= kPlantedSeeds && !reported; ++seed) {
    const Outcome outcome = Simulator({.seed = seed, .plant = GetParam().plant}).Run();
    if (outcome.violation.empty()) continue;
    violations.push_back(outcome.violation);
    reported = absl::StrContains(outcome.violation, GetParam().violation);
    const auto lines = LastLines({.seed = seed, .plant = GetParam().plant});
    EXPECT_TRUE(absl::StrContains(lines.back(), "VIOLATION"));
  }
  EXPECT_TRUE(reported) << "no seed reports: " << GetParam().violation << ", but\n"
                        << absl::StrJoin(violations, "\n");
}

INSTANTIATE_TEST_SUITE_P(
    Simulation, PlantedBug,
    ::testing::Values(
        Planted{"ForgottenCounters", Plant::kForgetMeta, "a counter decreased"},
        Planted{"ReusedGeneration", Plant::kReuseGeneration, "was used before"},
        Planted{"ForgottenStore", Plant::kForgetStore, "a counter decreased"},
        Planted{"SentBeforeDurable", Plant::kSendBeforeCommit, "but not in the store"},
        Planted{"ShuffledApply", Plant::kShuffleApply, "not in group order"},
        Planted{"WrongWeight", Plant::kWrongWeight, "other values than the mean"},
        Planted{"ParticipantNotApplied", Plant::kSkipParticipant, "other values than the mean"},
        Planted{"AcknowledgedEarly", Plant::kEarlyStaged, "which it had acknowledged"},
        Planted{"NotAdopted", Plant::kIgnoreVersion, "holds other values"},
        Planted{"WrongVersionServed", Plant::kServeOldVersion, "as pulled has digest"},
        Planted{"OneShardPulled", Plant::kPullOneShard, "digest"},
        Planted{"IdentityHidden", Plant::kHideIdentity, "failed: "},
        Planted{"ProgressHidden", Plant::kHideProgress, "not every run has ended"},
        Planted{"HeartbeatsByWallClock", Plant::kWallClockHeartbeats, "has lost its registration"},
        Planted{"DroppedFromFullQueue", Plant::kDropFromFullQueue, ""},
        Planted{"UnansweredForgotten", Plant::kForgetUnanswered, ""},
        Planted{"ReleaseIgnored", Plant::kIgnoreRelease, ""},
        Planted{"DivisionIgnored", Plant::kIgnoreDivision, "uses the sample at position"},
        Planted{"TrainedUnstarted", Plant::kTrainUnstarted, "its generation never started"},
        Planted{"ContributedUntrained", Plant::kContributeUntrained, "steps change it by"},
        Planted{"CatchUpIgnored", Plant::kIgnoreCatchUp, "all others wait for it"},
        Planted{"AbsenceIgnored", Plant::kIgnoreAbsence, "aggregators that were away"},
        Planted{"RetriesPostponed", Plant::kPostponeRetries, "has not repeated an Apply"},
        Planted{"NoTicks", Plant::kNoTicks, ""}, Planted{"OneWriteLost", Plant::kLoseOneWrite, ""},
        Planted{"GroupsNotStored", Plant::kDropGroupRecords, "differs from the store"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre::simulation
