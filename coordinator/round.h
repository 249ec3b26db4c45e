// One open round: who has contributed, and when it may close.
//
// The window that a quorum leaves to the others is learnt: four times the usual spread between the
// arrival that made the quorum and the last one, but not less than the run's min_grace and not more
// than two minutes beyond it, so that one long outage does not stop every later round.
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
  // Quorum 0: all live groups.
  Round(uint32_t quorum, absl::Duration min_grace) : quorum_(quorum), min_grace_(min_grace) {}

  // Begins to take contributions to `round`. Forgets those of the round before.
  void Open(uint32_t round);
  uint32_t round() const { return round_; }

  // Takes a contribution. False: the group (with this generation) is in already.
  // Requires: contributed.round() == round().
  bool Add(const v1::Contributed& contributed, uint32_t ranks, absl::Time now);
  // The group's generation is over.
  void Remove(uint32_t group) { arrivals_.erase(group); }
  bool Has(uint32_t group) const { return arrivals_.count(group) != 0; }
  // A contribution to the round that was closed last came too late; it teaches the window.
  void NoteLate(absl::Time now);

  // Whether it may close now, `live` being the groups with a started generation.
  bool MayClose(const std::vector<uint32_t>& live, absl::Time now) const;
  // When it will close without any further arrival; InfiniteFuture: not at all.
  absl::Time ClosesAt(const std::vector<uint32_t>& live) const;
  absl::Duration Grace() const;

  // Closes it: participants in group order, largest step, samples, mean loss.
  // Requires: somebody has contributed.
  v1::CommitRecord Close(const std::string& run, absl::Time now);

 private:
  struct Arrival {
    v1::Contributed contributed;
    uint32_t ranks = 0;
    absl::Time when;
  };

  // Time of the arrival that made the quorum; InfiniteFuture while there is none.
  absl::Time QuorumAt() const;
  void Learn(absl::Duration spread);

  const uint32_t quorum_;
  const absl::Duration min_grace_;
  uint32_t round_ = 0;
  std::map<uint32_t, Arrival> arrivals_;
  // Learnt: smoothed time from the quorum to the last arrival.
  absl::Duration spread_ = absl::ZeroDuration();
  // When the round closed last had its quorum.
  absl::Time last_quorum_ = absl::InfiniteFuture();
};

}  // namespace cadre
