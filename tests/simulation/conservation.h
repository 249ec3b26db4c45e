// Conservation: what a group trains is in a contribution, is carried over to a later one, or is
// dropped by a rule of the run file, and nothing is counted twice. The checker follows each
// position of each rank, from the version that the rank holds and the steps that it trains:
//
//   change        = own values - version + what is carried
//   contribution  = the change as coded, or the own values + what is carried
//   carried       = error_feedback * what the code has left out, if the version includes it, or
//                   else the change * weight for each round that it is late (averaging.staleness)
//   after a merge = version + what was trained since the contribution (averaging.overlap)
//
// With the expected mean of the contributions (invariants_values), the values of every version
// follow from the steps of training alone. The arithmetic is that of the ranks, so codes agree.
//
// What is carried outlives a generation with the vaults of its ranks. It is checked again in the
// next generation if that has the processes of all ranks that kept it.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "tensor/interval.h"
#include "tests/simulation/model.h"
#include "tests/simulation/sample_ledger.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// A value that the checker expects; nothing: it does not know.
using Expected = std::vector<std::optional<float>>;

// What the vaults of all ranks keep.
class Conservation {
 public:
  explicit Conservation(World& world) : world_(world), samples_(world) {}

  SampleLedger& samples() { return samples_; }

  // ---- A rank
  // Its vaults are those of the assignment's group, and no longer those of another one.
  void Enter(const v1::Assignment& assignment);
  // A rank has received it. That of rank 0 counts.
  void OnStart(const v1::Start& start);
  // It has restored what the group carries; returns that, by position.
  Expected Restore(const v1::Assignment& assignment, const std::vector<Interval>& spans);
  // What it keeps of a position.
  struct Kept {
    // The round of the contribution or, if that is settled, of the one before.
    uint32_t round = 0;
    uint32_t generation = 0;
    bool settled = true;
    // What was carried before the contribution, or is if that is settled.
    std::optional<float> carried = 0;
    // Whether the round exchanges the position; the change, and what its code has left out.
    bool exchanged = false;
    std::optional<float> change;
    std::optional<float> left_out;
    // An earlier contribution that is late: what counts if the run does not have the round, or if
    // the round does not exchange the position. Null: there is none.
    std::shared_ptr<const Kept> late;

    bool is_change() const { return !settled && exchanged; }
  };
  void Keep(const v1::Assignment& assignment, int64_t position, const Kept& kept);
  // What is carried of it if the group continues from this version.
  static std::optional<float> Settle(const v1::Averaging& averaging, const Kept& kept,
                                     uint32_t version, bool included, bool screened);
  void Expect(const v1::RankSlot& place, uint32_t round, Expected expected);
  // All ranks have staged the contribution.
  void OnContributed(const v1::Contributed& contributed);
  // The coordinator has sent it to rank 0.
  void OnDecision(const v1::Decision& decision);

  // ---- An aggregator has acknowledged a contribution: values, or the change of a frame, by
  // position.
  void Check(const v1::ContributionHeader& header, const std::vector<Interval>& positions,
             const Values& values);

 private:
  // Lineage, branch and group.
  using Key = std::tuple<std::string, uint32_t, uint32_t>;
  struct Group {
    // The ranks' addresses, which differ from process to process.
    std::set<std::string> holders;
    // One of them has given up what it kept.
    bool lost = false;
    // The ranks of the newest generation that have restored it.
    uint32_t generation = 0;
    std::set<uint32_t> restored;
    std::map<int64_t, Kept> positions;
  };
  static Key KeyOf(const v1::Assignment& assignment);

  World& world_;
  SampleLedger samples_;
  std::map<std::string, Key> entered_;
  // By generation.
  std::map<uint32_t, v1::Start> starts_;
  std::map<Key, Group> groups_;
  // Generations and rounds whose contributions are complete.
  std::set<std::pair<uint32_t, uint32_t>> contributed_;
  // Those of contributions that the group was told to be screened.
  std::set<std::pair<uint32_t, uint32_t>> screened_;
  // By run, generation, rank and round.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint32_t>, Expected> expected_;
};

// One rank of one generation.
class RankChanges {
 public:
  RankChanges(World& world, Conservation& conservation, const v1::Assignment& assignment,
              std::vector<Interval> spans);

  void Enter() { conservation_.Enter(assignment_); }
  // The rank has restored what survives generations; later calls have no effect.
  void OnRestored();
  void OnHeld(uint32_t version, const v1::Decision& decision, const Values& values);
  // The rank begins to stage its values.
  void OnStage(uint32_t round, uint32_t fragment, const Values& values);
  // A step begins from these values, and ends with those.
  void OnStep(const Values& values);
  void OnTrained(const Values& values) { live_ = values; }

 private:
  struct Staged {
    uint32_t round = 0;
    uint32_t fragment = 0;
    Values values;
    std::map<int64_t, Conservation::Kept> kept;
  };
  // The change as its code transfers it, by position.
  Values Decoded(const std::vector<Interval>& exchanged, const Values& change) const;
  // The values after a merge.
  Values Merged(uint32_t version, const Values& values) const;
  const v1::Averaging& averaging() const { return assignment_.spec().averaging(); }

  World& world_;
  Conservation& conservation_;
  const v1::Assignment& assignment_;
  const std::vector<Interval> spans_;
  bool restored_ = false;
  Values base_;
  Values live_;
  Expected carried_;
  std::optional<Staged> staged_;
  // Since a version was adopted, the values after a merge.
  std::optional<Values> merged_;
};

}  // namespace cadre::simulation
