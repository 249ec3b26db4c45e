#include "member/state_vault.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/exchange_memory.h"
#include "tests/worker/train/checkpoint_testing.h"

namespace cadre {
namespace {

constexpr int64_t kSize = 97;
constexpr int kTensors = 2;

// The states of one rank, and their memory.
class RankStates {
 public:
  explicit RankStates(std::vector<Interval> ranges) : ranges_(std::move(ranges)) {
    int64_t size = 0;
    for (const Interval& range : ranges_) size += range.size();
    memory_.assign(kTensors, std::vector<float>(size, -1.0F));
    states.tensors.resize(kTensors);
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      int64_t at = 0;
      for (const Interval& range : ranges_) {
        states.tensors[tensor].push_back(
            {range, std::span(memory_[tensor]).subspan(at, range.size())});
        at += range.size();
      }
    }
  }
  RankStates(const Partition& partition, int rank)
      : RankStates(IntervalsOf(partition, kSize, rank)) {}
  RankStates(const RankStates&) = delete;

  static float ValueAt(int64_t position, int tensor, int seed) {
    return position + 0.125F * tensor + 1000.0F * seed;
  }
  void Fill(int seed) {
    states.updates.clear();
    for (const Interval& range : ranges_) states.updates.push_back({range, 10 * seed});
    ForEach([&](float& value, int64_t position, int tensor) {
      value = ValueAt(position, tensor, seed);
    });
  }
  // Positions for which `lost` is true are zero, and have made no update.
  void ExpectFilled(
      int seed, const std::function<bool(int64_t)>& lost = [](int64_t) { return false; }) {
    std::map<int64_t, int64_t> updates;
    for (const UpdateCount& each : states.updates) {
      EXPECT_FALSE(each.positions.empty());
      for (int64_t p = each.positions.begin; p < each.positions.end; ++p) updates[p] = each.updates;
    }
    for (const Interval& range : ranges_) {
      for (int64_t p = range.begin; p < range.end; ++p) {
        ASSERT_EQ(updates.contains(p), !lost(p)) << p;
        ASSERT_EQ(lost(p) ? 10 * seed : updates[p], 10 * seed) << p;
      }
    }
    ForEach([&](float& value, int64_t position, int tensor) {
      ASSERT_EQ(value, lost(position) ? 0 : ValueAt(position, tensor, seed)) << position;
    });
  }
  void ExpectUntouched() {
    ForEach([&](float& value, int64_t position, int) { ASSERT_EQ(value, -1.0F) << position; });
  }

  StateVault::States states;

 private:
  void ForEach(const std::function<void(float&, int64_t, int)>& use) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      for (const Owned& owned : states.tensors[tensor]) {
        for (int64_t i = 0; i < owned.positions.size(); ++i) {
          use(owned.values[i], owned.positions.begin + i, tensor);
        }
      }
    }
  }

  const std::vector<Interval> ranges_;
  std::vector<std::vector<float>> memory_;
};

v1::Assignment AssignmentIn(uint32_t generation, const std::string& lineage = "run-1.a") {
  v1::Assignment assignment;
  assignment.set_lineage(lineage);
  assignment.mutable_place()->set_generation(generation);
  return assignment;
}

// Fails its group instead of the call after the first `calls`.
class FailingTransport final : public Transport {
 public:
  FailingTransport(Transport& link, int calls) : link_(link), left_(calls) {}

  int rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  LinkKind link(int peer) const override { return link_.link(peer); }
  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override {
    if (left_-- == 0) Abort(absl::CancelledError("the generation has ended"));
    return link_.Run(channel, tag, transfers, combine);
  }
  void Abort(absl::Status reason) override { link_.Abort(std::move(reason)); }
  absl::Status status() const override { return link_.status(); }

  // Whether all calls were made.
  bool completed() const { return left_ >= 0; }

 private:
  Transport& link_;
  int left_;
};

// One vault per worker; worker i is rank i of a generation, unless a test states otherwise.
class StateVaultTest : public ::testing::Test {
 protected:
  // The ranks of a generation contribute to `round` with the values of `seed`.
  void Contribute(uint32_t generation, const Partition& partition, uint32_t round, int seed) {
    for (int rank = 0; rank < partition.ranks; ++rank) {
      vaults_[rank].Enter(AssignmentIn(generation));
      RankStates mine(partition, rank);
      mine.Fill(seed);
      vaults_[rank].Keep(round, mine.states);
    }
  }
  void ContributeAndReplicate(
      uint32_t generation, const Partition& partition, uint32_t round, int seed,
      const std::function<v1::Assignment(uint32_t)>& assignment = [](uint32_t generation) {
        return AssignmentIn(generation);
      }) {
    OnGroup(partition.ranks, [&](Communicator& group) {
      StateVault& vault = vaults_[group.index()];
      vault.Enter(assignment(generation));
      RankStates mine(partition, group.index());
      mine.Fill(seed);
      vault.Keep(round, mine.states);
      const absl::Status status = vault.Replicate(group);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  // The ranks of a generation, worker first + i for rank i, restore `version`.
  void Restore(uint32_t generation, const Partition& partition, uint32_t version, int first,
               const std::function<void(RankStates&, int64_t found)>& check) {
    OnGroup(partition.ranks, [&](Communicator& group) {
      StateVault& vault = vaults_[first + group.index()];
      vault.Enter(AssignmentIn(generation));
      RankStates mine(partition, group.index());
      const absl::StatusOr<int64_t> found = vault.Restore(version, &mine.states, group);
      ASSERT_TRUE(found.ok()) << found.status();
      check(mine, *found);
    });
  }
  void ExpectRestored(uint32_t generation, const Partition& partition, uint32_t version, int seed) {
    Restore(generation, partition, version, 0, [&](RankStates& mine, int64_t found) {
      EXPECT_EQ(found, kSize);
      mine.ExpectFilled(seed);
    });
  }

  std::vector<StateVault> vaults_{8};
};

TEST_F(StateVaultTest, StatesMoveToOtherOwners) {
  const Partition partitions[] = {{1, 0}, {2, 0}, {2, 7}, {3, 0}, {4, 10}, {5, 40}};
  for (const Partition& from : partitions) {
    for (const Partition& to : partitions) {
      vaults_ = std::vector<StateVault>(8);
      Contribute(1, from, 4, 3);
      if (to.ranks < from.ranks) continue;  // parts of ranks that are gone are lost
      ExpectRestored(2, to, 4, 3);
    }
  }
}

TEST_F(StateVaultTest, BothVersionsOfTheLastContributionCanBeRestored) {
  for (const uint32_t version : {4, 5}) {
    vaults_ = std::vector<StateVault>(8);
    Contribute(1, {2, 0}, 3, 3);
    Contribute(1, {2, 0}, 4, 4);
    Contribute(1, {2, 0}, 5, 5);
    ExpectRestored(2, {3, 4}, version, version);
  }
}

// A round may be contributed to again, after one that came to nothing.
TEST_F(StateVaultTest, RepeatedContributionReplacesItsOwnSnapshot) {
  for (const auto& [version, seed] : {std::pair(4U, 4), {5U, 6}}) {
    vaults_ = std::vector<StateVault>(8);
    Contribute(1, {2, 0}, 4, 4);
    Contribute(1, {2, 0}, 5, 5);
    Contribute(1, {2, 0}, 5, 6);
    ExpectRestored(2, {3, 4}, version, seed);
  }
}

TEST_F(StateVaultTest, StatesOfLaterVersionsAreNotRestored) {
  Contribute(1, {2, 0}, 4, 4);
  Restore(2, {2, 0}, 3, 0, [](RankStates& mine, int64_t found) {
    EXPECT_EQ(found, 0);
    mine.ExpectUntouched();
  });
}

// The other groups have committed versions 5 to 7 meanwhile.
TEST_F(StateVaultTest, LateGroupKeepsItsStates) {
  Contribute(1, {2, 0}, 4, 4);
  ExpectRestored(2, {3, 0}, 7, 4);
  ExpectRestored(3, {3, 8}, 7, 4);
}

// Worker 1 has trained longer, in a generation that has left worker 0 behind.
TEST_F(StateVaultTest, OnlyTheNewestVersionThatAnyRankHoldsIsRestored) {
  Contribute(1, {2, 0}, 4, 4);
  vaults_[1].Enter(AssignmentIn(2));
  RankStates mine({1, 0}, 0);
  mine.Fill(6);
  vaults_[1].Keep(6, mine.states);
  ExpectRestored(3, {2, 0}, 7, 6);
}

// A group has failed while its ranks replaced what they hold.
TEST_F(StateVaultTest, OlderVersionsHaveWhatTheNewestLacks) {
  Contribute(1, {1, 0}, 4, 4);
  vaults_[1].Enter(AssignmentIn(2));
  RankStates mine({1, 0}, 0);
  mine.Fill(6);
  mine.states.updates = {{{0, 20}, 60}};
  vaults_[1].Keep(6, mine.states);
  Restore(3, {2, 97}, 7, 0, [](RankStates& restored, int64_t found) {
    EXPECT_EQ(found, kSize);
    if (restored.states.updates.empty()) return;
    const std::vector<UpdateCount> expected = {{{0, 20}, 60}, {{20, kSize}, 40}};
    EXPECT_EQ(restored.states.updates, expected);
  });
}

// A generation that ends at any point of the restoration loses nothing.
TEST_F(StateVaultTest, RestorationThatIsCutOffLosesNothing) {
  for (const Partition& to : {Partition{2, 7}, Partition{3, 0}}) {
    for (int failing = 0; failing < to.ranks; ++failing) {
      bool completed = false;
      int calls = 0;
      for (; !completed && calls < 1000; ++calls) {
        vaults_ = std::vector<StateVault>(8);
        ContributeAndReplicate(1, {2, 0}, 4, 3);
        const Transports links = MakeTransports(Wire::kThreads, to.ranks);
        std::atomic<int> restored = 0;
        OnRanks(to.ranks, [&](int rank) {
          FailingTransport link(*links[rank], rank == failing ? calls : 1'000'000);
          Communicator group = WholeGroup(link);
          vaults_[rank].Enter(AssignmentIn(2));
          RankStates mine(to, rank);
          if (vaults_[rank].Restore(4, &mine.states, group).ok()) ++restored;
          if (rank == failing) completed = link.completed();
        });
        EXPECT_TRUE(!completed || restored == to.ranks);
        SCOPED_TRACE(absl::StrCat("rank ", failing, " fails after ", calls, " calls"));
        ExpectRestored(3, to, 4, 3);
      }
      EXPECT_TRUE(completed);
      EXPECT_GT(calls, 5);
    }
  }
}

// Which of two tensors is kept depends on the decision on a contribution.
TEST_F(StateVaultTest, SnapshotsAreSettled) {
  Contribute(1, {2, 0}, 3, 3);
  Contribute(2, {2, 0}, 4, 4);
  Contribute(3, {2, 0}, 5, 5);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::pair<uint32_t, uint32_t>> seen;
    vaults_[rank].Settle(4, [&](StateVault::Snapshot& each) {
      seen.emplace_back(each.version, each.generation);
      EXPECT_EQ(each.tensors.size(), size_t{kTensors});
      each.tensors = {each.tensors[1]};
      return each.version == 4;
    });
    EXPECT_EQ(seen, (std::vector<std::pair<uint32_t, uint32_t>>{{4, 2}}))
        << "two snapshots are held; the run does not have version 5";
    vaults_[rank].Settle(7, [&](const StateVault::Snapshot& each) {
      EXPECT_EQ(each.version, 4U);
      EXPECT_EQ(each.tensors.size(), 1U);
      return true;
    });
  }
  OnGroup(2, [&](Communicator& group) {
    StateVault& vault = vaults_[group.index()];
    vault.Enter(AssignmentIn(4));
    RankStates mine({2, 0}, group.index());
    mine.states.tensors.resize(1);
    const absl::StatusOr<int64_t> found = vault.Restore(7, &mine.states, group);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, kSize);
    const Owned& owned = mine.states.tensors[0].front();
    EXPECT_EQ(owned.values.front(), RankStates::ValueAt(owned.positions.begin, 1, 4));
  });
}

TEST_F(StateVaultTest, SettledBytesAreThoseAllocated) {
  for (const auto& [ranks, tensors] : {std::pair(1, 1), {1, 2}, {2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
    vaults_ = std::vector<StateVault>(8);
    OnGroup(ranks, [&](Communicator& group) {
      StateVault& vault = vaults_[group.index()];
      vault.Enter(AssignmentIn(1));
      const int64_t begin = 40 * group.index();
      RankStates mine(std::vector<Interval>{{begin, begin + 30}, {begin + 30, begin + 40}});
      mine.Fill(1);
      mine.states.tensors.resize(tensors);
      for (uint32_t round = 1; round <= 4; ++round) {
        vault.Keep(round, mine.states);
        ASSERT_TRUE(vault.Replicate(group).ok());
        if (round > 1) {
          EXPECT_EQ(vault.AllocatedBytes(), SettledBytes(40, tensors, ranks));
        }
        vault.Settle(round, [](StateVault::Snapshot& each) {
          each.tensors.resize(1);
          return true;
        });
      }
    });
  }
}

TEST_F(StateVaultTest, PartsOfALostRankAreZero) {
  Contribute(1, {2, 0}, 4, 3);
  Restore(2, {2, 9}, 4, /*first=*/1, [](RankStates& mine, int64_t found) {
    EXPECT_EQ(found, kSize - PartBegin(kSize, 1, 2));
    mine.ExpectFilled(3, [](int64_t position) { return position < PartBegin(kSize, 1, 2); });
  });
}

TEST_F(StateVaultTest, RanksThatHeldNothingKeepWhatTheyReceive) {
  Contribute(1, {1, 0}, 4, 3);
  ExpectRestored(2, {2, 0}, 4, 3);
  // The copy of the part that worker 0 has is there, too.
  Restore(3, {1, 0}, 4, /*first=*/1, [](RankStates& mine, int64_t found) {
    EXPECT_EQ(found, kSize);
    mine.ExpectFilled(3);
  });
}

TEST_F(StateVaultTest, TheLossOfOneRankLosesNothing) {
  for (const int ranks : {2, 3, 4}) {
    for (int lost = 0; lost < ranks; ++lost) {
      vaults_ = std::vector<StateVault>(8);
      ContributeAndReplicate(1, {ranks, 0}, 4, 3);
      // Its rank is given to a worker that holds nothing.
      vaults_[lost] = StateVault();
      ExpectRestored(2, {ranks, 5}, 4, 3);
      // What was restored was copied again.
      vaults_[(lost + 1) % ranks] = StateVault();
      ExpectRestored(3, {ranks, 0}, 4, 3);
    }
  }
}

TEST_F(StateVaultTest, TheLossOfOneHostLosesNothing) {
  const std::vector<std::vector<std::string>> groups = {
      {"a", "a", "[b]", "[b]"}, {"a", "b", "a", "b"}, {"a", "a", "b", "a", "b", "b"}, {"a", "b"}};
  for (const std::vector<std::string>& hosts : groups) {
    const int ranks = std::ssize(hosts);
    const auto on_hosts = [&](uint32_t generation) {
      v1::Assignment assignment = AssignmentIn(generation);
      for (int rank = 0; rank < ranks; ++rank) {
        assignment.add_peers(absl::StrCat(hosts[rank], ":", 7000 + rank));
      }
      return assignment;
    };
    for (const std::string& lost : hosts) {
      vaults_ = std::vector<StateVault>(8);
      ContributeAndReplicate(1, {ranks, 0}, 4, 3, on_hosts);
      for (int rank = 0; rank < ranks; ++rank) {
        if (hosts[rank] == lost) vaults_[rank] = StateVault();
      }
      ExpectRestored(2, {ranks, 0}, 4, 3);
    }
  }
}

// Each rank knows another address of a peer that has moved.
TEST_F(StateVaultTest, RanksAgreeOnWhoHasWhichCopy) {
  OnGroup(3, [&](Communicator& group) {
    StateVault& vault = vaults_[group.index()];
    v1::Assignment assignment = AssignmentIn(1);
    for (int rank = 0; rank < 3; ++rank) {
      assignment.add_peers(rank == 2 && group.index() > 0 ? "a:9"
                                                          : absl::StrCat("host-", rank, ":1"));
    }
    if (group.index() == 1) assignment.clear_peers();
    vault.Enter(assignment);
    RankStates mine({3, 0}, group.index());
    mine.Fill(3);
    vault.Keep(4, mine.states);
    const absl::Status status = vault.Replicate(group);
    EXPECT_TRUE(status.ok()) << status;
  });
  vaults_[1] = StateVault();
  ExpectRestored(2, {3, 0}, 4, 3);
}

// Ranks 0 and 1 are lost, which have what rank 0 owned.
TEST_F(StateVaultTest, WhatAllCopiesHadBeginsAgain) {
  ContributeAndReplicate(1, {3, 0}, 4, 3);
  vaults_[0] = vaults_[1] = StateVault();
  Restore(2, {3, 0}, 4, 0, [](RankStates& mine, int64_t found) {
    const int64_t begin = PartBegin(kSize, 1, 3);
    EXPECT_EQ(found, kSize - begin);
    mine.ExpectFilled(3, [&](int64_t position) { return position < begin; });
  });
  // Such positions are not held: a rank that returns has them.
  ContributeAndReplicate(1, {3, 0}, 4, 3);
  StateVault returns = vaults_[0];
  vaults_[0] = vaults_[1] = StateVault();
  Restore(2, {3, 0}, 4, 0, [](RankStates&, int64_t found) { EXPECT_LT(found, kSize); });
  vaults_[3] = returns;
  ExpectRestored(3, {4, 0}, 4, 3);
}

// Some positions have made fewer updates than others.
TEST_F(StateVaultTest, UpdatesAreCountedByPosition) {
  vaults_[0].Enter(AssignmentIn(1));
  RankStates mine({1, 0}, 0);
  mine.Fill(3);
  mine.states.updates = {{{0, 20}, 5}, {{20, 50}, 9}, {{60, kSize}, 9}};
  vaults_[0].Keep(4, mine.states);
  Restore(2, {2, 0}, 4, 0, [](RankStates& restored, int64_t found) {
    EXPECT_EQ(found, kSize - 10);
    const int64_t border = PartBegin(kSize, 1, 2);
    std::vector<UpdateCount> expected = {{{0, 20}, 5}, {{20, border}, 9}};
    if (restored.states.tensors[0].front().positions.begin > 0) {
      expected = {{{border, 50}, 9}, {{60, kSize}, 9}};
    }
    EXPECT_EQ(restored.states.updates, expected);
  });
}

TEST_F(StateVaultTest, TheNewestGenerationIsPreferred) {
  Contribute(1, {3, 0}, 4, 1);
  Contribute(2, {2, 0}, 4, 2);
  ExpectRestored(3, {3, 0}, 4, 2);
}

TEST_F(StateVaultTest, LaterSnapshotsAreDropped) {
  Contribute(1, {1, 0}, 4, 4);
  Contribute(1, {1, 0}, 5, 5);
  ExpectRestored(2, {1, 0}, 4, 4);
  ExpectRestored(3, {1, 0}, 5, 4);
}

TEST_F(StateVaultTest, AnotherRunFreesSnapshots) {
  Contribute(1, {1, 0}, 4, 4);
  vaults_[0].Enter(AssignmentIn(1, "run-2.a"));
  Restore(2, {1, 0}, 4, 0, [](RankStates&, int64_t found) { EXPECT_EQ(found, 0); });
}

// Their numbers are those of versions that exist again after a rollback, with other values.
TEST_F(StateVaultTest, RollbackFreesSnapshots) {
  Contribute(1, {1, 0}, 4, 4);
  v1::Assignment assignment = AssignmentIn(2);
  assignment.set_branch(4);
  vaults_[0].Enter(assignment);
  RankStates mine({1, 0}, 0);
  OnGroup(1, [&](Communicator& group) {
    const absl::StatusOr<int64_t> found = vaults_[0].Restore(4, &mine.states, group);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, 0);
  });
}

TEST_F(StateVaultTest, LeavingRanksHandOver) {
  const Partition before{4, 6};
  for (const std::vector<bool>& leaving :
       {std::vector<bool>{false, false, true, true}, {false, true, true, true}}) {
    vaults_ = std::vector<StateVault>(8);
    Contribute(1, before, 4, 3);
    OnGroup(before.ranks, [&](Communicator& group) {
      const absl::Status status = vaults_[group.index()].HandOver(4, leaving, group);
      EXPECT_TRUE(status.ok()) << status;
    });
    const int stay = std::count(leaving.begin(), leaving.end(), false);
    ExpectRestored(2, {stay, 0}, 4, 3);
  }
}

TEST_F(StateVaultTest, HandOverToARankThatHoldsNothing) {
  Contribute(1, {1, 0}, 4, 3);
  vaults_[1].Enter(AssignmentIn(1));
  OnGroup(2, [&](Communicator& group) {
    EXPECT_TRUE(vaults_[group.index()].HandOver(4, {true, false}, group).ok());
  });
  Restore(2, {1, 0}, 4, /*first=*/1, [](RankStates& mine, int64_t found) {
    EXPECT_EQ(found, kSize);
    mine.ExpectFilled(3);
  });
}

TEST_F(StateVaultTest, NobodyIsLeftToHandOverTo) {
  Contribute(1, {2, 0}, 4, 3);
  OnGroup(2, [&](Communicator& group) {
    EXPECT_TRUE(vaults_[group.index()].HandOver(4, {true, true}, group).ok());
  });
}

}  // namespace
}  // namespace cadre
