// What the ledger (ledger.h) knows of one run.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/contributions.h"
#include "server/ledger_values.h"
#include "tensor/interval.h"

namespace cadre {

Refused BeingRestored(const std::string& run);

// Whether the version that the order makes depends on the version before, or on one that it
// restores.
bool RequiresBefore(const v1::Apply& order);

struct LedgerRun {
  RunTerms terms;
  Interval span;
  bool closed = false;
  // Its files are to be removed.
  bool leaving = false;
  std::optional<StoredVersion> current;
  // Those before `current` that are stored, by version.
  std::map<uint32_t, StoredVersion> older;
  // Only without `current`.
  std::optional<uint32_t> hollow;
  // The last Apply; contributions of others to its round are refused.
  v1::Apply closing;
  bool applying = false;
  // Whether an order may not make the newest version again (Apply.attempt).
  bool published = true;
  Contributions contributions;

  // The version that the next round follows, stored or hollow; nothing before version 0.
  std::optional<uint32_t> newest() const;
  // Null if the version is not stored.
  const StoredVersion* Find(uint32_t version) const;
  // Whether the version remains: it is one of the newest two, or the newest order names it.
  bool Keeps(uint32_t version) const;
  // Whether the order makes the newest version again, of other participants.
  bool Remakes(const v1::Apply& apply) const;
  // The newest version is to be made again. Requires: Remakes.
  void Retract();
  // Contributions to versions up to this one are not needed any more; returns them.
  std::vector<ContributionKey> DropUntil(uint32_t version);
  // Each of these checks one aspect of a header, or of an order, and returns the refusal, if any.
  std::optional<Refused> CheckIdentity(const v1::ContributionHeader& header) const;
  std::optional<Refused> CheckRound(const v1::ContributionHeader& header) const;
  std::optional<Refused> CheckGeneration(uint32_t group, uint32_t generation) const;
  // Requires: there is a newest version, and that of the order is not stored.
  std::optional<Refused> CheckOrder(const v1::Apply& apply) const;
  std::optional<Refused> CheckRestores(const v1::Apply& apply) const;
  // Adds the contributions of the participants of the plan's order. Returns why they are not
  // complete: Incomplete or Refused.
  std::optional<ApplyDecision> AddSources(ApplyPlan& plan) const;
  // Fences older generations of the group. Their incomplete contributions are obsolete and are
  // returned; complete ones may have been committed.
  std::vector<ContributionKey> Fence(uint32_t group, const GroupGeneration& generation);
};

}  // namespace cadre
