// What is wrong with a host of the simulation at present, beyond processes that do not run.
//
// Every condition lasts until a time. A permanent one (InfiniteFuture) also outlasts the end of the
// faults: the runs must end without this host.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/timeline.h"

namespace cadre::simulation {

struct HostConditions {
  HostConditions() = default;
  HostConditions(const HostConditions&) = delete;
  HostConditions& operator=(const HostConditions&) = delete;

  // The process is stopped (SIGSTOP).
  Gate process;
  // The training thread hangs; the other threads, and thus the heartbeats, continue.
  Gate training{.outer = &process};
  // No control message from the host, or to it, is delivered.
  absl::Time cut_up = absl::InfinitePast();
  absl::Time cut_down = absl::InfinitePast();
  // Whether the host can connect to each of the coordinators that run at the same time.
  std::array<bool, 2> reaches = {true, true};
  // The host is cut off from all other members.
  absl::Time cut_bulk = absl::InfinitePast();
  // Control messages in both directions wait in short queues.
  absl::Time congested = absl::InfinitePast();
  // Each message of a bulk transfer takes `transfer`.
  absl::Time slow_link = absl::InfinitePast();
  absl::Duration transfer;
  // Preparing a group takes `preparation` longer.
  absl::Time slow_preparation = absl::InfinitePast();
  absl::Duration preparation;
  // What is read from the disk, or written to it, is done only then.
  absl::Time hung_disk = absl::InfinitePast();
  // The disk of an aggregator is full.
  absl::Time full_disk = absl::InfinitePast();
  // Slow work that has begun ends then, also if the cause has ended.
  absl::Time busy = absl::InfinitePast();
  // The same for orders of one run, which stop no other run.
  std::map<std::string, absl::Time> slow_runs;
  void NoteSlow(const std::string& run, absl::Time until) {
    absl::Time& slow = slow_runs.try_emplace(run, absl::InfinitePast()).first->second;
    slow = std::max(slow, until);
  }
  absl::Time SlowUntil(const std::string& run) const {
    const auto found = slow_runs.find(run);
    return found == slow_runs.end() ? absl::InfinitePast() : found->second;
  }
  // Preparing fails with this cause.
  absl::Time bad = absl::InfinitePast();
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  // The loss of the next step is not finite.
  bool diverges = false;

  // Whether nothing of this prevents a member on the host from doing its work in the usual time.
  bool IsHealthy(absl::Time now) const {
    for (const absl::Time until : {training.OpensAt(), cut_up, cut_down, cut_bulk, congested,
                                   slow_link, slow_preparation, hung_disk, full_disk, busy, bad}) {
      if (until > now) return false;
    }
    return !diverges;
  }

  // The faults end: all conditions but permanent ones and work in progress.
  void Heal() {
    for (absl::Time* until :
         {&process.until, &training.until, &cut_up, &cut_down, &cut_bulk, &congested, &slow_link,
          &slow_preparation, &hung_disk, &full_disk, &bad}) {
      if (*until < absl::InfiniteFuture()) *until = absl::InfinitePast();
    }
    diverges = false;
  }
};

}  // namespace cadre::simulation
