// Invariants of what the coordinator stores and sends, which follow from its own earlier records
// and from what ranks have contributed; the model's values are not needed for them:
//
//   - the epoch of a start is higher than that of the start before
//   - a round has at least averaging.min_groups participants, each with the samples that it staged
//   - samples and step of a run are those of its commits
//   - a Decision says that a contribution was included exactly if the commit record names the group
//   - the next boundary is one round away, or less by speed and at the end
//   - workers whose group is in a new version have no failures on record
//   - each generation has a key of its own, and aggregators receive the key of its group
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "tests/simulation/sample_ledger.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class RecordChecks {
 public:
  using Store = std::map<std::string, std::string>;

  // `is_restored`: whether the run's record was once replaced by an older one.
  RecordChecks(World& world, SampleLedger& sample_ledger,
               std::function<bool(const std::string&)> is_restored)
      : world_(world), is_restored_(std::move(is_restored)), sample_ledger_(sample_ledger) {}

  void OnStaged(const v1::ContributionHeader& header);
  void OnTransaction(const Store& before, const Store& after);
  void OnSent(const Store& store, const v1::CoordinatorMessage& message);

 private:
  void CheckRound(const v1::RunRecord& run, const v1::CommitRecord& commit);
  void CheckVersion(const v1::RunRecord& before, const v1::RunRecord& after,
                    const v1::CommitRecord& commit);
  void CheckSuccess(const Store& after, const v1::CommitRecord& commit);
  void CheckDecision(const Store& store, const v1::Decision& decision);
  void CheckBoundary(const v1::RunRecord& run, const v1::RankSlot& place, uint32_t step,
                     uint32_t next_step);
  void OnKeyAssigned(const v1::Assignment& assignment);
  void CheckKey(const std::string& run, uint32_t group, const std::string& key);

  World& world_;
  const std::function<bool(const std::string&)> is_restored_;
  SampleLedger& sample_ledger_;
  // The samples of each contribution by run, round, group and generation.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint32_t>, uint64_t> samples_;
  // The place of rank 0 of the generation that has the key.
  std::map<std::string, v1::RankSlot> places_by_key_;
};

}  // namespace cadre::simulation
