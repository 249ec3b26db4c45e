// The sample ledger: a version and those that it was made from use each position of the sequence of
// samples (model/data_position.h) at most once. Leaders of groups report the batches that they
// train; a commit uses those of its participants.
//
// A late change (averaging.staleness) is not followed: it may have been trained with positions that
// its group trains again after it has fallen behind. Runs whose records were replaced by older ones
// are not followed either.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SampleLedger {
 public:
  explicit SampleLedger(World& world) : world_(world) {}

  // A contribution has been trained with batches that begin at these positions.
  void OnStage(const v1::RankSlot& place, uint32_t round, std::vector<int64_t> positions);
  // The round is committed. Requires: it is reported once for each version, in order.
  void OnCommit(const v1::CommitRecord& commit, int64_t batch);

 private:
  // By run, round, group and generation.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint32_t>, std::vector<int64_t>> staged_;
  // What a version and those before it use, in ascending order, by run and version.
  std::map<std::string, std::map<uint32_t, std::vector<int64_t>>> used_;
  World& world_;
};

// The batches of one generation, as its leader trains them.
class TrainedBatches {
 public:
  TrainedBatches(SampleLedger& ledger, const v1::Assignment& assignment)
      : ledger_(ledger), assignment_(assignment) {}

  // The group has adopted a version of this step. It may then continue at a later step, with what
  // it has trained since its contribution.
  void OnAdopted(uint32_t step) { adopted_ = step; }
  // The next step is this one of this division.
  void OnStep(const v1::SampleDivision& division, uint32_t step);
  // The group contributes to the round when it has trained the steps before this one.
  void OnStage(uint32_t round, uint32_t step);

 private:
  // Discards the batches of steps that the group does not keep.
  void Settle(uint32_t step);

  SampleLedger& ledger_;
  const v1::Assignment& assignment_;
  std::optional<uint32_t> adopted_;
  std::vector<int64_t> positions_;
};

}  // namespace cadre::simulation
