#include "worker/train/group_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/member/group_ranks.h"

namespace cadre {
namespace {

// A transport of which only the kinds of its links are used.
class LinksOnly final : public Transport {
 public:
  LinksOnly(int rank, std::vector<LinkKind> links) : rank_(rank), links_(std::move(links)) {}

  int rank() const override { return rank_; }
  int size() const override { return std::ssize(links_); }
  LinkKind link(int peer) const override { return links_[peer]; }
  bool on_device() const override { return links_.back() == LinkKind::kNccl; }
  absl::Status Run(int, const CallTag&, std::span<const Transfer>, const Combine&) override {
    return absl::UnimplementedError("no messages");
  }
  void Abort(absl::Status /*reason*/) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const int rank_;
  const std::vector<LinkKind> links_;
};

TEST(KindOfLinks, IsEqualOnAllRanks) {
  constexpr LinkKind kSelf = LinkKind::kSelf, kThreads = LinkKind::kThreads, kTcp = LinkKind::kTcp,
                     kShared = LinkKind::kSharedMemory, kNccl = LinkKind::kNccl;
  struct Case {
    // By rank and peer.
    std::vector<std::vector<LinkKind>> links;
    v1::LinkProfile::Kind kind;
  };
  for (const Case& example : {
           Case{{{kSelf, kThreads}, {kThreads, kSelf}}, v1::LinkProfile::THREADS},
           Case{{{kSelf, kShared}, {kShared, kSelf}}, v1::LinkProfile::SHARED_MEMORY},
           Case{{{kSelf, kTcp}, {kTcp, kSelf}}, v1::LinkProfile::TCP},
           // The last rank is on another host and sees only TCP.
           Case{{{kSelf, kShared, kTcp}, {kShared, kSelf, kTcp}, {kTcp, kTcp, kSelf}},
                v1::LinkProfile::SHARED_MEMORY_AND_TCP},
           Case{{{kNccl, kNccl}, {kNccl, kNccl}}, v1::LinkProfile::NCCL},
       }) {
    OnGroup(std::ssize(example.links), [&](Communicator& group) {
      const LinksOnly data(group.index(), example.links[group.index()]);
      const auto kind = KindOfLinks(data, group);
      ASSERT_TRUE(kind.ok()) << kind.status();
      EXPECT_EQ(*kind, example.kind);
    });
  }
}

v1::LinkProfile Link(double beta) {
  v1::LinkProfile link;
  link.set_beta(beta);
  return link;
}

TEST(LinkCache, KeepsLinksByPeersForALimitedTime) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  LinkCache cache;
  EXPECT_FALSE(cache.Get({"a:1", "b:1"}, start));
  cache.Put({"a:1", "b:1"}, Link(1), start);
  cache.Put({"a:1", "c:1"}, Link(2), start);
  cache.Put({"a:1", "b:1"}, Link(3), start + absl::Minutes(5));
  ASSERT_TRUE(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept));
  EXPECT_EQ(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept)->beta(), 3);
  EXPECT_EQ(cache.Get({"a:1", "c:1"}, start + LinkCache::kKept)->beta(), 2);
  EXPECT_FALSE(cache.Get({"b:1", "a:1"}, start));
  EXPECT_FALSE(cache.Get({"a:1", "c:1"}, start + LinkCache::kKept + absl::Seconds(1)));
  EXPECT_TRUE(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept + absl::Seconds(1)));
}

}  // namespace
}  // namespace cadre
