// One open round: its contributions, and when it may close.
//
// After the quorum has contributed, the round waits for the other groups during a grace window. It
// is four times the smoothed delay between the arrival that completes the quorum and the last
// arrival, at least the run's min_grace and at most two minutes more than that, so that one long
// outage does not delay all later rounds. A group that has lost a stream is awaited for a short
// time only, so that a killed worker does not delay the others until its lease ends.
//
// The contribution of a group that leaves remains in the round when its generation ends
// (Contributed.leaves). It has the place of its group, so that a later generation of the same group
// cannot contribute to the same round.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Round {
 public:
  struct Options {
    // 0: all live groups.
    uint32_t quorum = 0;
    // The round does not close with fewer contributions.
    uint32_t min_groups = 1;
    absl::Duration min_grace;
  };
  explicit Round(const Options& options) : options_(options) {}

  // Starts `round` without contributions.
  void Open(uint32_t round);
  uint32_t round() const { return round_; }

  // Adds a contribution. Returns false if the group has contributed already.
  // Requires: contributed.round() == round().
  bool Add(const v1::Contributed& contributed, uint32_t ranks, absl::Time now);
  // The group's generation has ended: removes its contribution, unless that remains.
  void End(uint32_t group);
  // Removes the contributions of generations that have ended. Returns their number.
  size_t RemoveLeft();
  bool Has(uint32_t group) const { return arrivals_.count(group) != 0; }
  // Whether it has a contribution of a generation of the group that has ended.
  bool HasLeft(uint32_t group) const;
  // Number of contributions, and of those whose generations have ended.
  size_t arrived() const { return arrivals_.size(); }
  size_t left() const;
  // Whether the round closes soon without the other groups.
  bool HasQuorum() const { return options_.quorum > 0 && arrivals_.size() >= options_.quorum; }
  // A contribution to the last closed round arrived too late; the window adapts to it.
  void NoteLate(absl::Time now);

  // Live groups of which a rank has no stream, and until when they are awaited.
  using Away = std::map<uint32_t, absl::Time>;
  // Whether the round may close now. `live`: number of groups with a started generation, which
  // include all that are away and, unless their generation has ended, all that have contributed.
  bool MayClose(size_t live, const Away& away, absl::Time now) const;
  // When the round closes without further arrivals; InfiniteFuture: never.
  absl::Time ClosesAt(size_t live, const Away& away) const;
  absl::Duration Grace() const;

  // Closes the round. The commit has the participants in group order with their claims, and what
  // follows from these (SumUp). Requires: at least one contribution.
  v1::CommitRecord Close(const std::string& run, absl::Time now);
  // Adds to the commit that Close has returned how its participants spent the round, which accepts
  // contributions since `opened`.
  void FillTimes(absl::Time opened, v1::CommitRecord& commit) const;

 private:
  struct Arrival {
    v1::Contributed contributed;
    uint32_t ranks = 0;
    absl::Time when;
    bool left = false;
  };

  // Time of the arrival that completed the quorum; InfiniteFuture before.
  absl::Time QuorumAt() const;
  void AddDelay(absl::Duration delay);

  const Options options_;
  uint32_t round_ = 0;
  std::map<uint32_t, Arrival> arrivals_;
  // Exponential average of the time from the quorum to the last arrival.
  absl::Duration smoothed_delay_ = absl::ZeroDuration();
  // When the last closed round had its quorum.
  absl::Time last_quorum_ = absl::InfiniteFuture();
};

// Fills in what follows from the claims of the participants of a commit: the largest step, the
// median of the learning rates of the groups that have reached it, the samples, the mean loss and
// the metrics. Requires: at least one participant.
void SumUp(v1::CommitRecord& commit);

}  // namespace cadre
