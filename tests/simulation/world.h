// The state that all parts of one simulation share: time, randomness, faults, the log and counters.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/timeline.h"

namespace cadre::simulation {

// Probabilities of random faults; all 0 once the faults have ended. The simulator adds kills and
// network cuts.
struct Faults {
  // Per message on a control stream: the stream breaks.
  double break_stream = 0;
  // Per message of a bulk call: the call breaks.
  double break_call = 0;
  // Per transaction of the coordinator: it crashes immediately before, or after.
  double crash_before_commit = 0;
  double crash_after_commit = 0;
  // Per event: the coordinator stalls for seconds.
  double stall = 0;
  // Per write of a version: the disk is temporarily full.
  double full_disk = 0;
  // Per step of an aggregator's order: it crashes.
  double crash_aggregator = 0;
  // Per collective: a rank's connection to its peers breaks.
  double break_group = 0;
  // Largest usual delay of a message.
  absl::Duration delay = absl::Milliseconds(20);
  // Per message: it is delayed by seconds.
  double slow_message = 0;
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
  // The aggregator applies the first participant twice.
  kApplyTwice,
  // The aggregator stores the previous version as the new one.
  kSkipApply,
  // The aggregator acknowledges contributions that are not durable.
  kEarlyStaged,
  // The aggregator serves the version before the requested one.
  kServeOldVersion,
  // The worker continues without adopting the version.
  kIgnoreVersion,
};

class World {
 public:
  explicit World(uint64_t seed) : dice(seed) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  template <typename... Parts>
  void Log(const Parts&... parts) {
    AddLine(absl::StrCat(parts...));
  }
  void Count(const std::string& name, uint64_t amount = 1) { counters[name] += amount; }
  // The first broken invariant ends the simulation.
  template <typename... Parts>
  void Violate(const Parts&... parts) {
    if (violation) return;
    violation = absl::StrCat(parts...);
    AddLine(absl::StrCat("VIOLATION ", *violation));
  }
  // Random delay of one message.
  absl::Duration Delay() {
    const absl::Duration usual = dice.Between(absl::Milliseconds(1), faults.delay);
    return dice.Chance(faults.slow_message)
               ? usual + dice.Between(absl::Seconds(0), absl::Seconds(4))
               : usual;
  }

  Dice dice;
  Timeline timeline;
  Faults faults;
  Plant plant = Plant::kNone;
  std::map<std::string, uint64_t> counters;
  std::optional<std::string> violation;
  // The newest lines; every line is also passed to `listener`, if set.
  std::deque<std::string> last_lines;
  std::function<void(const std::string&)> listener;

 private:
  void AddLine(const std::string& text);
};

}  // namespace cadre::simulation
