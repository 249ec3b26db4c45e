// The invariants that must hold after every event. The simulated shells (stand-ins for the
// programs' threads, streams and disks) report all events; the checker records them and ends the
// simulation at the first contradiction.
//
//   - numbers of generations, runs, members and rounds are never reused, also after restarts
//   - the participants of a durable commit record never change, and Apply has the same participants
//   - participants are live generations whose slices were all acknowledged as durable
//   - every version is the result of its commit record on the previous version, at all holders, and
//     that of a rollback has the values and states of the version that it restores
//   - acknowledged contributions, runs, commits and versions are not lost
//   - a shard with a copy is not restored from values of a group, which have no states, before two
//     disks are lost
//   - a worker belongs to at most one group, and a rank to one worker
//   - ended runs remain ended; they are DONE unless several hosts, or the only one, could not train
//     them; they are parked only if a disk was lost, or the loss has diverged twice
//   - a worker with which nothing is wrong remains registered
//   - two coordinators that run at the same time do not make different versions of one number
//
// Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/records.pb.h"
#include "server/ledger.h"
#include "tests/simulation/conservation.h"
#include "tests/simulation/model.h"
#include "tests/simulation/record_checks.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Invariants {
 public:
  using Store = std::map<std::string, std::string>;

  Invariants(World& world, std::function<size_t()> connected_workers)
      : world_(world),
        connected_workers_(std::move(connected_workers)),
        conservation_(world),
        record_checks_(world, conservation_.samples(),
                       [this](const std::string& run) { return IsRestored(run); }) {}

  // ---- The coordinator
  // The store of the coordinator with this number has changed from `before` to `after`.
  void OnTransaction(size_t coordinator, const Store& before, const Store& after);
  void OnSent(const Store& store, const v1::CoordinatorMessage& message);
  void OnSubmitted(const Store& store, const std::string& run);
  // The user wants to delete the run, which is refused while it is live.
  void OnDeleteRequested(const std::string& run) { to_delete_.insert(run); }
  // The store has become an older copy of itself: what was decided since is on the aggregators
  // only.
  void OnStoreRestored(size_t coordinator, const Store& store);
  // Another coordinator starts with this copy of the store.
  void OnSecondCoordinator(size_t coordinator, const Store& store);
  // One of two coordinators has ended; the other one has this store.
  void OnCoordinatorEnded(size_t coordinator, const Store& left);

  // ---- Aggregators
  // `values`: what was transferred.
  void OnStaged(const std::string& aggregator, const v1::ContributionHeader& header,
                const Values& values);
  // Contributions of the aggregator may be gone: it `holds` the others, and those that are gone
  // `may_be` gone.
  void OnContributionsRemoved(const std::string& aggregator,
                              const std::function<bool(const ContributionKey&)>& holds,
                              const std::function<bool(const ContributionKey&)>& may_be);
  // The aggregator's disk was removed; or a file of it is damaged, which may be noticed later, with
  // what was written meanwhile.
  void OnDiskLost(const std::string& aggregator, bool is_damaged = false);
  bool HasLostDisk(const std::string& aggregator) const { return lost_disks_.contains(aggregator); }
  bool HasLostDisk(const v1::RunRecord& run) const;
  // Whether the run's record was once replaced by an older one.
  bool IsRestored(const std::string& run) const { return restored_.contains(run); }
  // The aggregator has durably written the version; `values` are those of `span`.
  void OnVersionWritten(const std::string& aggregator, const std::string& run, uint32_t version,
                        Interval span, const Values& values);

  // ---- Workers
  // Whether a rank may find that a version as pulled has another digest than the one committed.
  bool MayPullWrongValues(const std::string& run) const;
  Conservation& conservation() { return conservation_; }
  // The rank has loaded the version; `values` contains its part of the model.
  void OnHeld(const v1::RankSlot& place, uint32_t version, const Values& values,
              const std::vector<Interval>& owned);
  // The rank's host could not continue.
  void OnFailed(const v1::RankSlot& place, const std::string& host, v1::FailureCause cause);
  void OnTraining(const v1::RankSlot& place, bool begins);

  // Called after the last event.
  void CheckEnd(const Store& store,
                const std::function<std::optional<uint32_t>(
                    const std::string& aggregator, const std::string& run)>& version_on_disk);

 private:
  using GroupKey = std::pair<std::string, uint32_t>;
  struct Generation {
    GroupKey group;
    std::vector<std::string> members;
    bool started = false;
  };
  // What one coordinator knows of the generations.
  struct View {
    // The current generation of each slot in the durable records.
    std::map<GroupKey, uint32_t> current;
    std::set<uint32_t> ended;
    // All that it has assigned or found in its store.
    std::set<uint32_t> known;
    uint32_t newest = 0;
    // The newest before the transaction, whose groups are not in the order in which they are
    // formed.
    uint32_t newest_before = 0;
  };
  // A closing round, and the version that it makes.
  struct Rival {
    v1::CommitRecord closed;
    Values values;
  };

  void CheckGroup(View& view, const v1::GroupRecord& record);
  void CheckMembersOnce(const Store& store);
  void CheckRun(const Store& after, const v1::RunRecord& before, const v1::RunRecord& record);
  void CountReassignedParts(const v1::EvaluationRecord& before, const v1::EvaluationRecord& after);
  void CheckRunEnd(const v1::RunRecord& record);
  // Whether the failures since the last commit justify that the run ends.
  bool MayFail(const v1::RunRecord& record) const;
  bool IsRebuilt(const v1::RunRecord& run, const v1::CommitRecord& commit);
  void CheckNewCommit(const View& view, const Store& before, const Store& after,
                      const v1::CommitRecord& commit);
  void CheckParticipant(const View& view, const v1::RunRecord& run, const v1::CommitRecord& commit,
                        const v1::Participant& in);
  // An aggregator has written the values of a rival: it becomes the version, unless another one
  // has.
  void ChooseRival(const std::string& aggregator, const std::pair<std::string, uint32_t>& version,
                   Interval span, const Values& values);
  void CheckChangedCommit(const v1::CommitRecord& before, const v1::CommitRecord& commit);
  void CheckDigests(const v1::CommitRecord& commit);
  // Records what the rank contributes: the change in a frame, or values.
  void RecordContribution(const v1::ContributionHeader& header, const Values& values);
  // Whether the values are those of the version before, and the steps that the header says.
  void CheckTraining(const v1::ContributionHeader& header, const std::vector<Interval>& positions,
                     const Values& values);
  Values ValuesOf(const v1::RunRecord& run, const v1::CommitRecord& commit);
  // What the round makes of the values at these positions, in order, and of their states.
  Values MeanOf(const v1::RunRecord& run, const v1::CommitRecord& commit,
                const std::vector<Interval>& positions, const Values& base,
                std::array<Values, 3>& states);
  void OnSeed(const Store& store, const v1::Apply& apply);
  void OnErased(View& view, const std::string& key, const std::string& bytes, const Store& after);
  // Whether no coordinator has the generation.
  bool IsForgotten(uint32_t generation) const;

  World& world_;
  const std::function<size_t()> connected_workers_;
  Conservation conservation_;
  RecordChecks record_checks_;

  std::map<uint32_t, Generation> generations_;
  // By number of the coordinator.
  std::map<size_t, View> views_;
  std::set<std::string> submitted_;
  std::set<std::string> to_delete_;
  // Since its last commit: hosts that could not continue by cause, and generations that diverged.
  struct Failures {
    std::map<v1::FailureCause, std::set<std::string>> hosts;
    std::set<uint32_t> diverged;
  };
  // Since the newest commit, and between it and the one before: their reports may arrive later.
  std::map<std::string, Failures> failures_;
  std::map<std::string, Failures> earlier_failures_;
  // Runs whose records were replaced by older ones.
  std::set<std::string> restored_;
  struct MovedShards {
    // The versions of runs at the last moves of their shards, by run and shard.
    std::map<std::pair<std::string, int>, uint32_t> at;
    // Runs, and the aggregators that their shards have left.
    std::set<std::pair<std::string, std::string>> left;
    // And those that they have reached.
    std::set<std::pair<std::string, std::string>> reached;
    // Runs of which a shard continues from its copy.
    std::set<std::string> from_copies;
    bool Any(const std::string& run) const {
      const auto first = at.lower_bound({run, 0});
      return first != at.end() && first->first.first == run;
    }
  } moved_;
  std::map<std::string, v1::RunSpec> specs_;
  std::map<std::string, uint32_t> shards_;
  // Expected values of every version.
  std::map<std::string, std::map<uint32_t, Values>> versions_;
  // States of the outer optimizer, and the residual of coded versions, by run and version.
  std::map<std::string, std::map<uint32_t, std::array<Values, 3>>> outer_states_;
  // The contributions, of which coded ones are changes, by run, round, group and generation.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint32_t>, Values> contributions_;
  std::map<std::pair<std::string, uint32_t>, int> committed_;
  // Versions after 0, and the aggregators that have written their shards of them.
  struct WrittenVersions {
    // False: the aggregator may have lost it since.
    std::map<std::pair<std::string, uint32_t>, std::map<std::string, bool>> by;
    // Aggregators that have damaged files.
    std::set<std::string> damaged;
    bool Contains(const std::pair<std::string, uint32_t>& version) const {
      return by.contains(version);
    }
    // Whether none of them may have lost it.
    bool AllStore(const std::pair<std::string, uint32_t>& version) const;
    void Lose(const std::string& aggregator);
  } written_;
  // The record with which each round was closed.
  std::map<std::pair<std::string, uint32_t>, v1::CommitRecord> closed_;
  // Other closings of the same rounds, of which the aggregators may still make the version instead.
  std::map<std::pair<std::string, uint32_t>, std::vector<Rival>> rivals_;
  // What the first attempt at a round made, while another one was ordered: a shard that was lost
  // meanwhile may still carry out the first order.
  std::map<std::pair<std::string, uint32_t>, Rival> first_attempts_;
  // All acknowledged contributions, and those that must still be on the disk of their aggregator.
  std::set<std::pair<ContributionKey, std::string>> acknowledged_;
  std::set<std::pair<ContributionKey, std::string>> kept_;
  std::set<std::string> lost_disks_;
  std::set<std::tuple<std::string, uint32_t, uint32_t, uint32_t>> training_;
};

}  // namespace cadre::simulation
