// What must hold at every moment, whatever goes wrong. The simulated shells tell it what happens;
// it keeps its own account and ends the simulation at the first contradiction.
//
//   - generations, runs, members and rounds are never used twice, coordinator restarts included
//   - a round's record, once durable, never changes its participants; Apply follows it exactly
//   - participants were live generations whose every slice had been acknowledged as durable
//   - every version is exactly what its commit record makes of the version before; whoever holds it
//     holds that
//   - what was acknowledged is not lost: contributions, runs, commits, versions
//   - a worker belongs to one group at most, a rank's place to one worker
//   - ended runs stay ended, and end well unless the limits say otherwise
//
// Thread-compatible.
#pragma once

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
#include "tests/simulation/model.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Invariants {
 public:
  using Store = std::map<std::string, std::string>;
  // Whether the contribution is wholly on that aggregator's disk.
  using OnDisk = std::function<bool(const std::string& aggregator, const ContributionKey& key)>;

  // `may_fail`: whether runs may end as failed because groups failed too often.
  Invariants(World& world, bool may_fail, OnDisk on_disk)
      : world_(world), may_fail_(may_fail), on_disk_(std::move(on_disk)) {}

  // ---- The coordinator
  // The store was `before`, and is `after` from now on.
  void OnTransaction(const Store& before, const Store& after);
  void OnSent(const Store& store, const v1::CoordinatorMessage& message);
  void OnSubmitted(const Store& store, const std::string& run);

  // ---- Aggregators
  void OnStaged(const std::string& aggregator, const v1::ContributionHeader& header);
  void OnContributionRemoved(const std::string& aggregator, const ContributionKey& key,
                             uint32_t version, bool closed, absl::string_view why);
  void OnVersionWritten(const std::string& aggregator, const v1::Apply& apply,
                        const ApplyPlan& plan, const Words& words);

  // ---- Workers
  // The rank holds the version, its part of it in `words`.
  void OnHeld(const v1::RankSlot& place, uint32_t version, const Words& words,
              const std::vector<FlatSpan>& owned);
  void OnTraining(const v1::RankSlot& place, bool begins);

  // After every event.
  void Check();
  // After the last one.
  void CheckEnd(const Store& store,
                const std::function<std::optional<uint32_t>(
                    const std::string& aggregator, const std::string& run)>& version_on_disk);

 private:
  using GroupKey = std::pair<std::string, uint32_t>;
  struct Generation {
    GroupKey group;
    std::vector<std::string> members;
    bool started = false;
    bool over = false;
  };

  void CheckMeta(const v1::MetaRecord& before, const v1::MetaRecord& after);
  void CheckGroup(const v1::GroupRecord& record);
  void CheckMembersOnce(const Store& store);
  void CheckRun(const Store& after, const v1::RunRecord& before, const v1::RunRecord& record);
  void CountMovedParts(const v1::EvaluationRecord& before, const v1::EvaluationRecord& after);
  void CheckRunEnd(const v1::RunRecord& record);
  void CheckNewCommit(const Store& before, const Store& after, const v1::CommitRecord& commit);
  void CheckParticipant(const v1::RunRecord& run, const v1::CommitRecord& commit,
                        const v1::Participant& in);
  void CheckChangedCommit(const v1::CommitRecord& before, const v1::CommitRecord& commit);
  void CheckDigests(const v1::CommitRecord& commit);
  void MakeVersion(const v1::RunRecord& run, const v1::CommitRecord& commit);
  void Lost(const std::string& key);

  World& world_;
  const bool may_fail_;
  const OnDisk on_disk_;

  uint32_t newest_generation_ = 0;
  std::map<uint32_t, Generation> generations_;
  // Generation that fills a slot, by the durable records.
  std::map<GroupKey, uint32_t> current_;
  std::set<std::string> submitted_;
  std::map<std::string, v1::RunSpec> specs_;
  std::map<std::string, uint32_t> shards_;
  // What every version must be.
  std::map<std::string, std::map<uint32_t, Words>> versions_;
  std::set<std::pair<std::string, uint32_t>> committed_;
  // What was acknowledged, ever; and what of it must be on its aggregator's disk.
  std::set<std::pair<ContributionKey, std::string>> acknowledged_;
  std::set<std::pair<ContributionKey, std::string>> kept_;
  std::set<std::tuple<std::string, std::string, uint32_t>> written_;
  std::set<std::tuple<std::string, uint32_t, uint32_t, uint32_t>> training_;
};

}  // namespace cadre::simulation
