// The state that all parts of one simulation share: time, randomness, faults, the log and counters.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/host_conditions.h"
#include "tests/simulation/timeline.h"

namespace cadre::simulation {

// Probabilities of random faults (FaultKind explains them); all 0 once the faults have ended.
struct Faults {
  double break_stream = 0;
  double break_call = 0;
  double crash_before_commit = 0;
  double crash_after_commit = 0;
  double stall = 0;
  double full_disk = 0;
  double fail_sync = 0;
  double slow_order = 0;
  double crash_aggregator = 0;
  double break_group = 0;
  double slow_message = 0;
  double corrupt_values = 0;
  // Largest usual delay of a message.
  absl::Duration delay = absl::Milliseconds(20);
};

// Bugs that tests insert into the simulated shells, to test that the checker detects them.
enum class Plant {
  kNone,
  // The coordinator restarts without its counters of generations, runs and members.
  kForgetMeta,
  // The coordinator restarts with a decreased counter of generations.
  kReuseGeneration,
  // The coordinator restarts without its store.
  kForgetStore,
  // The coordinator sends before its transaction is durable, and may crash in between.
  kSendBeforeCommit,
  // The coordinator does not store groups.
  kDropGroupRecords,
  // The aggregator applies the participants in another order.
  kShuffleApply,
  // The aggregator applies the first participant with twice its weight.
  kWrongWeight,
  // The aggregator does not apply the last participant.
  kSkipParticipant,
  // The aggregator's disk reports writes as durable that are not.
  kEarlyStaged,
  // The aggregator serves the version before the requested one.
  kServeOldVersion,
  // The worker continues without adopting the version.
  kIgnoreVersion,
  // A rank pulls only the parts that the first shard has.
  kPullOneShard,
  // A worker says in every Hello that it is another one on another host, so that the coordinator
  // cannot remember its failures.
  kHideIdentity,
  // Heartbeats do not contain the progress of the training thread.
  kHideProgress,
  // Members wait for their next heartbeat by the wall clock.
  kWallClockHeartbeats,
  // A full queue of a control stream drops messages, and the stream continues.
  kDropFromFullQueue,
  // A worker does not repeat unanswered messages after it has connected again.
  kForgetUnanswered,
  // A worker continues to train after it was released.
  kIgnoreRelease,
  // A group trains the samples of the run's first division among groups.
  kIgnoreDivision,
  // The rank trains before it receives Start.
  kTrainUnstarted,
  // The rank contributes the values of the previous version.
  kContributeUntrained,
  // A group that starts while others wait for it trains until its boundary nevertheless.
  kIgnoreCatchUp,
  // The clock that the coordinator reads stands still.
  kNoTicks,
  // The last write of a transaction is lost.
  kLoseOneWrite,
  // Every order that an aggregator carries out postpones the repetition of one that has failed.
  kPostponeRetries,
  // Ranks take the silence of an aggregator that is away for an error.
  kIgnoreAbsence,
};

class World {
 public:
  explicit World(uint64_t seed) : dice(seed) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  template <typename... Parts>
  void Log(const Parts&... parts) {
    if (logs()) AddLine(absl::StrCat(parts...));
  }
  // Whether a listener receives the log, which ends when an invariant is broken.
  bool logs() const { return listener && !violation; }
  void Count(const std::string& name, uint64_t amount = 1) { counters[name] += amount; }
  // The first broken invariant ends the simulation.
  template <typename... Parts>
  void Violate(const Parts&... parts) {
    if (violation) return;
    const std::string text = absl::StrCat(parts...);
    Log("VIOLATION ", text);
    violation = text;
  }
  // Random delay of one message.
  absl::Duration Delay() {
    const absl::Duration usual = dice.Between(absl::Milliseconds(1), faults.delay);
    return dice.Chance(faults.slow_message)
               ? usual + dice.Between(absl::Seconds(0), absl::Seconds(4))
               : usual;
  }

  Dice dice;
  // By host, which is also the name of its only member.
  std::map<std::string, HostConditions> hosts;
  Timeline timeline;
  Faults faults;
  Plant plant = Plant::kNone;
  // The runs have an outer optimizer or coded rounds. Momentum and residual depend on which files
  // an aggregator has lost, and when, which the invariants follow for lost and damaged files, but
  // not for older ones.
  bool has_outer_runs = false;
  // Runs of which an aggregator has told the coordinator that it cannot create its shard.
  std::set<std::string> not_created;
  // Versions of runs that may have been restored with wrong values.
  std::set<std::pair<std::string, uint32_t>> corrupted;
  // Called, once, when an aggregator has restored a shard from the values of a group.
  std::function<void()> on_seed_applied;
  // Time without progress after which a rank's exchange with a shard ends.
  absl::Duration exchange_silence = absl::Seconds(90);
  // Limit of the calls of one kind that an aggregator serves at the same time.
  int max_calls = 64;
  // The number of the newest of them.
  uint64_t last_call = 0;
  std::map<std::string, uint64_t> counters;
  std::optional<std::string> violation;
  // Receives every line of the event log, if set.
  std::function<void(const std::string&)> listener;

 private:
  void AddLine(const std::string& text) const;
};

}  // namespace cadre::simulation
