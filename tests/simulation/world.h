// What everything in one simulation shares: time, chance, the log, counters, how bad things are.
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

// Probabilities of what goes wrong by itself; all 0 once the world has healed. Kills and cuts are
// the simulator's.
struct Faults {
  // Per message on a control stream: the stream breaks.
  double break_stream = 0;
  // Per leg of a bulk call: it breaks.
  double break_call = 0;
  // Per transaction of the coordinator: it dies just before, or just after.
  double crash_before_commit = 0;
  double crash_after_commit = 0;
  // Per event: the coordinator is held up for seconds.
  double stall = 0;
  // Per write of a version: the disk is full for now.
  double full_disk = 0;
  // Per step of an aggregator's order: it dies.
  double crash_aggregator = 0;
  // Per collective: a rank's connection to its peers breaks.
  double break_group = 0;
  // Longest usual delay of a message.
  absl::Duration delay = absl::Milliseconds(20);
  // Per message: it takes much longer.
  double slow_message = 0;
};

// Bugs that tests plant in the simulated shells, to see the checker find them.
enum class Plant {
  kNone,
  // The coordinator restarts without its counters of generations, runs and members.
  kForgetMeta,
  // ... on a store whose counter of generations was set back.
  kReuseGeneration,
  // ... without anything.
  kForgetStore,
  // It sends before its transaction is durable, and may die in between.
  kSendBeforeCommit,
  // It does not store what becomes of groups.
  kDropGroupRecords,
  // The aggregator takes the participants in another order.
  kShuffleApply,
  // ... applies the first participant twice.
  kApplyTwice,
  // ... keeps the version before as the new one.
  kSkipApply,
  // ... acknowledges contributions that are not on its disk.
  kEarlyStaged,
  // ... serves the version before the one asked for.
  kServeOldVersion,
  // The worker trains on without adopting.
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
  // How long a message takes now.
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
  // The last lines; every line goes to `listener` too, if there is one.
  std::deque<std::string> last_lines;
  std::function<void(const std::string&)> listener;
  // Hash of all lines.
  uint64_t log_hash = 0;
  uint64_t lines = 0;

 private:
  void AddLine(const std::string& text);
};

}  // namespace cadre::simulation
